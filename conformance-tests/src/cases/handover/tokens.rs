//! C1, S3 and L1 for a lock that goes from one process to another.

use lock_core::{ErrorKind, LeaseToken, LostReason, Released};

use crate::cases::tools::{
    Dropper, STEPS, drop_after_steps, error_kind, free_soon, free_within, is_lost, kept_until,
    longest_name, lost_reason, soon, still_held, take, take_for, turns,
};
use crate::context::cancel::Cut;
use crate::context::{Cx, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, Explain, Stop, ensure, ensure_exactly};

cases! {
    c01_attaching_uses_the_owner_again [Detach]
        "attaching to a detached lock gives its owner and its token, and the lock can be renewed and released"
        covers [Detach/Held/Plain, Renew/Resumed/Plain]
        guards [Detach/Secure/Plain, Token/Detached/Plain, Attach/Detached/Plain];
    c01_a_lease_token_survives_its_printed_form [Detach]
        "a lease token that was printed and parsed attaches to the same lock"
        guards [Attach/Detached/Plain];
    c01_an_attached_lock_is_renewed_only_if_asked [Detach]
        "an attached lock ends with its lease, or is kept alive on request"
        guards [Attach/Detached/Plain, Signal/Secure/Expiry];
    c04_a_detached_lock_is_kept_for_its_ttl [Detach]
        "a detached lock is held for one ttl after its last renewal"
        covers [Detach/Held/Plain]
        guards [Detach/Secure/Plain];
    l01_a_detached_lock_ends_by_itself [Detach]
        "a detached lock that is never attached is free one ttl after its grant"
        covers [Detach/Held/Plain]
        guards [Detach/Secure/Plain];
    s03_attaching_too_late_is_lost_and_harmless [Detach]
        "attaching after the end of the lease is Lost, and leaves the next holder alone"
        covers [Renew/Resumed/Expiry, Renew/Resumed/OtherHolder, Release/Resumed/OtherHolder]
        guards [Attach/Detached/OtherHolder, Attach/Detached/Expiry,
            RenewToken/Detached/OtherHolder, ReleaseToken/Detached/OtherHolder];
    s03_attaching_twice_is_one_hold [Detach]
        "of two that attach to one lock, the second to use it learns that the first has released it"
        guards [Attach/Detached/Plain, Check/Secure/OtherHolder];
    s04_a_dropped_detach_loses_nothing [Detach]
        "a detach that was dropped at any await ends with its token in the caller's hands, or with a free lock"
        covers [Release/Detached/Plain]
        guards [Detach/Secure/Dropped];
    c04_a_renewal_by_token_keeps_the_lock [Detach]
        "a detached lock that is renewed by its token stays held, with its fence, as long as promised"
        covers [Renew/Resumed/Plain]
        guards [RenewToken/Detached/Plain];
    c07_a_release_by_token_frees_the_lock [Detach]
        "a release by token frees the lock, and a second one finds nothing and does no harm"
        covers [Release/Resumed/Plain, Release/Resumed/OtherHolder]
        guards [ReleaseToken/Detached/Plain, ReleaseToken/Detached/OtherHolder];
    s04_a_dropped_call_with_a_token_leaves_the_lock [Detach]
        "an attach or a renewal by token that was dropped at any await leaves the lock with its token"
        guards [Attach/Detached/Dropped, RenewToken/Detached/Dropped];
    s04_a_dropped_attached_guard_leaves_the_lock [Detach]
        "a guard that has attached and is dropped, or whose call is, leaves the lock with its token"
        guards [DropGuard/Secure/Plain, Renew/Secure/Dropped, Detach/Secure/Dropped];
    s04_a_dropped_release_by_token_releases [Detach]
        "a release by token, or of a guard that attached, releases even if it was dropped at any await"
        guards [ReleaseToken/Detached/Dropped, Release/Secure/Dropped];
    s04_a_dropped_attach_leaves_no_lock_for_ever [Detach]
        "an attach that was dropped at any await leaves the lock held for at most one ttl"
        guards [Attach/Detached/Dropped];
    s06_a_detach_of_a_session_is_refused [NoDetach]
        "where a hold is bound to a session, detach and attach are refused by a typed error"
        covers [Detach/Held/Plain]
        guards [Detach/Secure/Plain];
}

