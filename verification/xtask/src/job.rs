//! A test program that cargo has built and `.ci/note-test` recorded: a script that runs it in its folder, with its
//! environment.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{at, sizes};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Job {
    pub(crate) name: String,
    path: PathBuf,
}

/// How a run of it has ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ended {
    /// Above 128 for a signal, as a shell has it.
    pub(crate) status: i32,
    /// What it has said on both channels.
    pub(crate) text: String,
    pub(crate) took: Duration,
    /// Seconds of processor: of the program, and of the servers that it has waited for.
    pub(crate) processor: f64,
}

/// A program, where its output goes, and its arguments.
const TIMED: &str = r#"TIMEFORMAT='%U %S'; { time "$0" "${@:2}" >"$1" 2>&1; } 2>"$1.times""#;

impl Job {
    /// The file is `NAME.XXXXXX.job`.
    fn new(path: PathBuf) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".job")?;
        let name = stem.rsplit_once('.')?.0.to_owned();
        Some(Self { name, path })
    }

    /// Those in the folder, by their names.
    pub(crate) fn all(folder: &Path) -> io::Result<Vec<Self>> {
        let mut jobs = Vec::new();
        for entry in at(folder.display(), fs::read_dir(folder))? {
            jobs.extend(Self::new(entry?.path()));
        }
        jobs.sort();
        Ok(jobs)
    }

    pub(crate) fn run(&self, arguments: &[&str], settings: &[(&str, String)]) -> io::Result<Ended> {
        let out = self.path.with_extension("out");
        let (mut command, job) = (Command::new("timeout"), self.command());
        command.args(["--foreground", "--kill-after=10"]).arg(sizes::LONGEST_PROGRAM.to_string());
        command.arg(job.get_program()).args(job.get_args()).args(arguments);
        command.envs(settings.iter().map(|(name, value)| (name, value)));
        run(&command, &out)
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new("bash");
        command.arg(&self.path);
        command
    }
}

/// Runs it to its end, with its output in a file.
pub(crate) fn run(command: &Command, out: &Path) -> io::Result<Ended> {
    let begun = Instant::now();
    let mut timed = Command::new("bash");
    timed.args(["-c", TIMED]).arg(command.get_program()).arg(out).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => timed.env(name, value),
            None => timed.env_remove(name),
        };
    }
    let status = status(timed.stdin(Stdio::null()))?;
    let took = begun.elapsed();
    let mut times = out.as_os_str().to_owned();
    times.push(".times");
    let times = PathBuf::from(times);
    let text = fs::read(out).map(|text| String::from_utf8_lossy(&text).into_owned());
    let processor = processor(&at(times.display(), fs::read_to_string(&times))?);
    Ok(Ended { status, text: at(out.display(), text)?, took, processor })
}

/// Runs it to its end. A status as a shell has it.
pub(crate) fn status(command: &mut Command) -> io::Result<i32> {
    use std::os::unix::process::ExitStatusExt as _;
    let status = command.status();
    let status = at(command.get_program().display(), status)?;
    Ok(status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1))
}

/// The times are in the last line: before it, a shell says by which signal a program ended.
fn processor(times: &str) -> f64 {
    let seconds = |word: &str| word.replace(',', ".").parse().unwrap_or(0.0);
    times.lines().last().unwrap_or_default().split(' ').map(seconds).sum()
}

/// The targets of `./test.sh quick`, beside libraries and programs.
const QUICK_TARGETS: &[&str] = &[
    "docs",
    "maps",
    "advisories",
    "dependencies",
    "packages",
    "project",
    "it",
    "metrics",
    "memory_*",
    "mutants",
    "small_backend",
    "conformance",
    "sqlite_conformance",
    "fake_jobs",
];

/// What of these needs no server, and one store that needs one.
fn is_quick(job: &str) -> bool {
    let begins = [
        "lock-core",
        "lock-testkit",
        "conformance-tests",
        "distlock-docs",
        "distlock-maps",
        "distlock-advisories",
        "distlock-dependencies",
        "distlock-packages",
        "distlock-project",
        "lock-redis-conformance",
        "lock-sql-sqlite",
        "xtask",
    ];
    job.contains("-lib-") || begins.iter().any(|begin| job.starts_with(begin))
}

