//! What a lock in a PostgreSQL table costs, in raw statements of the same run.
//!
//! `cargo bench -p lock-sql --features postgres --bench postgres` starts a server of its own and prints
//! figures. With a word as its argument, only that part: `uncontended`, `hand-over`, `herd`, `held`.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use conformance_tests::servers::PostgresServer;
use lock_core::{Attempt, Claim, ClaimRequest, LockBackend, LockKey, Locks, OsRng, OwnerId};
use lock_sql::{SqlBackend, SqlConfig};
use sqlx::postgres::{PgListener, PgPool, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection};
use tokio::task::JoinSet;
use tokio::time::Instant;

type Done<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const TTL: Duration = Duration::from_secs(30);
const UPSERT: &str = "INSERT INTO raw (name, owner, fence) VALUES ($1, $2, 1) \
     ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = raw.fence + 1 RETURNING fence";

fn main() -> Done {
    let wanted: Vec<_> = std::env::args().skip(1).collect();
    // A plain `cargo test --benches` asks for nothing.
    if wanted.iter().any(|argument| argument == "--test" || argument == "--list") {
        return Ok(());
    }
    let wants = |part: &str| {
        let mut words = wanted.iter().filter(|word| !word.starts_with('-')).peekable();
        words.peek().is_none() || words.any(|word| word == part)
    };
    let parts = ["uncontended", "hand-over", "herd", "held"].map(wants);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = PostgresServer::builder().start().await?;
        tokio::spawn(async move {
            if parts[0] {
                uncontended(&server).await?;
            }
            if parts[1] {
                hand_over(&server).await?;
            }
            // One that counts statements, which costs a little.
            let counting = PostgresServer::builder()
                .option("shared_preload_libraries", "pg_stat_statements")
                .start()
                .await?;
            let mut connection = PgConnection::connect(counting.url()).await?;
            connection.execute("CREATE EXTENSION pg_stat_statements").await?;
            if parts[2] {
                herd(&counting).await?;
            }
            if parts[3] {
                held(&counting).await?;
            }
            Done::Ok(())
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

fn claim(backend: &impl LockBackend, name: &str, wait: bool) -> Done<Box<dyn Claim>> {
    let request = ClaimRequest::new(LockKey::new("", name)?, OwnerId::generate(&OsRng)?, TTL);
    Ok(backend.claim(request.with_wait(wait))?)
}

async fn took(work: impl Future<Output = Done>) -> Done<Duration> {
    let start = Instant::now();
    work.await?;
    Ok(start.elapsed())
}

async fn raw_table(connection: &mut PgConnection) -> Done {
    let ddl = "CREATE TABLE IF NOT EXISTS raw (name text COLLATE \"C\" PRIMARY KEY, owner text, fence bigint) WITH (fillfactor = 50)";
    connection.execute(ddl).await?;
    Ok(())
}

async fn upsert(connection: &mut PgConnection) -> Done {
    let query = sqlx::query(UPSERT).bind("raw").bind("0123456789abcdef0123456789abcdef");
    query.fetch_all(connection).await?;
    Ok(())
}

async fn pooled_upsert(pool: &PgPool) -> Done {
    let query = sqlx::query(UPSERT).bind("raw").bind("0123456789abcdef0123456789abcdef");
    query.fetch_all(pool).await?;
    Ok(())
}

/// Acquire and release of a free lock, against two upserts of one row: on the application's pool as it
/// is by default, on one that does not ask each connection whether it works, and on a connection alone.
async fn uncontended(server: &PostgresServer) -> Done {
    let pool = PgPool::connect(server.url()).await?;
    let options = PgPoolOptions::new().test_before_acquire(false);
    let trusting = options.connect(server.url()).await?;
    let mut connection = PgConnection::connect(server.url()).await?;
    raw_table(&mut connection).await?;
    let backend = SqlBackend::from_pool(pool.clone(), SqlConfig::default()).await?;
    let locks = Locks::new(backend.clone());
    let mut samples: [Vec<Duration>; 5] = Default::default();
    for round in 0..6_000_u32 {
        let tested = took(async {
            pooled_upsert(&pool).await?;
            pooled_upsert(&pool).await
        });
        let trusted = took(async {
            pooled_upsert(&trusting).await?;
            pooled_upsert(&trusting).await
        });
        let (tested, trusted) = (tested.await?, trusted.await?);
        let alone = took(async {
            upsert(&mut connection).await?;
            upsert(&mut connection).await
        });
        let alone = alone.await?;
        let mut claim = claim(&backend, "bench", true)?;
        let low = took(async {
            match claim.try_acquire().await? {
                Attempt::Granted { .. } => {}
                other => return Err(format!("not granted: {other:?}").into()),
            }
            claim.release().await?;
            Ok(())
        });
        let low = low.await?;
        let lock = locks.lock("bench")?;
        let high = took(async {
            lock.acquire().await?.release().await?;
            Ok(())
        });
        let high = high.await?;
        if round >= 1_000 {
            for (samples, took) in samples.iter_mut().zip([tested, trusted, alone, low, high]) {
                samples.push(took);
            }
        }
    }
    let [tested, trusted, alone, low, high] = samples.map(p50);
    println!("uncontended acquire + release, p50 of 5000:");
    println!("  two upserts, the pool       {tested:>10.1?}");
    println!("  the same, not tested        {trusted:>10.1?}");
    println!("  the same, one connection    {alone:>10.1?}");
    for (what, took) in [("claim (the backend)", low), ("Locks (keeper, guard)", high)] {
        println!(
            "  {what:<24}    {took:>10.1?}   {:.2} x   {:.2} x   {:.2} x",
            ratio(took, tested),
            ratio(took, trusted),
            ratio(took, alone)
        );
    }
    Ok(())
}

/// From the call of `release` to the grant of the one that waits in another client, against a
/// statement, a notification and a statement.
async fn hand_over(server: &PostgresServer) -> Done {
    let (a, b) = (lock_sql::connect(server.url()).await?, lock_sql::connect(server.url()).await?);
    let mut first = PgConnection::connect(server.url()).await?;
    let mut second = PgConnection::connect(server.url()).await?;
    raw_table(&mut first).await?;
    let mut listener = PgListener::connect(server.url()).await?;
    listener.listen("bench").await?;
    let notify: Arc<str> = format!("{UPSERT}, pg_notify('bench', 'x') IS NULL").into();
    let (mut floor, mut took) = (Vec::new(), Vec::new());
    for round in 0..3_000_u32 {
        let start = Instant::now();
        let query = sqlx::query(sqlx::AssertSqlSafe(Arc::clone(&notify)));
        let query = query.bind("raw").bind("somebody");
        let (answer, push) = tokio::join!(query.fetch_all(&mut first), listener.recv());
        answer?;
        push?;
        upsert(&mut second).await?;
        let raw = start.elapsed();

        let mut holder = claim(&a, "hand", false)?;
        let mut waiter = claim(&b, "hand", true)?;
        holder.try_acquire().await?;
        waiter.try_acquire().await?;
        let woken = tokio::spawn(async move {
            loop {
                waiter.changed().await?;
                if let Attempt::Granted { .. } = waiter.try_acquire().await? {
                    return Ok::<_, lock_core::Error>((Instant::now(), waiter));
                }
            }
        });
        tokio::task::yield_now().await;
        let start = Instant::now();
        holder.release().await?;
        let (at, mut waiter) = woken.await??;
        waiter.release().await?;
        if round >= 500 {
            floor.push(raw);
            took.push(at.saturating_duration_since(start));
        }
    }
    let (floor, took) = (p50(floor), p50(took));
    println!("hand-over to the one that waits, p50 of 2500:");
    println!("  upsert + notification + upsert  {floor:>10.1?}");
    println!("  release to grant                {took:>10.1?}   {:.2} x", ratio(took, floor));
    Ok(())
}

/// How many statements on the lock table the server has executed.
async fn statements(connection: &mut PgConnection) -> Done<i64> {
    let sql = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements \
               WHERE query LIKE '%distlock%' AND query NOT LIKE '%pg_stat_statements%'";
    Ok(sqlx::query_scalar(sql).fetch_one(connection).await?)
}

/// Statements for each hand-over, with that many waiters: in one process, and in ten.
async fn herd(server: &PostgresServer) -> Done {
    const HAND_OVERS: usize = 200;
    let mut connection = PgConnection::connect(server.url()).await?;
    println!("statements for each hand-over, while so many wait:");
    for clients in [1, 10] {
        for waiters in [10, 100, 1000] {
            let mut locks = Vec::new();
            for _ in 0..clients {
                locks.push(Locks::new(lock_sql::connect(server.url()).await?));
            }
            let name = format!("herd:{clients}:{waiters}");
            let mut guard = locks[0].lock(&*name)?.acquire().await?;
            let (send, mut granted) = tokio::sync::mpsc::unbounded_channel();
            let mut tasks = JoinSet::new();
            for n in 0..waiters {
                let (lock, send) = (locks[n % clients].lock(&*name)?, send.clone());
                tasks.spawn(async move {
                    // Whoever has had it waits again.
                    while let Ok(guard) = lock.acquire().await {
                        let _ = send.send(guard);
                    }
                });
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
            // What waiting itself costs: the slow second look.
            let before = statements(&mut connection).await?;
            tokio::time::sleep(Duration::from_secs(5)).await;
            let idle = statements(&mut connection).await?;
            let mut latency = Vec::new();
            for _ in 0..HAND_OVERS {
                let start = Instant::now();
                guard.release().await?;
                guard = granted.recv().await.ok_or("nobody was granted the lock")?;
                latency.push(start.elapsed());
            }
            // The last one to wait has written itself down by then.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let after = statements(&mut connection).await?;
            #[allow(clippy::cast_precision_loss, reason = "counts of statements")]
            let (idle_rate, done) = ((idle - before) as f64 / 5.0, (after - idle) as f64);
            println!(
                "  {clients:>3} processes, {waiters:>5} waiters  {:>6.2}   in {:>9.1?}, {:.1?} at most; {idle_rate:.1} /s while nothing happens",
                done / f64::from(u32::try_from(HAND_OVERS)?),
                p50(latency.clone()),
                latency.iter().max().copied().unwrap_or_default(),
            );
            tasks.abort_all();
            drop(guard);
            for locks in locks {
                locks.close(Duration::from_secs(20)).await?;
            }
        }
    }
    Ok(())
}

fn client_cpu() -> Done<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<_> =
        stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.0)
}

/// What 10 000 held locks cost while nothing happens but their renewals.
async fn held(server: &PostgresServer) -> Done {
    const LOCKS: u32 = 10_000;
    const SECONDS: u64 = 30;
    let mut connection = PgConnection::connect(server.url()).await?;
    let locks = Locks::builder(lock_sql::connect(server.url()).await?).default_ttl(TTL).build();
    let mut guards = Vec::new();
    let start = Instant::now();
    for chunk in 0..LOCKS / 100 {
        let mut tasks = JoinSet::new();
        for n in 0..100 {
            let lock = locks.lock(format!("held:{chunk}:{n}"))?;
            tasks.spawn(async move { lock.acquire().await });
        }
        while let Some(guard) = tasks.join_next().await {
            guards.push(guard??);
        }
    }
    println!("{LOCKS} locks acquired in {:.2?}, ttl {TTL:?}", start.elapsed());
    // The first renewals come together, since the locks were taken together.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let first = (statements(&mut connection).await?, server.cpu_time()?, client_cpu()?);
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(SECONDS)).await;
    let last = (statements(&mut connection).await?, server.cpu_time()?, client_cpu()?);
    let took = start.elapsed().as_secs_f64();
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let connections: i64 = sqlx::query_scalar(ours).fetch_one(&mut connection).await?;
    #[allow(clippy::cast_precision_loss, reason = "a count of statements")]
    let statements = (last.0 - first.0) as f64;
    let server_cpu = last.1.saturating_sub(first.1).as_secs_f64();
    println!("  statements              {:>8.1} /s", statements / took);
    println!("  CPU of the server       {:>8.1} % of a core", server_cpu / took * 100.0);
    println!("  CPU of the client       {:>8.1} % of a core", (last.2 - first.2) / took * 100.0);
    println!("  connections             {connections:>8}");
    let lost = guards.iter().filter(|guard| guard.token().is_err()).count();
    println!("  lost                    {lost:>8}");
    drop(guards);
    locks.close(Duration::from_secs(20)).await?;
    let sql = "SELECT count(*) FROM distlock WHERE owner IS NOT NULL";
    let left: i64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
    println!("  still held afterwards   {left:>8}");
    Ok(())
}
