//! `distlock status` and `distlock list`: who holds a lock, and which locks are held or waited for.

use std::cmp::Reverse;
use std::time::Duration;

use distlock::LockInfo;
use serde_json::json;

use crate::args::{SortBy, StoreArgs};
use crate::exit::{ExitError, code};
use crate::output::{self, cell, escape, holder, quoted, short};
use crate::store::OpenStore;

pub(crate) async fn status(name: String, store: StoreArgs, quiet: bool) -> Result<u8, ExitError> {
    let (info, backend) = OpenStore::with(&store, async |store| {
        let info = store.describe(store.locks.inspect(name.as_str()).await)?;
        Ok((info, store.locks.backend_name()))
    })
    .await?;
    let held = info.as_ref().and_then(|info| info.holder.as_ref());
    if quiet {
        return Ok(if held.is_some() { 0 } else { code::FREE });
    }
    let how = held.map(|holder| format!("held by {}", holder::with_owner(holder)));
    let mut text = format!("{} is {}", quoted(&name), how.as_deref().unwrap_or("free"));
    let waiters = info.as_ref().and_then(|info| info.waiters);
    if let Some(waiters) = waiters.filter(|waiters| *waiters > 0) {
        text.push_str(&format!("; {waiters} waiting"));
    }
    let object = holder::lock_json(&name, backend, info.as_ref());
    output::result(store.json, object, &text)
}

const HEAD: [&str; 7] = ["NAME", "HOLDER", "OWNER", "HELD FOR", "TIME LEFT", "FENCE", "WAITING"];

pub(crate) async fn list(prefix: String, store: StoreArgs, sort: SortBy) -> Result<u8, ExitError> {
    let (mut locks, backend) = OpenStore::with(&store, async |store| {
        let locks = store.describe(store.locks.list(&prefix).await)?;
        Ok((locks, store.locks.backend_name()))
    })
    .await?;
    if locks.is_empty() && !store.json {
        // Not on standard output: a script may count lines to count locks.
        output::stderr_line("distlock: no lock is held");
        return Ok(0);
    }
    sort_by(&mut locks, sort);
    let object = |info: &LockInfo| holder::lock_json(info.key.name(), backend, Some(info));
    let objects: Vec<_> = locks.iter().map(object).collect();
    let table = output::table(HEAD, locks.iter().map(row));
    output::result(store.json, json!({ "locks": objects }), &table)
}

/// The store's own order is by name. A lock whose age or end is not known comes last.
fn sort_by(locks: &mut [LockInfo], by: SortBy) {
    let held_for = |info: &LockInfo| info.holder.as_ref().and_then(|holder| holder.held_for);
    let left = |info: &LockInfo| info.holder.as_ref().and_then(|holder| holder.expires_in);
    match by {
        SortBy::Name => {}
        SortBy::Age => locks.sort_by_key(|info| Reverse(held_for(info))),
        SortBy::Left => locks.sort_by_key(|info| left(info).unwrap_or(Duration::MAX)),
    }
}

fn row(info: &LockInfo) -> [String; 7] {
    let holder = info.holder.as_ref();
    [
        escape(info.key.name()).into_owned(),
        cell(holder.map(holder::name)),
        cell(holder.and_then(holder::owner)),
        cell(holder.and_then(|h| h.held_for).map(short)),
        cell(holder.and_then(|h| h.expires_in).map(short)),
        cell(holder.and_then(|h| h.fence)),
        cell(info.waiters),
    ]
}
