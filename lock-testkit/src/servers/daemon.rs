//! One of the test's own server programs: its log, and its process while it runs.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conformance_tests::Unavailable;
use rustix::process::Signal;
use tokio::time::Instant;

use super::process::{Process, failed};

/// The first and the longest pause before a starting server is asked again whether it is ready:
/// Redis takes some milliseconds, and ZooKeeper is slowed down by frequent probes.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(40));

#[derive(Debug)]
pub(super) struct Daemon {
    program: &'static str,
    package: &'static str,
    log: PathBuf,
    process: Mutex<Option<Process>>,
}

impl Daemon {
    /// A program from a Debian package, which is not running yet and will write to `log`.
    pub(super) fn new(program: &'static str, package: &'static str, log: PathBuf) -> Self {
        Self { program, package, log, process: Mutex::default() }
    }

    /// Starts it.
    pub(super) fn spawn(&self, mut command: Command) -> Result<(), Unavailable> {
        let open = || {
            let log = File::options().create(true).append(true).open(&self.log)?;
            Ok((log.try_clone()?, log))
        };
        // Wrong options are reported on standard error.
        let (output, errors) =
            open().map_err(|error: std::io::Error| failed("no log file", error))?;
        let process = Process::start(command.stdout(output).stderr(errors), self.package)?;
        *self.process() = Some(process);
        Ok(())
    }

    /// Waits until it is ready, checking its process id: another server may have taken its port
    /// since that was found free, and would answer in its place.
    pub(super) async fn ready(
        &self,
        limit: Duration,
        serves: impl Fn(u32) -> bool,
    ) -> Result<(), Unavailable> {
        let deadline = Instant::now() + limit;
        let (mut pause, longest) = PAUSES;
        loop {
            if let Some(status) = self.running(|process| Ok(process.ended()))? {
                self.process().take();
                return Err(self.broken(&format!("ended at once: {status}")));
            }
            if serves(self.id()?) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                self.process().take();
                return Err(self.broken("does not serve"));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    pub(super) fn id(&self) -> Result<u32, Unavailable> {
        self.running(|process| Ok(process.id()))
    }

    pub(super) fn freeze(&self) -> Result<(), Unavailable> {
        self.running(|process| process.freeze())
    }

    pub(super) fn thaw(&self) -> Result<(), Unavailable> {
        self.running(|process| process.thaw())
    }

    pub(super) fn cpu_time(&self) -> Result<Duration, Unavailable> {
        self.running(|process| Ok(process.cpu_time()))
    }

    /// Kills it if it runs.
    pub(super) fn kill(&self) {
        if let Some(mut process) = self.process().take() {
            process.kill();
        }
    }

    /// Shuts it down in an orderly way if it runs, by the given signal.
    pub(super) fn end_by(&self, signal: Signal) -> Result<(), Unavailable> {
        match self.process().take() {
            Some(mut process) => process.end_by(signal),
            None => Ok(()),
        }
    }

    /// Its log.
    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running<T>(
        &self,
        act: impl FnOnce(&mut Process) -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        match &mut *self.process() {
            Some(process) => act(process),
            None => Err(Unavailable::broken(format!("{} is not running", self.program))),
        }
    }

    /// With the beginning and the end of its log: a wrong option is named in the first line, and
    /// often followed by a page of usage.
    fn broken(&self, what: &str) -> Unavailable {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let (first, last) = (3.min(lines.len()), lines.len().saturating_sub(6));
        let shown = [&lines[..first], &lines[last.max(first)..]].concat().join(" | ");
        let program = self.program;
        Unavailable::broken(format!("{program} {what}; its log begins and ends with: {shown}"))
    }
}

/// Starts servers until they have their ports: another process may take a free port before it is
/// opened.
pub(super) async fn until_started<T, F>(mut start: impl FnMut() -> F) -> Result<T, Unavailable>
where
    F: Future<Output = Result<T, Unavailable>>,
{
    for _ in 0..4 {
        match start().await {
            Err(error) if error.is_broken() => {}
            answer => return answer,
        }
    }
    start().await
}
