//! S5 and S1 for the user: `max_hold`, `renew_every`, `run`, and what a long hold must survive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::{ErrorKind, LockState, LostReason};

use crate::cases::tools::{
    error_kind, free_soon, got, is_lost, lost_reason, refusal, soon, stand_still, still_held, take,
};
use crate::context::Cx;
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure};

cases! {
    s05_a_renewed_guard_is_held_for_long []
        "a guard is renewed automatically for many ttls, and no other client gets the lock"
        guards [Signal/Secure/Plain, Release/Secure/Plain];
    s05_renewals_come_as_often_as_asked []
        "a lock with its own renewal interval is held for many ttls"
        guards [Signal/Secure/Plain];
    s05_settings_that_cannot_work_are_refused []
        "a ttl, an interval or a limit that cannot work is refused before anything is sent"
        guards [TryAcquire/Free/Plain];
    s05_the_longest_hold_ends_it []
        "max_hold ends the guard, with its reason, although the store would renew it"
        guards [Signal/Secure/Plain, Signal/Secure/Expiry, Token/Lost/Plain, Release/Lost/Plain];
    s05_run_gives_back_what_its_work_gives []
        "run returns the value of its work, and the lock is free afterwards"
        guards [Run/Free/Plain, Run/Secure/Plain];
    s05_run_stops_its_work_on_loss []
        "when the lock is taken away, run drops its work and returns Lost"
        guards [Run/Secure/Forced];
    s05_run_that_ends_too_late_is_lost []
        "work that never yielded and ended after its lock did is Lost, not a success"
        guards [Run/Secure/Expiry, Run/Secure/StandStill];
    s01_run_excludes []
        "of two calls of run on one lock the second begins after the first has ended"
        guards [Run/Free/OtherHolder, Run/Waiting/OtherReleases];
    s01_a_lock_is_not_reentrant []
        "a second acquisition by the same holder waits like any other"
        guards [TryAcquire/Free/OtherHolder, AcquireTimeout/Free/OtherHolder];
}

async fn s05_a_renewed_guard_is_held_for_long(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    let guard = take(&cx, &locks, "lock").await?;
    let end = cx.now() + cx.ttl() * if cx.is_virtual() { 20 } else { 4 };
    while cx.now() < end {
        still_held(&cx, &other, "lock", "while a guard was renewed automatically").await?;
        ensure!(!is_lost(&guard), "a guard was lost without a fault: {:?}", guard.state());
        ensure!(guard.remaining() <= cx.ttl(), "the guard is valid for {:?}", guard.remaining());
        cx.sleep(cx.ttl() / 8).await;
    }
    guard.release().await?;
    free_soon(&cx, &other, "lock", "after its release").await
}

async fn s05_renewals_come_as_often_as_asked(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    for every in [cx.ttl() / 10, cx.ttl() / 2] {
        let guard = got(&locks.named("lock")?.renew_every(every)).await?;
        let mut least = guard.remaining();
        let end = cx.now() + cx.ttl() * 3;
        while cx.now() < end {
            cx.sleep(cx.ttl() / 40).await;
            ensure!(!is_lost(&guard), "renewed every {every:?} the guard is {:?}", guard.state());
            least = least.min(guard.remaining());
        }
        let floor = (cx.ttl() * 9 / 10).saturating_sub(every + cx.tick() + cx.slack() / 4);
        ensure!(least >= floor, "renewed every {every:?} the guard was down to {least:?}");
        still_held(&cx, &other, "lock", "while it was renewed").await?;
        guard.release().await?;
    }
    Ok(())
}

async fn s05_settings_that_cannot_work_are_refused(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let lock = || locks.named("lock");
    let refused = [
        lock()?.ttl(Duration::ZERO),
        lock()?.ttl(Duration::from_millis(9)),
        lock()?.ttl(Duration::MAX),
        lock()?.renew_every(Duration::ZERO),
        lock()?.renew_every(cx.ttl()),
        lock()?.max_hold(Duration::ZERO),
    ];
    for (i, lock) in refused.into_iter().enumerate() {
        let kind = error_kind(lock.try_acquire().await, "a lock with settings that cannot work")?;
        ensure!(kind == ErrorKind::InvalidInput, "setting {i} is refused with {kind:?}");
    }
    let other = cx.backend().await?;
    ensure!(cx.is_free(&other, "lock").await?, "a lock that was refused is held");
    Ok(())
}

