//! CPU-bound checks, run on idle processors only beside the tests, which mostly wait: two chains of them,
//! one for the exhaustive model checks and the simulation, whose code is optimised, and one for all others,
//! which wait for each other's builds.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::job::{self, Ended, Job};
use crate::sizes::{AFTER_THE_TESTS, FUZZ_SECONDS, SIMULATION_SEEDS};
use crate::summary::Row;
use crate::{at, lanes, sizes};

/// A check that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) name: String,
    pub(crate) seconds: u64,
    /// Seconds of processor.
    pub(crate) processor: f64,
    pub(crate) is_passed: bool,
    pub(crate) said: String,
}

impl Done {
    fn written(&self) -> String {
        let Self { name, seconds, processor, is_passed, said } = self;
        format!("{name}\n{seconds}\n{processor:.0}\n{is_passed}\n{said}")
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(5, '\n');
        let mut next = || parts.next().map(str::to_owned);
        let (name, seconds) = (next()?, next()?.parse().ok()?);
        let (processor, is_passed) = (next()?.parse().ok()?, next()?.parse().ok()?);
        Some(Self { name, seconds, processor, is_passed, said: next()? })
    }

    /// The check that this file says has begun. One that has no result has failed.
    fn of(begun: &Path) -> Option<Self> {
        let text = |ending: &str| fs::read_to_string(begun.with_extension(ending)).ok();
        if let Some(result) = text("check") {
            return Self::read(&result);
        }
        let said = text("said").unwrap_or_default() + "it has not ended\n";
        Some(Self { name: text("begun")?, seconds: 0, processor: 0.0, is_passed: false, said })
    }

    /// Everything if it failed.
    pub(crate) fn shown(&self) -> String {
        let is_shown = |line: &&str| {
            let has_tested = line.starts_with("test result: ") && !line.contains(" 0 passed");
            !self.is_passed || has_tested || line.starts_with("not run: ")
        };
        let lines = self.said.lines().filter(is_shown).map(|line| format!("{line}\n"));
        format!(
            "-- {} ({}s, {:.0}s of processor)\n{}",
            self.name,
            self.seconds,
            self.processor,
            lines.collect::<String>()
        )
    }

    pub(crate) fn row(&self) -> Row {
        let name = format!("{} (beside)", self.name);
        Row { name, took: Duration::from_secs(self.seconds), processor: Some(self.processor) }
    }
}

/// The process that runs the checks.
#[derive(Debug)]
pub(crate) struct Beside {
    process: Child,
    /// It ends all that it has started when this is closed, however its parent ends.
    alive: Option<ChildStdin>,
    folder: PathBuf,
}

impl Beside {
    /// In a session of its own and without the wrapper that the tests are built with: the checks reuse their own earlier
    /// builds. They get only the time that no test wants, so that they make none late.
    pub(crate) fn start(folder: &Path) -> io::Result<Self> {
        let said = File::create(folder.join("beside.said"))?;
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,QUIT", "-u", "RUSTC_WORKSPACE_WRAPPER"]);
        command.args(["setsid", "chrt", "--idle", "0"]).arg(std::env::current_exe()?);
        command.arg("beside").arg(folder).stdin(Stdio::piped());
        let mut process = at("env", command.stdout(said.try_clone()?).stderr(said).spawn())?;
        Ok(Self { alive: process.stdin.take(), process, folder: folder.to_owned() })
    }

    /// What has begun, and whether all of it has ended. A check that has no end is ended: else nobody would learn which one
    /// it is, nor what else has failed.
    pub(crate) fn wait(mut self) -> io::Result<(Vec<Done>, bool)> {
        if !ends_within(&mut self.process, AFTER_THE_TESTS)? {
            self.alive = None;
        }
        let is_whole = self.process.wait()?.success();
        if !is_whole {
            print!("{}", fs::read_to_string(self.folder.join("beside.said"))?);
        }
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            files.push(entry?.path());
        }
        files.retain(|path| path.extension().is_some_and(|ending| ending == "begun"));
        files.sort();
        Ok((files.iter().filter_map(|file| Done::of(file)).collect(), is_whole))
    }
}

/// Waits for its end, but not for longer. Whether it has ended.
fn ends_within(process: &mut Child, limit: Duration) -> io::Result<bool> {
    let until = Instant::now() + limit;
    while process.try_wait()?.is_none() {
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(true)
}

/// Runs all checks, each to a file in the folder.
pub(crate) fn run(folder: &Path) -> io::Result<()> {
    // Of the time that is shared between sessions, this one gets the least; not where the kernel shares none.
    let _ = fs::write("/proc/self/autogroup", "19");
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        Command::new("sh").args(["-c", "kill 0"]).status()
    });
    let chains: Vec<_> = chains(folder)?.into_iter().enumerate().collect();
    let number = chains.len();
    let ended = lanes::side_by_side(chains, number, |(chain, checks)| -> io::Result<()> {
        for (place, check) in checks.into_iter().enumerate() {
            check.run(&folder.join(format!("{chain}-{place:02}")))?;
        }
        Ok(())
    });
    ended.into_iter().collect()
}