async fn c01_attaching_uses_the_owner_again(cx: Cx) -> Check {
    let (first, second, other) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    let guard = take(&cx, &first, "lock").await?;
    let (owner, fence, held) = (guard.owner(), guard.token()?, guard.held().clone());
    let token = guard.detach().await?;
    let reason = lost_reason(held.token(), "the token of a lock that was handed over")?;
    ensure!(reason == LostReason::Detached, "a lock that was handed over is lost because {reason}");
    still_held(&cx, &other, "lock", "after it was detached").await?;
    let attached = second.named("lock")?.attach(&token).await?;
    ensure!(attached.owner() == owner, "attaching made a new owner");
    ensure!(attached.token()? == fence, "attaching changed the token to {}", attached.token()?);
    for _ in 0..4 {
        cx.sleep(cx.ttl() / 2).await;
        attached.renew().await.demanded("renewing an attached lock in time")?;
        still_held(&cx, &other, "lock", "while an attached lock was renewed").await?;
    }
    attached.release().await.demanded("releasing an attached lock")?;
    let next = cx.fence_if_free(&other, "lock").await?;
    ensure!(next.is_some(), "after the release the lock is not free");
    ensure_exactly!(next > Some(fence), "the token does not rise: {next:?} after {fence}");
    Ok(())
}

async fn c01_a_lease_token_survives_its_printed_form(cx: Cx) -> Check {
    let (first, second) = (cx.locks().await?, cx.locks().await?);
    for name in ["lock", "größe/1 '%'", "😀"] {
        let guard = take_for(&cx, &first, name, cx.long_ttl()).await?;
        let text = guard.detach().await?.to_text();
        let token: LeaseToken = text.parse().explain("parsing a lease token")?;
        ensure!(
            token.key() == &cx.key(name)?,
            "the lease token of {name:?} names {:?}",
            token.key()
        );
        let attached = second.named(name)?.ttl(cx.long_ttl()).attach(&token).await;
        attached.explain("attaching with a parsed token")?.release().await?;
    }
    Ok(())
}

async fn c01_an_attached_lock_is_renewed_only_if_asked(cx: Cx) -> Check {
    let (first, second, other) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    let passive = take(&cx, &first, "passive").await?.detach().await?;
    let passive = second.named("passive")?.attach(&passive).await?;
    let kept = take(&cx, &first, "kept").await?.detach().await?;
    let kept = second.named("kept")?.attach(&kept).await?;
    kept.keep_alive();
    cx.sleep(cx.over()).await;
    ensure!(is_lost(&passive), "an attached lock that was not renewed is {:?}", passive.state());
    ensure!(!is_lost(&kept), "an attached lock that is kept alive is {:?}", kept.state());
    free_soon(&cx, &other, "passive", "after the lease of an attached lock has ended").await?;
    still_held(&cx, &other, "kept", "while it was kept alive").await?;
    kept.release().await?;
    Ok(())
}

async fn c04_a_detached_lock_is_kept_for_its_ttl(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    let guard = take(&cx, &locks, "lock").await?;
    let until = cx.now() + guard.remaining();
    let _token = guard.detach().await?;
    kept_until(&cx, &other, "lock", until).await
}

async fn l01_a_detached_lock_ends_by_itself(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    drop(take(&cx, &locks, "lock").await?.detach().await?);
    cx.sleep(cx.ttl()).await;
    free_soon(&cx, &other, "lock", "one ttl after it was detached").await?;
    // A detach begins no new lease.
    let (request, backend) = (cx.request_for("late", cx.ttl() * 2)?, cx.backend().await?);
    let ttl = request.ttl;
    let mut claim = backend.claim(request)?;
    granted(&mut *claim).await?;
    let end = cx.now() + ttl;
    cx.sleep(ttl * 3 / 4).await;
    claim.detach().await?;
    if cx.now() >= end {
        return Err(Stop::late("the machine was too slow to detach a lock before its end"));
    }
    drop(claim);
    cx.sleep_until(end).await;
    free_soon(&cx, &other, "late", "after the end of a lease that was detached late").await
}

