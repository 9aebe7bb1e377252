//! C12, L4 and S6: every call ends in time, and reports what is known.

use std::time::Duration;

use lock_core::{Effect, ErrorKind, Locks};

use crate::Fault;
use crate::cases::tools::{
    error_kind, free_soon, free_within, has_struck, is_busy, refusal, soon, take, within,
};
use crate::context::{Cx, Link};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, Explain, ensure, fail};

cases! {
    l04_a_deadline_is_kept []
        "acquire_timeout on a lock that is held ends at its deadline, not before and not much later"
        guards [AcquireTimeout/Free/OtherHolder, AcquireTimeout/Waiting/Plain];
    l04_a_deadline_is_kept_when_the_store_is_silent [Faults]
        "acquire_timeout ends at its deadline even when nothing comes back from the store"
        guards [AcquireTimeout/Free/Unreachable];
    l04_a_deadline_is_kept_behind_others []
        "each of many waiters of one process keeps its own deadline"
        guards [AcquireTimeout/Waiting/QueueBehind];
    l04_a_frozen_store_holds_nobody [Alone]
        "when the whole store is frozen every call still ends"
        guards [TryAcquire/Free/Unreachable, Check/Secure/Unreachable, Release/Secure/Unreachable,
            Health/Free/Unreachable];
    l04_closing_ends_in_time []
        "close ends within its timeout, and reports what it left"
        covers [Close/Open/Plain]
        guards [Close/Free/Plain, Close/Secure/Plain, TryAcquire/Closed/Plain,
            DropGuard/Closed/Plain];
    c12_a_try_is_bounded [Faults]
        "try_acquire ends when its call limit is over, twice at most"
        guards [TryAcquire/Free/Unreachable];
    c12_calls_of_a_guard_are_bounded [Faults]
        "renew, check, release and detach of a guard end within their call limit"
        covers [Renew/Held/Unreachable, Check/Held/Unreachable, Release/Held/Unreachable]
        guards [Renew/Secure/Unreachable, Check/Secure/Unreachable, Release/Secure/Unreachable,
            Detach/Secure/Unreachable];
    c12_other_calls_are_bounded [Faults]
        "ping, inspect, list and force_release end within their call limit"
        covers [Ping/Open/Unreachable, Inspect/Open/Unreachable, List/Open/Unreachable,
            ForceRelease/Open/Unreachable]
        guards [Health/Free/Unreachable, Inspect/Free/Unreachable, ForceRelease/Free/Unreachable];
    c12_acquire_gives_a_silent_store_up [Faults]
        "acquire without a deadline gives up on a store that does not answer at all"
        guards [Acquire/Free/Unreachable];
    s06_busy_is_not_an_error []
        "a lock that is held is None for try_acquire and NotAcquired for acquire_timeout"
        covers [TryAcquire/New/OtherHolder]
        guards [TryAcquire/Free/OtherHolder, AcquireTimeout/Free/OtherHolder];
    s06_an_error_is_not_busy [Faults]
        "a store that cannot be reached is an error, and not reported as a held lock"
        covers [TryAcquire/New/RequestLost, TryAcquire/New/ReplyLost, TryAcquire/New/Unreachable,
            Ping/Open/Plain]
        guards [Health/Free/Plain, TryAcquire/Free/RequestLost, TryAcquire/Free/ReplyLost,
            TryAcquire/Free/Unreachable, AcquireTimeout/Free/Unreachable];
    s06_an_unknown_outcome_is_said [Faults]
        "an acquisition whose answers were lost is an error of unknown effect, and is cleaned up"
        covers [TryAcquire/New/ReplyLost]
        guards [TryAcquire/Free/ReplyLost];
    s06_an_acquisition_repairs_one_lost_answer [Faults]
        "one lost answer or request does not fail a try_acquire"
        guards [TryAcquire/Free/RequestLost, TryAcquire/Free/ReplyLost];
}

async fn l04_a_deadline_is_kept(cx: Cx) -> Check {
    let (holder, locks) = (cx.locks().await?, cx.locks().await?);
    let guard = take(&cx, &holder, "lock").await?;
    for limit in [Duration::ZERO, Duration::from_millis(30), cx.ttl() / 2, cx.ttl() * 2] {
        let start = cx.now();
        let answer = locks.named("lock")?.acquire_timeout(limit).await;
        let waited = cx.now().since(start);
        let kind = refusal(&cx, answer, "acquire_timeout")?;
        ensure!(is_busy(&cx, kind), "another client held the lock, but the error is {kind:?}");
        ensure!(waited >= limit, "acquire_timeout({limit:?}) gave up after {waited:?}");
        let latest = limit + cx.late();
        ensure!(waited <= latest, "acquire_timeout({limit:?}) took {waited:?}");
    }
    guard.release().await?;
    Ok(())
}

