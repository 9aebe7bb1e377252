//! S5: a holder learns of a loss before any other client can hold the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::{ErrorKind, LockGuard, LockState, LostReason};

use crate::Fault;
use crate::cases::tools::{
    error_kind, free_soon, free_within, got, is_lost, lost_reason, on_one_thread, soon,
    stand_still, still_held, take, within,
};
use crate::context::Cx;
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure};

cases! {
    s05_a_lock_that_was_taken_is_seen_by_check []
        "when the lock was taken away, check says so, and so do the state, the token and the signal"
        guards [Check/Secure/Plain, Check/Secure/Forced, Token/Lost/Plain, Signal/Lost/Plain];
    s05_a_lock_that_was_taken_is_seen_by_itself []
        "when the lock was taken away, the guard learns of it unasked, by its next renewal"
        guards [Signal/Secure/Forced];
    s05_a_lost_guard_stays_lost [Faults]
        "a guard never returns from lost, whatever the store says later"
        guards [Signal/Secure/Unreachable, Signal/Lost/Plain, Token/Lost/Plain, Renew/Lost/Plain,
            Check/Lost/Plain, Release/Lost/Plain];
    s05_a_partition_is_a_loss_before_the_end [Faults]
        "the guard of a client that is cut off fires its signal before its validity ends, without I/O"
        guards [Signal/Secure/Unreachable];
    s05_a_failed_renewal_is_a_risk [Faults]
        "after the first renewal that failed the guard is at risk, and held again when one succeeds"
        guards [Signal/Secure/Unreachable, Signal/AtRisk/Plain, Signal/AtRisk/Unreachable,
            Token/AtRisk/Plain, Token/AtRisk/Unreachable, Release/AtRisk/Plain];
    s05_a_blocked_runtime_finds_the_loss_first []
        "after the runtime stalled past the end, the first query is answered with Lost"
        guards [Token/Secure/StandStill, Signal/Secure/StandStill];
    s05_the_signal_comes_before_the_end []
        "the lost signal fires min(50 ms, ttl/10) before the end of validity"
        guards [Signal/Secure/Expiry];
    s05_the_signal_of_a_lost_lock_is_set []
        "a signal that is asked for after the loss is ready at once, for every listener"
        guards [Signal/Secure/Forced, Signal/Lost/Plain];
    s05_without_renewal_the_lock_ends []
        "a lock that is not renewed is lost one ttl after its grant, by the guard's own clock"
        guards [Signal/Secure/Expiry, Release/Lost/Plain];
    s05_a_slow_grant_without_renewal_is_not_renewed [Lease, Faults]
        "a lock that is not renewed ends with the lease of its grant, even if its answer was slow"
        guards [TryAcquire/Free/ReplyLate, Signal/Secure/Expiry];
    s05_a_frozen_store_is_a_loss_in_time [Alone]
        "when the store is frozen, the guard is lost before the lease ends"
        guards [Signal/Secure/Unreachable, DropGuard/Lost/Plain, DropGuard/Lost/Unreachable];
    s05_a_silent_store_is_a_loss_for_run [Faults]
        "run stops its work when the store has been out of reach for the length of the lease"
        guards [Run/Secure/Plain, Run/Secure/Unreachable];
}

async fn s05_a_lock_that_was_taken_is_seen_by_check(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let guard = take(&cx, &locks, "lock").await?;
    guard.check().await?;
    cx.store().break_hold(&cx.key("lock")?).await?;
    let reason = lost_reason(guard.check().await, "check")?;
    ensure!(reason == LostReason::Taken, "a lock that was taken away was lost because {reason}");
    ensure!(is_lost(&guard), "check said Lost, and the state is {:?}", guard.state());
    let kind = error_kind(guard.token(), "asking a lost lock for its token")?;
    ensure!(kind == ErrorKind::Lost(reason), "the token of a lost lock is {kind:?}");
    let signal = within(&cx, cx.slack(), guard.lost().wait()).await;
    ensure!(signal == Some(reason), "the signal of a lost lock says {signal:?}");
    ensure!(guard.remaining().is_zero(), "a lost lock is valid for {:?}", guard.remaining());
    Ok(())
}

async fn s05_a_lock_that_was_taken_is_seen_by_itself(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let guard = take(&cx, &locks, "lock").await?;
    cx.sleep(cx.ttl() / 2).await;
    cx.store().break_hold(&cx.key("lock")?).await?;
    let limit = cx.ttl() / 3 + cx.slack();
    let reason =
        soon(&cx, limit, "a guard learns that its lock was taken away", guard.lost().into_future());
    ensure!(reason.await? == LostReason::Taken, "the loss is reported as {:?}", guard.state());
    Ok(())
}

