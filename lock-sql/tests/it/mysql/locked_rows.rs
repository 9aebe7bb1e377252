//! Rows and tables that another client keeps locked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use lock_core::{LockState, Released};
use sqlx::MySqlPool;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::mysql_common::{admin, locks, server};

const TTL: Duration = Duration::from_secs(30);

/// Another client's transaction has one row locked: only the lock of that row is affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_stops_no_other_renewal() {
    let server = server().await;
    let locks = locks(&server).await;
    let ttl = Duration::from_secs(6);
    let mut guards = Vec::new();
    for n in 0..300 {
        let name = format!("n{:03}", (n * 7) % 300);
        guards.push(locks.named(name).unwrap().ttl(ttl).acquire().await.unwrap());
    }
    let slow = locks.named("n150a").unwrap().ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let mut other = admin(&server).await.begin().await.unwrap();
    sqlx::query("SELECT * FROM distlock WHERE name IN ('n007', 'n150a', 'n200') FOR UPDATE")
        .fetch_all(&mut *other)
        .await
        .unwrap();
    // A renewal of the locked row is under way all the time.
    let renewal = slow.renew();
    let work = async {
        let start = Instant::now();
        tokio::time::sleep(ttl * 3 / 2).await;
        let lost = guards.iter().filter(|guard| guard.token().is_err()).count();
        assert_eq!(lost, 2, "n007 and n200, and no others, after {:?}", start.elapsed());
        other.rollback().await.unwrap();
    };
    let (renewed, ()) = tokio::join!(renewal, work);
    drop(renewed);
    slow.renew().await.unwrap();
    assert_eq!(slow.state(), LockState::Secure);
}

/// Passes all on, but when it is armed tells of a request with these words before, and gives a while for
/// what it makes somebody do.
async fn telling(
    upstream: SocketAddr,
    words: String,
    armed: Arc<AtomicBool>,
) -> (SocketAddr, Arc<Notify>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Notify::new()));
    let tell = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut requests, mut answers) = client.into_split();
            let (mut from, mut to) = TcpStream::connect(upstream).await.unwrap().into_split();
            tokio::spawn(async move { copy(&mut from, &mut answers).await });
            let (words, tell) = (words.clone(), Arc::clone(&tell));
            let armed = Arc::clone(&armed);
            tokio::spawn(async move {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(size @ 1..) = requests.read(&mut bytes).await {
                    let mut found = bytes[..size].windows(words.len());
                    if found.any(|found| found == words.as_bytes()) && armed.swap(false, SeqCst) {
                        tell.notify_one();
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    to.write_all(&bytes[..size]).await.unwrap();
                }
            });
        }
    });
    (address, seen)
}

/// Drives all of them at once.
async fn futures(all: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

async fn lock_for(admin: &MySqlPool, name: &'static str, time: Duration) {
    let mut other = admin.begin().await.unwrap();
    let row = "SELECT fence FROM distlock WHERE name = ? FOR UPDATE";
    sqlx::query(row).bind(name).fetch_one(&mut *other).await.unwrap();
    tokio::time::sleep(time).await;
    other.rollback().await.unwrap();
}

/// An application locks a row of a batch, when that has found out which rows are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_locked_in_the_middle_of_a_batch_stops_no_other_renewal() {
    let server = server().await;
    let admin = admin(&server).await;
    let ttl = Duration::from_millis(1500);
    let direct = locks(&server).await;
    // Its owner shows what a batch of several leases looks like.
    let first = direct.named("b19").unwrap().ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let token = first.detach().await.unwrap();
    let owner: String =
        sqlx::query_scalar("SELECT CONVERT(owner USING utf8mb4) FROM distlock WHERE name = 'b19'")
            .fetch_one(&admin)
            .await
            .unwrap();
    let armed = Arc::<AtomicBool>::default();
    let (address, seen) =
        telling(server.address().unwrap(), format!("{owner}."), Arc::clone(&armed)).await;
    let client = lock_sql::connect(&server.url_by(address).unwrap()).await.unwrap();
    let client = lock_core::Locks::new(client);
    let attached = client.named("b19").unwrap().ttl(ttl).attach(&token).await.unwrap();
    let mut guards = Vec::new();
    for n in 0..19 {
        guards.push(client.named(format!("b{n:02}")).unwrap().ttl(ttl).acquire().await.unwrap());
    }
    // The first of them goes alone, the others together.
    futures(guards.iter().chain([&attached]).map(|guard| async {
        guard.renew().await.unwrap();
    }))
    .await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    armed.store(true, SeqCst);
    let application = async {
        timeout(Duration::from_secs(10), seen.notified()).await.expect("no batch was seen");
        lock_for(&admin, "b19", Duration::from_millis(1300)).await;
    };
    let renewals = futures(guards.iter().chain([&attached]).map(|guard| async {
        let _ = guard.renew().await;
    }));
    tokio::join!(renewals, application);
    tokio::time::sleep(ttl).await;
    let lost = guards.iter().filter(|guard| guard.token().is_err()).count();
    assert_eq!(lost, 0, "of 19 whose rows nobody has locked");
    drop((attached, direct));
}

