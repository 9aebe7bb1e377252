//! The clock of leases runs on while the machine sleeps. A machine that runs tests cannot be put to sleep, but in a time
//! namespace of its own a process sees what it would see after a sleep of a day: the clock of the boot is a day
//! ahead, and the clock that stands still meanwhile is not.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]
#![allow(clippy::disallowed_methods, reason = "it compares the clock of leases with another")]

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lock_core::{Clock, SystemClock};

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
    let trial = Trial::ignorable_test("a_lease_is_counted_while_the_machine_sleeps", judge);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
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

fn judge() -> Result<Completion, Failed> {
    let unshare = |program: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--time", "--boottime", &DAY.as_secs().to_string()]);
        command.args(program).env(TELLS, "1").output()
    };
    match unshare(&["true"]) {
        Ok(tried) if tried.status.success() => {}
        Ok(tried) => {
            let why = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
            return Ok(Completion::ignored_with(format!("no time namespace here: {why}")));
        }
        Err(error) => return Ok(Completion::ignored_with(format!("no unshare(1) here: {error}"))),
    }
    let here = Duration::from_nanos(SystemClock::default().now().as_nanos());
    let program = std::env::current_exe()?;
    let told = String::from_utf8(unshare(&[program.to_str().ok_or("a path")?])?.stdout)?;
    let (there, wakes) = told.trim().split_once(' ').ok_or_else(|| format!("it said {told:?}"))?;
    let ahead = Duration::from_nanos(there.parse()?).saturating_sub(here);
    if ahead < DAY {
        return Err(format!("after a sleep of a day the clock is only {ahead:?} ahead").into());
    }
    match wakes {
        "true" => Ok(Completion::Completed),
        _ => Err("after a sleep of a day the clock does not wake a sleeper in time".into()),
    }
}
