//! The program on every store of this build, changing only the URL.

use std::io::Write;
use std::time::Duration;

use crate::bench::{Bench, SOON, finish, now, pause};
use crate::one_job;
use serde_json::Value;

const SECOND: Duration = Duration::from_secs(1);
/// Above the least ttl of every store.
const TTL: Duration = Duration::from_secs(5);
/// A store that cannot notify the holder of a forced release is polled every third of the ttl.
const NOTICED: Duration = Duration::from_secs(30);

/// `run`, `status`, `list` and `release` on the store at `url`.
fn the_program_works(url: &str, backend: &str) {
    let bench = Bench::new();
    let run = |script: &str| {
        bench.done(["run", "a", "--store", url, "--ttl", "5s", "-n", "--", "sh", "-c", script])
    };
    let done = run("echo $DISTLOCK_FENCE $DISTLOCK_BACKEND $DISTLOCK_TTL_MS").is(0);
    let (first, facts) = done.stdout.trim_end().split_once(' ').expect("words");
    assert_eq!(facts, format!("{backend} {}", TTL.as_millis()));

    let options = ["--store", url, "--ttl", "5s", "--label", "night shift"];
    let holder = bench.hold("a", &options, "echo $DISTLOCK_FENCE >fence; sleep 60");
    let second = bench.line("fence");
    assert!(number(&second) > number(first), "{second} after {first}");
    run("echo ran").is(75).printing("");
    let status = bench.done(["status", "a", "--store", url, "--json"]);
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    assert_eq!(status["held"], true, "{status}");
    assert_eq!(status["holder"]["fence"].to_string(), second, "{status}");
    let list = bench.done(["list", "--store", url]);
    assert!(list.stdout.lines().any(|line| line.starts_with("a ")), "{list:?}");

    bench.done(["release", "a", "--force", "--yes", "--store", url]).is(0);
    finish(holder, NOTICED).is(79);
    let done = run("echo $DISTLOCK_FENCE").is(0);
    assert!(number(done.stdout.trim_end()) > number(&second), "{done:?} after {second}");

    // A waiter gets the lock from a holder that is stopped.
    let holder = bench.holding("b", &options);
    let waiter = bench.hold("b", &options, "echo mine");
    holder.stop();
    finish(waiter, NOTICED).is(0).printing("mine\n");

    // A killed holder's lock ends with its ttl.
    drop(bench.holding("c", &options));
    let killed = now();
    bench.done(["run", "c", "--store", url, "--wait", "30s", "--", "true"]).is(0);
    assert!(now().since(killed) < TTL + 3 * SECOND, "{:?}", now().since(killed));

    one_job::is_run_once(url);
}

/// `acquire`, `renew` and `release` with a lease on the store at `url`.
fn leases_work(url: &str) {
    let bench = Bench::new();
    let done = |args: &[&str]| bench.done([args, &["--store", url, "--ttl", "5s"]].concat());
    let lease = done(&["acquire", "a"]).is(0).stdout;
    done(&["acquire", "a", "-n"]).is(75).printing("");
    done(&["renew", "a", &lease]).is(0);
    bench.done(["release", "a", &lease, "--store", url]).is(0);
    done(&["renew", "a", &lease]).is(79);
    bench.done(["run", "a", "-n", "--store", url, "--", "true"]).is(0);
}

/// A ttl that the store cannot keep is refused, with the limit.
fn refuses_ttl(url: &str, ttl: &str, limit: &str) {
    let options = ["--store", url, "--ttl", ttl, "--", "echo", "ran"];
    let done = Bench::new().done([&["run", "a"][..], &options].concat());
    done.is(64).printing("").saying([ttl, limit]);
}

fn number(text: &str) -> u64 {
    text.parse().expect("a fencing token")
}

