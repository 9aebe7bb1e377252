//! `distlock list`: the locks that are held or waited for.

use std::cmp::Reverse;
use std::time::Duration;

use distlock::LockInfo;
use serde_json::json;

use crate::args::{ListArgs, Order};
use crate::exit::Failure;
use crate::output::{escape, short, stdout_line};
use crate::store::Store;
use crate::{holder, output};

const HEAD: [&str; 7] = ["NAME", "HOLDER", "OWNER", "HELD FOR", "TIME LEFT", "FENCE", "WAITING"];

pub(crate) async fn list(args: ListArgs) -> Result<u8, Failure> {
    let store = Store::open(&args.store, None).await?;
    let locks = store.describe(store.locks.list(&args.prefix).await);
    store.close().await;
    let mut locks = locks?;
    sort(&mut locks, args.sort);
    if args.store.json {
        let backend = store.locks.backend_name();
        let locks: Vec<_> = locks
            .iter()
            .map(|info| holder::lock_json(info.key.name(), backend, Some(info)))
            .collect();
        output::result(true, json!({ "locks": locks }), "")?;
        return Ok(0);
    }
    if locks.is_empty() {
        // Not on standard output: a script may count lines to count locks.
        output::stderr_line("distlock: no lock is held");
        return Ok(0);
    }
    stdout_line(&output::table(HEAD, locks.iter().map(row)))?;
    Ok(0)
}

/// The store's own order is by name. A lock whose age or end is not known comes last.
fn sort(locks: &mut [LockInfo], by: Order) {
    let held_for = |info: &LockInfo| info.holder.as_ref().and_then(|holder| holder.held_for);
    let left = |info: &LockInfo| info.holder.as_ref().and_then(|holder| holder.expires_in);
    match by {
        Order::Name => {}
        Order::Age => locks.sort_by_key(|info| Reverse(held_for(info))),
        Order::Left => locks.sort_by_key(|info| left(info).unwrap_or(Duration::MAX)),
    }
}

fn row(info: &LockInfo) -> [String; 7] {
    let unknown = || "-".to_owned();
    let holder = info.holder.as_ref();
    [
        escape(info.key.name()).into_owned(),
        holder.map_or_else(unknown, holder::name),
        holder.and_then(holder::owner).unwrap_or_else(unknown),
        holder.and_then(|h| h.held_for).map_or_else(unknown, short),
        holder.and_then(|h| h.expires_in).map_or_else(unknown, short),
        holder.and_then(|h| h.fence).map_or_else(unknown, |fence| fence.to_string()),
        info.waiters.map_or_else(unknown, |n| n.to_string()),
    ]
}
