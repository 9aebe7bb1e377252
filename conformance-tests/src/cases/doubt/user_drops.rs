//! S4: nothing that a user drops, and nothing that fails, leaves anything behind.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Effect, ErrorKind, LockBackend, Locks};

use crate::Fault;
use crate::cases::tools::{
    Dropper, STEPS, drop_after_steps, ended_too_early, free_soon, free_within, refusal, still_held,
    take, take_for, within,
};
use crate::context::Cx;
use crate::context::cancel::{Cut, drop_after};
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, fail};

cases! {
    s04_a_dropped_acquire_leaves_nothing []
        "an acquire that was dropped at any await leaves the lock free"
        guards [Acquire/Free/Dropped];
    s04_a_dropped_try_leaves_nothing []
        "a try_acquire that was dropped at any await leaves the lock free"
        guards [TryAcquire/Free/Dropped];
    s04_a_dropped_wait_leaves_nothing []
        "a waiting acquire that was dropped at any time leaves no place behind"
        guards [Acquire/Waiting/Dropped];
    s04_a_dropped_grant_is_given_back []
        "a lock that is granted at the moment its caller leaves is released"
        guards [Acquire/Waiting/Dropped, Acquire/Waiting/OtherReleases];
    s04_a_dropped_release_releases []
        "a release of a guard that was dropped at any await still releases"
        guards [Release/Secure/Dropped];
    s04_a_dropped_guard_releases []
        "a guard that is dropped releases the lock in the background"
        guards [DropGuard/Secure/Plain, Token/Released/Plain];
    s04_a_dropped_guard_releases_during_a_renewal [Faults]
        "a guard that is dropped during its renewal releases the lock"
        guards [Renew/Secure/Dropped, DropGuard/Secure/ReplyLate];
    s04_a_timed_out_acquire_leaves_nothing []
        "an acquire that ran out of time leaves no place behind"
        guards [AcquireTimeout/Free/OtherHolder, AcquireTimeout/Waiting/Plain];
    s04_a_lost_answer_leaves_nothing [Faults]
        "whichever answer is lost, of the acquisition, a renewal or the release, the lock is free in the end"
        guards [Acquire/Free/ReplyLost, TryAcquire/Free/ReplyLost, Renew/Secure/ReplyLost,
            Check/Secure/ReplyLost, Release/Secure/ReplyLost, DropGuard/Secure/ReplyLost];
    s04_a_lost_request_leaves_nothing [Faults]
        "whichever request is lost, the lock is free in the end"
        guards [Acquire/Free/RequestLost, TryAcquire/Free/RequestLost, Renew/Secure/RequestLost,
            Check/Secure/RequestLost, Release/Secure/RequestLost, DropGuard/Secure/RequestLost];
    s04_a_try_that_lands_late_is_undone [Faults]
        "a try that reaches the store after its clean-up was answered is still undone"
        guards [Acquire/Free/ReplyLate, Acquire/Free/Dropped];
    s04_a_try_that_lands_after_the_release_is_undone [Faults]
        "a first try that reaches the store after the lock was released is still undone"
        guards [TryAcquire/Free/ReplyLate];
    s04_a_partition_while_waiting_leaves_nothing [Faults]
        "a waiter that was cut off and gave up leaves no place behind once it is back"
        covers [Release/Waiting/Unreachable]
        guards [Acquire/Waiting/Dropped, Acquire/Waiting/Unreachable];
    s04_closing_gives_up_what_waits []
        "closing ends the waiters, and nothing of theirs is left"
        guards [Close/Waiting/Plain];
}

async fn s04_a_dropped_acquire_leaves_nothing(cx: Cx) -> Check {
    let (calls, other) = (Dropper::new(&cx).await?, cx.backend().await?);
    let locks = &calls.locks;
    for steps in 0..STEPS {
        let lock = locks.named("lock")?.ttl(cx.long_ttl());
        let cut = calls.drops(&cx, steps, lock.acquire()).await?;
        drop(cut);
        let after = format!("after an acquire that was dropped {steps} turns after its start");
        free_soon(&cx, &other, "lock", &after).await?;
    }
    for polls in 1..=3 {
        let lock = locks.named("lock")?.ttl(cx.long_ttl());
        drop(drop_after(polls, lock.acquire()).await);
        free_soon(&cx, &other, "lock", "after an acquire that was dropped").await?;
    }
    Ok(())
}

async fn s04_a_dropped_try_leaves_nothing(cx: Cx) -> Check {
    let (calls, other) = (Dropper::new(&cx).await?, cx.backend().await?);
    let locks = &calls.locks;
    for steps in 0..STEPS {
        let lock = locks.named("lock")?.ttl(cx.long_ttl());
        drop(calls.drops(&cx, steps, lock.try_acquire()).await?);
        let after = format!("after a try_acquire that was dropped {steps} turns after its start");
        free_soon(&cx, &other, "lock", &after).await?;
    }
    Ok(())
}

