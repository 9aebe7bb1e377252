//! C2, C6, C8 and C13 for a place in the queue: what becomes of it when an answer is missing.

use std::time::Duration;

use lock_core::{Attempt, Claim, Effect, Renewal};

use super::tools::{at_each_await, give_up, holds, queues, served_in_order, soon, still_held};
use crate::Fault;
use crate::cancel::drop_after;
use crate::case::cases;
use crate::check::{Check, ensure, fail};
use crate::cx::{Cx, busy, granted};

cases! {
    c02_a_look_without_an_answer_finds_its_grant [Faults]
        "a waiter whose look got no answer, or a late one, is granted the lock by the next look, with one token"
        covers [TryAcquire/Waiting/RequestLost, TryAcquire/Waiting/ReplyLost,
            TryAcquire/Waiting/ReplyLate];
    c06_a_place_outlives_lost_answers [Fair, Faults]
        "a waiter whose renewal or check got no answer is not told that its place is lost, and keeps it"
        covers [Renew/Waiting/RequestLost, Renew/Waiting/ReplyLost, Check/Waiting/RequestLost,
            Check/Waiting/ReplyLost];
    c06_a_place_that_has_ended_can_be_taken_again [Lease]
        "a waiter whose place has ended is told so, leaves nothing, and can wait again"
        covers [Renew/Waiting/Expiry, Check/Waiting/Expiry, Release/Waiting/Expiry,
            TryAcquire/PlaceLost/Plain, Release/PlaceLost/Plain, Release/PlaceLost/OtherHolder];
    c08_a_dropped_look_can_be_repeated []
        "after a look that was dropped at any await, the same call takes the lock, with one token"
        covers [TryAcquire/Waiting/Dropped];
    c13_a_waiter_that_leaves_without_an_answer_is_gone [Faults]
        "a waiter whose release got no answer, and was repeated, is not waited for"
        covers [Release/Waiting/RequestLost, Release/Waiting/ReplyLost];
    c13_a_waiter_that_was_dropped_while_it_left_is_gone []
        "a waiter whose release was dropped at any await, and was repeated, is not waited for"
        covers [Release/Waiting/Dropped];
}

async fn c02_a_look_without_an_answer_finds_its_grant(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let mut last = None;
    let late = Fault::DelayNextReply(cx.ttl() / 8);
    for fault in [Fault::LoseNextReply, Fault::LoseNextRequest, late] {
        let mut holder = holds(&cx, &other, "lock").await?;
        let mut waiter = queues(&cx, &link.backend, "lock").await?;
        holder.release().await?;
        link.inject(fault).await?;
        match waiter.try_acquire().await {
            Ok(Attempt::Granted { .. }) => {}
            Err(error) if fault != Fault::LoseNextReply || error.effect() == Effect::Unknown => {}
            answer => {
                fail!("{fault:?}: the holder released, and the only waiter's look says {answer:?}")
            }
        }
        let token = granted(&mut *waiter).await?;
        ensure!(granted(&mut *waiter).await? == token, "{fault:?}: the token {token} changed");
        ensure!(Some(token) > last, "{fault:?}: the token {token} does not rise over {last:?}");
        last = Some(token);
        still_held(&cx, &other, "lock", "after a look without an answer").await?;
        give_up(&cx, &mut *waiter, &other, "lock", &format!("after {fault:?}, a look")).await?;
    }
    Ok(())
}

async fn c06_a_place_outlives_lost_answers(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let mut holder = holds(&cx, &other, "lock").await?;
    let mut waiter = queues(&cx, &link.backend, "lock").await?;
    let mut next = queues(&cx, &other, "lock").await?;
    for fault in [Fault::LoseNextReply, Fault::LoseNextRequest] {
        for renews in [true, false] {
            let what = if renews { "renewal" } else { "check" };
            for meets in [Some(fault), None] {
                if let Some(fault) = meets {
                    link.inject(fault).await?;
                }
                let answer = if renews { waiter.renew().await } else { waiter.check().await };
                match (answer, meets) {
                    (Ok(Renewal::Alive { .. }), _) | (Err(_), Some(_)) => {}
                    (answer, Some(_)) => {
                        fail!("{fault:?}: the {what} of a place is answered {answer:?}")
                    }
                    (answer, None) => {
                        fail!("{fault:?}: the next {what} of the place is answered {answer:?}")
                    }
                }
            }
        }
    }
    holder.release().await?;
    served_in_order(&mut *waiter, &mut *next).await
}

