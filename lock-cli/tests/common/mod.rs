//! What all tests of the program share: a store in a folder of its own, real processes, and time on
//! the clock on which leases are counted.
#![allow(dead_code, reason = "every test file uses another part")]

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use distlock::clock::{Clock, ClockInstant, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_distlock");
/// For what should take moments, on a machine that does something else too.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// A folder with a store in it.
pub(crate) struct Bench {
    folder: TempDir,
}

/// What a finished program has left.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self { folder: TempDir::new().expect("a temporary folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.path("locks.db").display())
    }

    /// The program on this store. Its process group is its own, so that it never believes that it
    /// is in the foreground of the terminal in which the tests are run.
    pub(crate) fn distlock<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(args).current_dir(self.folder.path());
        command.env("DISTLOCK_STORE", self.url()).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn done<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Done {
        finish(self.distlock(args).spawn().expect("the program starts"), SOON)
    }

    /// Runs `script` in a shell under the lock `name`, in the background.
    pub(crate) fn hold(&self, name: &str, options: &[&str], script: &str) -> Running {
        let args = [&["run", name][..], options, &["--", "sh", "-c", script]].concat();
        self.distlock(args).spawn().expect("the program starts").into()
    }

    pub(crate) fn status(&self, name: &str) -> Value {
        let done = self.done(["status", name, "--json"]);
        assert_eq!(done.code, Some(0), "{done:?}");
        serde_json::from_str(&done.stdout).expect("JSON")
    }

    pub(crate) fn is_held(&self, name: &str) -> bool {
        self.status(name)["held"] == true
    }

    /// The names of all locks that are held or waited for.
    pub(crate) fn held(&self) -> Vec<String> {
        let done = self.done(["list", "--json"]);
        assert_eq!(done.code, Some(0), "{done:?}");
        let list: Value = serde_json::from_str(&done.stdout).expect("JSON");
        let locks = list["locks"].as_array().expect("an array");
        locks.iter().map(|lock| lock["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// The content of a file that a command writes, as soon as there is a whole line.
    pub(crate) fn line(&self, file: &str) -> String {
        let path = self.path(file);
        let mut text = String::new();
        until(&format!("a line in {file}"), SOON, || {
            text = fs::read_to_string(&path).unwrap_or_default();
            text.ends_with('\n')
        });
        text.trim_end().to_owned()
    }

    /// The process id that a command writes into a file.
    pub(crate) fn pid(&self, file: &str) -> i32 {
        self.line(file).parse().expect("a process id")
    }
}

/// A program that runs; killed if the test fails before its end.
pub(crate) struct Running(Child);

impl From<Child> for Running {
    fn from(child: Child) -> Self {
        Self(child)
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A shell function that notes the boot-time clock, in seconds, again and again: what it has noted
/// last is when it ran last, whenever somebody else notices that it does not any more.
pub(crate) const BEAT: &str =
    "beat() { while :; do read now rest </proc/uptime; echo $now >>beats; sleep 0.01; done; }";

/// The last whole line that [`BEAT`] has written. `/proc/uptime` is cut to hundredths.
pub(crate) fn last_beat(bench: &Bench) -> ClockInstant {
    let text = read(&bench.path("beats"));
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let last = whole.lines().last().expect("a beat");
    let (seconds, hundredths) = last.split_once('.').expect("seconds");
    let number = |text: &str| text.parse::<u64>().expect("a number");
    ClockInstant::from_nanos(number(seconds) * 1_000_000_000 + number(hundredths) * 10_000_000)
}

pub(crate) fn now() -> ClockInstant {
    SystemClock::default().now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests watch real processes from outside, in plain threads"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Waits until `what` is so. Returns when that was seen first.
pub(crate) fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) -> ClockInstant {
    let start = now();
    loop {
        if is_so() {
            return now();
        }
        assert!(now().since(start) < limit, "not within {limit:?}: {what}");
        pause(Duration::from_millis(2));
    }
}

/// Waits for the end of a program, at most for `limit`, and collects what it has written.
pub(crate) fn finish(child: impl Into<Running>, limit: Duration) -> Done {
    let mut child = child.into();
    // Read beside the waiting, so that a full pipe holds nobody up.
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let mut status = None;
    let start = now();
    while status.is_none() && now().since(start) < limit {
        status = child.try_wait().expect("wait");
        pause(Duration::from_millis(2));
    }
    let Some(status) = status else {
        drop(child);
        panic!("the program did not end within {limit:?}: {:?}", err.join());
    };
    let text = |thread: std::thread::JoinHandle<String>| thread.join().expect("a reader");
    let done = Done {
        code: status.code().or_else(|| status.signal().map(|signal| -signal)),
        stdout: text(out),
        stderr: text(err),
    };
    assert!(!done.stderr.contains("panicked"), "{done:?}");
    done
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Whether the process runs; a zombie does not.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process id"), signal).expect("the process is there");
}

pub(crate) fn id(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("a process id")
}

/// The only child of a process: of `run`, that is its supervisor.
pub(crate) fn child_of(pid: i32) -> i32 {
    let mut found = 0;
    until("a child process", SOON, || {
        let folder = fs::read_dir("/proc").expect("/proc");
        let pids = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let parent = |pid: i32| -> Option<i32> {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
        };
        found = pids.into_iter().find(|candidate| parent(*candidate) == Some(pid)).unwrap_or(0);
        found != 0
    });
    found
}

/// The events that `run --json` has written.
pub(crate) fn events(stderr: &str) -> Vec<Value> {
    let parse =
        |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    stderr.lines().map(parse).collect()
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
