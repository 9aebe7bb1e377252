//! The program on every store of this build, by changing the URL only.

mod common;

use std::time::Duration;

use common::{Bench, SOON, finish, id, now, send};
use rustix::process::Signal;
use serde_json::Value;

const SECOND: Duration = Duration::from_secs(1);
/// Above the least ttl of every store.
const TTL: &str = "6s";
/// A store that cannot tell the holder of a forced release is asked every third of the ttl.
const NOTICED: Duration = Duration::from_secs(30);

/// `run`, `status`, `list` and `release` on the store at `url`.
fn the_program_works(url: &str, backend: &str) {
    let bench = Bench::new();
    let run = |script: &str| {
        bench.done(["run", "a", "--store", url, "--ttl", TTL, "-n", "--", "sh", "-c", script])
    };
    let done = run("echo $DISTLOCK_FENCE $DISTLOCK_BACKEND");
    assert_eq!(done.code, Some(0), "{done:?}");
    let (first, name) = done.stdout.trim_end().split_once(' ').expect("two words");
    assert_eq!(name, backend);

    let options = ["--store", url, "--ttl", TTL, "--label", "night shift"];
    let holder = bench.hold("a", &options, "echo $DISTLOCK_FENCE >fence; sleep 60");
    let second = bench.line("fence");
    assert!(number(&second) > number(first), "{second} after {first}");
    let busy = run("echo ran");
    assert_eq!((busy.code, busy.stdout.as_str()), (Some(75), ""), "{busy:?}");
    let status = bench.done(["status", "a", "--store", url, "--json"]);
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    assert_eq!(status["held"], true, "{status}");
    assert_eq!(status["holder"]["fence"].to_string(), second, "{status}");
    let list = bench.done(["list", "--store", url]);
    assert!(list.stdout.lines().any(|line| line.starts_with("a ")), "{list:?}");

    let freed = bench.done(["release", "a", "--force", "--yes", "--store", url]);
    assert_eq!(freed.code, Some(0), "{freed:?}");
    let holder = finish(holder, NOTICED);
    assert_eq!(holder.code, Some(79), "the holder stops: {holder:?}");
    let done = run("echo $DISTLOCK_FENCE");
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(number(done.stdout.trim_end()) > number(&second), "{done:?} after {second}");

    // A waiter gets the lock from the one that is stopped.
    let holder = bench.hold("b", &options, "echo held >b; sleep 60");
    bench.line("b");
    let waiter = bench.hold("b", &options, "echo mine >b2");
    send(id(&holder), Signal::TERM);
    finish(holder, SOON);
    let waiter = finish(waiter, NOTICED);
    assert_eq!(waiter.code, Some(0), "{waiter:?}");
    assert_eq!(bench.line("b2"), "mine");
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
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb() {
    let server = lock_testkit::servers::MariaDbServer::start().await.unwrap();
    the_program_works(server.url(), "mysql");
}

/// A store that stops answering: the program ends soon after its command, and waits for a lock for no
/// longer than it was told.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_holds_up_neither_the_end_nor_the_wait() {
    let server = lock_testkit::servers::MariaDbServer::start().await.unwrap();
    let bench = Bench::new();
    let script = "echo >ready; while ! test -e go; do sleep 0.02; done; echo done";
    let holder = bench.hold("a", &["--store", server.url()], script);
    bench.line("ready");
    server.freeze().unwrap();
    let asked = now();
    let waiter = bench.done(["run", "a", "--store", server.url(), "--wait", "1s", "--", "true"]);
    assert_eq!(waiter.code, Some(69), "{waiter:?}");
    assert!(now().since(asked) < 5 * SECOND, "{:?}: {waiter:?}", now().since(asked));
    std::fs::write(bench.path("go"), "").unwrap();
    let ended = now();
    let done = finish(holder, SOON);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "done\n"), "{done:?}");
    assert!(done.stderr.contains("could not be confirmed"), "{done:?}");
    assert!(now().since(ended) < 5 * SECOND, "{:?}: {done:?}", now().since(ended));
    server.thaw().unwrap();
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    let server = lock_testkit::servers::RedisServer::start().await.unwrap();
    the_program_works(server.url(), "redis");
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
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd() {
    let server = lock_testkit::servers::EtcdCluster::start().await.unwrap();
    the_program_works(server.url(), "etcd");
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper() {
    let server = lock_testkit::servers::ZooKeeper::start().await.unwrap();
    the_program_works(server.url(), "zookeeper");
}