async fn s04_a_dropped_wait_leaves_nothing(cx: Cx) -> Check {
    let (holder, calls, other) = (cx.locks().await?, Dropper::new(&cx).await?, cx.backend().await?);
    let waiter = &calls.locks;
    for steps in 0..STEPS {
        let name = of_round(steps);
        let guard = take(&cx, &holder, &name).await?;
        let lock = waiter.named(&*name)?.ttl(cx.long_ttl());
        match calls.drops(&cx, steps, lock.acquire()).await? {
            Cut::Dropped => {}
            Cut::Done(second) => return ended_too_early(&cx, &name, second),
        }
        if steps % 4 == 3 {
            cx.sleep(cx.ttl() / 2).await;
        }
        still_held(&cx, &other, &name, "while its guard lived").await?;
        guard.release().await?;
        let after = format!("after a wait that was dropped {steps} turns after its start");
        free_soon(&cx, &other, &name, &after).await?;
    }
    all_rounds_free(&cx, &other).await
}

async fn s04_a_dropped_grant_is_given_back(cx: Cx) -> Check {
    let (holder, calls, other) = (cx.locks().await?, Dropper::new(&cx).await?, cx.backend().await?);
    let waiter = &calls.locks;
    for steps in 0..STEPS {
        let name = of_round(steps);
        let guard = take(&cx, &holder, &name).await?;
        let lock = waiter.named(&*name)?.ttl(cx.long_ttl());
        let mut waiting = Box::pin(lock.acquire());
        if let Some(second) = within(&cx, cx.ttl() / 20, &mut waiting).await {
            return ended_too_early(&cx, &name, second);
        }
        let (released, cut) = tokio::join!(guard.release(), calls.drops(&cx, steps, waiting));
        released?;
        drop(cut?);
        let after = format!("after a waiter left {steps} turns after the release");
        free_soon(&cx, &other, &name, &after).await?;
    }
    all_rounds_free(&cx, &other).await
}

/// Each round has its own lock: a try in progress when its caller left may take the lock late, for
/// the moment until it is undone, and the next round would find it taken.
fn of_round(round: u32) -> String {
    format!("lock-{round}")
}

async fn all_rounds_free(cx: &Cx, other: &Arc<dyn LockBackend>) -> Check {
    for round in 0..STEPS {
        free_soon(cx, other, &of_round(round), "after all rounds").await?;
    }
    Ok(())
}

async fn s04_a_dropped_release_releases(cx: Cx) -> Check {
    let (calls, other) = (Dropper::new(&cx).await?, cx.backend().await?);
    let locks = &calls.locks;
    for steps in 0..STEPS {
        let guard = take_for(&cx, locks, "lock", cx.long_ttl()).await?;
        drop(calls.drops(&cx, steps, guard.release()).await?);
        let after = format!("after a release that was dropped {steps} turns after its start");
        free_soon(&cx, &other, "lock", &after).await?;
    }
    // A release that was never polled has been requested all the same.
    let guard = take_for(&cx, locks, "lock", cx.long_ttl()).await?;
    drop(guard.release());
    free_soon(&cx, &other, "lock", "after a release that was never polled").await
}

async fn s04_a_dropped_guard_releases(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    for _ in 0..5 {
        let guard = take_for(&cx, &locks, "lock", cx.long_ttl()).await?;
        let held = guard.held().clone();
        drop(guard);
        ensure!(held.token().is_err(), "a view of a dropped guard still gives a token");
        free_soon(&cx, &other, "lock", "after its guard was dropped").await?;
    }
    Ok(())
}

async fn s04_a_dropped_guard_releases_during_a_renewal(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let locks = cx.locks_on(&link.backend);
    for steps in 0..STEPS {
        let guard = take_for(&cx, &locks, "lock", cx.long_ttl()).await?;
        link.inject(Fault::DelayNextReply(cx.ttl() / 4)).await?;
        drop(drop_after_steps(&cx, steps, guard.renew()).await);
        drop(guard);
        let limit = cx.ttl() / 4 + cx.slack();
        let after = format!("after a guard was dropped {steps} turns into a renewal");
        free_within(&cx, &other, "lock", limit, &after).await?;
        // A fault that was not used up would hit the next round.
        let _ = locks.health().await;
    }
    Ok(())
}

async fn s04_a_timed_out_acquire_leaves_nothing(cx: Cx) -> Check {
    let (holder, waiter, other) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    for limit in [Duration::ZERO, Duration::from_millis(1), cx.ttl() / 10] {
        let guard = take(&cx, &holder, "lock").await?;
        let lock = waiter.named("lock")?.ttl(cx.long_ttl());
        let answer = lock.acquire_timeout(limit).await;
        refusal(&cx, answer, &format!("acquire_timeout({limit:?})"))?;
        cx.sleep(cx.ttl() / 20).await;
        guard.release().await?;
        free_soon(&cx, &other, "lock", "after a waiter ran out of time").await?;
    }
    Ok(())
}

