//! What a lock in an SQLite file costs, in raw statements of the same run.
//!
//! `cargo bench -p lock-sql --features sqlite --bench sqlite` creates its own file and prints
//! figures.

use std::path::Path;
use std::time::Duration;

use lock_core::Locks;
use lock_sql::{SqlBackend, SqlConfig};
use lock_testkit::measure::{
    Done, TTL, Usage, Watch, claim, cycle, guarded_cycle, hold, p50, ratio, resident, run, timed,
};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

const UPSERT: &str = "INSERT INTO raw (name, owner, fence) VALUES ('raw', ?, 1) \
     ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = raw.fence + 1 RETURNING fence";

fn main() -> Done {
    run(async {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("locks.db");
        // What the backend sets for a file of its own: a commit is on the disk when it returns.
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await?;
        uncontended(&pool).await?;
        held(&path).await
    })
}

async fn upsert(pool: &SqlitePool) -> Done {
    sqlx::query(UPSERT).bind("0123456789abcdef0123456789abcdef").fetch_all(pool).await?;
    Ok(())
}

/// Acquire and release of a free lock, against two upserts of one row in the same file.
async fn uncontended(pool: &SqlitePool) -> Done {
    sqlx::query("CREATE TABLE raw (name TEXT PRIMARY KEY, owner TEXT, fence INTEGER)")
        .execute(pool)
        .await?;
    let backend = SqlBackend::from_pool(pool.clone(), SqlConfig::default()).await?;
    let locks = Locks::new(backend.clone());
    let mut samples: [Vec<Duration>; 3] = Default::default();
    for round in 0..2_500_u32 {
        let raw = timed(async {
            upsert(pool).await?;
            upsert(pool).await
        });
        let taken = [
            raw.await?,
            cycle(claim(&backend, "bench", true)?).await?,
            guarded_cycle(&locks, "bench").await?,
        ];
        if round >= 500 {
            samples.iter_mut().zip(taken).for_each(|(samples, taken)| samples.push(taken));
        }
    }
    let [raw, low, high] = samples.map(p50);
    println!("uncontended acquire + release, p50 of 2000:");
    println!("  two upserts, the pool   {raw:>10.1?}");
    println!("  claim (the backend)     {low:>10.1?}   {:.2} x", ratio(low, raw));
    println!("  Locks (keeper, guard)   {high:>10.1?}   {:.2} x", ratio(high, raw));
    Ok(())
}

/// The write transactions so far: `iChange` in the header of the WAL index counts them
/// (<https://www.sqlite.org/walformat.html>, section 2.1). There is no server: what the database
/// costs is a part of this process.
fn usage(path: &Path) -> Done<Usage> {
    let index = std::fs::read(path.with_extension("db-shm"))?;
    let counter = index.get(8..12).ok_or("no header")?.try_into()?;
    Ok(Usage { requests: f64::from(u32::from_ne_bytes(counter)), server_cpu: 0.0 })
}

/// What 10 000 held locks cost while nothing happens but their renewals.
async fn held(path: &Path) -> Done {
    const LOCKS: u32 = 10_000;
    let url = format!("sqlite://{}", path.display());
    let locks = Locks::builder(lock_sql::connect(&url).await?).default_ttl(TTL).build()?;
    let before = resident()?;
    let guards = hold(&locks, LOCKS).await?;
    println!("  bytes per lock          {:>8.0}", (resident()? - before) / f64::from(LOCKS));
    Watch::settle().await;
    let watch = Watch::begin(usage(path)?)?;
    watch.pass().await;
    watch.end(usage(path)?, &guards)?;
    drop(guards);
    locks.close(Duration::from_secs(60)).await?;
    Ok(())
}
