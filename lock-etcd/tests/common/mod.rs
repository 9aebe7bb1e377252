//! Shared by the tests of this crate.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]
#![allow(dead_code, reason = "each test target uses a part of it")]

pub(crate) mod client;
pub(crate) mod narrow;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use conformance_tests::server::Proxy;
use lock_core::{
    Attempt, Claim, ClaimRequest, FencingToken, LockBackend, LockGuard, LockKey, Locks, OsRng,
    OwnerId,
};
use lock_etcd::EtcdBackend;
use lock_testkit::servers::EtcdCluster;

use client::Client;

/// A test for each of these scenes.
#[allow(unused_macros, reason = "each test target uses a part of it")]
macro_rules! run {
    ($($scene:ident)+) => {
        $(#[tokio::test]
        async fn $scene() {
            $crate::scenarios::$scene().await;
        })+
    };
}
#[allow(unused_imports, reason = "each test target uses a part of it")]
pub(crate) use run;

/// How a panic begins by which a scene says what mistake it has seen. `tests/mutants.rs` takes no other
/// one for that: a scene that could not do what it was about to has seen nothing.
pub(crate) const SEEN: &str = "seen: ";

#[track_caller]
pub(crate) fn mistake(seen: &str) -> ! {
    panic!("{SEEN}{seen}");
}

/// As `assert!`, of what a lock must do.
#[allow(unused_macros, reason = "each test target uses a part of it")]
macro_rules! must {
    ($holds:expr $(,)?) => {
        $crate::common::must!($holds, "{}", stringify!($holds))
    };
    ($holds:expr, $($what:tt)+) => {{
        let holds: bool = $holds;
        if !holds {
            $crate::common::mistake(&format!($($what)+));
        }
    }};
}
#[allow(unused_imports, reason = "each test target uses a part of it")]
pub(crate) use must;

/// As [`must`], of two holders and of fences: never excused.
#[allow(unused_macros, reason = "each test target uses a part of it")]
macro_rules! must_exactly {
    ($holds:expr $(,)?) => {
        $crate::common::must!($holds, "violated: {}", stringify!($holds))
    };
    ($holds:expr, $($what:tt)+) => {
        $crate::common::must!($holds, "violated: {}", format_args!($($what)+))
    };
}
#[allow(unused_imports, reason = "each test target uses a part of it")]
pub(crate) use must_exactly;

/// As `assert_eq!`, of what a lock must do.
#[allow(unused_macros, reason = "each test target uses a part of it")]
macro_rules! must_eq {
    ($is:expr, $must_be:expr $(,)?) => {
        $crate::common::must_eq!($is, $must_be, "{}", stringify!($is))
    };
    ($is:expr, $must_be:expr, $($what:tt)+) => {
        match (&$is, &$must_be) {
            (is, must_be) if is == must_be => {}
            (is, must_be) => $crate::common::mistake(&format!(
                "{}: {is:?}, not {must_be:?}",
                format_args!($($what)+)
            )),
        }
    };
}
#[allow(unused_imports, reason = "each test target uses a part of it")]
pub(crate) use must_eq;

/// Long enough to outlive a restore, and that no renewal is needed.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Far above what anything here takes; only a defect reaches it.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Less than the pause between two looks that the core makes without being told: what happens
/// within it was pushed.
pub(crate) const PUSHED: Duration = Duration::from_secs(6);

/// A server for one test. Without one on the machine the test fails and names the missing package:
/// a skip would look like a pass.
pub(crate) async fn one() -> EtcdCluster {
    EtcdCluster::builder().start().await.unwrap()
}

/// Three members, whose elections take about a second.
pub(crate) async fn three() -> EtcdCluster {
    EtcdCluster::builder().members(3).cuttable().start().await.unwrap()
}

pub(crate) async fn backend(cluster: &EtcdCluster) -> EtcdBackend {
    lock_etcd::connect(cluster.url()).await.unwrap()
}

pub(crate) async fn locks(cluster: &EtcdCluster) -> Locks {
    Locks::new(backend(cluster).await)
}

/// A client that reaches the cluster through a proxy, which knows what etcd speaks.
pub(crate) async fn proxied(cluster: &EtcdCluster) -> (Proxy, EtcdBackend) {
    let proxy = Proxy::start_http2(cluster.address(0).unwrap()).await.unwrap();
    let backend = lock_etcd::connect(&format!("etcd://{}", proxy.address())).await.unwrap();
    (proxy, backend)
}

/// The same, and a second way to the server that the client does not begin with: what is held up in
/// the proxy is overtaken there.
pub(crate) async fn proxied_and_direct(cluster: &EtcdCluster) -> (Proxy, EtcdBackend) {
    let proxy = Proxy::start_http2(cluster.address(0).unwrap()).await.unwrap();
    let (slow, quick) = (proxy.address().to_string(), cluster.address(0).unwrap().to_string());
    let backend = starting_at(&format!("etcd://{slow},{quick}"), &slow).await;
    (proxy, backend)
}

