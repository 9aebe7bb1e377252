//! A program of a test: its log, and its process while it runs.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::statvfs;
use rustix::process::Pid;
use tokio::time::{Instant, timeout_at};

use super::guarded::Guarded;
use crate::Unavailable;

/// The first and the longest pause before a starting server is asked again whether it is ready:
/// Redis takes some milliseconds, and ZooKeeper is slowed down by frequent probes.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(40));

/// A starting server may accept a connection, and forget it.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// A program that a test starts, stops and starts again, with its log. Dropping it kills the
/// program, and the processes that this has started.
///
/// A [`Server`](super::Server) is one of these with a folder and a port of its own.
#[derive(Debug)]
pub struct Process {
    program: String,
    remedy: String,
    log: PathBuf,
    running: Mutex<Option<Guarded>>,
    kills: AtomicU64,
}

impl Process {
    /// A program that is not running yet. It will append to the file `log`. `remedy` is what to do
    /// if it is not installed.
    pub fn new(
        program: impl Into<String>,
        remedy: impl Into<String>,
        log: impl Into<PathBuf>,
    ) -> Self {
        let (program, remedy, log) = (program.into(), remedy.into(), log.into());
        Self { program, remedy, log, running: Mutex::default(), kills: AtomicU64::new(0) }
    }

    /// Starts it. One that is still running is killed.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if the program is not installed.
    pub fn spawn(&self, command: &mut Command) -> Result<(), Unavailable> {
        self.kill();
        let log = || {
            let log = File::options().create(true).append(true).open(&self.log)?;
            Ok((log.try_clone()?, log))
        };
        // Wrong options are reported on standard error.
        let (output, errors) = log().map_err(|error: std::io::Error| {
            Unavailable::broken(format!("no log file for {}: {error}", self.program))
        })?;
        let started = Guarded::start(command.stdout(output).stderr(errors), &self.remedy)?;
        *self.slot() = Some(started);
        Ok(())
    }

    /// Waits for at most `limit` until `serves`, which gets its process id, says that it is ready. A look
    /// that takes long is given up, and another one follows.
    ///
    /// # Errors
    ///
    /// [`Unavailable::broken`], with the log, if it ends, or is not ready in time; then it is killed.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe. The program keeps running.
    pub async fn ready<F: Future<Output = bool>>(
        &self,
        limit: Duration,
        serves: impl Fn(u32) -> F,
    ) -> Result<(), Unavailable> {
        let deadline = Instant::now() + limit;
        let (mut pause, longest) = PAUSES;
        loop {
            if let Some(status) = self.ended()? {
                self.kill();
                return Err(self.broken(&format!("ended at once: {status}")));
            }
            let end_of_look = deadline.min(Instant::now() + LONGEST_LOOK);
            if timeout_at(end_of_look, serves(self.id()?)).await.unwrap_or(false) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                self.kill();
                return Err(self.broken(&format!("does not serve within {limit:?}")));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Its process id.
    ///
    /// # Errors
    ///
    /// If it is not running, also if it has ended by itself.
    pub fn id(&self) -> Result<u32, Unavailable> {
        let id = self.running(|process| Ok((process.id(), process.ended())))?;
        match id {
            (id, None) => Ok(id),
            (_, Some(status)) => Err(self.broken(&format!("has ended: {status}"))),
        }
    }

    /// How often it was killed.
    pub(crate) fn kills(&self) -> u64 {
        self.kills.load(Relaxed)
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    ///
    /// If it was not started, or was killed by this value.
    pub fn ended(&self) -> Result<Option<ExitStatus>, Unavailable> {
        self.running(|process| Ok(process.ended()))
    }

    /// The process ids of the processes that it has started and that have not ended.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn children(&self) -> Result<Vec<u32>, Unavailable> {
        let number = |pid: Pid| u32::try_from(pid.as_raw_pid()).ok();
        self.running(|process| Ok(process.children().into_iter().filter_map(number).collect()))
    }

    /// Freezes it and its children (SIGSTOP): connections stay open, and nothing is answered.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn freeze(&self) -> Result<(), Unavailable> {
        self.running(Guarded::freeze)
    }

    /// Ends [`freeze`](Self::freeze) (SIGCONT).
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn thaw(&self) -> Result<(), Unavailable> {
        self.running(Guarded::thaw)
    }

    /// Kills it and its children without warning (SIGKILL) if it runs, and waits until they are gone.
    pub fn kill(&self) {
        let killed = self.slot().take().is_some_and(|mut process| process.kill());
        self.kills.fetch_add(u64::from(killed), Relaxed);
    }

    /// Sends the signal with this number, such as 15 for SIGTERM, if it runs, and waits until it has
    /// ended.
    ///
    /// # Errors
    ///
    /// If there is no such signal; then it is killed.
    pub fn end_by(&self, signal: i32) -> Result<(), Unavailable> {
        self.slot().take().map_or(Ok(()), |mut process| process.end_by(signal))
    }

    /// What it has printed since its first start.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Guarded>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running<T>(
        &self,
        act: impl FnOnce(&mut Guarded) -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        match &mut *self.slot() {
            Some(process) => act(process),
            None => Err(Unavailable::broken(format!("{} is not running", self.program))),
        }
    }

    /// With its log, and with the room that it has for its data: a server that has none often ends
    /// without a word.
    fn broken(&self, what: &str) -> Unavailable {
        let (program, log) = (&self.program, shown(&self.log()));
        let left = self.log.parent().and_then(|folder| statvfs(folder).ok());
        let left = left.map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        let room = left.and_then(little_room).unwrap_or_default();
        Unavailable::broken(format!("{program} {what}; {log}{room}"))
    }
}

/// The beginning and the end of a log: a wrong option is named in the first line, and often followed by
/// a page of usage.
fn shown(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    if lines.is_empty() {
        return "its log is empty".to_owned();
    }
    let (first, last) = (3.min(lines.len()), lines.len().saturating_sub(6));
    let shown = [&lines[..first], &lines[last.max(first)..]].concat().join(" | ");
    format!("its log begins and ends with: {shown}")
}

/// Says how many bytes are left if a server may need more: some take their first 64 MB at once.
fn little_room(left: u64) -> Option<String> {
    const MB: u64 = 1 << 20;
    (left < 256 * MB).then(|| format!("; its folder has {} MB of disk left", left / MB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_running_is_killed() {
        let folder = tempfile::tempdir().expect("a folder");
        let process = Process::new("sleep", "", folder.path().join("log"));
        let run = || process.spawn(Command::new("sleep").arg("60")).expect("it starts");
        run();
        run();
        assert_eq!(process.kills(), 1, "what is started again is killed before");
        process.end_by(15).expect("it ends");
        process.kill();
        assert_eq!(process.kills(), 1, "it had ended before");
    }

    #[test]
    fn a_full_disk_is_told_and_another_is_not() {
        assert_eq!(little_room(5 << 20).as_deref(), Some("; its folder has 5 MB of disk left"));
        assert_eq!(little_room(1 << 30), None);
    }
}