/// Whoever waits for a locked row has no lock on the row that all new names read: the sweep, and
/// behind it everybody who wants a new name, would wait too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_that_waits_for_a_row_keeps_nothing_else_locked() {
    let server = server().await;
    let locks = locks(&server).await;
    locks.named("stuck").unwrap().acquire().await.unwrap().release().await.unwrap();
    let admin = admin(&server).await;
    let mut other = admin.begin().await.unwrap();
    sqlx::query("SELECT * FROM distlock WHERE name = 'stuck' FOR UPDATE")
        .fetch_all(&mut *other)
        .await
        .unwrap();
    let waiter = {
        let lock = locks.named("stuck").unwrap();
        tokio::spawn(async move { lock.acquire().await })
    };
    let mut looks = 0;
    while looks < 20 {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT CAST(COUNT(*) AS SIGNED) FROM information_schema.processlist WHERE info LIKE '%LAST_INSERT_ID(GREATEST%' AND id <> CONNECTION_ID()",
        )
        .fetch_one(&admin)
        .await
        .unwrap();
        if waiting > 0 {
            looks += 1;
            let mark = "SELECT fence FROM distlock WHERE name = x'0166656E6365' FOR UPDATE NOWAIT";
            sqlx::query(mark).fetch_one(&admin).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    other.rollback().await.unwrap();
    let guard = timeout(Duration::from_secs(20), waiter).await.unwrap().unwrap().unwrap();
    guard.release().await.unwrap();
}

/// All who want a lock are stuck behind locked rows: keeping and giving up go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_and_releases_do_not_wait_behind_those_who_want_a_lock() {
    let server = server().await;
    let locks = locks(&server).await;
    for n in 0..20 {
        locks.named(format!("stuck{n}")).unwrap().acquire().await.unwrap().release().await.unwrap();
    }
    let guard = locks.named("held").unwrap().ttl(TTL).acquire().await.unwrap();
    let mut other = admin(&server).await.begin().await.unwrap();
    sqlx::query("SELECT * FROM distlock WHERE name LIKE 'stuck%' FOR UPDATE")
        .fetch_all(&mut *other)
        .await
        .unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..20 {
        let lock = locks.named(format!("stuck{n}")).unwrap();
        waiters.spawn(async move { lock.acquire().await.unwrap() });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let start = Instant::now();
    guard.renew().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    let took = start.elapsed();
    // A wait for a locked row lasts a second.
    assert!(took < Duration::from_millis(800), "{took:?}");
    other.rollback().await.unwrap();
    // Contention was no error: all of them get their lock.
    assert_eq!(timeout(Duration::from_secs(30), waiters.join_all()).await.unwrap().len(), 20);
}

/// An administrator locks the whole table, as for a backup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_locked_for_a_while() {
    let server = server().await;
    let locks = locks(&server).await;
    let guard = locks.named("x").unwrap().ttl(TTL).acquire().await.unwrap();
    let pool = admin(&server).await;
    let mut backup = pool.acquire().await.unwrap();
    sqlx::raw_sql("FLUSH TABLES WITH READ LOCK").execute(&mut *backup).await.unwrap();
    let waiter = locks.named("y").unwrap();
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    assert!(
        locks.named("x").unwrap().try_acquire().await.unwrap().is_none(),
        "a read waits for no lock"
    );
    let renewal = guard.renew();
    let unlock = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        sqlx::raw_sql("UNLOCK TABLES").execute(&mut *backup).await.unwrap();
    };
    let (renewed, ()) = tokio::join!(renewal, unlock);
    renewed.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}
