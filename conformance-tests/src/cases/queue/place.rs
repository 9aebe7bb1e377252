//! C2, C4, C5, C6 and C13 for a place in the queue: how long it is kept, what a check says of it, a wait
//! that is dropped, and what becomes of it when an answer is missing.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Attempt, Binding, Claim, Effect, LockBackend, Renewal, Result};

use crate::cases::tools::{
    answered, at_each_request, give_up, give_up_at_last, granted_at_last, holds, queues, renewed,
    soon, still_held, until_granted, with_a_fraction,
};
use crate::context::cancel::drop_after;
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop, ensure, ensure_exactly, fail};

cases! {
    c02_a_look_without_an_answer_finds_its_grant [Faults]
        "a waiter, of whose look any one request was lost, or had no answer in time, is granted the lock by the next look, with one token"
        covers [TryAcquire/Waiting/RequestLost, TryAcquire/Waiting/ReplyLost,
            TryAcquire/Waiting/ReplyLate];
    c06_a_place_outlives_lost_answers [Fair, Faults]
        "a waiter, of whose renewal or check any one request was lost, or had no answer in time, is not told that its place is lost, and keeps it"
        covers [Renew/Waiting/RequestLost, Renew/Waiting/ReplyLost, Renew/Waiting/ReplyLate,
            Check/Waiting/RequestLost, Check/Waiting/ReplyLost,
            Check/Waiting/ReplyLate];
    c06_a_place_that_has_ended_can_be_taken_again [Lease]
        "a waiter whose place has ended is told so, leaves nothing, and can wait again"
        covers [Renew/Waiting/Expiry, Check/Waiting/Expiry, Release/Waiting/Expiry,
            TryAcquire/PlaceLost/Plain, Release/PlaceLost/Plain, Release/PlaceLost/OtherHolder];
    c13_a_waiter_that_leaves_without_an_answer_is_gone [Faults]
        "a waiter, of whose release any one request was lost, or had no answer in time, and which has repeated it, is not waited for"
        covers [Release/Waiting/RequestLost, Release/Waiting/ReplyLost, Release/Waiting/ReplyLate];
    c13_a_waiter_that_leaves_after_a_failed_renewal_is_gone [Fair, Faults]
        "a waiter that leaves after a renewal of which any one request was lost, or had no answer in time, is not waited for"
        covers [Release/Waiting/QueueBehind];
    c05_a_wait_dropped_with_its_event_keeps_it [Push]
        "changed, dropped at any await after the change had reached it, is ready when called again"
        covers [Changed/Waiting/Dropped];
    c04_a_place_is_kept_as_long_as_promised [Fair]
        "a waiter keeps its turn until the start of its try + valid_for"
        covers [TryAcquire/Waiting/OtherReleases];
    c06_a_check_of_a_waiter_says_whether_it_has_a_place []
        "a check of a waiter is alive, for no longer than was promised, if it has a place, and lost if not"
        covers [Check/Waiting/Plain];
    c06_a_check_of_a_place_that_has_ended_is_lost [Fair, Lease]
        "a check of a place that was not renewed says that it is lost, and another try takes a new one"
        covers [Check/Waiting/Expiry, TryAcquire/PlaceLost/Plain];
}

async fn c02_a_look_without_an_answer_finds_its_grant(cx: Cx) -> Check {
    let other = cx.backend().await?;
    at_each_request(&cx, async |one| {
        let mut holder = holds(&cx, &other, &one.lock).await?;
        let (mut waiter, after) = (one.entered(&cx, true).await?, one.after("a look"));
        holder.release().await?;
        match one.meets(waiter.try_acquire()).await? {
            Ok(Attempt::Granted { .. }) => {}
            Err(error) => ensure!(
                error.effect() == Effect::Unknown || !one.loses_the_first_answer(),
                "{after}, which may have taken the lock, it is told that nothing happened: {error}"
            ),
            answer => fail!("{after} of the only waiter, for a free lock, it says {answer:?}"),
        }
        let token = granted_at_last(&cx, &mut *waiter).await?;
        ensure!(
            granted_at_last(&cx, &mut *waiter).await? == token,
            "{after}, the token {token} changed"
        );
        still_held(&cx, &other, &one.lock, &after).await?;
        give_up_at_last(&cx, &mut *waiter, &other, &one.lock, &after).await?;
        let next = cx.fence_if_free(&other, &one.lock).await?;
        ensure_exactly!(next > Some(token), "{after}, the token after {token} is {next:?}");
        Ok(())
    })
    .await
}

