//! `distlock release --force`: takes a lock away from its holder.

use std::io::{BufRead, IsTerminal, Write};

use distlock::{HolderInfo, Released};
use serde_json::json;

use crate::args::ReleaseArgs;
use crate::exit::{Failure, code};
use crate::output::quoted;
use crate::store::Store;
use crate::{holder, lease, output};

pub(crate) async fn release(args: ReleaseArgs) -> Result<u8, Failure> {
    if !args.force {
        return lease::release(args.lease).await;
    }
    let store = Store::open(&args.lease.store, None).await?;
    let outcome = force(&args, &store).await;
    store.close().await;
    outcome
}

async fn force(args: &ReleaseArgs, store: &Store) -> Result<u8, Failure> {
    let name = quoted(&args.lease.name);
    let info = store.describe(store.locks.inspect(args.lease.name.as_str()).await)?;
    let Some(holder) = info.and_then(|info| info.holder) else {
        report(args, false, None, &format!("{name} is free: nothing to release"))?;
        return Ok(0);
    };
    let who = holder::with_owner(&holder);
    if let Some(wanted) = &args.owner
        && !holder.owner.is_some_and(|owner| owner.to_hex().starts_with(wanted.as_str()))
    {
        return Err(kept(format!(
            "{name} is not held by owner {wanted} but by {who}: nothing was released"
        )));
    }
    if !args.yes {
        confirm(&name, &who)?;
    }
    // Exactly the hold that was shown, even a foreign one: a later holder keeps the lock.
    let answer = store.locks.force_release(args.lease.name.as_str(), holder.mark.clone()).await;
    match store.describe(answer)? {
        Released::Freed => {
            report(args, true, Some(&holder), &format!("released {name}; it was held by {who}"))?;
            Ok(0)
        }
        _ => Err(kept(format!("{who} has already given up {name}: nothing was released"))),
    }
}

/// Asks the person at the terminal; refuses if there is none.
fn confirm(name: &str, who: &str) -> Result<(), Failure> {
    let question = format!(
        "{name} is held by {who}.\nIts command is not stopped at once; two commands may run at the same time. Release it? [y/N] "
    );
    let unasked =
        || format!("{name} is held by {who}: add --yes to release it without confirmation");
    match says_yes(&question, unasked)? {
        true => Ok(()),
        false => Err(kept(format!("{name} was not released"))),
    }
}

/// The answer of the person at the terminal. Without one it is wrong usage, for which `unasked` says
/// what to do.
pub(crate) fn says_yes(question: &str, unasked: impl FnOnce() -> String) -> Result<bool, Failure> {
    let (stdin, mut stderr) = (std::io::stdin(), std::io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return Err(Failure::usage(unasked()));
    }
    let _ = write!(stderr, "{question}");
    let mut answer = String::new();
    let read = stdin.lock().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn kept(message: String) -> Failure {
    Failure::new(code::NOT_ACQUIRED, "not-released", message)
}

fn report(
    args: &ReleaseArgs,
    released: bool,
    holder: Option<&HolderInfo>,
    text: &str,
) -> Result<(), Failure> {
    let object = json!({
        "name": args.lease.name,
        "released": released,
        "holder": holder.map(holder::holder_json),
    });
    output::result(args.lease.store.json, object, text)
}