async fn s05_the_longest_hold_ends_it(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    let limit = cx.ttl() * 2;
    let start = cx.now();
    let guard = got(&locks.named("lock")?.max_hold(limit)).await?;
    let granted = cx.now();
    cx.sleep(cx.ttl()).await;
    ensure!(!is_lost(&guard), "before max_hold the guard is {:?}", guard.state());
    let reason =
        soon(&cx, limit + cx.slack(), "max_hold is signalled", guard.lost().wait()).await?;
    ensure!(reason == LostReason::MaxHold, "at max_hold the guard is lost because {reason}");
    let held = cx.now();
    ensure!(
        held <= granted + limit + cx.tick(),
        "max_hold was signalled {:?} late",
        held.since(granted + limit)
    );
    ensure!(held.since(start) + cx.slack() >= limit, "max_hold came after {:?}", held.since(start));
    let reason = lost_reason(guard.token(), "the token after max_hold")?;
    ensure!(reason == LostReason::MaxHold, "the token after max_hold is lost because {reason}");
    still_held(&cx, &other, "lock", "while the work of a guard past max_hold goes on").await?;
    lost_reason(guard.release().await, "the release after max_hold")?;
    free_soon(&cx, &other, "lock", "after the release of a guard past max_hold").await
}

async fn s05_run_gives_back_what_its_work_gives(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    let inner = cx.clone();
    let fence = locks
        .named("lock")?
        .run(async |held| {
            inner.sleep(inner.ttl() * 2).await;
            (held.token(), held.state())
        })
        .await?;
    ensure!(fence.0.is_ok() && fence.1 == LockState::Secure, "inside run the lock was {fence:?}");
    free_soon(&cx, &other, "lock", "after run").await
}

async fn s05_run_stops_its_work_on_loss(cx: Cx) -> Check {
    let lock = cx.locks().await?.named("lock")?;
    let dropped = Arc::new(AtomicBool::new(false));
    let note = Note(Arc::clone(&dropped));
    let work = tokio::spawn(async move {
        lock.run(async move |_held| {
            let _note = note;
            std::future::pending::<()>().await;
        })
        .await
    });
    cx.sleep(cx.ttl() / 4).await;
    cx.store().break_hold(&cx.key("lock")?).await?;
    let limit = cx.ttl() / 3 + cx.slack();
    let answer = soon(&cx, limit, "run ends when its lock was taken away", work).await??;
    let reason = lost_reason(answer, "run")?;
    ensure!(reason == LostReason::Taken, "run was stopped because {reason}");
    ensure!(dropped.load(Ordering::SeqCst), "run has ended, but its work goes on");
    Ok(())
}

struct Note(Arc<AtomicBool>);

impl Drop for Note {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn s05_run_that_ends_too_late_is_lost(cx: Cx) -> Check {
    let lock = cx.locks().await?.named("lock")?.no_renew();
    let inner = cx.clone();
    let answer = lock
        .run(async move |_held| {
            // The time passes while no other task runs, or at least while this one does not yield.
            stand_still(&inner, inner.ttl() * 2).await;
        })
        .await;
    let reason = lost_reason(answer, "run")?;
    ensure!(
        reason == LostReason::Expired,
        "work that ended after its lock is lost because {reason}"
    );
    Ok(())
}

async fn s01_run_excludes(cx: Cx) -> Check {
    let clients = [cx.locks().await?, cx.locks().await?];
    let inside = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    for i in 0..6 {
        let (lock, inside, cx) = (clients[i % 2].named("lock")?, Arc::clone(&inside), cx.clone());
        workers.push(tokio::spawn(async move {
            lock.run(async move |_held| {
                let alone = !inside.swap(true, Ordering::SeqCst);
                cx.sleep(Duration::from_millis(3)).await;
                inside.store(false, Ordering::SeqCst);
                alone
            })
            .await
        }));
    }
    for worker in workers {
        ensure!(worker.await??, "two bodies of run on one lock ran at the same time");
    }
    Ok(())
}

async fn s01_a_lock_is_not_reentrant(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let lock = locks.named("lock")?;
    let guard = take(&cx, &locks, "lock").await?;
    let second = lock.try_acquire().await?;
    if second.is_some() {
        return cx.not_alone("lock", 2, "two guards of one lock in one task");
    }
    let kind = refusal(&cx, lock.acquire_timeout(cx.ttl() / 4).await, "a second acquisition")?;
    ensure!(kind == ErrorKind::NotAcquired, "a second acquisition ends with {kind:?}");
    guard.release().await?;
    soon(&cx, cx.slack(), "the lock after its release", lock.acquire()).await??.release().await?;
    Ok(())
}
