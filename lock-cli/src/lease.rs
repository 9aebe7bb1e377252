//! `distlock acquire`, `renew` and `release`: a lock held not by a process but by anyone who knows
//! its lease.

use std::io::Read;

use distlock::{Error, LeaseToken, Released};
use serde_json::json;

use crate::args::{AcquireArgs, LeaseArgs, RenewArgs, WantArgs};
use crate::exit::{Failure, code};
use crate::output::{self, millis, quoted, rfc3339, short};
use crate::run::notes::Notes;
use crate::run::signals::{FORWARDED, Signals};
use crate::run::waiting::{self, Patience};
use crate::run::{self, ENDING};
use crate::store::Store;

/// The variable with the lease if the command line has none.
const VARIABLE: &str = "DISTLOCK_LEASE";
/// How a lease begins.
const BEGIN: &str = "distlock1.";
/// Longer than any lease.
const LONGEST: u64 = 1 << 16;

pub(crate) async fn acquire(args: AcquireArgs) -> Result<u8, Failure> {
    let AcquireArgs { name, want } = args;
    check_name(&name)?;
    let notes = Notes::new(std::slice::from_ref(&name), &want);
    let mut signals = Signals::watch(&FORWARDED)?;
    let (store, patience) = waiting::open(&want, &mut signals).await?;
    let outcome = detached(&name, &want, &store, patience, &mut signals, &notes).await;
    let end_by = store.locks.clock().now() + ENDING;
    run::close(&store, end_by, &mut signals, &notes).await;
    outcome
}

/// Takes the lock, and prints its lease.
async fn detached(
    name: &str,
    want: &WantArgs,
    store: &Store,
    patience: Patience,
    signals: &mut Signals,
    notes: &Notes,
) -> Result<u8, Failure> {
    let backend = store.locks.backend_name();
    if !store.locks.capabilities().detachable {
        let message = format!("{backend} keeps a lock only while the program that took it runs");
        return Err(Failure::new(code::CONFIG, "unsupported", message)
            .with_hint("use `distlock run`, or another store: `distlock stores` lists them"));
    }
    let lock = waiting::lock(name, want, store)?;
    let guard = waiting::acquire(want, store, &lock, patience, signals, notes).await?;
    let mut object = json!({
        "name": name,
        "backend": backend,
        "fence": guard.token()?.get(),
        "ttl_ms": millis(guard.ttl()),
        "valid_until": rfc3339(guard.valid_until_wall_clock()),
    });
    let token = store.describe(guard.detach().await.map_err(Error::from))?;
    let text = token.to_text();
    object["lease"] = json!(text);
    let line = format!("{}\n", output::rendered(want.store.json, object, &text));
    if let Err(error) = output::stdout(line.as_bytes()) {
        // The lease reached no one, so no one could release the lock.
        let _ = lock.release(token).await;
        let message = format!("cannot write the lease to standard output: {error}");
        return Err(Failure::internal(message).with_hint("the lock was released"));
    }
    Ok(0)
}

pub(crate) async fn renew(args: RenewArgs) -> Result<u8, Failure> {
    let RenewArgs { lease: args, ttl } = args;
    let token = read(&args, "")?;
    let store = Store::open(&args.store, None).await?;
    let renewed = match store.lock(&args.name, ttl) {
        Ok(lock) => store.describe(lock.renew(&token).await),
        Err(failure) => Err(failure),
    };
    let until =
        renewed.as_ref().map(|lease| lease.valid_until.to_system_time(&**store.locks.clock()));
    let until = until.map(rfc3339).unwrap_or_default();
    store.close().await;
    let renewed = renewed?;
    let object = json!({
        "name": args.name,
        "backend": store.locks.backend_name(),
        "fence": renewed.fence.get(),
        "left_ms": millis(renewed.remaining),
        "valid_until": until,
    });
    let (name, left) = (quoted(&args.name), short(renewed.remaining));
    let text = format!("renewed {name}: {left} left, fence {}", renewed.fence);
    output::result(args.store.json, object, &text)?;
    Ok(0)
}

pub(crate) async fn release(args: LeaseArgs) -> Result<u8, Failure> {
    let hint = ". To take the lock away from a holder that does not end, add --force: the holder is not asked, so stop its command first if you can";
    let token = read(&args, hint)?;
    let store = Store::open(&args.store, None).await?;
    let released = match store.lock(&args.name, None) {
        Ok(lock) => store.describe(lock.release(token).await),
        Err(failure) => Err(failure),
    };
    store.close().await;
    let name = quoted(&args.name);
    if released? == Released::AlreadyGone {
        return Err(Failure::new(
            code::LOST,
            "lost",
            format!(
                "{name} is not held with this lease: it was already released, or the lease has expired"
            ),
        ));
    }
    let object = json!({ "name": args.name, "released": true });
    output::result(args.store.json, object, &format!("released {name}"))?;
    Ok(0)
}

/// The lease from the command line, standard input or the environment. It is a secret, so no
/// message shows it.
fn read(args: &LeaseArgs, hint: &str) -> Result<LeaseToken, Failure> {
    check_name(&args.name)?;
    let variable = || std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let text = match args.lease.as_deref() {
        Some("-") => {
            let mut text = String::new();
            let read = std::io::stdin().lock().take(LONGEST).read_to_string(&mut text);
            read.map_err(|error| Failure::usage(format!("cannot read the lease from standard input: {error}")))?;
            text
        }
        Some(text) => text.to_owned(),
        None => variable().ok_or_else(|| {
            Failure::usage(format!("the lease of {} is missing", quoted(&args.name))).with_hint(
                format!("pass the lease that `distlock acquire` printed: in ${VARIABLE}, on standard input with -, or as an argument{hint}"),
            )
        })?,
    };
    text.parse().map_err(|_| {
        Failure::usage("this is not a lease: pass the whole lease that `distlock acquire` printed")
    })
}

/// A lease given as the name would appear in messages, and to anyone who lists the locks.
fn check_name(name: &str) -> Result<(), Failure> {
    match name.starts_with(BEGIN) {
        true => Err(Failure::usage("the name of the lock comes first, then its lease")),
        false => Ok(()),
    }
}
