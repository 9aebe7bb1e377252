//! Every task is done by exactly one worker.
//!
//! Several workers see the same list of tasks. Each takes the lock named after a task before
//! working on it, and skips the task if another worker has it. The lock alone gives "one at a
//! time"; "once" needs the done mark, which is written under the fence.
//!
//! ```sh
//! cargo run -p distlock --example tasks                                      # in memory
//! cargo run -p distlock --example tasks --features sqlite -- sqlite:///tmp/locks.db
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock::{FenceCheck, Locks, Result};

/// The application's database: who has done which task, and the guard in front of each row.
#[derive(Debug, Default)]
pub(crate) struct Database(Mutex<HashMap<String, Row>>);

#[derive(Debug, Default)]
struct Row {
    fence: FenceCheck,
    done_by: Option<usize>,
    runs: u32,
}

impl Database {
    fn with<T>(&self, task: &str, act: impl FnOnce(&mut Row) -> T) -> T {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(rows.entry(task.to_owned()).or_default())
    }

    /// How often each task was run, in total.
    pub(crate) fn runs(&self) -> Vec<u32> {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.values().map(|row| row.runs).collect()
    }
}

/// Works through `tasks`, and returns how many this worker has done.
async fn worker(
    me: usize,
    locks: Locks,
    tasks: Arc<Vec<String>>,
    database: Arc<Database>,
) -> Result<usize> {
    let mut done = 0;
    for task in tasks.iter() {
        let Some(guard) = locks.named(format!("task:{task}"))?.try_acquire().await? else {
            continue; // another worker has it
        };
        // The token accompanies the first access, which is a read.
        let token = guard.token()?;
        let is_done =
            database.with(task, |row| row.fence.admit(token).map(|()| row.done_by.is_some()))?;
        if !is_done {
            tokio::task::yield_now().await; // the work itself
            database.with(task, |row| {
                row.fence.admit(token)?;
                row.done_by = Some(me);
                row.runs += 1;
                Ok::<_, distlock::Error>(())
            })?;
            done += 1;
        }
        guard.release().await?;
    }
    // A guard dropped by an early return is released in the background: wait for that.
    locks.close(Duration::from_secs(5)).await?;
    Ok(done)
}

/// Four workers and twenty tasks on the store at `url`; returns the number of runs of each task.
///
/// # Errors
///
/// Any error of the store.
pub(crate) async fn run(url: &str) -> Result<Vec<u32>> {
    let tasks: Arc<Vec<_>> = Arc::new((1..=20).map(|n| format!("resize-{n}")).collect());
    let database = Arc::new(Database::default());
    let mut workers = Vec::new();
    for me in 1..=4 {
        // Each worker has its own connection, as if it were a separate process.
        let locks = distlock::connect(url).await?;
        let task = worker(me, locks, Arc::clone(&tasks), Arc::clone(&database));
        workers.push((me, tokio::spawn(task)));
    }
    for (me, worker) in workers {
        println!("worker {me} did {} tasks", worker.await.expect("a worker does not panic")?);
    }
    Ok(database.runs())
}

#[allow(dead_code, reason = "the tests include this file as a module")]
#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://tasks".to_owned());
    let runs = run(&url).await?;
    println!("{} tasks, each run {} time(s)", runs.len(), runs.iter().max().unwrap_or(&0));
    Ok(())
}
