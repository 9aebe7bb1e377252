//! What a lock in a PostgreSQL table costs, in raw statements of the same run.
//!
//! `cargo bench -p lock-sql --features postgres --bench postgres` starts its own server and prints
//! figures. With a word as its argument, only that part: `uncontended`, `hand-over`, `herd`,
//! `held`.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Locks;
use lock_sql::{SqlBackend, SqlConfig};
use lock_testkit::measure::{
    Done, TTL, Usage, Watch, claim, cycle, guarded_cycle, hand_over, hold, p50, ratio, run, timed,
};
use lock_testkit::servers::PostgresServer;
use sqlx::postgres::{PgListener, PgPool, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection};
use tokio::task::JoinSet;
use tokio::time::Instant;

const UPSERT: &str = "INSERT INTO raw (name, owner, fence) VALUES ($1, $2, 1) \
     ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = raw.fence + 1 RETURNING fence";

fn main() -> Done {
    let wanted: Vec<_> = std::env::args().skip(1).collect();
    let wants = |part: &str| {
        let mut words = wanted.iter().filter(|word| !word.starts_with('-')).peekable();
        words.peek().is_none() || words.any(|word| word == part)
    };
    let parts = ["uncontended", "hand-over", "herd", "held"].map(wants);
    run(async move {
        let server = PostgresServer::builder().start().await?;
        if parts[0] {
            uncontended(&server).await?;
        }
        if parts[1] {
            handed_over(&server).await?;
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
        Ok(())
    })
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

/// Acquire and release of a free lock, against two upserts of one row: on the application's pool as
/// it is by default, on one that does not ask each connection whether it works, and on a connection
/// alone.
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
        let tested = timed(async {
            pooled_upsert(&pool).await?;
            pooled_upsert(&pool).await
        });
        let trusted = timed(async {
            pooled_upsert(&trusting).await?;
            pooled_upsert(&trusting).await
        });
        let (tested, trusted) = (tested.await?, trusted.await?);
        let alone = timed(async {
            upsert(&mut connection).await?;
            upsert(&mut connection).await
        });
        let alone = alone.await?;
        let low = cycle(claim(&backend, "bench", true)?).await?;
        let high = guarded_cycle(&locks, "bench").await?;
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
async fn handed_over(server: &PostgresServer) -> Done {
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

        let (holder, waiter) = (claim(&a, "hand", false)?, claim(&b, "hand", true)?);
        let handed_over = hand_over(holder, waiter, Duration::ZERO).await?;
        if round >= 500 {
            floor.push(raw);
            took.push(handed_over);
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
            let mut guard = locks[0].named(&*name)?.acquire().await?;
            let (send, mut granted) = tokio::sync::mpsc::unbounded_channel();
            let mut tasks = JoinSet::new();
            for n in 0..waiters {
                let (lock, send) = (locks[n % clients].named(&*name)?, send.clone());
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
                guard = granted.recv().await.ok_or("no waiter was granted the lock")?;
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

async fn usage(server: &PostgresServer, connection: &mut PgConnection) -> Done<Usage> {
    #[allow(clippy::cast_precision_loss, reason = "a count of statements")]
    let requests = statements(connection).await? as f64;
    Ok(Usage { requests, server_cpu: server.cpu_time()?.as_secs_f64() })
}

/// What 10 000 held locks cost while nothing happens but their renewals.
async fn held(server: &PostgresServer) -> Done {
    let mut connection = PgConnection::connect(server.url()).await?;
    let locks = Locks::builder(lock_sql::connect(server.url()).await?).default_ttl(TTL).build()?;
    let guards = hold(&locks, 10_000).await?;
    Watch::settle().await;
    let watch = Watch::begin(usage(server, &mut connection).await?)?;
    watch.pass().await;
    watch.end(usage(server, &mut connection).await?, &guards)?;
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let connections: i64 = sqlx::query_scalar(ours).fetch_one(&mut connection).await?;
    println!("  connections             {connections:>8}");
    drop(guards);
    locks.close(Duration::from_secs(20)).await?;
    let sql = "SELECT count(*) FROM distlock WHERE owner IS NOT NULL";
    let left: i64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
    println!("  still held afterwards   {left:>8}");
    Ok(())
}
