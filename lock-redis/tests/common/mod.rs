//! What the tests of one Redis node share.

#![allow(dead_code, reason = "each test target uses a part of it")]

pub(crate) mod children;
pub(crate) mod looks;
pub(crate) mod scenes;
pub(crate) mod stored;

use std::time::Duration;

use conformance_tests::server::Proxy;
use lock_core::{
    Attempt, Claim, ClaimRequest, FencingToken, LockBackend, LockKey, Locks, OsRng, OwnerId, Seen,
};
use lock_redis::{RedisBackend, RedisConfig};
use lock_testkit::servers::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use tokio::time::Instant;

/// A test for each of these scenes, by the rules of the product.
#[allow(unused_macros, reason = "each test target uses a part of it")]
macro_rules! scenes_hold {
    (#[$test:meta] $scenes:ident: $($scene:ident)+) => {$(
        #[$test]
        async fn $scene() {
            $scenes::$scene().await.unwrap();
        }
    )+};
}
#[allow(unused_imports, reason = "each test target uses a part of it")]
pub(crate) use scenes_hold;

/// Plays the scene of this name, for the tests of the tests, if it is one of these.
macro_rules! played_by_name {
    ($($scene:ident)+) => {
        pub(crate) async fn play(scene: &str) -> Option<Seen> {
            match scene {
                $(stringify!($scene) => Some($scene().await),)+
                _ => None,
            }
        }
    };
}
pub(crate) use played_by_name;

/// A server of the test's own. A machine without one fails the test: it says which package is
/// missing, and a skip would look like a pass.
pub(crate) async fn server() -> RedisServer {
    RedisServer::builder().start().await.unwrap()
}

pub(crate) async fn backend(server: &RedisServer) -> RedisBackend {
    lock_redis::connect(server.url()).await.unwrap()
}

pub(crate) async fn locks(server: &RedisServer) -> Locks {
    Locks::new(backend(server).await)
}

/// A plain connection, as a client in another language has one.
pub(crate) async fn plain(server: &RedisServer) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(10)))
        .set_response_timeout(Some(Duration::from_secs(10)));
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

pub(crate) async fn run(connection: &mut MultiplexedConnection, words: &[&str]) -> Value {
    ask(connection, words).await
}

pub(crate) async fn ask<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    words: &[&str],
) -> T {
    redis::cmd(words[0]).arg(&words[1..]).query_async(connection).await.unwrap()
}

/// `SET name value NX PX ttl`: what redsync, redis-py, rslock and node-redlock do.
pub(crate) async fn set_nx(
    connection: &mut MultiplexedConnection,
    name: &str,
    ttl_ms: u64,
) -> bool {
    let ttl = ttl_ms.to_string();
    run(connection, &["SET", name, "somebody", "NX", "PX", &ttl]).await == Value::Okay
}

pub(crate) fn claim(
    backend: &impl LockBackend,
    name: &str,
    ttl: Duration,
    wait: bool,
) -> Box<dyn Claim> {
    let key = LockKey::new("", name).unwrap();
    let owner = OwnerId::generate(&OsRng).unwrap();
    let request = ClaimRequest::new(key, owner, ttl)
        .with_wait(wait)
        .with_call_timeout(Duration::from_secs(2));
    backend.claim(request).unwrap()
}

/// The fence of a try that must succeed.
pub(crate) async fn granted(claim: &mut dyn Claim) -> FencingToken {
    match claim.try_acquire().await.unwrap() {
        Attempt::Granted { token, .. } => token,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn is_granted(claim: &mut dyn Claim) -> bool {
    matches!(claim.try_acquire().await.unwrap(), Attempt::Granted { .. })
}

/// What a look shows of these names.
pub(crate) async fn look(
    backend: &impl LockBackend,
    names: &[&str],
) -> lock_core::Result<Vec<Seen>> {
    let keys: Vec<_> = names.iter().map(|name| LockKey::new("", *name).unwrap()).collect();
    backend.look(&keys).await
}

/// The floor that a look shows of a name that nobody has, 0 for none.
pub(crate) async fn floor(backend: &impl LockBackend, name: &str) -> Result<u64, String> {
    match look(backend, &[name]).await.unwrap().pop() {
        Some(Seen::Free { floor }) => Ok(floor.map_or(0, FencingToken::get)),
        other => Err(format!("{name} is not free: {other:?}")),
    }
}

/// When to try again, after a try that must not succeed.
pub(crate) async fn busy(claim: &mut dyn Claim) -> Option<Duration> {
    match claim.try_acquire().await.unwrap() {
        Attempt::Busy(busy) => busy.retry_after,
        other => panic!("not busy: {other:?}"),
    }
}

/// Who waits for the lock `name`, in order.
pub(crate) async fn queued(connection: &mut MultiplexedConnection, name: &str) -> Vec<OwnerId> {
    let queue = format!("{{{name}}}\u{1e}queue");
    let owners: Vec<String> =
        redis::cmd("ZRANGE").arg(queue).arg(0).arg(-1).query_async(connection).await.unwrap();
    owners.iter().map(|place| place[..32].parse().unwrap()).collect()
}

/// A link to the server that can be broken, and settings that detect it soon.
pub(crate) async fn proxied(server: &RedisServer) -> (Proxy, RedisConfig) {
    let proxy = Proxy::start(server.address().unwrap()).await.unwrap();
    let config = RedisConfig::from_url(&format!("redis://{}", proxy.address())).unwrap();
    let limit = Duration::from_millis(500);
    (proxy, config.connect_timeout(limit).response_timeout(limit))
}

pub(crate) fn config(server: &RedisServer) -> RedisConfig {
    RedisConfig::from_url(server.url()).unwrap()
}

/// Looks again and again, and panics if it is not so within `limit`.
pub(crate) async fn until(what: &str, limit: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + limit;
    while !is_so().await {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// How often each command ran on the server, those inside of scripts included, all together.
pub(crate) async fn commands(connection: &mut MultiplexedConnection) -> u64 {
    calls(connection, |command| command != "info").await
}

/// How many scripts were sent to the server: all that a claim ever asks is a script.
pub(crate) async fn requests(connection: &mut MultiplexedConnection) -> u64 {
    calls(connection, |command| ["eval", "evalsha"].contains(&command)).await
}

/// How often the commands that are `meant` ran.
pub(crate) async fn calls(
    connection: &mut MultiplexedConnection,
    meant: impl Fn(&str) -> bool,
) -> u64 {
    let info: String =
        redis::cmd("INFO").arg("commandstats").query_async(connection).await.unwrap();
    let calls = |line: &str| {
        let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        figures.split(',').next()?.parse::<u64>().ok().filter(|_| meant(command))
    };
    info.lines().filter_map(calls).sum()
}

/// How many connections the server has taken so far.
pub(crate) async fn connections(connection: &mut MultiplexedConnection) -> u64 {
    let info: String = redis::cmd("INFO").arg("stats").query_async(connection).await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse().unwrap()
}

pub(crate) async fn keys(connection: &mut MultiplexedConnection) -> Vec<String> {
    redis::cmd("KEYS").arg("*").query_async(connection).await.unwrap()
}
