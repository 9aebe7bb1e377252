//! The clock of leases runs on while the machine sleeps. A machine that runs tests cannot be put to sleep, but in a time
//! namespace of its own a process sees what it would see after a sleep of a day: the clock of the boot is a day
//! ahead, and the clock that stands still meanwhile is not. A build with mutants shows that the wrong clocks are seen.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]
#![allow(clippy::disallowed_methods, reason = "it compares the clock of leases with another")]

use std::process::{Command, ExitCode, Output};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lock_core::testing::Mutant;
use lock_core::{Clock, SystemClock};

const NAME: &str = "a_lease_is_counted_while_the_machine_sleeps";
/// Makes this program tell its clock.
const TELLS: &str = "DISTLOCK_TELLS_ITS_CLOCK";
/// How late a sleeper may be woken on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(86_400);

fn main() -> ExitCode {
    if std::env::var_os(TELLS).is_some() {
        tell();
        return ExitCode::SUCCESS;
    }
    let right = Trial::ignorable_test(NAME, || in_a_namespace(|| seen("")?.map_err(Failed::from)));
    let trials = std::iter::once(right).chain(wrong_ones()).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

#[cfg(not(distlock_mutants))]
fn wrong_ones() -> impl Iterator<Item = Trial> {
    std::iter::empty()
}

#[cfg(distlock_mutants)]
fn wrong_ones() -> impl Iterator<Item = Trial> {
    let dies = |mutant: &'static Mutant| match seen(mutant.name)? {
        Err(_) => Ok(()),
        Ok(()) => {
            let Mutant { name, what, killed_by } = mutant;
            Err(Failed::from(format!("{name}: SURVIVED {killed_by}: {what}")))
        }
    };
    lock_core::mutants::CLOCK_MUTANTS.iter().map(move |mutant| {
        assert_eq!(mutant.killed_by, NAME);
        let name = format!("{}_is_seen", mutant.name);
        Trial::ignorable_test(name, move || in_a_namespace(|| dies(mutant)))
    })
}

/// Prints the clock, and whether it wakes a sleeper in time.
fn tell() {
    let clock = SystemClock::default();
    let now = clock.now().as_nanos();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let begun = Instant::now();
    let sleep = clock.sleep(Duration::from_millis(200));
    // A sleeper that is asked at the limit sees that its time is over, although nobody has woken it.
    let _ = runtime.block_on(async { tokio::time::timeout(LIMIT, sleep).await });
    let took = begun.elapsed();
    println!("{now} {}", (Duration::from_millis(199)..LIMIT).contains(&took));
}

/// Runs the program after a sleep of a day.
fn unshare(program: &str, mutant: &str) -> std::io::Result<Output> {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--time", "--boottime", &DAY.as_secs().to_string(), program]);
    command.env(TELLS, "1").env(Mutant::VARIABLE, mutant).output()
}

/// What `judge` says, if there can be such a namespace here.
fn in_a_namespace(judge: impl FnOnce() -> Result<(), Failed>) -> Result<Completion, Failed> {
    let why_not = match unshare("true", "") {
        Ok(tried) if tried.status.success() => return judge().map(|()| Completion::Completed),
        Ok(tried) => {
            let why = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
            format!("no time namespace here: {why}")
        }
        Err(error) => format!("no unshare(1) here: {error}"),
    };
    match std::env::var("LOCK_TEST_REQUIRE") {
        Ok(required) if required == "all" => Err(why_not.into()),
        _ => Ok(Completion::ignored_with(why_not)),
    }
}

/// What is seen to be wrong with the clock that makes the mistake of this name.
fn seen(mutant: &str) -> Result<Result<(), String>, Failed> {
    let here = Duration::from_nanos(SystemClock::default().now().as_nanos());
    let program = std::env::current_exe()?;
    let told = unshare(program.to_str().ok_or("a path")?, mutant)?;
    let told = String::from_utf8(told.stdout)?;
    let (there, wakes) = told.trim().split_once(' ').ok_or_else(|| format!("it said {told:?}"))?;
    let ahead = Duration::from_nanos(there.parse()?).saturating_sub(here);
    Ok(match wakes.parse()? {
        _ if ahead < DAY => {
            Err(format!("after a sleep of a day the clock is only {ahead:?} ahead"))
        }
        true => Ok(()),
        false => Err("after a sleep of a day the clock does not wake a sleeper in time".to_owned()),
    })
}
