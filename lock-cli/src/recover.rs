//! `distlock recover`: lets a quorum serve again that waits for a person.

use std::time::Duration;

use distlock::clock::Clock;
use distlock::{Error, ErrorKind};
use serde_json::json;

use crate::args::RecoverArgs;
use crate::exit::{Failure, code};
use crate::output;
use crate::patience::until_signal;
use crate::release;
use crate::store::Store;

/// How often it is repeated with `--wait`.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) async fn recover(args: RecoverArgs) -> Result<u8, Failure> {
    if !args.yes {
        confirm()?;
    }
    let store = until_signal(Store::open(&args.store, None)).await?;
    let recovered = until_signal(repeat(&args, &store)).await;
    store.close().await;
    recovered?;
    let object = json!({ "recovered": true });
    output::result(args.store.json, object, "every node that answers votes")?;
    Ok(0)
}

async fn repeat(args: &RecoverArgs, store: &Store) -> Result<(), Failure> {
    let clock = store.locks.clock();
    let end = args.wait.map(|wait| clock.now() + wait);
    loop {
        let answer = store.locks.recover().await;
        match answer {
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
fn not_yet(error: &Error) -> Failure {
    Failure::new(code::UNAVAILABLE, "not-recovered", error.to_string())
        .with_hint("call it again then, or let --wait do so, such as --wait 2m")
}

fn confirm() -> Result<(), Failure> {
    let question = "The nodes have forgotten which locks were held. They vote again once every such lock has ended.\nIs it certain that the nodes that answer are the right ones? [y/N] ";
    let unasked =
        || "if it is certain that the nodes that answer are the right ones, add --yes".to_owned();
    match release::says_yes(question, unasked)? {
        true => Ok(()),
        false => Err(Failure::new(code::NOT_ACQUIRED, "not-recovered", "nothing was done")),
    }
}