#[derive(Debug)]
struct Check {
    name: String,
    command: Command,
}

impl Check {
    fn run(self, file: &Path) -> io::Result<()> {
        fs::write(file.with_extension("begun"), &self.name)?;
        let Ended { status, text: said, took, processor } =
            job::run(&self.command, &file.with_extension("said"))?;
        let (name, seconds, is_passed) = (self.name, took.as_secs(), status == 0);
        let done = Done { name, seconds, processor, is_passed, said };
        fs::write(file.with_extension("check"), done.written())
    }
}

fn check(name: &str, program: &str, words: &str) -> Check {
    let mut command = Command::new(program);
    command.args(words.split(' ').filter(|word| !word.is_empty()));
    Check { name: name.to_owned(), command }
}

fn clippy(words: &str) -> Check {
    let all = format!("clippy --locked --quiet {words} -- -D warnings");
    check(&format!("clippy {words}"), "cargo", &all)
}

/// With an old version, if one is here.
fn on_old_rust(version: &str, what: &str, toolchains: &str, words: &str) -> Check {
    let name = format!("the packages on Rust {version}{what}");
    let is_of_version = |toolchain: &&str| {
        let patch = toolchain.strip_prefix(version).and_then(|rest| rest.split_once('-'));
        patch.is_some_and(|(patch, _)| patch.is_empty() || patch.starts_with('.'))
    };
    let mut named = toolchains.lines().filter_map(|line| line.split(' ').next());
    let Some(toolchain) = named.find(is_of_version) else {
        let install = format!("rustup toolchain install {version} --profile minimal");
        return check(&name, "echo", &format!("not run: no Rust {version} here ({install})"));
    };
    let all = "check --offline --quiet --manifest-path target/packages/Cargo.toml";
    let mut check = check(&name, "cargo", &format!("+{toolchain} {all} {words}"));
    check
        .command
        .env("CARGO_TARGET_DIR", std::env::current_dir().unwrap_or_default().join("target"));
    check
}

/// Each feature alone has something to check, but for those that are nothing without a store.
fn features(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest.lines().skip_while(|line| *line != "[features]").skip(1);
    let section = section.take_while(|line| !line.starts_with('['));
    let named = section.filter_map(|line| Some(line.split_once('=')?.0.trim()));
    named.filter(|name| {
        !name.starts_with('#') && !["default", "full", "tls", "metrics"].contains(name)
    })
}

/// The programs of the tests, as many at a time as there are processors: a target alone has no work for a second one.
/// A pattern without a match is a name without a file, which fails.
const FUZZ: &str = r#"printf '%s\n' "$0"/*-lib-*.job "$0"/distlock-fuzz-*.job | xargs -P "$1" -I '{}' sh -c \
    'all=$(bash "{}" fuzz 2>&1); passed=$?; printf "%s\n" "$all"; exit "$passed"'"#;

fn fuzz(folder: &Path) -> Check {
    let mut fuzz = check(&format!("fuzzing, {FUZZ_SECONDS}s for each target"), "bash", "");
    fuzz.command.args(["-c", FUZZ]).arg(folder).arg(sizes::processors().to_string());
    fuzz.command.env("LOCK_FUZZ_SECONDS", FUZZ_SECONDS.to_string());
    fuzz
}

fn simulation(root: &Path) -> Check {
    let seeds =
        "test --locked --config .ci/simulation.toml --workspace --all-features --test seeds";
    let mut seeds = check(&format!("the simulation, {SIMULATION_SEEDS} seeds"), "cargo", seeds);
    seeds.command.env("LOCK_SIMULATION_SEEDS", SIMULATION_SEEDS.to_string());
    // With the mistakes of the core that it has to find.
    seeds.command.env("RUSTC_WORKSPACE_WRAPPER", root.join(".ci/rustc-with-mutants"));
    seeds
}

/// The largest one says itself whether it has anything to do.
fn model(job: Job) -> Check {
    let mut check = Check { command: job.command(), name: job.name };
    if check.name.starts_with("redlock-model-check-") {
        let mut explored = Command::new(".ci/explored");
        explored.args(check.command.get_args());
        check.command = explored;
    }
    check
}

pub(crate) fn is_model(job: &str) -> bool {
    ["redlock-model-", "kinds-model-", "failover-model-"].iter().any(|model| job.starts_with(model))
}