async fn l04_a_deadline_is_kept_when_the_store_is_silent(cx: Cx) -> Check {
    let link = cx.link().await?;
    let locks = cx.locks_on(&link.backend);
    link.inject(Fault::Partition).await?;
    for limit in [Duration::from_millis(50), cx.ttl(), cx.ttl() * 3] {
        let start = cx.now();
        let answer = locks.named("lock")?.acquire_timeout(limit).await;
        let waited = cx.now().since(start);
        let kind = error_kind(answer, "acquire_timeout without a store")?;
        ensure!(
            kind != ErrorKind::NotAcquired,
            "nothing came back from the store, but the error says that another client holds the lock"
        );
        ensure!(waited <= limit + cx.late(), "acquire_timeout({limit:?}) took {waited:?}");
    }
    Ok(())
}

async fn l04_a_deadline_is_kept_behind_others(cx: Cx) -> Check {
    let (holder, locks) = (cx.locks().await?, cx.locks().await?);
    let guard = take(&cx, &holder, "lock").await?;
    let mut waiters = Vec::new();
    for i in 1..=10_u32 {
        let (lock, cx) = (locks.named("lock")?, cx.clone());
        waiters.push(tokio::spawn(async move {
            // The later waiters are behind others that wait longer.
            let limit = cx.ttl() / 10 * (11 - i);
            let start = cx.now();
            let kind = refusal(&cx, lock.acquire_timeout(limit).await, "a wait")?;
            let waited = cx.now().since(start);
            ensure!(is_busy(&cx, kind), "a waiter behind others ended with {kind:?}");
            ensure!(
                waited >= limit && waited <= limit + cx.late(),
                "behind others acquire_timeout({limit:?}) took {waited:?}"
            );
            Check::Ok(())
        }));
    }
    for waiter in waiters {
        waiter.await??;
    }
    guard.release().await?;
    Ok(())
}

async fn l04_a_frozen_store_holds_nobody(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let guard = take(&cx, &locks, "held").await?;
    cx.store().freeze().await?;
    let limit = cx.ttl() * 2 + cx.slack();
    let lock = locks.named("lock")?;
    let tried = soon(&cx, limit, "try_acquire on a frozen store", lock.try_acquire());
    ensure!(tried.await?.is_err(), "a frozen store answered a try");
    let _ = soon(&cx, limit, "check on a frozen store", guard.check()).await?;
    let _ = soon(&cx, limit, "release on a frozen store", guard.release()).await?;
    let limit = Duration::from_secs(6) + cx.slack();
    ensure!(
        soon(&cx, limit, "ping of a frozen store", locks.health()).await?.is_err(),
        "it answered a ping"
    );
    cx.store().thaw().await?;
    soon(&cx, limit, "ping of a thawed store", locks.health()).await??;
    let other = cx.backend().await?;
    let limit = cx.ttl() + Duration::from_secs(2) + cx.slack();
    for name in ["lock", "held"] {
        free_within(&cx, &other, name, limit, "after the store was thawed").await?;
    }
    Ok(())
}

async fn l04_closing_ends_in_time(cx: Cx) -> Check {
    let (locks, idle) = (cx.locks().await?, cx.locks().await?);
    idle.close(cx.ttl()).await?;
    let kind = error_kind(idle.named("lock")?.try_acquire().await, "an acquisition after close")?;
    ensure!(kind == ErrorKind::Closed, "an acquisition after close ended with {kind:?}");
    let guard = take(&cx, &locks, "lock").await?;
    let start = cx.now();
    let kind = error_kind(locks.close(cx.ttl() / 2).await, "close while a lock is held")?;
    let took = cx.now().since(start);
    ensure!(kind == ErrorKind::Timeout, "close while a lock is held ended with {kind:?}");
    ensure!(took <= cx.ttl() / 2 + cx.late(), "close({:?}) took {took:?}", cx.ttl() / 2);
    drop(guard);
    let other = cx.backend().await?;
    cx.sleep(cx.ttl()).await;
    free_soon(&cx, &other, "lock", "one ttl after its `Locks` was closed").await
}