async fn c06_a_place_outlives_lost_answers(cx: Cx) -> Check {
    let other = cx.backend().await?;
    for call in ["renewal", "check"] {
        at_each_request(&cx, async |one| {
            let mut holder = holds(&cx, &other, &one.lock).await?;
            let mut waiter = one.entered(&cx, true).await?;
            let mut next = queues(&cx, &other, &one.lock).await?;
            let after = one.after(&format!("the {call} of a place"));
            match one.meets(asked(&mut *waiter, call)).await? {
                Ok(Renewal::Alive { .. }) | Err(_) => {}
                answer => fail!("{after}, it is answered {answer:?}"),
            }
            match answered(&cx, cx.ttl() * 2, async || asked(&mut *waiter, call).await).await? {
                Renewal::Alive { .. } => {}
                answer => fail!("{after}, the next one is answered {answer:?}"),
            }
            holder.release().await?;
            busy(&cx, &mut *next).await?;
            granted_at_last(&cx, &mut *waiter).await?;
            answered(&cx, cx.ttl() * 2, async || waiter.release().await).await?;
            granted(&mut *next).await?;
            give_up(&cx, &mut *next, &other, &one.lock, &after).await
        })
        .await?;
    }
    Ok(())
}

async fn asked(claim: &mut dyn Claim, call: &str) -> Result<Renewal> {
    if call == "renewal" { claim.renew().await } else { claim.check().await }
}

async fn c06_a_place_that_has_ended_can_be_taken_again(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    // The second time there may be leftovers.
    for again in [true, false] {
        let mut ended = Vec::new();
        for told_by in ["renewal", "check", "nobody"] {
            let holder = holds(&cx, &a, told_by).await?;
            let mut waiter = cx.waiting_claim(&b, told_by)?;
            busy(&cx, &mut *waiter).await?;
            ended.push((told_by, holder, waiter));
        }
        cx.sleep(cx.over()).await;
        for (told_by, holder, waiter) in ended {
            a_place_has_ended(&cx, [&a, &b], told_by, (holder, waiter), again).await?;
        }
    }
    Ok(())
}

/// The waiter for the lock of this name has lost its place, is told so, and waits again or leaves.
async fn a_place_has_ended(
    cx: &Cx,
    [a, b]: [&Arc<dyn LockBackend>; 2],
    told_by: &str,
    (mut holder, mut waiter): (Box<dyn Claim>, Box<dyn Claim>),
    again: bool,
) -> Check {
    let told = match told_by {
        "renewal" => waiter.renew().await?,
        "check" => waiter.check().await?,
        _ => Renewal::Lost,
    };
    ensure!(told == Renewal::Lost, "the {told_by} of a place that has ended: {told:?}");
    if again {
        busy(cx, &mut *waiter).await?;
        holder.release().await?;
        // A store that has passed it over as dead may first give others a moment.
        let what = "a waiter whose place had ended gets the lock";
        soon(cx, cx.slack(), what, until_granted(cx, &mut *waiter)).await??;
        ensure!(!cx.is_free(a, told_by).await?, "a waiter was granted a lock that is free");
    } else {
        waiter.release().await?;
        still_held(cx, b, told_by, "after the release of a place that had ended").await?;
        holder.release().await?;
    }
    give_up(cx, &mut *waiter, a, told_by, "after a place had ended").await
}

async fn c13_a_waiter_that_leaves_without_an_answer_is_gone(cx: Cx) -> Check {
    let other = cx.backend().await?;
    at_each_request(&cx, async |one| {
        let mut holder = holds(&cx, &other, &one.lock).await?;
        let mut leaves = one.entered(&cx, true).await?;
        let mut next = queues(&cx, &other, &one.lock).await?;
        let _ = one.meets(leaves.release()).await?;
        answered(&cx, cx.ttl() * 2, async || leaves.release().await).await?;
        holder.release().await?;
        granted(&mut *next).await?;
        let after = one.after("the release of a waiter");
        give_up(&cx, &mut *next, &other, &one.lock, &after).await
    })
    .await
}

async fn c13_a_waiter_that_leaves_after_a_failed_renewal_is_gone(cx: Cx) -> Check {
    let other = cx.backend().await?;
    at_each_request(&cx, async |one| {
        let mut holder = holds(&cx, &other, &one.lock).await?;
        let mut leaves = one.entered(&cx, true).await?;
        let mut next = queues(&cx, &other, &one.lock).await?;
        let _ = one.meets(leaves.renew()).await?;
        answered(&cx, cx.ttl() * 2, async || leaves.release().await).await?;
        holder.release().await?;
        granted(&mut *next).await?;
        let after = one.after("the renewal of a place");
        give_up(&cx, &mut *next, &other, &one.lock, &after).await
    })
    .await
}

