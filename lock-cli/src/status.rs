//! `distlock status`: who holds a lock.

use crate::args::StatusArgs;
use crate::exit::{Failure, code};
use crate::output::{quoted, stdout_line};
use crate::store::Store;
use crate::{holder, output};

pub(crate) async fn status(args: StatusArgs) -> Result<u8, Failure> {
    let store = Store::open(&args.store, None).await?;
    let info = store.describe(store.locks.inspect(args.name.as_str()).await);
    store.close().await;
    let info = info?;
    let held = info.as_ref().and_then(|info| info.holder.as_ref());
    if args.quiet {
        return Ok(if held.is_some() { 0 } else { code::FREE });
    }
    if args.store.json {
        let mut object = holder::lock_json(&args.name, store.locks.backend_name(), info.as_ref());
        object["schema"] = 1.into();
        stdout_line(&output::json_line(&object))?;
        return Ok(0);
    }
    let name = quoted(&args.name);
    let mut text = match held {
        Some(holder) => {
            let owner = holder::owner(holder).map(|id| format!(", owner {id}")).unwrap_or_default();
            format!("{name} is held by {}{owner}", holder::sentence(holder))
        }
        None => format!("{name} is free"),
    };
    if let Some(waiters) = info.and_then(|info| info.waiters).filter(|waiters| *waiters > 0) {
        text.push_str(&format!("; {waiters} waiting"));
    }
    stdout_line(&text)?;
    Ok(0)
}
