//! What an operator should know about a single server.

use std::time::Duration;

use lock_core::{ErrorKind, Finding, Result};

use super::store::Store;
use crate::node::{Info, Reply};

/// The limit for one request.
const LIMIT: Duration = Duration::from_secs(3);

pub(super) async fn diagnose(store: &Store) -> Result<Vec<Finding>> {
    let mut keeps_file = false;
    let more = |info: &Info<'_>, at: &str| {
        keeps_file = info.text("aof_enabled") == "1";
        durability(info, at)
    };
    let mut findings = store.node.diagnose(more, LIMIT).await?;
    if keeps_file {
        findings.extend(sync(store).await?);
    }
    Ok(findings)
}

/// What a restart or a fail-over forgets.
fn durability(info: &Info<'_>, at: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if info.text("aof_enabled") == "0" {
        findings.push(Finding::warning(
            format!("{at} keeps no append-only file: a restart forgets the locks that are held, which second holders then get"),
            "set appendonly to yes and appendfsync to always, or use a store that keeps what it has acknowledged, such as etcd, ZooKeeper or a database",
        ));
    }
    let replicas = info.text("connected_slaves");
    if !matches!(replicas.as_str(), "" | "0") {
        findings.push(Finding::warning(
            format!("{at} has replicas ({replicas}): a fail-over to one that is behind forgets the locks that are held"),
            "let the resource check the fencing tokens, or use a store with a quorum: redlock, etcd or ZooKeeper",
        ));
    }
    findings
}

/// How much of the append-only file a crash of the machine forgets.
async fn sync(store: &Store) -> Result<Option<Finding>> {
    let mut ask = redis::cmd("CONFIG");
    let answer = match store.node.command(ask.arg("GET").arg("appendfsync"), LIMIT).await {
        Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Store) => {
            return Ok(None);
        }
        answer => answer?,
    };
    let value = match &answer {
        redis::Value::Map(pairs) => match pairs.first() {
            Some((_, redis::Value::BulkString(value))) => String::from_utf8_lossy(value).into(),
            _ => String::new(),
        },
        list => Reply::new("CONFIG GET", list)?.text(1)?,
    };
    if matches!(value.as_str(), "" | "always") {
        return Ok(None);
    }
    let at = store.node.endpoint();
    Ok(Some(Finding::warning(
        format!(
            "the Redis server at {at} has appendfsync {value}: a crash of its machine forgets the last locks, which second holders then get"
        ),
        "CONFIG SET appendfsync always, and set it in redis.conf",
    )))
}
