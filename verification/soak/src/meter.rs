//! Memory and file descriptors of processes over time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_testkit::usage::resident;
use serde::Serialize;
use tokio::task::JoinHandle;

const EVERY: Duration = Duration::from_secs(1);

/// What the workers of a phase used at one moment, all together.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    /// Seconds since the phase began.
    pub(crate) at: f64,
    pub(crate) kilobytes: u64,
    pub(crate) files: usize,
}

/// Takes samples until it is stopped.
#[derive(Debug)]
pub(crate) struct Meter {
    samples: Arc<Mutex<Vec<Sample>>>,
    task: JoinHandle<()>,
}

impl Meter {
    pub(crate) fn start(pids: Arc<Mutex<Vec<Option<u32>>>>) -> Self {
        let samples = Arc::<Mutex<Vec<Sample>>>::default();
        let taken = Arc::clone(&samples);
        let begun = tokio::time::Instant::now();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(EVERY).await;
                let pids = pids.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let used = pids.into_iter().flatten().filter_map(used);
                let (kilobytes, files) =
                    used.fold((0, 0), |(memory, files), used| (memory + used.0, files + used.1));
                let sample = Sample { at: begun.elapsed().as_secs_f64(), kilobytes, files };
                taken.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
            }
        });
        Self { samples, task }
    }

    pub(crate) fn stop(self) -> Vec<Sample> {
        self.task.abort();
        std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Kilobytes in memory, and open files, if the process still runs.
fn used(pid: u32) -> Option<(u64, usize)> {
    let kilobytes = resident(pid)? >> 10;
    Some((kilobytes, std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let (kilobytes, files) = used(std::process::id()).unwrap();
        assert!(kilobytes > 100 && files >= 3, "{kilobytes} kB, {files} files");
        assert!(used(u32::MAX).is_none());
    }
}