/// Takes, renews and releases the lock, with `fault` for the k-th of these operations; afterwards
/// the lock must be free, whatever the operations said.
async fn survives(cx: &Cx, fault: Fault) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let locks = cx.locks_on(&link.backend);
    for faults in 1..=2 {
        for operation in ["acquire", "wait", "renew", "check", "release", "drop"] {
            let inject = async |now: &str| {
                if now == operation {
                    link.inject_into(faults, fault).await?;
                }
                Check::Ok(())
            };
            let lock = locks.named("lock")?.ttl(cx.long_ttl());
            inject("acquire").await?;
            inject("wait").await?;
            let guard = match operation {
                "wait" => lock.acquire().await.map(Some),
                _ => lock.try_acquire().await,
            };
            if let Ok(Some(guard)) = guard {
                inject("renew").await?;
                let _ = guard.renew().await;
                inject("check").await?;
                let _ = guard.check().await;
                ensure!(
                    guard.token().is_ok(),
                    "{faults} × {fault:?} at {operation} cost a lock of {:?}: {:?}",
                    cx.long_ttl(),
                    guard.state()
                );
                inject("release").await?;
                inject("drop").await?;
                if operation == "drop" {
                    drop(guard);
                } else {
                    let _ = guard.release().await;
                }
            }
            let limit = Duration::from_secs(2) + cx.slack();
            let after = format!("after {faults} × {fault:?} at {operation}");
            free_within(cx, &other, "lock", limit, &after).await?;
        }
    }
    Ok(())
}

async fn s04_a_lost_answer_leaves_nothing(cx: Cx) -> Check {
    survives(&cx, Fault::LoseNextReply).await
}

async fn s04_a_lost_request_leaves_nothing(cx: Cx) -> Check {
    survives(&cx, Fault::LoseNextRequest).await
}

/// Locks whose calls are given up early, on a lease that would outlive the case.
fn impatient(cx: &Cx, link: &crate::context::Link) -> Check<Locks> {
    Ok(cx.builder(&link.backend).call_timeout(cx.ttl() / 10).build()?)
}

async fn s04_a_try_that_lands_late_is_undone(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let locks = impatient(&cx, &link)?;
    for held_up in 1..=2 {
        link.inject_into(held_up, Fault::HoldNextRequest(cx.ttl())).await?;
        let lock = locks.named("lock")?.ttl(cx.long_ttl());
        // Dropped during its first request, or after the second.
        drop(within(&cx, cx.ttl() / 20 * (3 * held_up - 2), lock.acquire()).await);
        cx.sleep(cx.ttl() + cx.ttl() / 4).await;
        let limit = Duration::from_secs(3) + cx.slack();
        let after = "after a try reached the store late, when it had been given up";
        free_within(&cx, &other, "lock", limit, after).await?;
    }
    Ok(())
}

async fn s04_a_try_that_lands_after_the_release_is_undone(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let locks = impatient(&cx, &link)?;
    link.inject(Fault::HoldNextRequest(cx.ttl())).await?;
    // The first try is held up, the second one is granted and released before the first arrives.
    let lock = locks.named("lock")?.ttl(cx.long_ttl());
    match lock.acquire_timeout(cx.ttl()).await {
        Ok(guard) => drop(guard.release().await?),
        // Requests travel in order in a session, and on a connection that many share, so the second one may be
        // held up as well. What they leave behind still has to be undone.
        Err(error) if error.effect() == Effect::Unknown => {}
        Err(error) => return Err(error.into()),
    }
    cx.sleep(cx.ttl() + cx.ttl() / 4).await;
    let limit = Duration::from_secs(3) + cx.slack();
    free_within(&cx, &other, "lock", limit, "after a try reached the store behind the release")
        .await
}

async fn s04_a_partition_while_waiting_leaves_nothing(cx: Cx) -> Check {
    let (link, holder, other) = (cx.link().await?, cx.locks().await?, cx.backend().await?);
    let guard = take(&cx, &holder, "lock").await?;
    let locks = cx.locks_on(&link.backend);
    let lock = locks.named("lock")?.ttl(cx.long_ttl());
    let mut waiting = Box::pin(lock.acquire());
    if let Some(second) = within(&cx, cx.ttl() / 10, &mut waiting).await {
        return ended_too_early(&cx, "lock", second);
    }
    link.inject(Fault::Partition).await?;
    cx.sleep(cx.ttl() / 10).await;
    drop(waiting);
    cx.sleep(cx.ttl() / 2).await;
    link.inject(Fault::Heal).await?;
    // The clean-up is repeated with a back-off of at most 1.5 s.
    cx.sleep(Duration::from_secs(2)).await;
    guard.release().await?;
    free_soon(&cx, &other, "lock", "after a waiter that was cut off had given up").await
}

async fn s04_closing_gives_up_what_waits(cx: Cx) -> Check {
    let (holder, closing, other) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    let guard = take(&cx, &holder, "lock").await?;
    let lock = closing.named("lock")?.ttl(cx.long_ttl());
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    cx.sleep(cx.ttl() / 10).await;
    closing.close(cx.ttl()).await?;
    match waiting.await? {
        Err(error) if error.kind() == ErrorKind::Closed => {}
        other => fail!("closing ended a waiter with {other:?} instead of Closed"),
    }
    guard.release().await?;
    free_soon(&cx, &other, "lock", "after the waiter was closed").await
}