fn chains(folder: &Path) -> io::Result<[Vec<Check>; 2]> {
    let models = Job::all(folder)?.into_iter().filter(|job| is_model(&job.name));
    let models = models.map(model);
    let root = std::env::current_dir()?;
    let models = models.chain([simulation(&root)]).collect();
    let manifest = at("Cargo.toml", fs::read_to_string("Cargo.toml"))?;
    // Without rustup there is no old Rust.
    let toolchains = Command::new("rustup").args(["toolchain", "list"]).output();
    let toolchains = toolchains.map_or_else(|_| Vec::new(), |listed| listed.stdout);
    let toolchains = String::from_utf8_lossy(&toolchains).into_owned();
    Ok([models, others(folder, &manifest, &toolchains, &root)?])
}

fn others(folder: &Path, manifest: &str, toolchains: &str, root: &Path) -> io::Result<Vec<Check>> {
    let runner = job::runner()?;
    // Each feature alone, and none; the nightly workflow does that with the tests. All features together are checked with the
    // mutants, and as packages.
    let none = "-p distlock -p lock-core -p conformance-tests --no-default-features --lib";
    let mut all = vec![clippy(none)];
    all.extend(features(manifest).map(|it| clippy(&format!("-p distlock --features {it} --lib"))));
    all.push(clippy("-p lock-cli --no-default-features --bins"));
    all.push(check("the packages", ".ci/lint-packages", ""));
    let oldest = "--package=lock-core --package=lock-kit --package=conformance-tests --package=lock-redis \
        --package=lock-etcd --package=lock-zk --package=distlock --features \
        lock-core/metrics,distlock/redis,distlock/redlock,distlock/etcd,distlock/zookeeper,distlock/tls,distlock/metrics";
    all.push(on_old_rust("1.88", ", without SQL", toolchains, oldest));
    all.push(on_old_rust("1.94", "", toolchains, "--workspace --all-features"));
    let docs = "doc --locked --workspace --all-features --no-deps --quiet";
    let mut docs = check("docs", "cargo", docs);
    docs.command.env("RUSTDOCFLAGS", "-D warnings");
    all.extend([docs, fuzz(folder)]);
    let examples = "test --locked --workspace --all-features";
    let mut examples = check("examples in the docs", "cargo", examples);
    examples.command.env(&runner, root.join(".ci/only-examples"));
    for mut it in [check("the public API", ".ci/public-api", ""), examples] {
        // As for the tests.
        it.command.env("RUSTC_WORKSPACE_WRAPPER", root.join(".ci/clippy-with-mutants"));
        all.push(it);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_says_how_it_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = |script: &str| {
            let mut check = check("x", "sh", "-c");
            check.command.arg(script);
            check.run(&folder.path().join("0-00")).expect("a run");
            Done::of(&folder.path().join("0-00.begun")).expect("what was written")
        };
        let tested =
            "echo noise; echo 'test result: ok. 10 passed;'; echo 'test result: ok. 0 passed;'";
        assert_eq!(
            run(tested).shown(),
            "-- x (0s, 0s of processor)\ntest result: ok. 10 passed;\n"
        );
        let failed = run("echo; echo noise >&2; kill $$");
        assert!(!failed.is_passed);
        assert_eq!(failed.shown(), "-- x (0s, 0s of processor)\n\nnoise\n");
        assert_eq!(run("echo not run: y").shown(), "-- x (0s, 0s of processor)\nnot run: y\n");
        fs::remove_file(folder.path().join("0-00.check")).expect("a file");
        let endless = Done::of(&folder.path().join("0-00.begun")).expect("what has begun");
        assert!(!endless.is_passed);
        assert_eq!(endless.shown(), "-- x (0s, 0s of processor)\nnot run: y\nit has not ended\n");
    }

    #[test]
    fn what_has_no_end_is_not_waited_for() {
        let mut endless = Command::new("sleep").arg("1000").spawn().expect("sleep");
        assert!(!ends_within(&mut endless, Duration::from_millis(1)).expect("a child"));
        endless.kill().expect("a running program");
        assert!(ends_within(&mut endless, Duration::from_secs(60)).expect("a child"));
        assert!(!endless.wait().expect("an end").success());
    }

    #[test]
    fn every_feature_of_a_store_is_checked_alone() {
        let manifest = "[a]\nx = 1\n[features]\ndefault = []\n## y = z\nredis = [\"r\"]\ntls = []\n\
                        zoo-keeper = []\nfull = []\nmetrics = []\n[dependencies]\nz = 1\n";
        assert_eq!(features(manifest).collect::<Vec<_>>(), ["redis", "zoo-keeper"]);
    }

    #[test]
    fn an_old_rust_is_used_if_it_is_here() {
        let listed = "stable-x (default)\n1.9-x\n1.94.1-x (active)\n1.95.0-x\n";
        let words = |version: &str| {
            let check = on_old_rust(version, "", listed, "--workspace");
            let words = check.command.get_args().map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>()
        };
        assert_eq!(words("1.94")[0], "+1.94.1-x");
        assert_eq!(words("1.9")[0], "+1.9-x");
        assert_eq!(words("1.88")[..2], ["not", "run:"]);
    }
}