/// Takes and releases a lock, so that there are spare leases for the ttl of [`claim`]: the next
/// request is that of a lock.
pub(crate) async fn warm_up(backend: &EtcdBackend) {
    let mut warm = claim(backend, "warm", false);
    granted(&mut *warm).await;
    warm.release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// A client that begins with the member at `address`. Which one it begins with is random, and its
/// `Debug` shows it.
pub(crate) async fn starting_at(url: &str, address: &str) -> EtcdBackend {
    soon("a connection", async {
        loop {
            match lock_etcd::connect(url).await {
                Ok(backend) if format!("{backend:?}").contains(address) => return backend,
                Ok(_) => continue,
                // An election may be under way.
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
}

pub(crate) async fn locks_from(cluster: &EtcdCluster, member: usize) -> Locks {
    let address = cluster.address(member).unwrap().to_string();
    Locks::new(starting_at(cluster.url(), &address).await)
}

/// The counters of the server: requests by method, and open connections of clients.
pub(crate) fn metrics(cluster: &EtcdCluster) -> String {
    let mut stream = TcpStream::connect(cluster.address(0).unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

pub(crate) const PASSWORD: &str = "s3cr3t";

/// Options by which a token names the state of the users at its making: it is refused as soon as
/// that has changed. The file with the secret is in `directory`.
pub(crate) fn tokens_of_a_state(directory: &std::path::Path) -> String {
    let secret = directory.join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    format!("jwt,priv-key={},sign-method=HS256", secret.display())
}

/// A server that asks for a user, a client of its root, and the URL of the user `app`, who has the
/// rights that its locks in `jobs/` need.
pub(crate) async fn guarded(options: &[(&str, &str)]) -> (EtcdCluster, Client, String) {
    // The lowest cost of password hashing: the tests sign in often.
    let mut builder = EtcdCluster::builder().option("bcrypt-cost", "4");
    for (name, value) in options {
        builder = builder.option(name, value);
    }
    let cluster = builder.start().await.unwrap();
    let anybody = plain(&cluster, 0);
    for name in ["root", "app"] {
        anybody.role_add(name).await;
        anybody.user_add(name, PASSWORD, name).await;
    }
    anybody.permit_all("app", "jobs/").await;
    anybody.permit("app", "distlock-fence:jobs").await;
    anybody.auth_enable().await;
    let root = anybody.signed_in("root", PASSWORD);
    let address = cluster.address(0).unwrap();
    let url = format!("etcd://app:{PASSWORD}@{address}/jobs");
    (cluster, root, url)
}

/// Takes all rights away from `app`.
pub(crate) async fn take_rights(root: &Client) {
    root.forbid_all("app", "jobs/").await;
}

/// A plain client of one member.
pub(crate) fn plain(cluster: &EtcdCluster, member: usize) -> Client {
    Client::new(cluster.address(member).unwrap())
}

pub(crate) fn request(name: &str, ttl: Duration) -> ClaimRequest {
    let key = LockKey::new("", name).unwrap();
    let owner = OwnerId::generate(&OsRng).unwrap();
    ClaimRequest::new(key, owner, ttl).with_call_timeout(Duration::from_secs(2))
}

/// The claim waits for a change, and none comes.
pub(crate) async fn quiet(claim: &mut dyn Claim) {
    let wait = tokio::time::timeout(Duration::from_millis(300), claim.changed()).await;
    must!(wait.is_err(), "nothing has happened, and it heard {wait:?}");
}

/// The claim waits, its watches stand, and it has looked since: what it sees from then on needs no other look.
pub(crate) async fn watches(claim: &mut dyn Claim) {
    quiet(claim).await;
    busy(claim).await;
}

/// Waits until the claim is told to look, for less time than the core takes to poll. There may be
/// no stream at first, which is an error, and no loss.
pub(crate) async fn told(what: &str, claim: &mut dyn Claim) {
    let told = async {
        while claim.changed().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let told = tokio::time::timeout(PUSHED, told).await;
    must!(told.is_ok(), "not told within {PUSHED:?}: {what}");
}

/// Repeats a release until it is answered.
pub(crate) async fn released(claim: &mut dyn Claim) {
    soon("the release", async {
        while claim.release().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

pub(crate) fn claim(backend: &impl LockBackend, name: &str, wait: bool) -> Box<dyn Claim> {
    backend.claim(request(name, Duration::from_secs(10)).with_wait(wait)).unwrap()
}

pub(crate) async fn granted(claim: &mut dyn Claim) -> FencingToken {
    match answered(claim).await {
        Attempt::Granted { token, .. } => token,
        other => mistake(&format!("the lock is free, and the answer is {other:?}")),
    }
}

/// No scene ends a lease as often as an attempt begins again.
async fn answered(claim: &mut dyn Claim) -> Attempt {
    unless_refused(claim.try_acquire().await, "attempts in a row")
}

pub(crate) async fn busy(claim: &mut dyn Claim) {
    let answer = answered(claim).await;
    must!(matches!(answer, Attempt::Busy { .. }), "another client holds the lock: {answer:?}");
}

/// An answer that may not be this refusal.
pub(crate) fn unless_refused<T>(answer: lock_core::Result<T>, refusal: &str) -> T {
    match answer {
        Err(error) if error.to_string().contains(refusal) => mistake(&error.to_string()),
        answer => answer.unwrap(),
    }
}

/// All keys under `prefix`, the oldest first, each with its lease.
pub(crate) async fn keys(client: &Client, prefix: &str) -> Vec<(String, i64)> {
    client.all(prefix).await.into_iter().map(|found| (found.key, found.lease)).collect()
}

/// As [`soon`], where it takes a push.
pub(crate) async fn pushed<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PUSHED, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {PUSHED:?}, so it was not pushed: {what}"),
    }
}

/// Renews until the store has answered.
pub(crate) async fn renewed(guard: &LockGuard) {
    soon("a renewal", async {
        while guard.renew().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {LIMIT:?}: {what}"),
    }
}
