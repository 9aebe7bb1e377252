//! A Redis server: what it forgets, whom it refuses, and what is on a wrong port.

use conformance_tests::server::Port;
use lock_testkit::servers::RedisServer;

use super::examine;
use crate::bench::{Bench, Running, SOON, until};
use crate::redis::{Plain, info};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_forgets_is_a_warning() {
    let server = RedisServer::builder().start().await.unwrap();
    let mut plain = Plain::connect(&server);
    // The tests' own servers do not wait for the disk.
    examine(server.url(), &[])
        .is(1)
        .says("info", ", up for ", "")
        .says("warning", "appendfsync no", "appendfsync always")
        .lacks("append-only file")
        .lacks("maxmemory-policy");
    plain.ask("CONFIG SET appendfsync always");
    examine(server.url(), &[])
        .lacks("appendfsync")
        .lacks("replica")
        .lacks("does not have")
        .says("info", "syncs each write: a restart forgets no lock", "")
        .says("info", "the TTL can be 10ms or more", "")
        .lacks("up for 0ns");
    plain.ask("CONFIG SET appendonly no");
    examine(server.url(), &[]).is(1).says("warning", "keeps no append-only file", "appendonly");
    plain.ask("CONFIG SET maxmemory 100mb");
    plain.ask("CONFIG SET maxmemory-policy allkeys-lru");
    examine(server.url(), &[]).is(78).says("critical", "allkeys-lru", "--store");
    let url = format!("{}?lock_eviction=warn", server.url());
    examine(&url, &[]).is(1).says("warning", "maxmemory-policy allkeys-lru", "noeviction");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_redis_is_named() {
    let server = RedisServer::builder().start().await.unwrap();
    let address = server.address().unwrap();
    let replica = RedisServer::builder()
        .option("replicaof", &format!("{} {}", address.ip(), address.port()))
        .start()
        .await
        .unwrap();
    until("the replica is connected", SOON, || info(&server, "connected_slaves") == "1");
    examine(server.url(), &[]).is(1).says("warning", "has replicas (1)", "quorum");
    examine(replica.url(), &[]).is(69).says("critical", "READONLY", "is the server running");
}

/// Texts of a first day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wrong_port_is_told_with_what_it_might_be() {
    let server = RedisServer::builder().start().await.unwrap();
    #[cfg(feature = "tls")]
    examine(&server.url().replace("redis:", "rediss:"), &[]).is(69).says(
        "critical",
        "cannot be reached",
        "do both sides use TLS",
    );
    examine("redis://127.0.0.1:1", &[]).is(69).says(
        "critical",
        "127.0.0.1:1 cannot be reached",
        "is the address correct",
    );
    let address = server.address().unwrap();
    let bench = Bench::new();
    let conf = format!("sentinel monitor m {} {} 1\n", address.ip(), address.port());
    std::fs::write(bench.path("conf"), conf).unwrap();
    let sentinel = Sentinel::start(bench.path("conf").to_str().unwrap());
    examine(&format!("redis://127.0.0.1:{}", sentinel.port), &[]).is(78).says(
        "critical",
        "it is probably a Sentinel",
        "another store",
    );
}

/// A Sentinel of the test's own.
struct Sentinel {
    port: Port,
    _process: Running,
}

impl Sentinel {
    fn start(conf: &str) -> Self {
        let port = Port::reserve().expect("a free port");
        let mut command = std::process::Command::new("redis-server");
        command.args([conf, "--sentinel", "--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.stdout(std::process::Stdio::null());
        let process: Running = command.spawn().expect("redis-server is there").into();
        let address = port.address();
        until("the Sentinel listens", SOON, || std::net::TcpStream::connect(address).is_ok());
        Self { port, _process: process }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_and_rights_are_judged_and_not_shown() {
    let server = RedisServer::builder().option("requirepass", "right").start().await.unwrap();
    let with = |user: &str| server.url().replace("redis://", &format!("redis://{user}@"));
    let found = examine(&with(":hunter2"), &[]).is(69);
    let found = found.says("critical", "refused the credentials", "access rights");
    assert!(!format!("{:?}", found.done).contains("hunter2"), "{:?}", found.done);
    let mut plain = Plain::connect(&server);
    plain.ask("AUTH right");
    plain.ask("ACL SETUSER app on >pass ~* &* +@all -get");
    examine(&with("app:pass"), &[]).is(69).says("critical", "GET", "access rights");
    plain.ask("ACL SETUSER app +get -info");
    examine(&with("app:pass"), &[]).is(1).says("warning", "may not call INFO", "+info");
    plain.ask("ACL SETUSER app +info resetkeys ~other*");
    examine(&with("app:pass"), &[]).is(69).says("critical", "~<lock_prefix>*", "access rights");
    // Enough for the probe of the rights, and not for this lock.
    plain.ask("ACL SETUSER app resetkeys ~ours* ~{ours* ~distlock?fence ~{distlock?probe:*");
    examine(&with("app:pass"), &[]).is(69).says(
        "critical",
        "cannot be taken",
        "distlock doctor NAME",
    );
    examine(&with("app:pass"), &["ours"]).says("info", "\"ours\" was taken", "");
}
