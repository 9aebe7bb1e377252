//! What a lock in MariaDB costs, in raw statements of the same run.
//!
//! `cargo bench -p lock-sql --features mysql --bench mysql` starts its own server and prints
//! figures.

use std::time::Duration;

use lock_core::Locks;
use lock_sql::{SqlBackend, SqlConfig};
use lock_testkit::measure::{
    Done, TTL, Usage, Watch, claim, cycle, guarded_cycle, hold, p50, ratio, resident, run,
};
use lock_testkit::servers::MariaDbServer;
use sqlx::MySqlPool;
use sqlx::mysql::MySqlPoolOptions;
use tokio::time::Instant;

fn main() -> Done {
    run(async {
        let server = MariaDbServer::builder().start().await?;
        uncontended(&server).await?;
        handed_over(&server).await?;
        held(&server).await
    })
}

const UPSERT: &str = "INSERT INTO raw (name, owner, expires) VALUES (?, ?, ?) \
     ON DUPLICATE KEY UPDATE owner = VALUES(owner), expires = VALUES(expires)";

async fn upsert(pool: &MySqlPool, round: u32) -> Done {
    sqlx::query(UPSERT)
        .bind("raw")
        .bind("0123456789abcdef0123456789abcdef")
        .bind(round)
        .execute(pool)
        .await?;
    Ok(())
}

/// Acquire and release of a free lock, against two upserts of one row.
async fn uncontended(server: &MariaDbServer) -> Done {
    let pool = MySqlPoolOptions::new().max_connections(4).connect(server.url()).await?;
    let plain = MySqlPoolOptions::new()
        .max_connections(4)
        .test_before_acquire(false)
        .connect(server.url())
        .await?;
    sqlx::query("CREATE TABLE raw (name VARBINARY(1025) PRIMARY KEY, owner VARBINARY(32), expires BIGINT) ENGINE = InnoDB")
        .execute(&pool)
        .await?;
    let backend = SqlBackend::from_pool(pool.clone(), SqlConfig::default()).await?;
    let locks = Locks::new(backend.clone());
    let mut samples: [Vec<Duration>; 5] = Default::default();
    for round in 0..6_000_u32 {
        let mut took = [Duration::ZERO; 5];
        for (pool, took) in [&pool, &plain].into_iter().zip(&mut took) {
            let start = Instant::now();
            upsert(pool, round * 2).await?;
            upsert(pool, round * 2 + 1).await?;
            *took = start.elapsed();
        }
        let new = format!("bench{round}");
        for (name, took) in ["bench", new.as_str()].into_iter().zip(&mut took[2..]) {
            *took = cycle(claim(&backend, name, true)?).await?;
        }
        took[4] = guarded_cycle(&locks, "bench").await?;
        if round >= 1_000 {
            for (samples, took) in samples.iter_mut().zip(took) {
                samples.push(took);
            }
        }
    }
    let [pool, plain, low, new, high] = samples.map(p50);
    println!("uncontended acquire + release, p50 of 5000, beside two upserts of one row:");
    println!("  upserts, the pool       {pool:>10.1?}");
    println!("  upserts, without its ping {plain:>8.1?}");
    let line = |what: &str, took| {
        println!(
            "  {what:<23} {took:>10.1?}   {:.2} x, {:.2} x",
            ratio(took, pool),
            ratio(took, plain)
        );
    };
    line("claim (the backend)", low);
    line("claim of a new name", new);
    line("Locks (keeper, guard)", high);
    Ok(())
}

/// From the call of `release` to the grant of the one that waits, which polls.
async fn handed_over(server: &MariaDbServer) -> Done {
    let (a, b) = (
        Locks::new(lock_sql::connect(server.url()).await?),
        Locks::new(lock_sql::connect(server.url()).await?),
    );
    let mut took = Vec::new();
    for round in 0..200_u64 {
        let guard = a.named("hand")?.acquire().await?;
        let lock = b.named("hand")?;
        let waiter = tokio::spawn(async move {
            let guard = lock.acquire().await?;
            Ok::<_, lock_core::Error>((Instant::now(), guard))
        });
        tokio::time::sleep(Duration::from_millis(5 + round % 50)).await;
        let start = Instant::now();
        guard.release().await?;
        let (at, guard) = waiter.await??;
        guard.release().await?;
        took.push(at.saturating_duration_since(start));
    }
    println!("hand-over to one that has waited for 5 to 55 ms, p50 of 200: {:.1?}", p50(took));
    Ok(())
}

async fn status(pool: &MySqlPool, name: &str) -> Done<f64> {
    let value: String = sqlx::query_scalar(
        "SELECT variable_value FROM information_schema.global_status WHERE variable_name = ?",
    )
    .bind(name)
    .fetch_one(pool)
    .await?;
    Ok(value.parse()?)
}

async fn usage(server: &MariaDbServer, pool: &MySqlPool) -> Done<Usage> {
    // Executed statements of prepared ones; pings are not counted.
    Ok(Usage {
        requests: status(pool, "COM_UPDATE").await? + status(pool, "COM_SELECT").await?,
        server_cpu: server.cpu_time()?.as_secs_f64(),
    })
}

/// What 10 000 held locks cost while nothing happens but their renewals.
async fn held(server: &MariaDbServer) -> Done {
    const LOCKS: u32 = 10_000;
    let pool = MySqlPoolOptions::new().max_connections(1).connect(server.url()).await?;
    let locks = Locks::builder(lock_sql::connect(server.url()).await?).default_ttl(TTL).build()?;
    let before = resident()?;
    let guards = hold(&locks, LOCKS).await?;
    let client_bytes = resident()? - before;
    Watch::settle().await;
    let watch = Watch::begin(usage(server, &pool).await?)?;
    watch.pass().await;
    watch.end(usage(server, &pool).await?, &guards)?;
    let connections = status(&pool, "THREADS_CONNECTED").await?;
    println!("  bytes per lock          {:>8.0} client", client_bytes / f64::from(LOCKS));
    println!("  connections             {connections:>8} with those of the benchmark");
    drop(guards);
    locks.close(Duration::from_secs(20)).await?;
    let left: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM distlock WHERE owner IS NOT NULL")
        .fetch_one(&pool)
        .await?;
    println!("  held after the end      {left:>8}");
    Ok(())
}
