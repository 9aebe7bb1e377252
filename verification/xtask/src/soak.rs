//! Soaks every set-up: at least 2 000 real faults in five to eight minutes, or fewer than half as many. It wants the machine for itself: the
//! servers of all set-ups run at once.
//!
//! A set-up for which the machine may have been too slow (too few grants; a lock that was granted late, a lease that ran
//! out without a fault, a loss that was told late, a client that closed late, a lock that was left) is soaked again, alone
//! and with the same seed, and has to pass; twice, if it saw too little at the first time as well. Two holders, falling
//! fences, locks that a store has taken from their holders and lost updates are never excused.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::Command;

use crate::{at, job};

/// Nothing was violated, but too little was put to the test.
const VOID: i32 = 2;

/// Of these lines, as many are said again at the end.
const MOST_TOLD: usize = 8;

#[derive(Debug)]
pub(crate) struct Soaked {
    pub(crate) status: i32,
    pub(crate) shown: String,
}

impl Soaked {
    /// What has failed, in the words of the run that was judged last. For the end of the output: who keeps a part of it keeps
    /// that.
    pub(crate) fn failures(&self) -> Vec<String> {
        if self.status == 0 {
            return Vec::new();
        }
        let last = self.shown.rsplit("soak: seed ").next().unwrap_or_default();
        let failures = last.lines().filter(|line| tells_failure(line)).take(MOST_TOLD);
        let told: Vec<_> = failures.map(|line| format!("the soak: {line}")).collect();
        match &told[..] {
            [] => vec![format!("the soak ended with status {}", self.status)],
            _ => told,
        }
    }
}

/// The report goes to `$DISTLOCK_SOAK_OUT`, or else to a temporary folder, which is kept if something failed.
pub(crate) fn soak(options: &[&str]) -> io::Result<Soaked> {
    // The program that was built with the tests will do: most of the work is that of the servers. In another profile, all that it
    // depends on would be built once more.
    let mut cargo = Command::new("cargo");
    cargo.args([
        "build",
        "--profile",
        "test",
        "--locked",
        "--quiet",
        "--workspace",
        "--all-features",
        "--bin",
        "distlock-soak",
    ]);
    let status = job::status(&mut cargo)?;
    if status != 0 {
        return Ok(Soaked { status, shown: String::new() });
    }
    let asked = std::env::var_os("DISTLOCK_SOAK_OUT").map(PathBuf::from);
    let fresh = format!("distlock-soak.{}", std::process::id());
    let out = asked.clone().unwrap_or_else(|| std::env::temp_dir().join(fresh));
    at(out.display(), fs::create_dir_all(&out))?;
    let target = job::target();
    let soaked = judged(|more| {
        let said = out.join("said.txt");
        let mut soak = Command::new(target.join("debug/distlock-soak"));
        soak.args(["--hold", "20ms", "--out"]).arg(&out).args(options).args(more);
        let status = job::status(soak.stdout(at(said.display(), File::create(&said))?))?;
        Ok((status, at(said.display(), fs::read_to_string(&said))?))
    })?;
    if soaked.status != 0 {
        println!("the report is in {}", out.display());
    } else if asked.is_none() {
        at(out.display(), fs::remove_dir_all(&out))?;
    }
    Ok(soaked)
}

/// `play` runs the soak with some more options, and says its status and its output.
fn judged(mut play: impl FnMut(&[&str]) -> io::Result<(i32, String)>) -> io::Result<Soaked> {
    let mut shown = String::new();
    let mut show = |text: String| {
        print!("{text}");
        shown += &text;
    };
    let (mut status, said) = play(&[])?;
    show(summary(&said));
    let told = |mark| said.lines().find_map(|line| line.strip_prefix(mark)).unwrap_or_default();
    let (seed, again) = (told("soak: seed "), told("to be judged again: "));
    for setup in again.split(',').filter(|setup| !setup.is_empty()) {
        // What is void has seen too little, and is repeated; what is violated again is not excused.
        for time in ["first", "second"] {
            show(format!("repeated: soak: {setup}, alone, for the {time} time\n"));
            let said;
            (status, said) = play(&["--seed", seed, "--setup", setup])?;
            show(summary(&said));
            if status != VOID {
                break;
            }
        }
        if status != 0 {
            break;
        }
    }
    Ok(Soaked { status, shown })
}

fn tells_failure(line: &str) -> bool {
    ["void: ", "violated: "].iter().any(|mark| line.starts_with(mark))
}

/// What is said of each set-up stands in the report.
fn summary(said: &str) -> String {
    let mut is_of_all = false;
    let is_shown = |line: &&str| {
        is_of_all = (is_of_all || line.starts_with("== all set-ups")) && !line.is_empty();
        is_of_all
            || line.starts_with("soak: seed ")
            || tells_failure(line)
            || (line.starts_with("soak: ") && line.contains(" faults, "))
    };
    said.lines().filter(is_shown).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGAIN: &str =
        "soak: seed 42\n== redis\nto be judged again: redis,etcd\nsoak: 9 faults, 1 grants\n";

    /// The status, and the options of each run after the first.
    fn soaked(first: (i32, &str), later: &[i32]) -> (i32, Vec<String>) {
        let mut runs = Vec::new();
        let soaked = judged(|more| {
            runs.push(more.join(" "));
            Ok(match runs.len() {
                1 => (first.0, first.1.to_owned()),
                run => (later[run - 2], "soak: seed 42\n".to_owned()),
            })
        });
        (soaked.expect("runs").status, runs.split_off(1))
    }

    #[test]
    fn what_was_too_slow_is_soaked_again_alone_and_has_to_pass() {
        let (redis, etcd) = ("--seed 42 --setup redis", "--seed 42 --setup etcd");
        assert_eq!(soaked((1, AGAIN), &[0, 0]), (0, vec![redis.into(), etcd.into()]));
        assert_eq!(soaked((1, AGAIN), &[1]), (1, vec![redis.into()]));
        // What is void has one more run.
        assert_eq!(soaked((1, AGAIN), &[2, 0, 2, 2]).0, 2);
        let twice = vec![redis.into(), redis.into(), etcd.into()];
        assert_eq!(soaked((2, AGAIN), &[2, 0, 0]), (0, twice));
    }

    #[test]
    fn what_names_no_setup_is_final() {
        for status in [0, 1, 2, 130] {
            assert_eq!(soaked((status, "soak: seed 1\n"), &[]), (status, vec![]));
        }
    }

    #[test]
    fn what_has_failed_is_named() {
        let failures = |status, shown: &str| Soaked { status, shown: shown.to_owned() }.failures();
        let first = "soak: seed 4\nvoid: a\nviolated: S1: b\nsoak: 9 faults, c\n";
        assert_eq!(failures(0, first), [""; 0]);
        assert_eq!(failures(1, first), ["the soak: void: a", "the soak: violated: S1: b"]);
        // What has passed when it was repeated has not failed.
        let repeated = format!("{first}repeated: soak: redis\nsoak: seed 4\nvoid: d\n");
        assert_eq!(failures(2, &repeated), ["the soak: void: d"]);
        assert_eq!(failures(101, "soak: seed 4\n"), ["the soak ended with status 101"]);
    }

    #[test]
    fn what_holds_for_all_setups_is_shown() {
        let said = "soak: seed 4\n\n== redis\n  x\n\n== all set-ups\n  y\n\nz\nvoid: a\nviolated: b\nsoak: 9 faults, c\n";
        let shown = "soak: seed 4\n== all set-ups\n  y\nvoid: a\nviolated: b\nsoak: 9 faults, c\n";
        assert_eq!(summary(said), shown);
    }
}
