//! Rows and tables that another client keeps locked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::{LockGuard, LockState, Locks, Released};
use lock_testkit::servers::MariaDbServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
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

/// A network, of which a part goes silent.
#[derive(Default)]
struct Network {
    /// The words of the request after which it does.
    words: Mutex<Option<String>>,
    /// Not the connection of that request alone.
    whole: bool,
    silent: watch::Sender<bool>,
}

impl Network {
    async fn start(self: &Arc<Self>, upstream: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, this) = (listener.local_addr().unwrap(), Arc::clone(self));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(upstream).await.unwrap();
                tokio::spawn(Arc::clone(&this).pass(client, server));
            }
        });
        address
    }

    /// Without a word at the end: neither side hears of the other's.
    async fn pass(self: Arc<Self>, mut client: TcpStream, mut server: TcpStream) {
        let (mut requests, mut answers) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut silent = self.silent.subscribe();
        loop {
            tokio::select! {
                biased;
                () = async { drop(silent.wait_for(|silent| *silent).await) } => break,
                read = client.read(&mut requests) => {
                    let Ok(size @ 1..) = read else { return };
                    server.write_all(&requests[..size]).await.unwrap();
                    if self.is_the_last(&requests[..size]) {
                        let size = server.read(&mut answers).await.unwrap();
                        client.write_all(&answers[..size]).await.unwrap();
                        self.silent.send_replace(self.whole);
                        break;
                    }
                }
                read = server.read(&mut answers) => {
                    let Ok(size @ 1..) = read else { return };
                    client.write_all(&answers[..size]).await.unwrap();
                }
            }
        }
        std::future::pending::<()>().await;
    }

    fn is_the_last(&self, request: &[u8]) -> bool {
        let mut words = self.words.lock().unwrap();
        let found =
            |words: &mut String| request.windows(words.len()).any(|part| part == words.as_bytes());
        words.take_if(found).is_some()
    }
}

const SHORT: Duration = Duration::from_secs(5);
/// How often several locks are renewed until that is one request.
const MOST_TRIES: usize = 100;

/// A client's three locks, of which it was renewing the last two by one request when the network went silent.
async fn cut_off(server: &MariaDbServer, whole: bool) -> Vec<LockGuard> {
    let network = Arc::new(Network { whole, ..Network::default() });
    let address = network.start(server.address().unwrap()).await;
    let client = lock_sql::connect(&server.url_by(address).unwrap()).await.unwrap();
    let client = Locks::new(client);
    let mut guards = Vec::new();
    for n in 0..3 {
        guards.push(client.named(format!("n{n}")).unwrap().ttl(SHORT).acquire().await.unwrap());
    }
    // As it stands only in a renewal of several.
    *network.words.lock().unwrap() = Some(format!("{}.", guards[2].held().owner().to_hex()));
    for _ in 0..MOST_TRIES {
        // The first of them goes alone, the others together, unless they come only when it has its answer.
        let renewals = guards.iter().map(|guard| async {
            let _ = guard.renew().await;
        });
        let _ = timeout(SHORT / 5, futures(renewals)).await;
        if network.words.lock().unwrap().is_none() {
            return guards;
        }
    }
    panic!("no batch was seen");
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

/// The machine of a client is switched off in the middle of a renewal of several locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_vanishes_in_a_batch_leaves_no_row_locked() {
    let server = server().await;
    let guards = cut_off(&server, true).await;
    let other = locks(&server).await;
    for n in 0..guards.len() {
        let next = other.named(format!("n{n}")).unwrap();
        next.acquire_timeout(SHORT * 2).await.unwrap().release().await.unwrap();
    }
}

/// Only that connection is cut off: the client renews its locks over another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_off_in_a_batch_loses_no_lock() {
    let server = server().await;
    let guards = cut_off(&server, false).await;
    tokio::time::sleep(SHORT * 2).await;
    for guard in guards {
        guard.token().unwrap();
    }
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
