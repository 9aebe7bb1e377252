//! What a held lock, a waiter and a released lock leave on the server.

use std::time::Duration;

use lock_testkit::golden;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};

use crate::common::{locks, plain, server, until};

const TTL: Duration = Duration::from_secs(60);

async fn ask<T: FromRedisValue>(connection: &mut MultiplexedConnection, words: &[&str]) -> T {
    redis::cmd(words[0]).arg(&words[1..]).query_async(connection).await.unwrap()
}

/// A key: its type, how long it lasts, and what it holds.
async fn told(connection: &mut MultiplexedConnection, key: &str) -> String {
    let kind: String = ask(connection, &["TYPE", key]).await;
    let read: &[&str] = match kind.as_str() {
        "string" => &["GET", key],
        "hash" => &["HGETALL", key],
        "zset" => &["ZRANGE", key, "0", "-1", "WITHSCORES"],
        other => panic!("{key:?} is a {other}"),
    };
    let value: Value = ask(connection, read).await;
    let value: Vec<String> = match kind.as_str() {
        "string" => vec![redis::from_redis_value(value).unwrap()],
        _ => redis::from_redis_value(value).unwrap(),
    };
    let left: i64 = ask(connection, &["PTTL", key]).await;
    let left = u64::try_from(left).map_or_else(
        |_| "for ever".to_owned(),
        |left| format!("for {}", golden::lasts(Duration::from_millis(left))),
    );
    format!("{key:?}: a {kind} {left}: {value:?}")
}

#[tokio::test]
async fn what_is_stored_is_what_was_stored() {
    let server = server().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let held = a.named("held").unwrap().label("a label").ttl(TTL).cohort(4);
    let guard = held.acquire().await.unwrap();
    let released = a.named("released").unwrap();
    released.acquire().await.unwrap().release().await.unwrap();
    let waiter = b.named("held").unwrap().ttl(TTL);
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    let mut plain = plain(&server).await;
    let queue = "{held}\u{1e}queue";
    until("it waits", TTL, async || ask::<u64>(&mut plain, &["ZCARD", queue]).await == 1).await;
    let mut keys: Vec<String> = ask(&mut plain, &["KEYS", "*"]).await;
    keys.sort();
    let mut lines = Vec::new();
    for key in keys {
        lines.push(told(&mut plain, &key).await);
    }
    golden::check(env!("CARGO_MANIFEST_DIR"), "redis", &lines);
    waiter.abort();
    drop(guard);
}