#[cfg(feature = "sqlite")]
#[test]
fn on_sqlite() {
    let bench = Bench::new();
    the_program_works(&bench.url(), "sqlite");
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let server = lock_testkit::servers::PostgresServer::start().await.unwrap();
    the_program_works(server.url(), "postgres");
    leases_work(server.url());
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb() {
    let server = lock_testkit::servers::MariaDbServer::start().await.unwrap();
    the_program_works(server.url(), "mysql");
    leases_work(server.url());
}

/// A store that stops answering: the program ends soon after its command, and waits for a lock no
/// longer than it was told, whether or not it was connected before.
fn a_frozen_server_holds_up_nothing(url: &str, freeze: impl FnOnce()) {
    let bench = Bench::new();
    let script = "echo >ready; while ! test -e go; do sleep 0.02; done; echo done";
    let holder = bench.hold("a", &["--store", url], script);
    bench.line("ready");
    let wait = || bench.hold("a", &["--store", url, "--wait", "3s"], "echo ran");
    let connected = wait();
    pause(SECOND);
    freeze();
    let begun = now();
    finish(wait(), SOON).is(69).printing("").saying(["did not answer within"]);
    assert!(now().since(begun) < 4 * SECOND, "{:?}", now().since(begun));
    // It spends up to a second asking who holds the lock, and 2.5 s giving up its place.
    let done = finish(connected, SOON).printing("");
    assert!(now().since(begun) < 7 * SECOND, "{:?}: {done:?}", now().since(begun));
    assert!(matches!(done.code, Some(69 | 75)), "{done:?}");
    std::fs::write(bench.path("go"), "").expect("a file");
    let ended = now();
    finish(holder, SOON).is(0).printing("done\n").saying(["could not be confirmed"]);
    assert!(now().since(ended) < 3 * SECOND, "{:?}", now().since(ended));
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_postgres_holds_up_nothing() {
    let server = lock_testkit::servers::PostgresServer::start().await.unwrap();
    a_frozen_server_holds_up_nothing(server.url(), || server.freeze().unwrap());
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_mariadb_holds_up_nothing() {
    let server = lock_testkit::servers::MariaDbServer::start().await.unwrap();
    a_frozen_server_holds_up_nothing(server.url(), || server.freeze().unwrap());
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    let server = lock_testkit::servers::RedisServer::start().await.unwrap();
    the_program_works(server.url(), "redis");
    leases_work(server.url());
}

#[cfg(feature = "redlock")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redlock() {
    let (mut nodes, mut hosts) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let node = lock_testkit::servers::RedisServer::builder().start().await.unwrap();
        hosts.push(node.url().trim_start_matches("redis://").to_owned());
        nodes.push(node);
    }
    let url = format!("redlock://{}?lock_bootstrap=now", hosts.join(","));
    the_program_works(&url, "redlock");
    leases_work(&url);
    refuses_ttl(&url, "40ms", "50ms");
    refuses_ttl(&url, "31s", "30s");
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd() {
    let server = lock_testkit::servers::EtcdCluster::start().await.unwrap();
    the_program_works(server.url(), "etcd");
    leases_work(server.url());
    refuses_ttl(server.url(), "900ms", "at least");
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper() {
    let server = lock_testkit::servers::ZooKeeper::start().await.unwrap();
    the_program_works(server.url(), "zookeeper");
    let bound = Bench::new().done(["acquire", "a", "--store", server.url()]);
    bound.is(78).printing("").saying(["only as long as the program", "distlock run"]);
    refuses_ttl(server.url(), "100ms", "500ms");
    refuses_ttl(server.url(), "86399s", "longer than this store allows");
    // A lease that ZooKeeper counts from an earlier request leaves less, and is no reason to stop.
    let bench = Bench::new();
    let options = ["--store", server.url(), "--ttl", "6s"];
    finish(bench.hold("a", &options, "sleep 12; echo done"), 2 * SOON).is(0).printing("done\n");
}

/// The release, and the end, must not wait for a reader of our own messages.
#[test]
fn messages_that_nobody_reads_keep_neither_the_lock_nor_the_program() {
    let bench = Bench::new();
    let (_unread, mut writer) = std::io::pipe().unwrap();
    // As much as a pipe takes.
    writer.write_all(&[b'x'; 1 << 16]).unwrap();
    let mut command = bench.distlock(["run", "a", "-v", "--", "true"]);
    let run = command.stderr(writer).spawn().unwrap();
    finish(run, Duration::from_secs(3)).is(0);
    assert!(!bench.is_held("a"));
}
