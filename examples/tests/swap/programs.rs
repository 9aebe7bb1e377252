//! The programs of the examples, as processes that are watched from outside.

use std::process::Command;
use std::time::Duration;

use conformance_tests::server::Process;
use distlock::clock::{Clock, ClockInstant, SystemClock};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AnyConnection, Connection};
use tempfile::TempDir;

use crate::stores::{Store, run};

/// For things that should take moments, on a machine that is also busy with something else.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// One example on one store, with a database of its own.
pub(crate) struct Bench<'a> {
    store: &'a Store,
    folder: TempDir,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(store: &'a Store) -> Self {
        Self { store, folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn store(&self) -> &'a str {
        &self.store.url
    }

    /// Another lock store, which a program is given by mistake.
    pub(crate) fn elsewhere(&self) -> String {
        format!("sqlite://{}/elsewhere.db", self.folder.path().display())
    }

    /// The database of the store's server, or a file.
    pub(crate) fn database(&self) -> String {
        let file = || format!("sqlite://{}/app.db?mode=rwc", self.folder.path().display());
        self.store.database.clone().unwrap_or_else(file)
    }

    /// A program with the URLs of the store and of the database, and further `arguments`.
    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> Program {
        let database = self.database();
        self.start_with(program, &[&[self.store(), &database], arguments].concat())
    }

    /// A program with exactly these arguments.
    pub(crate) fn start_with(&self, program: &str, arguments: &[&str]) -> Program {
        let output = tempfile::Builder::new().prefix("output").tempfile_in(self.folder.path());
        let (_, output) = output.and_then(|file| Ok(file.keep()?)).expect("a file for the output");
        let process = Process::new(program, "no package: cargo", output);
        let started = process.spawn(Command::new(program).args(arguments));
        started.unwrap_or_else(|why| panic!("{program} {arguments:?}: {why}"));
        Program(process)
    }

    /// The number that a query gives on the database.
    pub(crate) fn number(&self, query: &'static str) -> i64 {
        sqlx::any::install_default_drivers();
        let url = self.database();
        let answer = run(async {
            let mut database = AnyConnection::connect(&url).await?;
            sqlx::query_scalar(query).fetch_one(&mut database).await
        });
        answer.unwrap_or_else(|error| panic!("{query}: {error}"))
    }
}

/// A program that runs; killed when this is dropped.
pub(crate) struct Program(Process);

impl Program {
    /// All that it has written so far, to standard output and to standard error.
    pub(crate) fn said(&self) -> String {
        self.0.log()
    }

    /// The first whole line with this text, as soon as there is one.
    pub(crate) fn says(&mut self, text: &str) -> String {
        let mut found = None;
        until(&format!("a line with {text:?}"), SOON, || {
            let ended = self.0.ended().expect("it was not killed");
            let said = self.said();
            found = said.split_inclusive('\n').find(|line| line.contains(text)).map(str::to_owned);
            assert!(found.is_some() || ended.is_none(), "no line with {text:?} in {said:?}");
            found.as_ref().is_some_and(|line| line.ends_with('\n'))
        });
        found.expect("checked above").trim_end().to_owned()
    }

    /// Waits until it has ended. Returns its exit code, and all that it has written.
    pub(crate) fn ends(&mut self) -> (Option<i32>, String) {
        let mut status = None;
        until("its end", SOON, || {
            status = self.0.ended().expect("it was not killed");
            status.is_some()
        });
        (status.and_then(|status| status.code()), self.said())
    }

    /// Waits until it has ended, with this exit code. Returns all that it has written.
    pub(crate) fn ends_with(&mut self, code: i32) -> String {
        let (ended, said) = self.ends();
        assert_eq!(ended, Some(code), "{said:?}");
        said
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.0.kill();
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        let pid = i32::try_from(self.0.id().expect("it runs")).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), Signal::TERM).expect("it runs");
    }

    pub(crate) fn freeze(&self) {
        self.0.freeze().expect("it runs");
    }

    pub(crate) fn thaw(&self) {
        self.0.thaw().expect("it runs");
    }
}

pub(crate) fn now() -> ClockInstant {
    SystemClock::default().now()
}

#[expect(clippy::disallowed_methods, reason = "processes are watched from plain threads")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Waits until `what` is true.
pub(crate) fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let begun = now();
    while !is_so() {
        assert!(now().since(begun) < limit, "not within {limit:?}: {what}");
        pause(Duration::from_millis(5));
    }
}
