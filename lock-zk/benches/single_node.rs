//! What a lock on one ZooKeeper server costs, in raw requests of the same run.
//!
//! `cargo bench -p lock-zk --bench single_node` starts its own server and prints figures.

use std::time::Duration;

use lock_core::Locks;
use lock_testkit::measure::{
    Done, TTL, Usage, Watch, claim, cycle, guarded_cycle, hand_over, hold, p50, ratio, run,
};
use lock_testkit::servers::ZooKeeper;
use tokio::time::Instant;
use zookeeper_client as zk;

const EPHEMERAL: zk::CreateOptions<'static> =
    zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());

fn main() -> Done {
    run(async {
        let server = ZooKeeper::single().await?;
        uncontended(&server).await?;
        handed_over(&server).await?;
        held(&server).await
    })
}

async fn raw(server: &ZooKeeper) -> Done<zk::Client> {
    let hosts = server.url().trim_start_matches("zookeeper://");
    let client = zk::Client::connector().with_session_timeout(TTL).connect(hosts).await?;
    let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    client.mkdir("/raw", &persistent).await?;
    Ok(client)
}

/// Acquire and release of a free lock, against the three requests of the recipe.
async fn uncontended(server: &ZooKeeper) -> Done {
    let backend = lock_zk::connect(server.url()).await?;
    let locks = Locks::new(backend.clone());
    let client = raw(server).await?;
    let (mut floor, mut waits, mut tries, mut high) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..4_000_u32 {
        let start = Instant::now();
        let (_, sequence) = client.create("/raw/lock-", b"", &EPHEMERAL).await?;
        client.list_children("/raw").await?;
        client.delete(&format!("/raw/lock-{sequence}"), None).await?;
        let a = start.elapsed();

        let b = cycle(claim(&backend, "bench", true)?).await?;
        let c = cycle(claim(&backend, "bench", false)?).await?;

        let d = guarded_cycle(&locks, "bench").await?;
        if round >= 1_500 {
            floor.push(a);
            waits.push(b);
            tries.push(c);
            high.push(d);
        }
    }
    let (floor, waits, tries, high) = (p50(floor), p50(waits), p50(tries), p50(high));
    println!("uncontended acquire + release, p50 of 2500:");
    println!("  create + list + delete  {floor:>10.1?}");
    println!("  claim that would wait   {waits:>10.1?}   {:.2} x", ratio(waits, floor));
    println!("  claim that only tries   {tries:>10.1?}   {:.2} x", ratio(tries, floor));
    println!("  Locks (keeper, guard)   {high:>10.1?}   {:.2} x", ratio(high, floor));
    Ok(())
}

/// From the call to `release` until the waiter is granted, against a delete, a watch event, and a
/// listing.
async fn handed_over(server: &ZooKeeper) -> Done {
    let (a, b) = (lock_zk::connect(server.url()).await?, lock_zk::connect(server.url()).await?);
    let (deletes, watches) = (raw(server).await?, raw(server).await?);
    let (mut floor, mut took) = (Vec::new(), Vec::new());
    for round in 0..2_500_u32 {
        let (_, sequence) = deletes.create("/raw/lock-", b"", &EPHEMERAL).await?;
        let path = format!("/raw/lock-{sequence}");
        let (_, _, watcher) = watches.get_and_watch_data(&path).await?;
        let lists = watches.clone();
        let woken = tokio::spawn(async move {
            watcher.changed().await;
            lists.list_children("/raw").await?;
            Ok::<_, zk::Error>(Instant::now())
        });
        tokio::task::yield_now().await;
        let start = Instant::now();
        deletes.delete(&path, None).await?;
        let raw = woken.await??.saturating_duration_since(start);

        let (holder, waiter) = (claim(&a, "hand", true)?, claim(&b, "hand", true)?);
        // Its watch is set after a moment.
        let handed_over = hand_over(holder, waiter, Duration::from_millis(3)).await?;
        if round >= 500 {
            floor.push(raw);
            took.push(handed_over);
        }
    }
    let (floor, took) = (p50(floor), p50(took));
    println!("hand-over to the one that waits, p50 of 2000:");
    println!("  delete + event + list   {floor:>10.1?}");
    println!("  release to grant        {took:>10.1?}   {:.2} x", ratio(took, floor));
    Ok(())
}

fn usage(server: &ZooKeeper) -> Done<Usage> {
    let answer = server.ask(0, "srvr")?;
    let count = answer.lines().find_map(|line| line.strip_prefix("Received: "));
    let requests = count.ok_or("no count of requests")?.trim().parse()?;
    Ok(Usage { requests, server_cpu: server.cpu_time(0)?.as_secs_f64() })
}

/// What 1000 held locks cost while nothing happens but their renewals.
async fn held(server: &ZooKeeper) -> Done {
    let locks = Locks::builder(lock_zk::connect(server.url()).await?).default_ttl(TTL).build()?;
    let guards = hold(&locks, 1000).await?;
    Watch::settle().await;
    let watch = Watch::begin(usage(server)?)?;
    watch.pass().await;
    watch.end(usage(server)?, &guards)?;
    drop(guards);
    locks.close(Duration::from_secs(20)).await?;
    Ok(())
}