async fn s03_attaching_too_late_is_lost_and_harmless(cx: Cx) -> Check {
    let (first, second, third) = (cx.locks().await?, cx.locks().await?, cx.locks().await?);
    let guard = take(&cx, &first, "lock").await?;
    let (fence, token, lock) = (guard.token()?, guard.detach().await?, second.named("lock")?);
    cx.sleep(cx.over()).await;
    let kind = error_kind(lock.attach(&token).await, "attaching after the end")?;
    ensure!(matches!(kind, ErrorKind::Lost(_)), "attaching after the end of the lease is {kind:?}");
    let next = take(&cx, &third, "lock").await?;
    ensure_exactly!(next.token()? > fence, "the next holder's token does not rise");
    for attached in [lock.attach(&token).await.map(drop), lock.renew(&token).await.map(drop)] {
        let kind = error_kind(attached, "attaching under the next holder")?;
        ensure!(matches!(kind, ErrorKind::Lost(_)), "attaching under the next holder is {kind:?}");
    }
    let released = lock.release(token).await?;
    ensure!(released == Released::AlreadyGone, "releasing under the next holder is {released:?}");
    cx.sleep(cx.ttl()).await;
    next.check().await.demanded("the next holder, after an attach that came too late")?;
    next.release().await?;
    Ok(())
}

async fn s03_attaching_twice_is_one_hold(cx: Cx) -> Check {
    let (first, second, third) = (cx.locks().await?, cx.locks().await?, cx.locks().await?);
    let token = take(&cx, &first, "lock").await?.detach().await?;
    let one = second.named("lock")?.attach(&token).await?;
    let two = third.named("lock")?.attach(&token).await?;
    let three = third.named("lock")?.attach(&token).await?;
    for other in [&two, &three] {
        ensure!(one.token()? == other.token()?, "one hold has two tokens");
    }
    one.release().await?;
    let next = take(&cx, &first, "lock").await?;
    lost_reason(two.check().await, "check")?;
    lost_reason(three.renew().await, "renew")?;
    let _ = (two.release().await, three.release().await);
    cx.sleep(cx.ttl() / 2).await;
    next.check().await.demanded("the next holder, after the second of two was released")?;
    next.release().await?;
    Ok(())
}

async fn s04_a_dropped_detach_loses_nothing(cx: Cx) -> Check {
    let (calls, other) = (Dropper::new(&cx).await?, cx.backend().await?);
    let locks = &calls.locks;
    for steps in 0..STEPS {
        let guard = take_for(&cx, locks, "lock", cx.long_ttl()).await?;
        match calls.drops(&cx, steps, guard.detach()).await? {
            Cut::Done(token) => locks.named("lock")?.release(token?).await.map(drop)?,
            Cut::Dropped => {}
        }
        let after = format!("after a detach that was dropped {steps} turns after its start");
        free_soon(&cx, &other, "lock", &after).await?;
    }
    Ok(())
}

async fn c04_a_renewal_by_token_keeps_the_lock(cx: Cx) -> Check {
    let (first, second, other) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    let guard = take(&cx, &first, "lock").await?;
    guard.renew().await?;
    let (fence, mut until) = (guard.token()?, guard.valid_until());
    let (token, lock) = (guard.detach().await?, second.named("lock")?);
    for _ in 0..6 {
        cx.sleep(cx.ttl() * 2 / 5).await;
        let is_late = cx.now() + cx.ttl() / 4 > until;
        let renewed = match lock.renew(&token).await {
            Err(_) if is_late => {
                return Err(Stop::late("the machine was too slow to renew in time"));
            }
            Err(error) if error.is_retryable() => return Err(error.into()),
            renewed => renewed.demanded("renewing by token in time")?,
        };
        ensure!(
            renewed.fence == fence,
            "a renewal by token changed the fence to {}",
            renewed.fence
        );
        ensure!(
            renewed.remaining > cx.ttl() / 2 && renewed.remaining < cx.ttl(),
            "a lock of {:?} that was renewed by token lasts for {:?}",
            cx.ttl(),
            renewed.remaining
        );
        until = renewed.valid_until;
        still_held(&cx, &other, "lock", "while it was renewed by token").await?;
    }
    kept_until(&cx, &other, "lock", until).await
}

async fn c07_a_release_by_token_frees_the_lock(cx: Cx) -> Check {
    let (first, second, other) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    for name in ["lock", &longest_name()] {
        let token = take_for(&cx, &first, name, cx.long_ttl()).await?.detach().await?;
        let lock = second.named(name)?.ttl(cx.long_ttl());
        // The token of a bearer who has handed the lock on is good for as long as the lock is held.
        let bearer = lock.attach(&token).await.demanded("attaching")?;
        drop(bearer.detach().await?);
        lock.renew(&token)
            .await
            .demanded("a renewal by token after its bearer has made another")?;
        let released = lock.release(token.clone()).await?;
        ensure!(released == Released::Freed, "a release by token is {released:?}");
        ensure!(cx.is_free(&other, name).await?, "a lock that was released by token is taken");
        let next = take_for(&cx, &first, name, cx.long_ttl()).await?;
        let released = lock.release(token).await?;
        ensure!(released == Released::AlreadyGone, "a second release by token is {released:?}");
        next.check().await.demanded("the next holder, after a second release by token")?;
        next.release().await?;
    }
    Ok(())
}

