//! S4, S5 and L2: what a user's calls do when answers are missing, the store restarts, or the lock
//! is already lost.

use std::time::Duration;

use lock_core::{DataLoss, Error, ErrorKind, LockState, Renewal};

use crate::Fault;
use crate::cases::tools::detached::Detached;
use crate::cases::tools::{
    Dropper, STEPS, after_restart, answered, at_each_request, free_soon, free_within,
    give_up_at_last, got, lost_reason, soon, still_held, take, take_for, waits, within,
};
use crate::context::Cx;
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, Explain, Stop, ensure, fail};

cases! {
    l02_a_waiter_outlives_lost_answers [Faults]
        "a waiter whose looks get no answer, or late ones, goes on waiting and gets the lock"
        guards [Acquire/Waiting/RequestLost, Acquire/Waiting/ReplyLost, Acquire/Waiting/ReplyLate];
    s05_a_hold_and_a_wait_go_on_after_a_restart [Alone]
        "after a restart of the store a guard is held, or is lost where that is declared, and a waiter gets the lock"
        covers [TryAcquire/Waiting/Restart]
        guards [Renew/Secure/Restart, Check/Secure/Restart, Signal/Secure/Restart,
            Release/Secure/Restart, Acquire/Waiting/Restart];
    s05_a_lock_that_was_taken_is_seen_by_renew []
        "when the lock was taken away, renew says so, and the guard is lost"
        guards [Renew/Secure/Forced];
    s05_a_lost_guard_does_nothing_more []
        "a lost guard is not detached, and runs no work: both say that it is lost"
        guards [Detach/Lost/Plain, Run/Lost/Plain];
    s04_a_dropped_run_leaves_nothing []
        "a run that was dropped at any time, also in its work, leaves the lock free"
        guards [Run/Free/Dropped, Run/Secure/Dropped];
    s04_a_call_with_a_token_that_gets_no_answer_loses_nothing [Detach, Faults]
        "an attach or a renewal by token without an answer is no loss, and a release without one still releases"
        guards [Attach/Detached/RequestLost, Attach/Detached/ReplyLost,
            Attach/Detached/Unreachable, RenewToken/Detached/RequestLost,
            RenewToken/Detached/ReplyLost, RenewToken/Detached/Unreachable,
            ReleaseToken/Detached/RequestLost, ReleaseToken/Detached/ReplyLost,
            ReleaseToken/Detached/Unreachable];
    l04_a_closed_client_refuses_every_lock []
        "after close every way to take a lock says Closed at once, and another close does no harm"
        guards [Acquire/Closed/Plain, TryAcquire/Closed/Plain, AcquireTimeout/Closed/Plain,
            Run/Closed/Plain, Close/Closed/Plain];
    l04_a_closed_client_refuses_every_token [Detach]
        "after close a lease token is refused with Closed, and its lock stays held"
        guards [Attach/Closed/Plain, RenewToken/Closed/Plain, ReleaseToken/Closed/Plain];
    l04_closing_ends_in_time_when_the_store_is_silent [Faults]
        "close ends within its timeout although the store does not answer, with and without a lock that is held or waited for"
        guards [Close/Free/Unreachable, Close/Waiting/Unreachable, Close/Secure/Unreachable];
}

async fn l02_a_waiter_outlives_lost_answers(cx: Cx) -> Check {
    let (holder, link) = (cx.locks().await?, cx.link().await?);
    let waiter = cx.locks_on(&link.backend);
    let late = Fault::DelayNextReply(cx.ttl() / 4);
    for fault in [Fault::LoseNextReply, Fault::LoseNextRequest, late] {
        let guard = take_for(&cx, &holder, "lock", cx.long_ttl()).await?;
        let waiting = waits(&cx, &waiter, "lock")?;
        cx.sleep(cx.ttl() / 4).await;
        link.inject(fault).await?;
        cx.sleep(cx.ttl() / 2).await;
        ensure!(!waiting.is_finished(), "{fault:?} ended a wait for a lock that is held");
        guard.release().await?;
        // The core's slowest polling interval is 12.5 s.
        let limit = Duration::from_secs(13) + cx.slack();
        let what = format!("a waiter that met {fault:?} gets the lock");
        let guard = soon(&cx, limit, &what, waiting).await??.demanded(&what)?;
        guard.release().await?;
    }
    Ok(())
}

