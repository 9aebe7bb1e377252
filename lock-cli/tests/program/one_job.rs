//! One job on many machines: the command lines in the examples for cron and for systemd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Signal;

use crate::bench::{Bench, PROGRAM, Running, SOON, finish, id, read, send, until};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
/// Where the examples expect the program.
pub(crate) const INSTALLED: &str = "/usr/local/bin/distlock";

pub(crate) fn example(name: &str) -> String {
    fs::read_to_string(format!("{FOLDER}/{name}")).expect(name)
}

/// The command in the cron table, after five fields for the time and one for the user.
fn cron_line() -> String {
    let table = example("one_job/nightly-report.cron");
    let job = table.lines().find(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    let job = job.expect("a line with a time");
    let line = job.splitn(7, ' ').nth(6).expect("a command").to_owned();
    assert!(line.starts_with("distlock run ") && !line.contains('%'), "{line}");
    line
}

/// What a unit of systemd starts.
pub(crate) fn exec_start(unit: &str) -> String {
    let unit = example(unit);
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart="));
    line.expect("a command").to_owned()
}

/// The job itself, which counts its runs, and the machines that start it on the store at `url`.
struct Machines<'a> {
    bench: Bench,
    url: &'a str,
}

impl<'a> Machines<'a> {
    fn new(url: &'a str) -> Self {
        let bench = Bench::new();
        let job = bench.path("nightly-report");
        fs::write(&job, "#!/bin/sh\necho $DISTLOCK_FENCE >>runs\n").expect("a script");
        fs::set_permissions(&job, fs::Permissions::from_mode(0o755)).expect("a program");
        Self { bench, url }
    }

    /// A machine that is told to run the job by `command`.
    fn start(&self, mut command: Command) -> Running {
        self.bench.prepare(command.process_group(0));
        let path = command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path);
        let path = path.and_then(|path| path.to_str()).expect("a path");
        let path = format!("{}:{path}", self.bench.path("").display());
        let started = command.env("PATH", path).env("DISTLOCK_STORE", self.url).spawn();
        started.expect("it starts").into()
    }

    /// Three machines are told at the same moment, and one a little later.
    fn run_the_job_once(&self, command: impl Fn() -> Command) {
        let mut machines: Vec<_> = [(); 3].map(|()| self.start(command())).into();
        until("two machines skip the job", SOON, || {
            machines.iter_mut().filter_map(|machine| machine.try_wait().expect("wait")).count() == 2
        });
        self.bench.line("runs");
        finish(self.start(command()), SOON).is(0).printing("");
        assert_eq!(read(&self.bench.path("runs")).lines().count(), 1);
        // The machine that has run it keeps the lock for the others, until it is told to stop.
        let is_running = |machine: &mut Running| machine.try_wait().expect("wait").is_none();
        let last = machines.iter_mut().position(is_running).expect("a machine that holds the lock");
        let last = machines.swap_remove(last);
        send(id(&last), Signal::TERM);
        for machine in [last].into_iter().chain(machines) {
            finish(machine, SOON).is(0).printing("");
        }
        // It has left the lock to its ttl, so no other machine runs the job instead.
        finish(self.start(command()), SOON).is(0).printing("");
        assert_eq!(read(&self.bench.path("runs")).lines().count(), 1);
        let mut release = Command::new(PROGRAM);
        release.args(["release", "nightly-report", "--force", "--yes"]);
        let released = finish(self.start(release), SOON).is(0);
        assert!(released.stdout.starts_with("released"), "{released:?}");
        fs::remove_file(self.bench.path("runs")).expect("it is there");
    }
}

/// The job is run once by cron, and once by systemd.
pub(crate) fn is_run_once(url: &str) {
    let machines = Machines::new(url);
    machines.run_the_job_once(|| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("exec {}", cron_line())]);
        shell
    });
    machines.run_the_job_once(|| {
        let line = exec_start("one_job/nightly-report.service");
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some(INSTALLED));
        let mut program = Command::new(PROGRAM);
        program.args(words);
        program
    });
}

#[test]
fn the_units_are_valid() {
    let bench = Bench::new();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    for (folder, name) in [
        ("one_job", "nightly-report.service"),
        ("one_job", "nightly-report.timer"),
        ("one_replica", "scheduler.service"),
    ] {
        let unit = example(&format!("{folder}/{name}")).replace(INSTALLED, PROGRAM);
        fs::write(bench.path(name), unit).expect("a unit");
        verify.arg(bench.path(name));
    }
    bench.prepare(&mut verify);
    let verified = verify.output();
    let verified = verified.expect("systemd-analyze is in the package systemd");
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && said.is_empty(), "{said}");
}