async fn s04_a_dropped_call_with_a_token_leaves_the_lock(cx: Cx) -> Check {
    let (calls, other) = (Dropper::new(&cx).await?, cx.backend().await?);
    let locks = &calls.locks;
    let token = take_for(&cx, locks, "lock", cx.long_ttl()).await?.detach().await?;
    let lock = locks.named("lock")?.ttl(cx.long_ttl());
    for steps in 0..STEPS {
        drop(calls.drops(&cx, steps, lock.attach(&token)).await?);
        drop(calls.drops(&cx, steps, lock.renew(&token)).await?);
        // Gives background work time to finish.
        turns(&cx, STEPS).await;
        let after = format!("after an attach and a renewal that were dropped {steps} turns later");
        still_held(&cx, &other, "lock", &after).await?;
        lock.renew(&token).await.demanded(&after)?;
    }
    lock.release(token).await?;
    free_soon(&cx, &other, "lock", "after its release").await
}

async fn s04_a_dropped_attached_guard_leaves_the_lock(cx: Cx) -> Check {
    let (calls, other) = (Dropper::new(&cx).await?, cx.backend().await?);
    let locks = &calls.locks;
    let mut token = take_for(&cx, locks, "lock", cx.long_ttl()).await?.detach().await?;
    let lock = locks.named("lock")?.ttl(cx.long_ttl());
    for steps in 0..STEPS {
        for way in ["dropped", "kept alive and dropped", "dropped in a renewal", "detached"] {
            let guard = lock.attach(&token).await.demanded("attaching")?;
            match way {
                "kept alive and dropped" => guard.keep_alive(),
                "dropped in a renewal" => drop(calls.drops(&cx, steps, guard.renew()).await?),
                _ => {}
            }
            // A request that is cancelled while it hands the lock over.
            let cut = match way {
                "detached" => calls.drops(&cx, steps, guard.detach()).await?,
                _ => {
                    drop(guard);
                    Cut::Dropped
                }
            };
            if let Cut::Done(next) = cut {
                token = next?;
            }
            turns(&cx, STEPS).await;
            let after = format!("after a guard that had attached was {way}, {steps} turns later");
            still_held(&cx, &other, "lock", &after).await?;
            lock.renew(&token).await.demanded(&after)?;
        }
    }
    lock.release(token).await?;
    free_soon(&cx, &other, "lock", "after its release").await
}

async fn s04_a_dropped_release_by_token_releases(cx: Cx) -> Check {
    let (calls, other) = (Dropper::new(&cx).await?, cx.backend().await?);
    let locks = &calls.locks;
    for steps in 0..STEPS {
        let token = take_for(&cx, locks, "lock", cx.long_ttl()).await?.detach().await?;
        let lock = locks.named("lock")?.ttl(cx.long_ttl());
        // On request, even for a guard that would not release on drop.
        if steps % 2 == 0 {
            drop(calls.drops(&cx, steps, lock.release(token)).await?);
        } else {
            let guard = lock.attach(&token).await?;
            drop(calls.drops(&cx, steps, guard.release()).await?);
        }
        let after = format!("after a release that was dropped {steps} turns later");
        free_soon(&cx, &other, "lock", &after).await?;
    }
    Ok(())
}

async fn s04_a_dropped_attach_leaves_no_lock_for_ever(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    for steps in 0..if cx.is_virtual() { STEPS } else { 4 } {
        let token = take(&cx, &locks, "lock").await?.detach().await?;
        let lock = locks.named("lock")?;
        drop(drop_after_steps(&cx, steps, lock.attach(&token)).await);
        let limit = cx.over();
        let after = format!("after an attach was dropped {steps} turns after its start");
        free_within(&cx, &other, "lock", limit, &after).await?;
    }
    Ok(())
}

async fn s06_a_detach_of_a_session_is_refused(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    let kind = error_kind(take(&cx, &locks, "lock").await?.detach().await, "detach")?;
    ensure!(kind == ErrorKind::Unsupported, "a detach that the store cannot do is {kind:?}");
    let released = free_soon(&cx, &other, "lock", "after a detach that was refused");
    soon(&cx, cx.slack() * 2, "the lock after a detach that was refused", released).await?
}