async fn s05_a_hold_and_a_wait_go_on_after_a_restart(cx: Cx) -> Check {
    let (holder, waiter, other) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    let guard = take_for(&cx, &holder, "lock", cx.long_ttl()).await?;
    let waiting = waits(&cx, &waiter, "lock")?;
    cx.sleep(cx.ttl() / 4).await;
    let before = cx.now();
    cx.store().restart().await?;
    match after_restart(&cx, async || guard.renew().await).await {
        Ok(state) => {
            ensure!(state == LockState::Secure, "renewed after a restart a guard is {state:?}");
            still_held(&cx, &other, "lock", "after a restart that a guard has outlived").await?;
            guard.check().await.explain("a check after a restart")?;
            guard.release().await.explain("a release after a restart")?;
        }
        Err(error) => {
            let took = cx.now().since(before);
            if took >= cx.long_ttl() {
                return Err(Stop::late(format_args!("the restart took {took:?}")));
            }
            let declared = cx.capabilities().loses_data_on.contains(&DataLoss::Restart);
            ensure!(
                declared && error.lost_reason().is_some(),
                "the renewal after a restart: {error}"
            );
            ensure!(guard.token().is_err(), "a guard that a restart has ended gives a token");
            lost_reason(guard.release().await, "the release after a restart")?;
        }
    }
    let limit = Duration::from_secs(13) + cx.slack();
    soon(&cx, limit, "a waiter gets the lock after a restart", waiting).await???.release().await?;
    free_soon(&cx, &other, "lock", "after the waiter of a restart has released it").await
}

async fn s05_a_lock_that_was_taken_is_seen_by_renew(cx: Cx) -> Check {
    let guard = take_for(&cx, &cx.locks().await?, "lock", cx.long_ttl()).await?;
    guard.renew().await.demanded("a renewal in time")?;
    cx.store().break_hold(&cx.key("lock")?).await?;
    let reason = lost_reason(guard.renew().await, "renew")?;
    let state = guard.state();
    ensure!(state == LockState::Lost(reason), "renew said Lost({reason}), the state is {state:?}");
    Ok(())
}

async fn s05_a_lost_guard_does_nothing_more(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    for what in ["detach", "run"] {
        // Where a hold cannot be handed over, that is what a detach says.
        if what == "detach" && !cx.capabilities().detachable {
            continue;
        }
        let guard = take_for(&cx, &locks, "lock", cx.long_ttl()).await?;
        cx.store().break_hold(&cx.key("lock")?).await?;
        lost_reason(guard.check().await, "check")?;
        if what == "detach" {
            lost_reason(guard.detach().await.map_err(Error::from), "detach")?;
        } else {
            let mut began = false;
            lost_reason(guard.run(async |_| began = true).await, "run")?;
            ensure!(!began, "the work of a guard that is lost was begun");
        }
        free_soon(&cx, &other, "lock", &format!("after the {what} of a lost guard")).await?;
    }
    Ok(())
}

async fn s04_a_dropped_run_leaves_nothing(cx: Cx) -> Check {
    let (calls, other) = (Dropper::new(&cx).await?, cx.backend().await?);
    let locks = &calls.locks;
    let lock = locks.named("lock")?.ttl(cx.long_ttl());
    for steps in 0..STEPS {
        let work = lock.run(async |_| std::future::pending::<()>().await);
        drop(calls.drops(&cx, steps, work).await?);
        let after = format!("after a run that was dropped {steps} turns after its start");
        free_soon(&cx, &other, "lock", &after).await?;
    }
    let work = lock.run(async |_| std::future::pending::<()>().await);
    ensure!(within(&cx, cx.ttl() / 4, work).await.is_none(), "work that never ends has ended");
    free_soon(&cx, &other, "lock", "after a run that was dropped in its work").await
}

async fn s04_a_call_with_a_token_that_gets_no_answer_loses_nothing(cx: Cx) -> Check {
    let (link, first, other) = (cx.link().await?, cx.locks().await?, cx.backend().await?);
    let locks = cx.builder(&link.backend).call_timeout(cx.ttl() / 2).build()?;
    let lock = locks.named("lock")?.ttl(cx.long_ttl());
    for fault in [Fault::LoseNextReply, Fault::LoseNextRequest, Fault::Partition] {
        let token = take_for(&cx, &first, "lock", cx.long_ttl()).await?.detach().await?;
        link.inject(fault).await?;
        let attached = lock.attach(&token).await.map(drop);
        link.inject(fault).await?;
        let renewed = lock.renew(&token).await.map(drop);
        for (call, answer) in [("attach", attached), ("renewal", renewed)] {
            let reason = answer.err().and_then(|error| error.lost_reason());
            ensure!(reason.is_none(), "{fault:?}: an {call} by token is lost: {reason:?}");
        }
        still_held(&cx, &other, "lock", "after calls by token without an answer").await?;
        if fault == Fault::Partition {
            link.inject(Fault::Heal).await?;
        }
        let limit = cx.ttl() * 2 + cx.slack();
        soon(&cx, limit, "the token still renews its lock", async {
            while lock.renew(&token).await.is_err() {
                cx.sleep(cx.ttl() / 20).await;
            }
        })
        .await?;
        link.inject(fault).await?;
        let _ = lock.release(token).await;
        if fault == Fault::Partition {
            link.inject(Fault::Heal).await?;
        }
        let limit = Duration::from_secs(3) + cx.slack();
        let after = format!("after {fault:?} of a release by token");
        free_within(&cx, &other, "lock", limit, &after).await?;
        // A fault that was not used up would hit the next round.
        let _ = locks.health().await;
    }
    for call in ["a renewal", "a check", "a release"] {
        at_each_request(&cx, async |one| {
            let hold = Detached::take(&cx, &other, &one.lock, cx.long_ttl()).await?;
            let request = hold.resumed().with_call_timeout(cx.ttl() / 2);
            let mut bearer = one.backend().claim(request)?;
            let after = one.after(&format!("{call} by token"));
            let mut ask = async || match call {
                "a renewal" => bearer.renew().await,
                "a check" => bearer.check().await,
                // The lock is free then, and so it is when the release is repeated.
                _ => bearer.release().await.map(|_| Renewal::Alive { valid_for: None }),
            };
            let first = one.meets(ask()).await?;
            let again = answered(&cx, cx.ttl() * 2, ask).await.demanded(&after)?;
            for answer in first.into_iter().chain([again]) {
                ensure!(answer != Renewal::Lost, "{after}, a lock that is held is lost");
            }
            give_up_at_last(&cx, &mut *bearer, &other, &one.lock, &after).await
        })
        .await?;
    }
    Ok(())
}