/// How long one call may take by default: a third of the ttl, 100 ms to 5 s.
fn call_limit(cx: &Cx) -> Duration {
    (cx.ttl() / 3).clamp(Duration::from_millis(100), Duration::from_secs(5))
}

async fn c12_a_try_is_bounded(cx: Cx) -> Check {
    let link = cx.link().await?;
    let locks = cx.locks_on(&link.backend);
    link.inject(Fault::Partition).await?;
    let limit = call_limit(&cx) * 2 + cx.late();
    let lock = locks.named("lock")?;
    let answer = soon(&cx, limit, "try_acquire without a store", lock.try_acquire());
    let kind = error_kind(answer.await?, "try_acquire without a store")?;
    ensure!(
        matches!(kind, ErrorKind::NoAnswer | ErrorKind::Unavailable),
        "try_acquire without a store ended with {kind:?}"
    );
    Ok(())
}

async fn c12_calls_of_a_guard_are_bounded(cx: Cx) -> Check {
    let link = cx.link().await?;
    let locks = cx.locks_on(&link.backend);
    let mut guards = Vec::new();
    for name in ["renew", "check", "release", "detach"] {
        guards.push(take(&cx, &locks, name).await?);
    }
    link.inject(Fault::Partition).await?;
    let limit = call_limit(&cx) * 2 + cx.late();
    let [renewed, checked, released, detached] = <[_; 4]>::try_from(guards)
        .map_err(|_| crate::runner::check::Stop::failed("four guards were taken"))?;
    let calls = tokio::join!(
        soon(&cx, limit, "renew without a store", renewed.renew()),
        soon(&cx, limit, "check without a store", checked.check()),
        soon(&cx, limit, "release without a store", released.release()),
        soon(&cx, limit, "detach without a store", detached.detach()),
    );
    ensure!(calls.0?.is_err(), "a renewal without a store succeeded");
    ensure!(calls.1?.is_err(), "a check without a store succeeded");
    ensure!(calls.2?.is_err(), "a release without a store was answered");
    // Where the store does not have to be asked, a detach may succeed.
    let _ = calls.3?;
    Ok(())
}

async fn c12_other_calls_are_bounded(cx: Cx) -> Check {
    let link = cx.link().await?;
    let call = call_limit(&cx);
    let locks = cx.builder(&link.backend).call_timeout(call).build()?;
    link.inject(Fault::Partition).await?;
    let limit = call + cx.late();
    ensure!(
        soon(&cx, limit, "ping", locks.health()).await?.is_err(),
        "a ping without a store succeeded"
    );
    let inspected = soon(&cx, limit, "inspect", locks.inspect("lock")).await?;
    ensure!(inspected.is_err(), "an inspection without a store succeeded");
    ensure!(
        soon(&cx, limit, "list", locks.list("")).await?.is_err(),
        "a list without a store succeeded"
    );
    let forced = soon(&cx, limit, "force_release", locks.force_release_any("lock")).await?;
    ensure!(forced.is_err(), "a forced release without a store succeeded");
    Ok(())
}

async fn c12_acquire_gives_a_silent_store_up(cx: Cx) -> Check {
    let link = cx.link().await?;
    let patience = cx.ttl() * 3;
    let locks = cx.builder(&link.backend).unavailable_after(patience).build()?;
    link.inject(Fault::Partition).await?;
    let start = cx.now();
    let limit = patience + call_limit(&cx) + Duration::from_millis(1500) + cx.slack();
    let answer =
        soon(&cx, limit, "acquire without a store", locks.named("lock")?.acquire()).await?;
    let kind = error_kind(answer, "acquire without a store")?;
    ensure!(
        matches!(kind, ErrorKind::NoAnswer | ErrorKind::Unavailable),
        "acquire without a store ended with {kind:?}"
    );
    let waited = cx.now().since(start);
    ensure!(
        waited >= patience,
        "acquire gave up on a silent store after {waited:?}, not {patience:?}"
    );
    Ok(())
}

