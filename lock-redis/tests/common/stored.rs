//! All that a server holds, for a golden copy.

use std::time::Duration;

use lock_testkit::golden;
use redis::aio::MultiplexedConnection;

use redis::Value;

use super::{ask, keys};

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
    let mut value: Vec<String> = match kind.as_str() {
        "string" => vec![redis::from_redis_value(value).unwrap()],
        _ => redis::from_redis_value(value).unwrap(),
    };
    // The server shows the fields of a hash in any order.
    if kind == "hash" {
        let mut fields: Vec<_> = value.chunks(2).collect();
        fields.sort();
        value = fields.concat();
    }
    let left: i64 = ask(connection, &["PTTL", key]).await;
    let left = u64::try_from(left).map_or_else(
        |_| "for ever".to_owned(),
        |left| format!("for {}", golden::lasts(Duration::from_millis(left))),
    );
    format!("{key:?}: a {kind} {left}: {value:?}")
}

/// Each key, in order.
pub(crate) async fn stored(connection: &mut MultiplexedConnection) -> Vec<String> {
    let mut keys = keys(connection).await;
    keys.sort();
    let mut lines = Vec::new();
    for key in keys {
        lines.push(told(connection, &key).await);
    }
    lines
}
