//! `distlock status` and `distlock list`: who holds a lock, and which locks are held or waited for.

use std::cmp::Reverse;
use std::time::Duration;

use distlock::kinds::WholeLock;
use serde_json::json;

use crate::args::{SortBy, StoreArgs};
use crate::exit::{ExitError, code};
use crate::output::whole::{self, Cells};
use crate::output::{self, cell, escape};
use crate::store::OpenStore;

pub(crate) async fn status(
    name: String,
    store: StoreArgs,
    permits: Option<u32>,
    quiet: bool,
) -> Result<u8, ExitError> {
    let (found, backend) = OpenStore::with(&store, async |store| {
        let found = store.describe(store.locks.inspect_whole(name.as_str()).await)?;
        Ok((found, store.locks.backend_name()))
    })
    .await?;
    if quiet {
        return Ok(if found.holds.is_empty() { code::FREE } else { 0 });
    }
    let object = whole::json(&found, backend, permits);
    output::result(store.json, object, &whole::paragraph(&found, permits))
}

const HEAD: [&str; 7] = ["NAME", "HOLDER", "OWNER", "HELD FOR", "TIME LEFT", "FENCE", "WAITING"];

pub(crate) async fn list(prefix: String, store: StoreArgs, sort: SortBy) -> Result<u8, ExitError> {
    let (listed, backend) = OpenStore::with(&store, async |store| {
        let listed = store.describe(store.locks.list(&prefix).await)?;
        Ok((listed, store.locks.backend_name()))
    })
    .await?;
    let mut wholes = WholeLock::group(listed);
    if wholes.is_empty() && !store.json {
        // Not on standard output: a script may count lines to count locks.
        output::stderr_line("distlock: no lock is held");
        return Ok(0);
    }
    sort_by(&mut wholes, sort);
    let objects: Vec<_> = wholes.iter().map(|found| whole::json(found, backend, None)).collect();
    let table = output::table(HEAD, wholes.iter().map(row));
    output::result(store.json, json!({ "locks": objects }), &table)
}

/// They are ordered by name already. A lock whose age or end is not known comes last.
fn sort_by(wholes: &mut [WholeLock], by: SortBy) {
    let held_for =
        |found: &WholeLock| found.holds.iter().filter_map(|hold| hold.holder.held_for).max();
    let left =
        |found: &WholeLock| found.holds.iter().filter_map(|hold| hold.holder.expires_in).min();
    match by {
        SortBy::Name => {}
        SortBy::Age => wholes.sort_by_key(|found| Reverse(held_for(found))),
        SortBy::Left => wholes.sort_by_key(|found| left(found).unwrap_or(Duration::MAX)),
    }
}

fn row(found: &WholeLock) -> [String; 7] {
    let Cells { holder, owner, held_for, left, fence } = Cells::new(found, None);
    let name = escape(found.key.name()).into_owned();
    [name, cell(holder), owner, held_for, left, fence, cell(found.waiters)]
}
