//! `distlock acquire`, `renew` and `release`: a lock held not by a process but by anyone who knows
//! its lease.

use std::io::Read;
use std::time::Duration;

use distlock::{Error, LeaseToken, Released};
use serde_json::json;

use crate::args::{LeaseArgs, WantArgs};
use crate::exit::{ExitError, code};
use crate::output::{self, millis, quoted, rfc3339, short};
use crate::run::waiting::{self, StoreSession};
use crate::store::OpenStore;

/// The variable with the lease if the command line has none.
pub(crate) const VARIABLE: &str = "DISTLOCK_LEASE";
/// How a lease begins.
const BEGIN: &str = "distlock1.";
/// Longer than any lease.
const LONGEST: u64 = 1 << 16;

pub(crate) async fn acquire(name: String, want: WantArgs) -> Result<u8, ExitError> {
    let work = async {
        check_name(&name)?;
        let mut session = StoreSession::open(std::slice::from_ref(&name), &want).await?;
        let outcome = detached(&name, &want, &mut session).await;
        session.close().await;
        outcome
    };
    waiting::as_wanted(&want, work).await
}

/// Takes the lock, and prints its lease.
async fn detached(
    name: &str,
    want: &WantArgs,
    session: &mut StoreSession,
) -> Result<u8, ExitError> {
    let store = &session.store;
    let backend = store.locks.backend_name();
    if !store.locks.capabilities().detachable {
        let message =
            format!("{backend} keeps a lock only as long as the program that took it runs");
        return Err(ExitError::new(code::CONFIG, "unsupported", message)
            .with_hint("use `distlock run`, or another store: `distlock stores` lists them"));
    }
    let lock = waiting::lock(name, want, store)?;
    let guard = waiting::acquire(want, session, &lock).await?;
    let mut object = json!({
        "name": name,
        "backend": backend,
        "fence": guard.token()?.get(),
        "ttl_ms": millis(guard.ttl()),
        "valid_until": rfc3339(guard.valid_until_wall_clock()),
    });
    let token = session.store.describe(guard.detach().await.map_err(Error::from))?;
    let text = token.to_text();
    object["lease"] = json!(text);
    let line = format!("{}\n", output::rendered(want.store.json, object, &text));
    if let Err(error) = output::stdout(line.as_bytes()) {
        // The lease reached no one, so no one could release the lock.
        let hint = match lock.release(token).await {
            Ok(_) => "the lock was released".to_owned(),
            Err(error) => {
                format!("the lock was not released ({error}): others wait until its lease ends")
            }
        };
        let message = format!("cannot write the lease to standard output: {error}");
        return Err(ExitError::internal(message).with_hint(hint));
    }
    Ok(0)
}

pub(crate) async fn renew(args: LeaseArgs, ttl: Option<Duration>) -> Result<u8, ExitError> {
    let token = read(&args, "")?;
    let (renewed, backend, until) = OpenStore::with(&args.store, async |store| {
        let lock = store.lock(&args.name, ttl)?;
        let renewed = store.describe(lock.renew(&token).await)?;
        let until = renewed.valid_until.to_system_time(&**store.locks.clock());
        Ok((renewed, store.locks.backend_name(), until))
    })
    .await?;
    let object = json!({
        "name": args.name,
        "backend": backend,
        "fence": renewed.fence.get(),
        "left_ms": millis(renewed.remaining),
        "valid_until": rfc3339(until),
    });
    let (name, left) = (quoted(&args.name), short(renewed.remaining));
    let text = format!("renewed {name}: {left} left, fence {}", renewed.fence);
    output::result(args.store.json, object, &text)
}

pub(crate) async fn release(args: LeaseArgs) -> Result<u8, ExitError> {
    let hint = ". To take the lock away from its holder, add --force; stop the holder's command first if you can, because it keeps running until it notices";
    let token = read(&args, hint)?;
    let released = OpenStore::with(&args.store, async |store| {
        let lock = store.lock(&args.name, None)?;
        store.describe(lock.release(token).await)
    });
    let name = quoted(&args.name);
    if released.await? == Released::AlreadyGone {
        return Err(ExitError::new(
            code::LOST,
            "lost",
            format!(
                "{name} is not held with this lease: it was already released, or the lease has expired"
            ),
        ));
    }
    let object = json!({ "name": args.name, "released": true });
    output::result(args.store.json, object, &format!("released {name}"))
}

/// The lease from the command line, standard input or the environment. It is a secret, so no
/// message shows it.
fn read(args: &LeaseArgs, hint: &str) -> Result<LeaseToken, ExitError> {
    check_name(&args.name)?;
    let variable = || std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let text = match args.lease.as_deref() {
        Some("-") => {
            let mut text = String::new();
            let read = std::io::stdin().lock().take(LONGEST).read_to_string(&mut text);
            read.map_err(|error| ExitError::usage(format!("cannot read the lease from standard input: {error}")))?;
            text
        }
        Some(text) => text.to_owned(),
        None => variable().ok_or_else(|| {
            ExitError::usage(format!("the lease of {} is missing", quoted(&args.name))).with_hint(
                format!("pass the lease that `distlock acquire` printed: in ${VARIABLE}, on standard input with -, or as an argument{hint}"),
            )
        })?,
    };
    text.parse().map_err(|_| {
        ExitError::usage(
            "this is not a lease: pass the whole lease that `distlock acquire` printed",
        )
    })
}

/// A lease given as the name would appear in messages, and to anyone who lists the locks.
fn check_name(name: &str) -> Result<(), ExitError> {
    match name.starts_with(BEGIN) {
        true => Err(ExitError::usage("the name of the lock comes first, then its lease")),
        false => Ok(()),
    }
}
