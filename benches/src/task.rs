//! What a worker does.

use std::sync::Arc;
use std::time::Duration;

use lock_testkit::usage::resident;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Done;
use crate::client::{Client, Hold, Library, Lock, LockKind};
use crate::process::now;
use crate::stores::{Floor, Store};

/// For so long a lock is held in which the floor is measured: the one that released it before has
/// queued again by then.
const QUIET: Duration = Duration::from_millis(2);

/// The store, the library by its name, and what is done with its locks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) store: Store,
    pub(crate) library: String,
    pub(crate) url: String,
    /// Of all names, so that no run meets what another has left.
    pub(crate) prefix: String,
    pub(crate) work: Work,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Each of `contenders` acquires and releases one of so many names, again and again. With
    /// `floor`, whoever holds it measures the floor of a hand-over first.
    Contend { contenders: Vec<u32>, names: u32, kind: LockKind, floor: bool },
    /// Takes that many locks, and holds them.
    Hold { locks: u32 },
}

/// What a worker has spent when it is ready.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) took: Duration,
    /// By which the resident memory has grown.
    pub(crate) bytes: f64,
}

/// What a worker has seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) turns: Vec<Turn>,
    pub(crate) lost: u32,
}

/// One hold of a contender, by the clock of the machine in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) contender: u32,
    pub(crate) name: u32,
    /// When `acquire` was called.
    pub(crate) asked: u64,
    /// When it had returned; `None` if it had not by the end.
    pub(crate) granted: Option<u64>,
    /// When `release` was called.
    pub(crate) released: u64,
    /// How long the floor of a hand-over took meanwhile.
    pub(crate) floor: Option<u64>,
}

impl Task {
    pub(crate) async fn run(
        self,
        ready: oneshot::Sender<Ready>,
        stop: CancellationToken,
    ) -> Done<Report> {
        let client = Library::named(self.store, &self.library)?.open(&self.url).await?;
        let report = match &self.work {
            Work::Contend { contenders, names, kind, floor } => {
                let floor = if *floor {
                    Some(Arc::new(Mutex::new(self.store.floor(&self.url).await?)))
                } else {
                    None
                };
                let mut tasks = JoinSet::new();
                for &contender in contenders {
                    let name = contender % names;
                    let lock = client.lock_of(*kind, format!("{}{name}", self.prefix))?;
                    let floor = floor.clone();
                    tasks.spawn(contend(lock, contender, name, floor, stop.clone()));
                }
                let _ = ready.send(Ready::default());
                let mut turns = Vec::new();
                while let Some(task) = tasks.join_next().await {
                    turns.extend(task??);
                }
                Report { turns, lost: 0 }
            }
            Work::Hold { locks } => {
                // What is allocated once is not a cost of a lock.
                client.lock(format!("{}warm", self.prefix))?.acquire().await?.release().await?;
                let (before, start) = (memory()?, Instant::now());
                let held = hold(&client, &self.prefix, *locks).await?;
                let bytes = memory()? - before;
                let _ = ready.send(Ready { took: start.elapsed(), bytes });
                stop.cancelled().await;
                let lost = held.iter().filter(|hold| hold.is_lost()).count();
                Report { turns: Vec::new(), lost: u32::try_from(lost)? }
            }
        };
        client.close().await?;
        Ok(report)
    }
}

async fn contend(
    lock: Lock,
    contender: u32,
    name: u32,
    floor: Option<Arc<Mutex<Box<dyn Floor>>>>,
    stop: CancellationToken,
) -> Done<Vec<Turn>> {
    let mut turns = Vec::new();
    while !stop.is_cancelled() {
        let asked = now();
        let mut turn = Turn { contender, name, asked, granted: None, released: 0, floor: None };
        let hold = tokio::select! {
            biased;
            hold = lock.acquire() => hold?,
            () = stop.cancelled() => {
                turns.push(turn);
                break;
            }
        };
        turn.granted = Some(now());
        if let Some(floor) = &floor {
            tokio::time::sleep(QUIET).await;
            let took = floor.lock().await.hand_over().await?;
            turn.floor = Some(u64::try_from(took.as_nanos())?);
        }
        turn.released = now();
        hold.release().await?;
        turns.push(turn);
    }
    Ok(turns)
}

/// Takes that many locks, a hundred at a time.
pub(crate) async fn hold(client: &Client, prefix: &str, locks: u32) -> Done<Vec<Hold>> {
    let mut held = Vec::new();
    for start in (0..locks).step_by(100) {
        let mut tasks = JoinSet::new();
        for n in start..locks.min(start + 100) {
            let lock = client.lock(format!("{prefix}{n}"))?;
            tasks.spawn(async move { lock.acquire().await });
        }
        while let Some(hold) = tasks.join_next().await {
            held.push(hold??);
        }
    }
    Ok(held)
}

/// The resident memory of this process, in bytes.
fn memory() -> Done<f64> {
    Ok(resident(std::process::id()).ok_or("no VmRSS")? as f64)
}