async fn s05_a_lost_guard_stays_lost(cx: Cx) -> Check {
    let link = cx.link().await?;
    let guard = take(&cx, &cx.locks_on(&link.backend), "lock").await?;
    link.inject(Fault::Partition).await?;
    let limit = cx.over();
    let reason =
        soon(&cx, limit, "a client that is cut off loses its lock", guard.lost().wait()).await?;
    ensure!(
        reason == LostReason::Expired,
        "a lock that could not be renewed was lost because {reason}"
    );
    link.inject(Fault::Heal).await?;
    for _ in 0..5 {
        cx.sleep(cx.ttl() / 4).await;
        ensure!(
            guard.state() == LockState::Lost(reason),
            "a lost guard became {:?}",
            guard.state()
        );
        ensure!(guard.token().is_err(), "a lost guard gives a token");
        lost_reason(guard.renew().await, "renew")?;
        lost_reason(guard.check().await, "check")?;
    }
    lost_reason(guard.release().await, "release")?;
    let other = cx.backend().await?;
    free_soon(&cx, &other, "lock", "after a lost guard was released").await
}

/// Waits for the loss, and checks that it was signalled in time. Returns when it was.
async fn signalled_in_time(cx: &Cx, guard: &LockGuard) -> Check {
    let ends = cx.now() + guard.remaining();
    let lead = (guard.ttl() / 10).min(Duration::from_millis(50));
    let limit = guard.remaining() + cx.slack();
    soon(cx, limit, "the signal of a lock that is not renewed", guard.lost().wait()).await?;
    let now = cx.now();
    let latest = ends.minus(lead) + cx.tick();
    ensure!(now <= latest, "the signal fired {:?} later than it should", now.since(latest));
    let earliest = ends.minus(lead + cx.slack());
    ensure!(now >= earliest, "the signal fired {:?} earlier than it should", earliest.since(now));
    ensure!(is_lost(guard), "the signal fired, and the state is {:?}", guard.state());
    Ok(())
}

async fn s05_a_partition_is_a_loss_before_the_end(cx: Cx) -> Check {
    let link = cx.link().await?;
    let guard = take(&cx, &cx.locks_on(&link.backend), "lock").await?;
    cx.sleep(cx.ttl()).await;
    link.inject(Fault::Partition).await?;
    // A renewal in progress may still have been answered.
    cx.sleep(Duration::from_millis(5)).await;
    signalled_in_time(&cx, &guard).await
}

async fn s05_a_failed_renewal_is_a_risk(cx: Cx) -> Check {
    let link = cx.link().await?;
    let locks = cx.builder(&link.backend).call_timeout(cx.ttl() / 10).build()?;
    let guard = take(&cx, &locks, "lock").await?;
    ensure!(guard.state() == LockState::Secure, "a new guard is {:?}", guard.state());
    link.inject(Fault::Partition).await?;
    let limit = cx.ttl() * 2 / 3;
    let risk = within(&cx, limit, until_state(&cx, &guard, LockState::AtRisk)).await;
    ensure!(risk.is_some(), "{limit:?} into a partition the guard is {:?}", guard.state());
    ensure!(guard.token().is_ok(), "a guard at risk holds the lock, and gives no token");
    link.inject(Fault::Heal).await?;
    let limit = cx.ttl() / 3;
    let healed = within(&cx, limit, until_state(&cx, &guard, LockState::Secure)).await;
    ensure!(healed.is_some(), "{limit:?} after a partition the guard is {:?}", guard.state());
    guard.release().await?;
    Ok(())
}

async fn until_state(cx: &Cx, guard: &LockGuard, state: LockState) {
    while guard.state() != state {
        cx.sleep(Duration::from_millis(5)).await;
    }
}

async fn s05_a_blocked_runtime_finds_the_loss_first(cx: Cx) -> Check {
    on_one_thread(&cx, async |cx| {
        let guard = take(&cx, &cx.locks().await?, "lock").await?;
        // The work blocks it for longer than the lease.
        stand_still(&cx, cx.ttl() * 2).await;
        first_says_lost(&guard)
    })
    .await
}

fn first_says_lost(guard: &LockGuard) -> Check {
    let kind = error_kind(guard.token(), "asking for the token after the runtime stalled")?;
    ensure!(kind == ErrorKind::Lost(LostReason::Expired), "the first answer is {kind:?}");
    ensure!(is_lost(guard), "the second answer is {:?}", guard.state());
    Ok(())
}