async fn c05_a_wait_dropped_with_its_event_keeps_it(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for polls in 1..=6 {
        // The change comes before the wait, or wakes it.
        for waits_first in [false, true] {
            let mut holder = holds(&cx, &a, "lock").await?;
            let mut waiter = queues(&cx, &b, "lock").await?;
            let cut = if waits_first {
                let wait = drop_after(polls, waiter.changed());
                let (cut, released) = tokio::join!(wait, holder.release());
                released?;
                cut
            } else {
                holder.release().await?;
                cx.sleep(cx.ttl() / 50).await;
                drop_after(polls, waiter.changed()).await
            };
            if !cut.done()? {
                let what = format!("changed, called again after it was dropped at await {polls}");
                soon(&cx, cx.slack(), &what, waiter.changed()).await??;
            }
            granted(&mut *waiter).await?;
            waiter.release().await?;
        }
    }
    Ok(())
}

/// Takes a place in the queue of a held lock; how long it is promised.
async fn place(claim: &mut dyn Claim) -> Check<Duration> {
    match claim.try_acquire().await? {
        Attempt::Busy(busy) => match busy.valid_for {
            Some(valid_for) => Ok(valid_for),
            None => fail!("the store declares `fair`, but a waiter was given no place: {busy:?}"),
        },
        other => fail!("the lock is held, and a waiter was answered {other:?}"),
    }
}

async fn c04_a_place_is_kept_as_long_as_promised(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let request = cx.request_for("lock", with_a_fraction(&cx))?.with_wait(true);
    let ttl = request.ttl;
    let mut first = b.claim(request)?;
    let start = cx.now();
    let valid_for = place(&mut *first).await?;
    ensure!(
        valid_for > ttl / 2,
        "a place of {ttl:?} is promised for {valid_for:?} only: too little to renew it in time"
    );
    let mut second = queues(&cx, &c, "lock").await?;
    let until = start + valid_for;
    cx.sleep_until(until.minus(cx.ttl() / 8)).await;
    holder.release().await?;
    let (turn, answer) = (second.try_acquire().await?, first.try_acquire().await?);
    if cx.now() >= until {
        return Err(Stop::late("the machine was too slow to look before the place ended"));
    }
    ensure!(
        matches!(turn, Attempt::Busy { .. }) && matches!(answer, Attempt::Granted { .. }),
        "{:?} before the end of what was promised to the first waiter, it was answered {answer:?}, and the second one {turn:?}",
        until.since(cx.now())
    );
    first.release().await?;
    granted(&mut *second).await?;
    second.release().await?;
    Ok(())
}

async fn c06_a_check_of_a_waiter_says_whether_it_has_a_place(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut waiter = cx.waiting_claim(&b, "lock")?;
    let place = match waiter.try_acquire().await? {
        Attempt::Busy(busy) => busy.valid_for,
        other => fail!("the lock is held, and a waiter was answered {other:?}"),
    };
    let until = cx.now() + cx.ttl() + cx.capabilities().ttl_step;
    cx.sleep(cx.ttl() / 4).await;
    for _ in 0..2 {
        let start = cx.now();
        match (place, waiter.check().await?) {
            (Some(_), Renewal::Alive { valid_for }) => ensure!(
                cx.capabilities().binding != Binding::Lease
                    || valid_for.is_none_or(|left| start + left <= until),
                "a check of a place of {:?} promises {valid_for:?} after {:?}",
                cx.ttl(),
                cx.ttl() / 4
            ),
            (None, Renewal::Lost) => {}
            (place, answer) => {
                fail!(
                    "a waiter was promised a place for {place:?}, and a check is answered {answer:?}"
                )
            }
        }
    }
    busy(&cx, &mut *waiter).await?;
    holder.release().await?;
    granted(&mut *waiter).await?;
    waiter.release().await?;
    Ok(())
}

async fn c06_a_check_of_a_place_that_has_ended_is_lost(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut waiter = cx.waiting_claim(&b, "lock")?;
    place(&mut *waiter).await?;
    // The queue outlives the place.
    let mut patient = queues(&cx, &a, "lock").await?;
    cx.sleep(cx.over()).await;
    let answer = waiter.check().await?;
    ensure!(
        answer == Renewal::Lost,
        "a place of {:?} was not renewed, and a check {:?} later says {answer:?}",
        cx.ttl(),
        cx.over()
    );
    patient.release().await?;
    place(&mut *waiter).await?;
    renewed(&mut *waiter).await?;
    holder.release().await?;
    granted(&mut *waiter).await?;
    waiter.release().await?;
    Ok(())
}
