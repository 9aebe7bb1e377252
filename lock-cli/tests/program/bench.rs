//! Shared by all tests of the program: a store in its own folder, real processes, and time on the
//! clock on which leases are counted.

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
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_distlock");
/// For things that should take moments, on a machine that is also busy with something else.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// A folder with a store in it.
pub(crate) struct Bench {
    folder: TempDir,
}

/// The result of a finished program.
#[derive(Debug)]
pub(crate) struct Done {
    /// As a shell shows it: 128 + N for an end by signal N.
    pub(crate) code: Option<i32>,
    /// The signal of which it died.
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    /// It ended with this exit code.
    #[track_caller]
    pub(crate) fn is(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// It has written exactly this to standard output.
    #[track_caller]
    pub(crate) fn printing(self, text: &str) -> Self {
        assert_eq!(self.stdout, text, "{self:?}");
        self
    }

    /// All these appear in what it has written to standard error.
    #[track_caller]
    pub(crate) fn saying<'a>(self, words: impl IntoIterator<Item = &'a str>) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is missing: {self:?}");
        }
        self
    }
}

/// A program that no signal is ignored for. It would inherit that from a test that runs in the background of a
/// shell, or under `nohup`.
pub(crate) fn heeding_signals(program: &str) -> Command {
    // Becomes the program, in the same process.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT", program]);
    command
}

impl Bench {
    pub(crate) fn new() -> Self {
        // Not below /tmp, which `doctor` warns of.
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR"));
        Self { folder: folder.expect("a temporary folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.path("locks.db").display())
    }

    /// The program on this store. It has its own process group, so it never believes that it is in
    /// the foreground of the terminal in which the tests are run.
    pub(crate) fn distlock<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = heeding_signals(PROGRAM);
        self.prepare(command.args(args).process_group(0));
        command
    }

    /// Sets up the environment of a command that uses the program on this store.
    pub(crate) fn prepare(&self, command: &mut Command) {
        let program = Path::new(PROGRAM).parent().expect("a folder").display();
        let path = format!("{program}:{}", std::env::var("PATH").unwrap_or_default());
        command.current_dir(self.folder.path()).env("DISTLOCK_STORE", self.url()).env("PATH", path);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    /// Runs the program until it ends.
    pub(crate) fn done<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Done {
        finish(self.distlock(args).spawn().expect("the program starts"), SOON)
    }

    /// Runs `script` in a shell under the lock `name`, in the background.
    pub(crate) fn hold(&self, name: &str, options: &[&str], script: &str) -> Running {
        let args = [&["run", name][..], options, &["--", "sh", "-c", script]].concat();
        self.distlock(args).spawn().expect("the program starts").into()
    }

    /// As [`hold`](Self::hold), with a command that does nothing for a long time. Returns when it
    /// runs.
    pub(crate) fn holding(&self, name: &str, options: &[&str]) -> Running {
        let holder = self.hold(name, options, "echo >ready; sleep 30");
        self.line("ready");
        fs::remove_file(self.path("ready")).expect("it is there");
        holder
    }

    /// Freezes the store: nothing can be written to it until this is dropped.
    pub(crate) fn freeze(&self) -> Frozen {
        self.execute("PRAGMA busy_timeout = 5000; BEGIN EXCLUSIVE")
    }

    /// Executes a statement on the file, over a connection that then stays open.
    pub(crate) fn execute(&self, sql: &'static str) -> Frozen {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let url = format!("{}?mode=rw", self.url());
        let executing = async {
            let mut connection = SqliteConnection::connect(&url).await?;
            sqlx::raw_sql(sql).execute(&mut connection).await?;
            Ok::<_, sqlx::Error>(connection)
        };
        let connection = runtime.block_on(executing).expect("it is executed");
        Frozen { connection, runtime }
    }

    pub(crate) fn status(&self, name: &str) -> Value {
        let done = self.done(["status", name, "--json"]).is(0);
        serde_json::from_str(&done.stdout).expect("JSON")
    }

    pub(crate) fn is_held(&self, name: &str) -> bool {
        self.status(name)["held"] == true
    }

    /// The names of all locks that are held or waited for.
    pub(crate) fn held(&self) -> Vec<String> {
        let done = self.done(["list", "--json"]).is(0);
        let list: Value = serde_json::from_str(&done.stdout).expect("JSON");
        let locks = list["locks"].as_array().expect("an array");
        locks.iter().map(|lock| lock["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// The content of a file that a command writes, as soon as it has a whole line.
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

/// An open connection to the file of a store, which may be frozen by it.
pub(crate) struct Frozen {
    /// Rolls back when it is dropped.
    connection: SqliteConnection,
    runtime: tokio::runtime::Runtime,
}

impl Frozen {
    /// When the lease of the lock ends: no renewal can be committed from now on.
    pub(crate) fn lease_end(&mut self, name: &str) -> ClockInstant {
        let query = sqlx::query_scalar("SELECT expires FROM distlock WHERE name = ?").bind(name);
        let end: i64 = self.runtime.block_on(query.fetch_one(&mut self.connection)).expect("a row");
        ClockInstant::from_nanos(u64::try_from(end).expect("a time") * 1000)
    }
}

/// A running program; killed if the test fails before it ends.
pub(crate) struct Running(Child);

impl Running {
    /// Ends it with SIGTERM, which the command obeys.
    #[track_caller]
    pub(crate) fn stop(self) {
        send(id(&self), Signal::TERM);
        finish(self, SOON).is(128 + Signal::TERM.as_raw());
    }
}

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

/// A shell function that repeatedly writes down the boot-time clock, in seconds: the last line is
/// when it last ran, no matter when its end is noticed.
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

/// Waits until `what` is true. Returns when that was first seen.
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
    // Read while waiting, so that a full pipe blocks nothing.
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
        code: status.code().or_else(|| status.signal().map(|signal| 128 + signal)),
        signal: status.signal(),
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

/// The state of a process and its parent, if it exists.
pub(crate) fn stat(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (state, rest) = stat.rsplit_once(") ")?.1.split_once(' ')?;
    Some((state.chars().next()?, rest.split(' ').next()?.parse().ok()?))
}

/// Whether the process runs; a zombie does not.
pub(crate) fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

pub(crate) fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process id"), signal).expect("the process is there");
}

pub(crate) fn id(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("a process id")
}

/// The only child of a process: for `run`, that is its supervisor.
pub(crate) fn child_of(pid: i32) -> i32 {
    let mut found = 0;
    until("a child process", SOON, || {
        let folder = fs::read_dir("/proc").expect("/proc");
        let mut pids = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_child = |other: &i32| stat(*other).is_some_and(|(_, parent)| parent == pid);
        found = pids.find(is_child).unwrap_or(0);
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