/// Run elsewhere: the simulation is optimised, and each case that runs on one server of these stores runs on three, too; the
/// nightly workflow runs it on one.
const ELSEWHERE: &[&str] = &["lock-simulation-", "lock-etcd-conformance-", "lock-zk-conformance-"];

/// Whether a job is run among the tests or beside them.
fn is_wanted(job: &str, is_full: bool) -> bool {
    let is_elsewhere = ELSEWHERE.iter().any(|begin| job.starts_with(begin));
    !is_elsewhere && (is_full || is_quick(job))
}

/// The folder in which cargo builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// The arguments for cargo that build the test programs, all with the same features.
pub(crate) fn targets(is_full: bool) -> Vec<&'static str> {
    if is_full {
        return vec!["--tests"];
    }
    let named = QUICK_TARGETS.iter().flat_map(|target| ["--test", target]);
    ["--lib", "--bins"].into_iter().chain(named).collect()
}

/// The variable that names the program by which cargo runs what it has built.
pub(crate) fn runner() -> io::Result<String> {
    let version = at("rustc", Command::new("rustc").arg("-vV").output())?.stdout;
    let version = String::from_utf8_lossy(&version).into_owned();
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| io::Error::other("rustc -vV names no host"))?;
    Ok(format!("CARGO_TARGET_{}_RUNNER", host.to_uppercase().replace('-', "_")))
}

/// Has cargo build the test programs. Its runner records each of them, with the environment that cargo sets, instead
/// of running it. None if they do not build, which cargo has told.
pub(crate) fn recorded(folder: &Path, is_full: bool) -> io::Result<Option<Vec<Job>>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--locked", "--workspace", "--all-features"]).args(targets(is_full));
    let note = std::env::current_dir()?.join(".ci/note-test");
    cargo.env(runner()?, note).env("DISTLOCK_JOBS", folder);
    // Each run of a job sets these.
    cargo.env_remove("RUST_TEST_THREADS").env_remove("LOCK_TEST_REPEAT");
    let built = at("cargo", cargo.output())?;
    if !built.status.success() {
        print!(
            "{}{}",
            String::from_utf8_lossy(&built.stdout),
            String::from_utf8_lossy(&built.stderr)
        );
        return Ok(None);
    }
    let jobs = Job::all(folder)?.into_iter();
    Ok(Some(jobs.filter(|job| is_wanted(&job.name, is_full)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(script: &str) -> Ended {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("a-b-0f.Xy12zZ.job"), script).expect("a job");
        let jobs = Job::all(folder.path()).expect("jobs");
        assert_eq!(jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["a-b-0f"]);
        let threads = ("RUST_TEST_THREADS", "7".to_owned());
        jobs[0].run(&["--exact", "x y"], &[threads]).expect("a run")
    }

    #[test]
    fn a_job_is_run_with_its_arguments_and_settings() {
        let said = ended("echo $RUST_TEST_THREADS; printf '%s\\n' \"$@\" >&2; read x || exit 3");
        assert_eq!((said.status, said.text.as_str()), (3, "7\n--exact\nx y\n"));
        let killed = ended("i=0; while ((i++ < 200000)); do :; done; kill -SEGV $$");
        assert_eq!(killed.status, 139);
        assert!(killed.processor > 0.0 && killed.processor < 60.0, "{}", killed.processor);
    }

    #[test]
    fn a_quick_run_has_the_unit_tests_and_the_suite_on_three_stores() {
        for quick in [
            "lock-zk-lib-lock_zk-0a",
            "xtask-lib-xtask-0a",
            "lock-core-it-0a",
            "lock-redis-conformance-0a",
            "distlock-maps-0a",
        ] {
            assert!(is_wanted(quick, false) && is_wanted(quick, true), "{quick}");
        }
        let long =
            ["lock-redis-mutants-0a", "lock-etcd-cluster_conformance-0a", "redlock-model-check-0a"];
        for long in long {
            assert!(!is_wanted(long, false) && is_wanted(long, true), "{long}");
        }
        for elsewhere in
            ["lock-simulation-seeds-0a", "lock-etcd-conformance-0a", "lock-zk-conformance-0a"]
        {
            assert!(!is_wanted(elsewhere, true), "{elsewhere}");
        }
        assert_eq!(targets(true), ["--tests"]);
        assert!(targets(false).windows(2).any(|two| two == ["--test", "maps"]));
    }
}