async fn c06_a_place_that_has_ended_can_be_taken_again(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for told_by in ["renewal", "check", "nobody"] {
        for again in [true, false] {
            let mut holder = holds(&cx, &a, "lock").await?;
            let mut waiter = cx.waiting_claim(&b, "lock")?;
            busy(&mut *waiter).await?;
            cx.sleep(cx.over()).await;
            let told = match told_by {
                "renewal" => waiter.renew().await?,
                "check" => waiter.check().await?,
                _ => Renewal::Lost,
            };
            ensure!(told == Renewal::Lost, "the {told_by} of a place that has ended: {told:?}");
            if again {
                busy(&mut *waiter).await?;
                holder.release().await?;
                // A store that has passed it over as dead may first give others a moment.
                let what = "a waiter whose place had ended gets the lock";
                soon(&cx, cx.slack(), what, until_granted(&cx, &mut *waiter)).await??;
                ensure!(!cx.is_free(&a, "lock").await?, "a waiter was granted a lock that is free");
            } else {
                waiter.release().await?;
                still_held(&cx, &b, "lock", "after the release of a place that had ended").await?;
                holder.release().await?;
            }
            give_up(&cx, &mut *waiter, &a, "lock", "after a place had ended").await?;
        }
    }
    Ok(())
}

async fn until_granted(cx: &Cx, claim: &mut dyn Claim) -> Check {
    while let Attempt::Busy { .. } = claim.try_acquire().await? {
        cx.sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn c08_a_dropped_look_can_be_repeated(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    at_each_await("a waiter's try_acquire", async |polls| {
        let mut holder = holds(&cx, &a, "lock").await?;
        let mut waiter = queues(&cx, &b, "lock").await?;
        holder.release().await?;
        let cut = drop_after(polls, waiter.try_acquire()).await;
        let token = granted(&mut *waiter).await?;
        let after = format!("after a look dropped at await {polls}");
        ensure!(granted(&mut *waiter).await? == token, "{after}, the token {token} changed");
        still_held(&cx, &a, "lock", &after).await?;
        give_up(&cx, &mut *waiter, &a, "lock", &after).await?;
        cut.done()
    })
    .await
}

async fn c13_a_waiter_that_leaves_without_an_answer_is_gone(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    for fault in [Fault::LoseNextReply, Fault::LoseNextRequest] {
        let mut holder = holds(&cx, &other, "lock").await?;
        let mut leaves = queues(&cx, &link.backend, "lock").await?;
        let mut next = queues(&cx, &other, "lock").await?;
        link.inject(fault).await?;
        let _ = leaves.release().await;
        leaves.release().await?;
        holder.release().await?;
        granted(&mut *next).await?;
        let after = format!("after {fault:?} of a waiter that left, the next one's hold");
        give_up(&cx, &mut *next, &other, "lock", &after).await?;
    }
    Ok(())
}

async fn c13_a_waiter_that_was_dropped_while_it_left_is_gone(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    at_each_await("a waiter's release", async |polls| {
        let mut holder = holds(&cx, &a, "lock").await?;
        let mut leaves = queues(&cx, &b, "lock").await?;
        let mut next = queues(&cx, &a, "lock").await?;
        let cut = drop_after(polls, leaves.release()).await;
        let limit = cx.slack() + Duration::from_secs(1);
        soon(&cx, limit, "a release that is repeated", leaves.release()).await??;
        holder.release().await?;
        granted(&mut *next).await?;
        let after = format!("after a release dropped at await {polls}, the next one's hold");
        give_up(&cx, &mut *next, &a, "lock", &after).await?;
        cut.done()
    })
    .await
}
