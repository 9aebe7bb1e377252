//! Permits: exclusive locks, of which a semaphore has several.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::kinds::{Permit, Semaphore};

use crate::cases::tools::{error_kind, is_busy, soon, turns};
use crate::context::Cx;
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, ensure_exactly};

cases! {
    s01_never_more_holders_than_permits []
        "tasks of several clients never hold more permits than there are, nor one slot twice, and the tokens of a slot rise";
    s04_a_wait_for_a_permit_that_ends_leaves_nothing []
        "a wait for a permit that runs out of time, or is dropped, keeps no permit from others";
    l04_a_permit_of_a_holder_that_is_gone_is_given_on [Lease]
        "a permit whose holder does not renew it any more goes to a waiter when its lease has ended";
}

const PERMITS: u32 = 2;
/// How many tasks each client has, and how many permits each of them takes.
const TASKS: usize = 3;
const ROUNDS: usize = 4;

/// Who has which slot, and the last token of each.
#[derive(Debug, Default)]
struct Ledger(Mutex<HashMap<u32, (bool, Option<FencingToken>)>>);

impl Ledger {
    fn takes(&self, permit: &Permit) -> Check {
        let (slot, token) = (permit.slot(), permit.token()?);
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_held, last) = slots.entry(slot).or_default();
        ensure_exactly!(!*is_held, "slot {slot} has two holders");
        ensure_exactly!(
            last.is_none_or(|last| last < token),
            "slot {slot} was given with {token} after {last:?}"
        );
        (*is_held, *last) = (true, Some(token));
        let held = slots.values().filter(|(is_held, _)| *is_held).count();
        ensure_exactly!(held <= PERMITS as usize, "{held} permits of {PERMITS} are held");
        Ok(())
    }

    fn gives_back(&self, permit: &Permit) {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((is_held, _)) = slots.get_mut(&permit.slot()) {
            *is_held = false;
        }
    }
}

async fn semaphore(cx: &Cx) -> Check<Semaphore> {
    Ok(cx.locks().await?.semaphore("permits", PERMITS)?.ttl(cx.long_ttl()))
}

/// A permit, which is free or will be soon: long before the lease of one that was left behind has ended.
async fn taken(cx: &Cx, permits: &Semaphore) -> Check<Permit> {
    taken_within(cx, cx.long_ttl() / 3, permits).await
}

async fn taken_within(cx: &Cx, limit: Duration, permits: &Semaphore) -> Check<Permit> {
    Ok(soon(cx, limit, "a permit is granted", permits.acquire()).await??)
}

async fn s01_never_more_holders_than_permits(cx: Cx) -> Check {
    let ledger = Arc::new(Ledger::default());
    let mut tasks = Vec::new();
    for client in 0..3 {
        let permits = semaphore(&cx).await?;
        for task in 0..TASKS {
            let (permits, ledger, cx) = (permits.clone(), Arc::clone(&ledger), cx.clone());
            tasks.push(tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let permit = permits.acquire().await?;
                    ledger.takes(&permit)?;
                    turns(&cx, 2).await;
                    ledger.gives_back(&permit);
                    if (client + task + round) % 3 == 0 {
                        drop(permit);
                    } else {
                        permit.release().await?;
                    }
                }
                Check::Ok(())
            }));
        }
    }
    for task in tasks {
        soon(&cx, Duration::from_secs(60) + cx.slack(), "all tasks get permits", task).await???;
    }
    Ok(())
}

async fn s04_a_wait_for_a_permit_that_ends_leaves_nothing(cx: Cx) -> Check {
    let (ours, theirs) = (semaphore(&cx).await?, semaphore(&cx).await?);
    let held = [taken(&cx, &ours).await?, taken(&cx, &ours).await?];
    if let Some(_third) = theirs.try_acquire().await? {
        return cx.second_holder(format_args!("a third permit of {PERMITS} was granted"));
    }
    let kind = error_kind(theirs.acquire_timeout(cx.tick()).await, "a wait for a permit")?;
    ensure!(is_busy(&cx, kind), "a wait that ran out of time ended with {kind:?}");
    let waiting = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.acquire().await }
    });
    turns(&cx, 8).await;
    waiting.abort();
    for permit in held {
        permit.release().await?;
    }
    let third = semaphore(&cx).await?;
    let both = [taken(&cx, &third).await?, taken(&cx, &third).await?];
    ensure_exactly!(both[0].slot() != both[1].slot(), "two holders of slot {}", both[0].slot());
    Ok(())
}

async fn l04_a_permit_of_a_holder_that_is_gone_is_given_on(cx: Cx) -> Check {
    let (ours, theirs) = (semaphore(&cx).await?, semaphore(&cx).await?);
    let leaving = ours.clone().ttl(cx.ttl()).no_renew();
    let (gone, stays) = (taken(&cx, &leaving).await?, taken(&cx, &ours).await?);
    let next = taken_within(&cx, Duration::from_secs(20) + cx.ttl(), &theirs).await?;
    ensure_exactly!(gone.token().is_err(), "a permit was given on while its holder believed in it");
    ensure_exactly!(next.slot() != stays.slot(), "two holders of slot {}", next.slot());
    Ok(())
}
