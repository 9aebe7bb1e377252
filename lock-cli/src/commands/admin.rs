//! `distlock release --force` takes a lock away from its holder; `distlock recover` lets a quorum
//! serve again that waits for a person.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use distlock::clock::Clock;
use distlock::kinds::{HeldAs, WholeHold, WholeLock};
use distlock::{Error, ErrorKind, Released};
use serde_json::json;

use super::lease;
use crate::args::{ReleaseArgs, StoreArgs};
use crate::exit::{ExitError, code};
use crate::output::{self, holder, quoted, whole};
use crate::store::OpenStore;

pub(crate) async fn release(args: ReleaseArgs) -> Result<u8, ExitError> {
    if !args.force {
        return lease::release(args.lease).await;
    }
    OpenStore::with(&args.lease.store, async |store| force(&args, store).await).await
}

async fn force(args: &ReleaseArgs, store: &OpenStore) -> Result<u8, ExitError> {
    let found = store.describe(store.locks.inspect_whole(args.lease.name.as_str()).await)?;
    let victims = victims(args, &found)?;
    if victims.is_empty() {
        return report(args, &[], &format!("{} is free: nothing to release", asked_for(args)));
    }
    if !args.yes {
        ask_for_all(args, &victims)?;
    }
    let (mut freed, mut kept_ones, mut failed) = (Vec::new(), Vec::new(), None);
    for hold in victims {
        // Exactly the hold that was shown, even a foreign one: a later holder keeps the lock.
        let answer = store.locks.force_release(hold.part.name(), &hold.holder.mark).await;
        let (what, who) = (what(args, hold), holder::with_owner(&hold.holder));
        match store.describe(answer) {
            Ok(Released::Freed) => freed.push(hold),
            Ok(_) => kept_ones.push(format!("{who} has already given up {what}")),
            Err(error) => {
                kept_ones.push(format!("{what} was not released: {}", error.message));
                failed.get_or_insert(error);
            }
        }
    }
    if !freed.is_empty() {
        let line = |hold: &&WholeHold| {
            let who = holder::with_owner(&hold.holder);
            format!("released {}; it was held by {who}", what(args, hold))
        };
        report(args, &freed, &freed.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    }
    if kept_ones.is_empty() {
        return Ok(0);
    }
    let nothing = if freed.is_empty() { ": nothing was released" } else { "" };
    let message = format!("{}{nothing}", kept_ones.join("; "));
    Err(ExitError { message, ..failed.unwrap_or_else(|| kept(String::new())) })
}

/// The holds that are to end: all that there are under the name, or only some of them.
fn victims<'a>(args: &ReleaseArgs, found: &'a WholeLock) -> Result<Vec<&'a WholeHold>, ExitError> {
    let mut holds: Vec<_> = found.holds.iter().collect();
    if let Some(slot) = args.slot {
        holds.retain(|hold| hold.held_as == HeldAs::Permit(slot));
    }
    let Some(wanted) = args.owner.as_deref().filter(|_| !holds.is_empty()) else {
        return Ok(holds);
    };
    let is_wanted = |hold: &&WholeHold| {
        hold.holder.owner.is_some_and(|owner| owner.to_hex().starts_with(wanted))
    };
    let theirs: Vec<_> = holds.iter().copied().filter(is_wanted).collect();
    if !theirs.is_empty() {
        return Ok(theirs);
    }
    let others: Vec<_> = holds.into_iter().map(whole::who).collect();
    Err(kept(format!(
        "{} is not held by owner {wanted} but by {}: nothing was released",
        asked_for(args),
        others.join("; ")
    )))
}

fn ask_for_all(args: &ReleaseArgs, victims: &[&WholeHold]) -> Result<(), ExitError> {
    let name = asked_for(args);
    let (held, risk) = match victims {
        [hold] => (
            format!("{} is held by {}", what(args, hold), holder::with_owner(&hold.holder)),
            match hold.holder.owner {
                Some(_) => {
                    "Its command is not stopped at once; two commands may run at the same time. Release it?"
                }
                None => {
                    "distlock did not write this record, so it may not be a lock. Releasing it deletes the record. Continue?"
                }
            },
        ),
        _ => (
            format!("{name} is held by {} holders:{}", victims.len(), whole::lines(victims)),
            "Their commands are not stopped at once; others may run beside them. Release all of these?",
        ),
    };
    let unasked = match victims {
        [_] => format!("{held}: add --yes to release it without confirmation"),
        _ => format!("{held}\nadd --yes to release them without confirmation"),
    };
    let refused = kept(format!("{name} was not released"));
    confirm(&format!("{held}.\n{risk} [y/N] "), unasked, refused)
}

/// What the options name.
fn asked_for(args: &ReleaseArgs) -> String {
    let name = quoted(&args.lease.name);
    args.slot.map_or(name.clone(), |slot| format!("permit {slot} of {name}"))
}

/// What a holder has.
fn what(args: &ReleaseArgs, hold: &WholeHold) -> String {
    let name = quoted(&args.lease.name);
    match hold.held_as {
        HeldAs::Permit(slot) => format!("permit {slot} of {name}"),
        HeldAs::Reader => format!("a read lock on {name}"),
        HeldAs::Writer => format!("the write lock on {name}"),
        _ => name,
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

fn report(args: &ReleaseArgs, freed: &[&WholeHold], text: &str) -> Result<u8, ExitError> {
    let exclusive = freed.iter().find(|hold| hold.held_as == HeldAs::Exclusive);
    let object = json!({
        "name": args.lease.name,
        "released": !freed.is_empty(),
        "holder": exclusive.map(|hold| holder::holder_json(&hold.holder)),
        "holders": freed.iter().map(|hold| whole::hold_json(hold)).collect::<Vec<_>>(),
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
