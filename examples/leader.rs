//! One of many replicas leads.
//!
//! Each replica of a service waits for the same lock. The one that has it leads: here it does a
//! piece of work every half second. On SIGTERM, as in a rolling update, it finishes the piece in
//! hand and releases the lock, so the next replica leads at once; when it is killed, the next one
//! leads after the ttl.
//!
//! **What the lock gives:** one leader at a time, who stops before its lease can end. (Only one whose lock is
//! taken away by force, or lost by the store, hears of it after the fact.)
//! **What it does not give:** it cannot stop a leader that is paused in the middle of a piece of
//! work. So each piece carries the fence, and the database refuses that of an earlier leader.
//!
//! ```sh
//! cargo run -p distlock-examples --bin leader -- \
//!     sqlite://target/locks.db 'sqlite://target/app.db?mode=rwc' replica-1
//! ```

use std::error::Error;
use std::time::Duration;

use distlock::Held;
use sqlx::AnyPool;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long the service has no leader after its leader was killed.
const TTL: Duration = Duration::from_secs(10);
const EVERY: Duration = Duration::from_millis(500);

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, database, replica] = &arguments[..] else {
        return Err("usage: leader STORE DATABASE REPLICA".into());
    };
    let mut stop = signal(SignalKind::terminate())?;
    let locks = distlock::builder(store).default_ttl(TTL).label(replica).connect().await?;
    sqlx::any::install_default_drivers();
    let database = AnyPool::connect(database).await?;
    locks.named("leader:setup")?.run(async |_| set_up(&database).await).await??;

    let lock = locks.named("leader")?;
    println!("{replica} stands by");
    loop {
        let guard = tokio::select! {
            guard = lock.acquire() => guard,
            _ = stop.recv() => break, // gives up its place
        };
        let led = match guard {
            Ok(guard) => guard.run(async |held| lead(held, &database, replica, &mut stop).await),
            Err(error) if error.is_retryable() => {
                eprintln!("{replica}: {error}");
                tokio::time::sleep(EVERY).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        match led.await {
            // Told to stop. The lock is released by now, and another replica leads.
            Ok(stopped) => {
                stopped?;
                break;
            }
            Err(lost) => println!("{replica} leads no more: {lost}"),
        }
    }
    println!("{replica} stops");
    locks.close(TTL).await?;
    Ok(())
}

/// Leads until told to stop. If the lock is lost, this is dropped at its next await.
async fn lead(held: Held, database: &AnyPool, replica: &str, stop: &mut Signal) -> Result<()> {
    let fence = held.token()?.as_i64();
    println!("{replica} leads with fence {fence}");
    let mut beat = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            biased;
            _ = stop.recv() => return Ok(()),
            _ = beat.tick() => {}
        }
        // The work, which a signal does not cut short.
        let work = "UPDATE work SET pieces = pieces + 1, leader = $1, fence = $2 WHERE fence <= $2";
        let work = sqlx::query(work).bind(replica).bind(fence).execute(database).await?;
        if work.rows_affected() == 0 {
            return Err("a later leader was here, so this one must have been paused".into());
        }
    }
}

async fn set_up(database: &AnyPool) -> sqlx::Result<()> {
    for step in [
        "CREATE TABLE IF NOT EXISTS work (
            id BIGINT PRIMARY KEY, pieces BIGINT NOT NULL, leader TEXT, fence BIGINT NOT NULL)",
        "INSERT INTO work VALUES (1, 0, NULL, 0) ON CONFLICT (id) DO NOTHING",
    ] {
        sqlx::query(step).execute(database).await?;
    }
    Ok(())
}
