//! C7: a release works whatever happened before, and releases nothing but its own hold.

use std::sync::Arc;

use lock_core::{Effect, Released};

use crate::Fault;
use crate::cases::tools::{
    answered, at_each_request, error_kind, free_soon, give_up, give_up_at_last, holds, is_lost,
    lost_reason, still_held, take,
};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, ensure};
use lock_core::{ErrorKind, LostReason};

cases! {
    c07_a_released_lock_is_free_at_once []
        "once a release was answered, another client gets the lock at its first try"
        covers [Release/Held/Plain];
    c07_a_release_can_be_repeated []
        "the second release answers AlreadyGone and is no error"
        covers [Release/Done/Plain, Release/Done/OtherHolder];
    c07_a_release_by_a_claim_that_never_tried_does_nothing []
        "a claim that never tried releases nothing, and its release is no error"
        covers [Release/New/Plain, Release/New/OtherHolder];
    c07_a_release_after_busy_does_nothing []
        "a claim that was refused releases nothing that is not its own"
        covers [Release/Refused/OtherHolder, Release/Waiting/Plain];
    c07_a_release_after_a_lost_answer_is_confirmed [Faults]
        "after a release whose answer was lost a second one is success, and the lock is free"
        covers [Release/Held/ReplyLost, Release/Done/Plain];
    c07_a_release_that_never_arrived_is_repeated [Faults]
        "after a release of which any one request was lost, or had no answer in time, a second one frees the lock"
        covers [Release/Held/RequestLost, Release/Held/ReplyLost, Release/Held/ReplyLate,
            Release/Done/Plain];
    c07_a_release_after_a_failed_try_frees_the_lock [Faults]
        "a release after a try of which any one request was lost, or had no answer in time, frees what that try has taken, be it the lock or a place"
        covers [TryAcquire/New/RequestLost, TryAcquire/New/ReplyLost, TryAcquire/New/ReplyLate,
            Release/Unknown/Plain, Release/Unknown/OtherHolder];
    c07_a_release_after_a_failed_renewal_frees_the_lock [Faults]
        "a release after a renewal of which any one request was lost, or had no answer in time, frees the lock"
        covers [Release/Held/Plain];
    c07_a_release_after_calls_that_were_cut_off_works [Faults]
        "a release after calls that had no answer during a partition frees the lock"
        covers [Release/Held/Unreachable, Release/Done/Plain];
    c07_a_release_after_the_end_is_no_error [Lease]
        "a release after the end of the lease is no error"
        covers [Release/Held/Expiry];
    c07_a_guard_says_what_its_release_did []
        "the release of a guard answers Freed, and Lost if the lock was taken away before"
        guards [Release/Secure/Plain, Release/Secure/Forced, Token/Released/Plain];
    c07_a_shared_guard_is_released_by_its_last_clone []
        "a shared guard is released when its last clone is dropped, not before"
        guards [DropGuard/Secure/Plain, Release/Secure/Plain];
}

async fn c07_a_released_lock_is_free_at_once(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for _ in 0..10 {
        let (mut claim, _) = cx.held(&a, "lock").await?;
        let answer = claim.release().await?;
        ensure!(
            answer == Released::Freed,
            "the release of a lock that is held was answered {answer:?}"
        );
        ensure!(cx.is_free(&b, "lock").await?, "a released lock is not free");
    }
    Ok(())
}

async fn c07_a_release_can_be_repeated(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut claim, _) = cx.held(&a, "lock").await?;
    claim.release().await?;
    for _ in 0..2 {
        let again = claim.release().await.demanded("a second release")?;
        ensure!(again == Released::AlreadyGone, "a second release was answered {again:?}");
    }
    let (mut next, _) = cx.held(&b, "lock").await?;
    claim.release().await?;
    still_held(&cx, &a, "lock", "after a third release by the old holder").await?;
    next.release().await?;
    Ok(())
}

async fn c07_a_release_by_a_claim_that_never_tried_does_nothing(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut nobody = cx.claim(&a, "lock")?;
    let answer = nobody.release().await?;
    ensure!(answer == Released::AlreadyGone, "the release of nothing was answered {answer:?}");
    let (mut holder, _) = cx.held(&b, "lock").await?;
    let mut stranger = cx.claim(&a, "lock")?;
    let answer = stranger.release().await?;
    ensure!(answer == Released::AlreadyGone, "the release by a stranger was answered {answer:?}");
    still_held(&cx, &a, "lock", "after a release by a claim that never tried").await?;
    holder.release().await?;
    Ok(())
}

async fn c07_a_release_after_busy_does_nothing(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut holder, _) = cx.held(&a, "lock").await?;
    for wait in [false, true] {
        let mut refused = b.claim(cx.request("lock")?.with_wait(wait))?;
        busy(&cx, &mut *refused).await?;
        refused.release().await?;
        still_held(&cx, &b, "lock", "after the release of a claim that was refused").await?;
    }
    let answer = holder.release().await?;
    ensure!(answer == Released::Freed, "the holder's own release was answered {answer:?}");
    Ok(())
}

