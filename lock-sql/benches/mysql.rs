//! What a lock in MariaDB costs, in raw statements of the same run.
//!
//! `cargo bench -p lock-sql --features mysql --bench mysql` starts a server of its own and prints
//! figures.

use std::error::Error;
use std::time::Duration;

use conformance_tests::servers::MariaDbServer;
use lock_core::{Attempt, Claim, ClaimRequest, LockBackend, LockKey, Locks, OsRng, OwnerId};
use lock_sql::{SqlBackend, SqlConfig};
use sqlx::MySqlPool;
use sqlx::mysql::MySqlPoolOptions;
use tokio::time::Instant;

type Done<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const TTL: Duration = Duration::from_secs(30);

fn main() -> Done {
    // A plain `cargo test --benches` asks for nothing.
    if std::env::args().any(|argument| argument == "--test" || argument == "--list") {
        return Ok(());
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = MariaDbServer::builder().start().await?;
        tokio::spawn(async move {
            uncontended(&server).await?;
            hand_over(&server).await?;
            held(&server).await
        })
        .await?
    })
}

fn p50(mut samples: Vec<Duration>) -> Duration {
    samples.sort();
    samples[samples.len() / 2]
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

fn claim(backend: &impl LockBackend, name: &str) -> Done<Box<dyn Claim>> {
    let request = ClaimRequest::new(LockKey::new("", name)?, OwnerId::generate(&OsRng)?, TTL);
    Ok(backend.claim(request.with_wait(true))?)
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
            let mut claim = claim(&backend, name)?;
            let start = Instant::now();
            match claim.try_acquire().await? {
                Attempt::Granted { .. } => {}
                other => return Err(format!("not granted: {other:?}").into()),
            }
            claim.release().await?;
            *took = start.elapsed();
        }
        let lock = locks.lock("bench")?;
        let start = Instant::now();
        lock.acquire().await?.release().await?;
        took[4] = start.elapsed();
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
async fn hand_over(server: &MariaDbServer) -> Done {
    let (a, b) = (
        Locks::new(lock_sql::connect(server.url()).await?),
        Locks::new(lock_sql::connect(server.url()).await?),
    );
    let mut took = Vec::new();
    for round in 0..200_u64 {
        let guard = a.lock("hand")?.acquire().await?;
        let lock = b.lock("hand")?;
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

struct Usage {
    statements: f64,
    server_cpu: f64,
    client_cpu: f64,
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

fn cpu(process: &str) -> Done<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<_> =
        stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
}

async fn usage(server: &MariaDbServer, pool: &MySqlPool) -> Done<Usage> {
    // Executed statements of prepared ones; pings are not counted.
    Ok(Usage {
        statements: status(pool, "COM_UPDATE").await? + status(pool, "COM_SELECT").await?,
        server_cpu: cpu(&server.pid()?.to_string())?,
        client_cpu: cpu("self")?,
    })
}

fn resident() -> Done<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}

/// What 10 000 held locks cost while nothing happens but their renewals.
async fn held(server: &MariaDbServer) -> Done {
    const LOCKS: u32 = 10_000;
    const SECONDS: u64 = 30;
    let pool = MySqlPoolOptions::new().max_connections(1).connect(server.url()).await?;
    let locks = Locks::builder(lock_sql::connect(server.url()).await?).default_ttl(TTL).build();
    let before = resident()?;
    let mut guards = Vec::new();
    let start = Instant::now();
    for chunk in 0..LOCKS / 100 {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..100 {
            let lock = locks.lock(format!("held:{chunk}:{n}"))?;
            tasks.spawn(async move { lock.acquire().await });
        }
        while let Some(guard) = tasks.join_next().await {
            guards.push(guard??);
        }
    }
    println!("{LOCKS} locks acquired in {:.2?}, ttl {TTL:?}", start.elapsed());
    let client_bytes = resident()? - before;
    // The first renewals come together, since the locks were taken together.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let (first, start) = (usage(server, &pool).await?, Instant::now());
    tokio::time::sleep(Duration::from_secs(SECONDS)).await;
    let (last, took) = (usage(server, &pool).await?, start.elapsed().as_secs_f64());
    let connections = status(&pool, "THREADS_CONNECTED").await?;
    println!("  statements              {:>8.1} /s", (last.statements - first.statements) / took);
    println!(
        "  CPU of the server       {:>8.1} % of a core",
        (last.server_cpu - first.server_cpu) / took * 100.0
    );
    println!(
        "  CPU of the client       {:>8.1} % of a core",
        (last.client_cpu - first.client_cpu) / took * 100.0
    );
    println!("  bytes per lock          {:>8.0} client", client_bytes / f64::from(LOCKS));
    println!("  connections             {connections:>8} with those of the benchmark");
    let lost = guards.iter().filter(|guard| guard.token().is_err()).count();
    println!("  lost                    {lost:>8}");
    drop(guards);
    locks.close(Duration::from_secs(20)).await?;
    let left: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM distlock WHERE owner IS NOT NULL")
        .fetch_one(&pool)
        .await?;
    println!("  held after the end      {left:>8}");
    Ok(())
}