async fn s06_busy_is_not_an_error(cx: Cx) -> Check {
    let (holder, locks) = (cx.locks().await?, cx.locks().await?);
    let guard = take(&cx, &holder, "lock").await?;
    let answer = locks.named("lock")?.try_acquire().await.demanded("try_acquire on a held lock")?;
    if answer.is_some() {
        return cx.not_alone("lock", 2, "two guards of one lock");
    }
    for limit in [Duration::ZERO, cx.ttl() / 4] {
        match locks.named("lock")?.acquire_timeout(limit).await {
            Ok(_guard) => return cx.not_alone("lock", 2, "two guards of one lock"),
            Err(error) => {
                let kind = error.kind();
                ensure!(
                    kind == ErrorKind::NotAcquired,
                    "a held lock is {kind:?} for acquire_timeout"
                );
            }
        }
    }
    guard.release().await?;
    Ok(())
}

async fn s06_an_error_is_not_busy(cx: Cx) -> Check {
    let link = cx.link().await?;
    let locks = cx.locks_on(&link.backend);
    for fault in [Fault::LoseNextRequest, Fault::LoseNextReply] {
        link.inject_into(2, fault).await?;
        if let Ok(None) = locks.named("lock")?.try_acquire().await {
            fail!(
                "{fault:?}: nobody else has tried to take the lock, and try_acquire says that another client holds it"
            );
        }
        cx.sleep(cx.ttl() * 2).await;
        locks.health().await.explain("a ping after two faults")?;
    }
    partitioned(&cx, &link, &locks).await
}

async fn partitioned(cx: &Cx, link: &Link, locks: &Locks) -> Check {
    link.inject(Fault::Partition).await?;
    if let Ok(answer) = locks.named("lock")?.try_acquire().await {
        fail!("a client that is cut off was answered {answer:?}");
    }
    let kind = error_kind(
        locks.named("lock")?.acquire_timeout(cx.ttl()).await,
        "a client that is cut off",
    )?;
    ensure!(
        matches!(kind, ErrorKind::NoAnswer | ErrorKind::Unavailable),
        "a client that is cut off is told {kind:?}"
    );
    link.inject(Fault::Heal).await?;
    soon(
        cx,
        cx.ttl() * 2 + cx.slack(),
        "the lock after a partition",
        locks.named("lock")?.acquire(),
    )
    .await??
    .release()
    .await?;
    Ok(())
}

async fn s06_an_unknown_outcome_is_said(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let locks = cx.locks_on(&link.backend);
    link.inject_into(2, Fault::LoseNextReply).await?;
    match locks.named("lock")?.ttl(cx.long_ttl()).try_acquire().await {
        Err(error) => ensure!(
            error.effect() == Effect::Unknown,
            "both answers were lost, but the error says that the store did not act: {error}"
        ),
        // A backend may have repaired one of them itself.
        Ok(Some(guard)) => drop(guard),
        Ok(None) => fail!(
            "nobody else has tried to take the lock, and try_acquire says that another client holds it"
        ),
    }
    let limit = Duration::from_secs(1) + cx.slack();
    free_within(&cx, &other, "lock", limit, "after an acquisition of unknown outcome").await?;

    let lock = locks.named("refused")?.ttl(cx.long_ttl());
    let before = link.struck();
    link.inject(Fault::LoseNextReply).await?;
    let (answer, refused) = tokio::join!(lock.acquire_timeout(cx.ttl()), async {
        cx.sleep(Duration::from_millis(1)).await;
        within(&cx, cx.ttl() / 2, has_struck(&cx, &link, before)).await;
        link.inject(Fault::Refuse).await
    });
    refused?;
    let says_no_effect = answer.as_ref().err().filter(|error| error.effect() == Effect::None);
    if let Some(error) = says_no_effect {
        // The answer that was lost may have been that to a request that only prepares the try.
        ensure!(
            cx.is_free(&other, "refused").await?,
            "an answer was lost and then the store refused the client, and the error says that the store did not act, and the lock is taken: {error}"
        );
    }
    drop(answer);
    Ok(())
}

async fn s06_an_acquisition_repairs_one_lost_answer(cx: Cx) -> Check {
    let link = cx.link().await?;
    let locks = cx.locks_on(&link.backend);
    for fault in [Fault::LoseNextReply, Fault::LoseNextRequest] {
        link.inject(fault).await?;
        let guard = locks.named("lock")?.try_acquire().await;
        match guard.explain("a try_acquire that meets one fault")? {
            Some(guard) => drop(guard.release().await),
            None => fail!(
                "{fault:?}: nobody else has tried to take the lock, and it is reported as busy"
            ),
        }
        cx.sleep(cx.ttl() * 2).await;
    }
    Ok(())
}
