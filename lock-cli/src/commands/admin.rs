//! `distlock release --force` takes a lock away from its holder; `distlock recover` lets a quorum
//! serve again that waits for a person.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use distlock::clock::Clock;
use distlock::{Error, ErrorKind, HolderInfo, Released};
use serde_json::json;

use super::lease;
use crate::args::{ReleaseArgs, StoreArgs};
use crate::exit::{ExitError, code};
use crate::output::{self, holder, quoted};
use crate::store::OpenStore;

pub(crate) async fn release(args: ReleaseArgs) -> Result<u8, ExitError> {
    if !args.force {
        return lease::release(args.lease).await;
    }
    OpenStore::with(&args.lease.store, async |store| force(&args, store).await).await
}

async fn force(args: &ReleaseArgs, store: &OpenStore) -> Result<u8, ExitError> {
    let name = quoted(&args.lease.name);
    let info = store.describe(store.locks.inspect(args.lease.name.as_str()).await)?;
    let Some(holder) = info.and_then(|info| info.holder) else {
        return report(args, false, None, &format!("{name} is free: nothing to release"));
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
        let question = format!(
            "{name} is held by {who}.\nIts command is not stopped at once; two commands may run at the same time. Release it? [y/N] "
        );
        let unasked =
            format!("{name} is held by {who}: add --yes to release it without confirmation");
        confirm(&question, unasked, kept(format!("{name} was not released")))?;
    }
    // Exactly the hold that was shown, even a foreign one: a later holder keeps the lock.
    let answer = store.locks.force_release(args.lease.name.as_str(), &holder.mark).await;
    match store.describe(answer)? {
        Released::Freed => {
            report(args, true, Some(&holder), &format!("released {name}; it was held by {who}"))
        }
        _ => Err(kept(format!("{who} has already given up {name}: nothing was released"))),
    }
}

/// Asks the person at the terminal, and fails with `refused` unless the answer is yes. Without one it
/// is wrong usage, for which `unasked` says what to do.
fn confirm(question: &str, unasked: String, refused: ExitError) -> Result<(), ExitError> {
    let (stdin, mut stderr) = (std::io::stdin(), std::io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return Err(ExitError::usage(unasked));
    }
    let _ = write!(stderr, "{question}");
    let mut answer = String::new();
    match stdin.lock().read_line(&mut answer) {
        Ok(_) if matches!(answer.trim(), "y" | "Y" | "yes") => Ok(()),
        _ => Err(refused),
    }
}

fn kept(message: String) -> ExitError {
    ExitError::new(code::NOT_ACQUIRED, "not-released", message)
}

fn report(
    args: &ReleaseArgs,
    released: bool,
    holder: Option<&HolderInfo>,
    text: &str,
) -> Result<u8, ExitError> {
    let object = json!({
        "name": args.lease.name,
        "released": released,
        "holder": holder.map(holder::holder_json),
    });
    output::result(args.lease.store.json, object, text)
}

/// How often it is repeated with `--wait`.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) async fn recover(
    store: StoreArgs,
    wait: Option<Duration>,
    yes: bool,
) -> Result<u8, ExitError> {
    if !yes {
        confirm(
            "The nodes have forgotten which locks were held. They vote again once every such lock has ended.\nAre you certain that the nodes that respond are the right ones? [y/N] ",
            "if you are certain that the nodes that respond are the right ones, add --yes"
                .to_owned(),
            ExitError::new(code::NOT_ACQUIRED, "not-recovered", "nothing was done"),
        )?;
    }
    OpenStore::with_until_signal(&store, async |opened| repeat(opened, wait).await).await?;
    output::result(store.json, json!({ "recovered": true }), "every node that responds votes")
}

async fn repeat(store: &OpenStore, wait: Option<Duration>) -> Result<(), ExitError> {
    let clock = store.locks.clock();
    let end = wait.map(|wait| clock.now() + wait);
    loop {
        match store.locks.recover().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                if end.is_none_or(|end| clock.now() >= end) {
                    return Err(not_yet(&error));
                }
            }
            answer => return store.describe(answer),
        }
        clock.sleep(PAUSE).await;
    }
}

/// It has to wait until every lock that may have been forgotten has ended.
fn not_yet(error: &Error) -> ExitError {
    ExitError::new(code::UNAVAILABLE, "not-recovered", error.to_string())
        .with_hint("run it again then, or use --wait, such as --wait 2m")
}
