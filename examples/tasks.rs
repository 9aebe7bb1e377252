//! One worker at a time for each task.
//!
//! Several workers, on as many machines as you like, see the same list of tasks. Each takes the
//! lock named after a task before it works on it, and skips the task if another worker has it. A
//! worker that is killed in the middle leaves its task to another one, once its TTL has passed.
//!
//! **What the lock gives:** no two workers work on a task at the same time. **What it does not
//! give:** "once". That needs the done mark, which is checked and written under the fence, in the
//! database of the application. What a killed worker did outside that database, such as sending a
//! mail, is done again by the next one.
//!
//! ```sh
//! cargo run -p distlock-examples --bin tasks -- \
//!     sqlite://target/locks.db 'sqlite://target/app.db?mode=rwc' worker-1
//! ```

use std::error::Error;
use std::time::Duration;

use distlock::{Held, Locks};
use sqlx::AnyPool;

/// How long a task waits for another worker after its own was killed.
const TTL: Duration = Duration::from_secs(5);

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, database, worker] = &arguments[..] else {
        return Err("usage: tasks STORE DATABASE WORKER".into());
    };
    let locks = distlock::builder(store).default_ttl(TTL).label(worker).connect().await?;
    sqlx::any::install_default_drivers();
    let database = AnyPool::connect(database).await?;
    locks.named("tasks:setup")?.run(async |_| set_up(&database).await).await??;

    let done = work_off(&locks, &database, worker).await?;
    println!("{worker} has done {done} tasks, and none is open");
    locks.close(TTL).await?; // a lock that was just dropped is released before the program ends
    Ok(())
}

/// Works until no task is open.
async fn work_off(locks: &Locks, database: &AnyPool, worker: &str) -> Result<u32> {
    let mut done = 0;
    loop {
        let open: Vec<(i64, i64)> =
            sqlx::query_as("SELECT id, takes_ms FROM tasks WHERE done_by IS NULL ORDER BY id")
                .fetch_all(database)
                .await?;
        if open.is_empty() {
            return Ok(done);
        }
        for (task, takes_ms) in open {
            let lock = locks.named(format!("task:{task}"))?;
            // `None`: another worker has it.
            let ran = lock.try_run(async |held| run(held, database, worker, task, takes_ms).await);
            match ran.await {
                Ok(Some(is_done)) => done += u32::from(is_done?),
                Ok(None) => {}
                Err(lost) if lost.lost_reason().is_some() => eprintln!("{worker}: {lost}"),
                Err(error) => return Err(error.into()),
            }
        }
        // What is still open is in the hands of others, or of a worker that was killed.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Runs one task under its lock; `false` if it was done before, or a later holder has it.
async fn run(
    held: Held,
    database: &AnyPool,
    worker: &str,
    task: i64,
    takes_ms: i64,
) -> Result<bool> {
    let fence = held.token()?.as_i64();
    // The first access already presents the fence: from here on an earlier holder changes nothing.
    let open = sqlx::query(
        "UPDATE tasks SET fence = $1, runs = runs + 1
         WHERE id = $2 AND fence <= $1 AND done_by IS NULL",
    );
    if open.bind(fence).bind(task).execute(database).await?.rows_affected() == 0 {
        return Ok(false); // done by another worker since the list was read
    }
    println!("{worker} runs task {task}");
    tokio::time::sleep(Duration::from_millis(takes_ms.unsigned_abs())).await; // the work itself
    // The done mark.
    let done = sqlx::query("UPDATE tasks SET done_by = $1 WHERE id = $2 AND fence = $3");
    let done = done.bind(worker).bind(task).bind(fence).execute(database).await?;
    Ok(done.rows_affected() == 1)
}

/// Twenty tasks, the first of which takes long.
async fn set_up(database: &AnyPool) -> sqlx::Result<()> {
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS tasks (
            id BIGINT PRIMARY KEY, takes_ms BIGINT NOT NULL, runs BIGINT NOT NULL,
            fence BIGINT NOT NULL, done_by TEXT)",
    )
    .execute(database)
    .await?;
    for (task, takes_ms) in (1_i64..=20).zip(std::iter::once(2000_i64).chain([50; 19])) {
        let add = "INSERT INTO tasks VALUES ($1, $2, 0, 0, NULL) ON CONFLICT (id) DO NOTHING";
        sqlx::query(add).bind(task).bind(takes_ms).execute(database).await?;
    }
    Ok(())
}