async fn c07_a_release_after_a_lost_answer_is_confirmed(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let (mut claim, _) = cx.held(&link.backend, "lock").await?;
    link.inject(Fault::LoseNextReply).await?;
    if let Err(error) = claim.release().await {
        ensure!(
            error.effect() == Effect::Unknown,
            "the answer to a release was lost, but its error says that nothing happened: {error}"
        );
    }
    claim.release().await?;
    ensure!(cx.is_free(&other, "lock").await?, "after a confirmed release the lock is taken");
    Ok(())
}

async fn c07_a_release_that_never_arrived_is_repeated(cx: Cx) -> Check {
    let other = cx.backend().await?;
    at_each_request(&cx, async |one| {
        let mut claim = one.entered(&cx, false).await?;
        let answer = one.meets(claim.release()).await?;
        // Some stores repeat it by themselves, on another connection.
        if one.loses_the_first_request() && answer.is_err() {
            let repeated = answered(&cx, cx.ttl() * 2, async || claim.release().await).await?;
            ensure!(
                repeated == Released::Freed,
                "a release that never arrived was repeated, and the answer is {repeated:?}"
            );
        }
        give_up_at_last(&cx, &mut *claim, &other, &one.lock, &one.after("a release")).await
    })
    .await
}

async fn c07_a_release_after_a_failed_try_frees_the_lock(cx: Cx) -> Check {
    let other = cx.backend().await?;
    at_each_request(&cx, async |one| {
        let mut claim = one.claim(&cx, true)?;
        let _ = one.meets(claim.try_acquire()).await?;
        give_up_at_last(&cx, &mut *claim, &other, &one.lock, &one.after("a try")).await
    })
    .await?;
    at_each_request(&cx, async |one| {
        let mut holder = holds(&cx, &other, &one.lock).await?;
        let (mut waiter, after) = (one.claim(&cx, true)?, one.after("a try to wait"));
        let _ = one.meets(waiter.try_acquire()).await?;
        answered(&cx, cx.ttl() * 2, async || waiter.release().await).await?;
        still_held(&cx, &other, &one.lock, &after).await?;
        give_up(&cx, &mut *holder, &other, &one.lock, &after).await
    })
    .await
}

async fn c07_a_release_after_a_failed_renewal_frees_the_lock(cx: Cx) -> Check {
    let other = cx.backend().await?;
    at_each_request(&cx, async |one| {
        let mut claim = one.entered(&cx, false).await?;
        let _ = one.meets(claim.renew()).await?;
        give_up_at_last(&cx, &mut *claim, &other, &one.lock, &one.after("a renewal")).await
    })
    .await
}

async fn c07_a_release_after_calls_that_were_cut_off_works(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let request = cx.request_for("lock", cx.long_ttl())?.with_call_timeout(cx.ttl() / 4);
    let mut claim = link.backend.claim(request)?;
    granted(&mut *claim).await?;
    link.inject(Fault::Partition).await?;
    let _ = (claim.renew().await, claim.release().await);
    link.inject(Fault::Heal).await?;
    answered(&cx, cx.slack(), async || claim.release().await).await?;
    ensure!(cx.is_free(&other, "lock").await?, "after a confirmed release the lock is taken");
    Ok(())
}

async fn c07_a_release_after_the_end_is_no_error(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut claim, _) = cx.held(&a, "lock").await?;
    cx.sleep(cx.over()).await;
    claim.release().await?;
    ensure!(cx.is_free(&b, "lock").await?, "the lease has ended, but the lock is taken");
    Ok(())
}

async fn c07_a_guard_says_what_its_release_did(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let guard = take(&cx, &locks, "lock").await?;
    let held = guard.held().clone();
    let answer = guard.release().await?;
    ensure!(answer == Released::Freed, "the release of a guard was answered {answer:?}");
    let kind = error_kind(held.token(), "asking a released lock for its token")?;
    ensure!(
        kind == ErrorKind::Lost(LostReason::Released),
        "a view of a released lock says {kind:?} instead of Lost(Released)"
    );
    let guard = take(&cx, &locks, "lock").await?;
    cx.store().break_hold(&cx.key("lock")?).await?;
    let reason = lost_reason(guard.release().await, "the release")?;
    ensure!(reason == LostReason::Taken, "a lock that was taken away was lost because {reason}");
    Ok(())
}

async fn c07_a_shared_guard_is_released_by_its_last_clone(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    let first = Arc::new(take(&cx, &locks, "lock").await?);
    let second = Arc::clone(&first);
    let third = Arc::clone(&first);
    drop(first);
    ensure!(Arc::into_inner(third).is_none(), "a clone that is not the last gave the guard back");
    cx.sleep(cx.ttl() * 2).await;
    ensure!(!is_lost(&second), "the last clone has lost the lock: {:?}", second.state());
    still_held(&cx, &other, "lock", "while a clone of its guard lived").await?;
    let answer = match Arc::into_inner(second) {
        Some(last) => Some(last.release().await?),
        None => None,
    };
    ensure!(answer == Some(Released::Freed), "the last clone's release was answered {answer:?}");
    free_soon(&cx, &other, "lock", "after the release of the last clone").await
}