async fn s05_the_signal_comes_before_the_end(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    for ttl in [cx.ttl(), cx.round(Duration::from_millis(200)), cx.round(cx.ttl() * 2)] {
        let guard = got(&locks.named("lock")?.ttl(ttl).no_renew()).await?;
        signalled_in_time(&cx, &guard).await?;
        let _ = guard.release().await;
        let other = cx.backend().await?;
        free_soon(&cx, &other, "lock", "after a lost guard was released").await?;
    }
    Ok(())
}

async fn s05_the_signal_of_a_lost_lock_is_set(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let guard = take(&cx, &locks, "lock").await?;
    let early: Vec<_> = (0..3).map(|_| tokio::spawn(guard.lost().into_future())).collect();
    cx.sleep(cx.ttl() / 10).await;
    ensure!(guard.lost().reason().is_none(), "the signal of a lock that is held has a reason");
    cx.store().break_hold(&cx.key("lock")?).await?;
    lost_reason(guard.check().await, "check")?;
    for listener in early {
        let reason = soon(&cx, cx.slack(), "a listener is told of the loss", listener).await??;
        ensure!(reason == LostReason::Taken, "a listener was told {reason}");
    }
    let held = guard.held().clone();
    let _ = guard.release().await;
    for _ in 0..2 {
        let reason =
            soon(&cx, cx.slack(), "a late listener is told of the loss", held.lost().into_future());
        ensure!(reason.await? == LostReason::Taken, "the reason of the loss has changed");
    }
    Ok(())
}

async fn s05_without_renewal_the_lock_ends(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    let guard = got(&locks.named("lock")?.no_renew()).await?;
    ensure!(
        guard.remaining() <= cx.ttl(),
        "a guard without renewal is valid for {:?}",
        guard.remaining()
    );
    cx.sleep(guard.remaining()).await;
    ensure!(
        guard.state() == LockState::Lost(LostReason::Expired),
        "at the end of its validity the guard is {:?}",
        guard.state()
    );
    let reason = lost_reason(guard.release().await, "release")?;
    ensure!(reason == LostReason::Expired, "the release after the end says {reason}");
    free_soon(&cx, &other, "lock", "after its lease has ended").await
}

async fn s05_a_slow_grant_without_renewal_is_not_renewed(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let locks = cx.builder(&link.backend).call_timeout(cx.ttl()).build()?;
    link.inject(Fault::DelayNextReply(cx.ttl() / 2)).await?;
    let sent = cx.now();
    let guard = got(&locks.named("lock")?.ttl(cx.ttl()).no_renew()).await?;
    cx.sleep(guard.remaining() / 2).await;
    let valid_for = guard.valid_until().since(sent);
    ensure!(
        valid_for <= cx.ttl() + cx.skew(),
        "no renewal was requested, but the guard believes that it holds the lock for {valid_for:?}"
    );
    drop(guard);
    free_soon(&cx, &other, "lock", "after its guard was dropped").await
}

async fn s05_a_frozen_store_is_a_loss_in_time(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let guard = take(&cx, &locks, "lock").await?;
    cx.store().freeze().await?;
    let in_time = signalled_in_time(&cx, &guard).await;
    cx.store().thaw().await?;
    in_time?;
    ensure!(is_lost(&guard), "the guard came back when the store was thawed");
    let other = cx.backend().await?;
    drop(guard);
    let limit = cx.ttl() + Duration::from_secs(2) + cx.slack();
    free_within(&cx, &other, "lock", limit, "after the store was thawed").await
}

async fn s05_a_silent_store_is_a_loss_for_run(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let lock = cx.locks_on(&link.backend).named("lock")?;
    let (started, stopped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (begin, end) = (Arc::clone(&started), OnDrop(Arc::clone(&stopped)));
    let work = tokio::spawn(async move {
        lock.run(async move |_held| {
            let _end = end;
            begin.store(true, Ordering::SeqCst);
            std::future::pending::<()>().await;
        })
        .await
    });
    cx.sleep(cx.ttl()).await;
    ensure!(started.load(Ordering::SeqCst), "the work under the lock was not started");
    ensure!(!stopped.load(Ordering::SeqCst), "the work was stopped although the lock was held");
    still_held(&cx, &other, "lock", "while the work ran").await?;
    link.inject(Fault::Partition).await?;
    let limit = cx.over();
    let answer = soon(&cx, limit, "run ends when its lock is lost", work).await??;
    lost_reason(answer, "run")?;
    ensure!(stopped.load(Ordering::SeqCst), "run has ended, but its work goes on");
    Ok(())
}

/// Records that it was dropped.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
