//! What a lock on one ZooKeeper server costs, in raw requests of the same run.
//!
//! `cargo bench -p lock-zk --bench single_node` starts a server of its own and prints figures.

use std::error::Error;
use std::time::Duration;

use conformance_tests::servers::ZooKeeper;
use lock_core::{Attempt, Claim, ClaimRequest, LockBackend, LockKey, Locks, OsRng, OwnerId};
use tokio::time::Instant;
use zookeeper_client as zk;

type Done<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const TTL: Duration = Duration::from_secs(30);
const EPHEMERAL: zk::CreateOptions<'static> =
    zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());

fn main() -> Done {
    // A plain `cargo test --benches` asks for nothing.
    if std::env::args().any(|argument| argument == "--test" || argument == "--list") {
        return Ok(());
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = ZooKeeper::single().await?;
        tokio::spawn(async move {
            uncontended(&server).await?;
            hand_over(&server).await?;
            held(&server).await
        })
        .await?
    })
}

async fn raw(server: &ZooKeeper) -> Done<zk::Client> {
    let hosts = server.url().trim_start_matches("zookeeper://");
    let client = zk::Client::connector().with_session_timeout(TTL).connect(hosts).await?;
    let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    client.mkdir("/raw", &persistent).await?;
    Ok(client)
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

async fn acquire_and_release(claim: &mut dyn Claim) -> Done<Duration> {
    let start = Instant::now();
    match claim.try_acquire().await? {
        Attempt::Granted { .. } => {}
        other => return Err(format!("not granted: {other:?}").into()),
    }
    claim.release().await?;
    Ok(start.elapsed())
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

        let b = acquire_and_release(&mut *claim(&backend, "bench", true)?).await?;
        let c = acquire_and_release(&mut *claim(&backend, "bench", false)?).await?;

        let lock = locks.lock("bench")?;
        let start = Instant::now();
        lock.acquire().await?.release().await?;
        let d = start.elapsed();
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

/// From the call of `release` to the grant of the one that waits, against a delete, the event of a
/// watch, and a listing.
async fn hand_over(server: &ZooKeeper) -> Done {
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

        let mut holder = claim(&a, "hand", true)?;
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
        // Its watch is set.
        tokio::time::sleep(Duration::from_millis(3)).await;
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
    println!("hand-over to the one that waits, p50 of 2000:");
    println!("  delete + event + list   {floor:>10.1?}");
    println!("  release to grant        {took:>10.1?}   {:.2} x", ratio(took, floor));
    Ok(())
}

fn received(server: &ZooKeeper) -> Done<u32> {
    let answer = server.ask(0, "srvr")?;
    let count = answer.lines().find_map(|line| line.strip_prefix("Received: "));
    Ok(count.ok_or("no count of requests")?.trim().parse()?)
}

/// What 1000 held locks cost while nothing happens but their renewals.
async fn held(server: &ZooKeeper) -> Done {
    const LOCKS: u32 = 1000;
    const SECONDS: u64 = 30;
    let locks = Locks::builder(lock_zk::connect(server.url()).await?).default_ttl(TTL).build();
    let mut tasks = tokio::task::JoinSet::new();
    let start = Instant::now();
    for n in 0..LOCKS {
        let lock = locks.lock(format!("held:{n}"))?;
        tasks.spawn(async move { lock.acquire().await });
    }
    let mut guards = Vec::new();
    while let Some(guard) = tasks.join_next().await {
        guards.push(guard??);
    }
    println!("{LOCKS} locks acquired in {:.2?}, ttl {TTL:?}", start.elapsed());
    tokio::time::sleep(Duration::from_secs(12)).await;
    let (first, start) = (received(server)?, Instant::now());
    tokio::time::sleep(Duration::from_secs(SECONDS)).await;
    let (last, took) = (received(server)?, start.elapsed().as_secs_f64());
    println!("  requests                {:>8.1} /s", f64::from(last - first) / took);
    println!(
        "  lost                    {:>8}",
        guards.iter().filter(|g| g.token().is_err()).count()
    );
    drop(guards);
    locks.close(Duration::from_secs(20)).await?;
    Ok(())
}
