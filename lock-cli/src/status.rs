//! `distlock status`: who holds a lock.

use crate::args::StatusArgs;
use crate::exit::{Failure, code};
use crate::holder;
use crate::output::{self, quoted};
use crate::store::Store;

pub(crate) async fn status(args: StatusArgs) -> Result<u8, Failure> {
    let store = Store::open(&args.store, None).await?;
    let info = store.describe(store.locks.inspect(args.name.as_str()).await);
    store.close().await;
    let info = info?;
    let held = info.as_ref().and_then(|info| info.holder.as_ref());
    if args.quiet {
        return Ok(if held.is_some() { 0 } else { code::FREE });
    }
    let name = quoted(&args.name);
    let mut text = match held {
        Some(holder) => format!("{name} is held by {}", holder::with_owner(holder)),
        None => format!("{name} is free"),
    };
    let waiters = info.as_ref().and_then(|info| info.waiters);
    if let Some(waiters) = waiters.filter(|waiters| *waiters > 0) {
        text.push_str(&format!("; {waiters} waiting"));
    }
    let object = holder::lock_json(&args.name, store.locks.backend_name(), info.as_ref());
    output::result(args.store.json, object, &text)?;
    Ok(0)
}