/// The call must say that its client was closed.
fn is_closed<T>(answer: Result<T, Error>, what: &str) -> Check {
    match answer {
        Err(error) if error.kind() == ErrorKind::Closed => Ok(()),
        Err(error) => fail!("{what} of a closed client ended with: {error}"),
        Ok(_) => fail!("{what} of a closed client succeeded"),
    }
}

async fn l04_a_closed_client_refuses_every_lock(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.locks().await?);
    let lock = locks.named("lock")?;
    got(&lock).await?.release().await?;
    locks.close(cx.ttl()).await?;
    // Also where another client has it: nothing may be sent, and nothing waited for.
    let guard = take(&cx, &other, "lock").await?;
    for _ in 0..2 {
        let begun = cx.now();
        is_closed(lock.try_acquire().await, "try_acquire")?;
        is_closed(lock.acquire().await, "acquire")?;
        is_closed(lock.acquire_timeout(cx.ttl()).await, "acquire_timeout")?;
        is_closed(lock.run(async |_| ()).await, "run")?;
        let took = cx.now().since(begun);
        ensure!(took <= cx.late(), "a closed client took {took:?} to refuse");
        let again =
            soon(&cx, cx.ttl() + cx.slack(), "another close", locks.close(cx.ttl())).await?;
        ensure!(again.is_ok(), "a client that is closed already cannot be closed: {again:?}");
    }
    guard.check().await.demanded("the lock of another client, after a client was closed")?;
    guard.release().await?;
    Ok(())
}

async fn l04_a_closed_client_refuses_every_token(cx: Cx) -> Check {
    let (first, closed, other) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    let token = take_for(&cx, &first, "lock", cx.long_ttl()).await?.detach().await?;
    closed.close(cx.ttl()).await?;
    let lock = closed.named("lock")?.ttl(cx.long_ttl());
    is_closed(lock.attach(&token).await, "attach")?;
    is_closed(lock.renew(&token).await, "renew by token")?;
    is_closed(lock.release(token.clone()).await, "release by token")?;
    still_held(&cx, &other, "lock", "after a closed client was given its token").await?;
    first.named("lock")?.ttl(cx.long_ttl()).release(token).await?;
    free_soon(&cx, &other, "lock", "after its release by token").await
}

async fn l04_closing_ends_in_time_when_the_store_is_silent(cx: Cx) -> Check {
    let (holder, other) = (cx.locks().await?, cx.backend().await?);
    let _theirs = take_for(&cx, &holder, "theirs", cx.long_ttl()).await?;
    for has in ["nothing", "a waiter", "a lock"] {
        let link = cx.link().await?;
        let call = cx.ttl() / 2;
        let locks = cx.builder(&link.backend).call_timeout(call).build()?;
        let (mut guard, mut waiting) = (None, None);
        match has {
            "a waiter" => waiting = Some(waits(&cx, &locks, "theirs")?),
            "a lock" => guard = Some(take(&cx, &locks, "ours").await?),
            _ => drop(locks.health().await?),
        }
        cx.sleep(cx.ttl() / 10).await;
        link.inject(Fault::Partition).await?;
        let limit = cx.ttl();
        let what = format!("close({limit:?}) of a client that has {has}, without a store");
        // What it could not give back, it says, or it had nothing to give back.
        let _ = soon(&cx, limit + call + cx.late(), &what, locks.close(limit)).await?;
        if let Some(waiting) = waiting {
            let waited = soon(&cx, cx.slack(), "a waiter is ended by close", waiting).await??;
            is_closed(waited, "the wait")?;
        }
        if let Some(guard) = guard {
            ensure!(guard.token().is_err(), "after close a guard gives a token");
        }
        link.inject(Fault::Heal).await?;
    }
    let limit = cx.over() + Duration::from_secs(3);
    free_within(&cx, &other, "ours", limit, "after its client was closed without a store").await
}
