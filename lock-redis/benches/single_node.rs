//! What a lock on one Redis node costs, in raw round trips of the same run.
//!
//! `cargo bench -p lock-redis --bench single_node` starts its own server and prints figures.

use std::time::Duration;

use lock_core::Locks;
use lock_testkit::measure::{
    Done, TTL, Usage, Watch, claim, cycle, guarded_cycle, hand_over, hold, p50, ratio, resident,
    run,
};
use lock_testkit::servers::RedisServer;
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

fn main() -> Done {
    run(async {
        // As Redis is by default, and with the append-only file, which costs two writes per cycle.
        let server = RedisServer::builder().option("appendonly", "no").start().await?;
        let durable = RedisServer::builder().start().await?;
        println!("without an append-only file");
        uncontended(&server).await?;
        handed_over(&server).await?;
        println!("with an append-only file");
        uncontended(&durable).await?;
        handed_over(&durable).await?;
        held(&server).await
    })
}

async fn raw(server: &RedisServer) -> Done<MultiplexedConnection> {
    Ok(redis::Client::open(server.url())?.get_multiplexed_async_connection().await?)
}

/// Acquire and release of a free lock, against two round trips that do next to nothing.
async fn uncontended(server: &RedisServer) -> Done {
    let backend = lock_redis::connect(server.url()).await?;
    let locks = Locks::new(backend.clone());
    let mut connection = raw(server).await?;
    // As long as ours, and does nothing: what the protocol takes of our calls.
    let idle = redis::Script::new("return 1");
    let mut idle = idle.key("bench");
    for part in ["hold", "queue", "waiters", "pauses", "gone:0123456789abcdef0123456789abcdef"] {
        idle.key(format!("{{bench}}+{part}"));
    }
    for argument in ["0123456789abcdef0123456789abcdef", "30000", "0123456789abcdef", "1", "0"] {
        idle.arg(argument);
    }
    let (mut floor, mut set, mut low, mut high) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut idles = Vec::new();
    for round in 0..6_000_u32 {
        let start = Instant::now();
        let _: () = redis::cmd("PING").query_async(&mut connection).await?;
        let _: () = redis::cmd("PING").query_async(&mut connection).await?;
        let a = start.elapsed();

        let start = Instant::now();
        let mut command = redis::cmd("SET");
        command.arg("raw").arg("0123456789abcdef0123456789abcdef").arg("NX").arg("PX").arg(30_000);
        let _: redis::Value = command.query_async(&mut connection).await?;
        let _: () = redis::cmd("DEL").arg("raw").query_async(&mut connection).await?;
        let b = start.elapsed();

        let start = Instant::now();
        let _: i64 = idle.invoke_async(&mut connection).await?;
        let _: i64 = idle.invoke_async(&mut connection).await?;
        let e = start.elapsed();

        let c = cycle(claim(&backend, "bench", true)?).await?;
        let d = guarded_cycle(&locks, "bench").await?;
        if round >= 1_000 {
            floor.push(a);
            set.push(b);
            idles.push(e);
            low.push(c);
            high.push(d);
        }
    }
    let (floor, set, idle) = (p50(floor), p50(set), p50(idles));
    let (low, high) = (p50(low), p50(high));
    println!("uncontended acquire + release, p50 of 5000:");
    println!("  two PING                {floor:>10.1?}");
    println!("  SET NX PX + DEL         {set:>10.1?}   {:.2} x", ratio(set, floor));
    println!("  two scripts that idle   {idle:>10.1?}   {:.2} x", ratio(idle, floor));
    println!("  claim (the backend)     {low:>10.1?}   {:.2} x", ratio(low, floor));
    println!("  Locks (keeper, guard)   {high:>10.1?}   {:.2} x", ratio(high, floor));
    Ok(())
}

/// From the call of `release` to the grant of the one that waits, against a script, a push and a
/// round trip.
async fn handed_over(server: &RedisServer) -> Done {
    let (a, b) =
        (lock_redis::connect(server.url()).await?, lock_redis::connect(server.url()).await?);
    let mut connection = raw(server).await?;
    let (pushed, mut pushes) = tokio::sync::mpsc::unbounded_channel();
    let client = redis::Client::open(format!("{}/?protocol=resp3", server.url()))?;
    let config = redis::AsyncConnectionConfig::new().set_push_sender(pushed);
    let mut subscriber = client.get_multiplexed_async_connection_with_config(&config).await?;
    subscriber.subscribe("bench").await?;
    let publish = redis::Script::new("return redis.call('PUBLISH', 'bench', '1')");
    let (mut floor, mut took) = (Vec::new(), Vec::new());
    for round in 0..3_000_u32 {
        // Everything that was pushed before is another round's.
        while pushes.try_recv().is_ok() {}
        let start = Instant::now();
        let (answer, push) =
            tokio::join!(publish.invoke_async::<_, i64>(&mut connection), pushes.recv(),);
        answer?;
        push.ok_or("no push")?;
        let _: () = redis::cmd("PING").query_async(&mut subscriber).await?;
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
    println!("  script + push + PING    {floor:>10.1?}");
    println!("  release to grant        {took:>10.1?}   {:.2} x", ratio(took, floor));
    Ok(())
}

async fn info(connection: &mut MultiplexedConnection, section: &str, field: &str) -> Done<String> {
    let info: String = redis::cmd("INFO").arg(section).query_async(connection).await?;
    let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(line.unwrap_or("0").trim().to_owned())
}

async fn usage(connection: &mut MultiplexedConnection) -> Done<Usage> {
    let calls = info(connection, "commandstats", "cmdstat_evalsha").await?;
    let calls = calls.split_once("calls=").map_or("0", |(_, rest)| rest);
    let requests = calls.split(',').next().unwrap_or("0").parse()?;
    let user: f64 = info(connection, "cpu", "used_cpu_user").await?.parse()?;
    let system: f64 = info(connection, "cpu", "used_cpu_sys").await?.parse()?;
    Ok(Usage { requests, server_cpu: user + system })
}

/// What 10 000 held locks cost while nothing happens but their renewals.
async fn held(server: &RedisServer) -> Done {
    const LOCKS: u32 = 10_000;
    let mut connection = raw(server).await?;
    let locks =
        Locks::builder(lock_redis::connect(server.url()).await?).default_ttl(TTL).build()?;
    let used: f64 = info(&mut connection, "memory", "used_memory").await?.parse()?;
    let before = resident()?;
    let guards = hold(&locks, LOCKS).await?;
    let server_bytes: f64 = info(&mut connection, "memory", "used_memory").await?.parse()?;
    let (server_bytes, client_bytes) = (server_bytes - used, resident()? - before);
    let clients = info(&mut connection, "clients", "connected_clients").await?;
    println!(
        "  bytes per lock          {:>8.0} server, {:.0} client",
        server_bytes / f64::from(LOCKS),
        client_bytes / f64::from(LOCKS)
    );
    println!("  connections             {:>8} with the one that measures", clients);
    Watch::settle().await;
    let watch = Watch::begin(usage(&mut connection).await?)?;
    watch.pass().await;
    watch.end(usage(&mut connection).await?, &guards)?;
    drop(guards);
    locks.close(Duration::from_secs(20)).await?;
    let keys: u64 = redis::cmd("DBSIZE").query_async(&mut connection).await?;
    println!("  keys left               {keys:>8}");
    Ok(())
}
