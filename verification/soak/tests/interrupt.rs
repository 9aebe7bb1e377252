//! A run that is interrupted leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]
#![allow(clippy::disallowed_methods, reason = "the test has a thread of its own, and no runtime")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(180);

/// Each run has a session of its own, by which all that it starts is found. A server may overwrite its environment.
struct Run {
    child: Child,
    folder: TempDir,
}

impl Run {
    /// A run of an hour, whose workers and servers have started.
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        // It becomes the program: the process stays the same.
        let mut command = Command::new("setsid");
        command.arg(env!("CARGO_BIN_EXE_distlock-soak"));
        command.args(["--setup", "sqlite,redis", "--hours", "1", "--out"]).arg(folder.path());
        command.env("TMPDIR", folder.path());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let run = Self { child, folder };
        run.until("a server and the workers of both set-ups run", |all| {
            let count = |name| all.iter().filter(|it| it.as_str() == name).count();
            count("redis-server") > 0 && count("distlock-soak") > 6
        });
        run
    }

    /// Waits for something about the names of all processes of the run.
    fn until(&self, what: &str, is_so: impl Fn(&[String]) -> bool) {
        let start = Instant::now();
        loop {
            let all = self.processes();
            if is_so(&all) {
                return;
            }
            assert!(start.elapsed() < SOON, "{what}: {all:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The names of all processes of its session.
    fn processes(&self) -> Vec<String> {
        let session = self.child.id().to_string();
        let folders = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let names = folders.filter_map(|path| {
            let stat = std::fs::read_to_string(path.join("stat")).ok()?;
            let (_, rest) = stat.split_once('(')?;
            let (name, fields) = rest.rsplit_once(')')?;
            let fields: Vec<_> = fields.split_whitespace().collect();
            let is_running = fields.first().is_some_and(|state| *state != "Z");
            (is_running && fields.get(3) == Some(&session.as_str())).then(|| name.to_owned())
        });
        names.collect()
    }

    fn ends_on(mut self, signal: Signal, code: i32) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let mut said = String::new();
        BufReader::new(self.child.stderr.take().unwrap()).read_to_string(&mut said).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(code), "{said}");
        assert_eq!(said, "soak: interrupted\n");
        let first = BufReader::new(self.child.stdout.take().unwrap()).lines().next();
        assert!(first.unwrap().unwrap().starts_with("soak: seed "));
        self.until("nothing runs any more", <[_]>::is_empty);
        let left: Vec<_> = std::fs::read_dir(self.folder.path()).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A test that has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ctrl_c_ends_all_workers_and_servers() {
    Run::start().ends_on(Signal::INT, 130);
}

#[test]
fn sigterm_ends_all_workers_and_servers() {
    Run::start().ends_on(Signal::TERM, 143);
}
