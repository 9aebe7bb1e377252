//! C4 and L1: how long a lease lasts: not less than promised, and not much more.

use std::time::Duration;

use lock_core::{Attempt, Binding, Claim, ErrorKind, Renewal};

use crate::Fault;
use crate::cases::tools::way::Way;
use crate::cases::tools::{
    at_each_await, force, free_soon, free_within, got, holds, kept_until, many_renewals, renewed,
    soon, still_held, take_for, with_a_fraction,
};
use crate::context::cancel::drop_after;
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop, ensure, ensure_exactly, fail};

cases! {
    c04_a_grant_says_how_long_it_lasts []
        "the first answer of a claim that was never queued gives the length of the lease"
        covers [TryAcquire/New/Plain];
    c04_the_lock_is_kept_as_long_as_promised [Lease]
        "no other client gets the lock before the start of the call + valid_for"
        covers [TryAcquire/New/Plain];
    c04_a_repeat_is_kept_as_long_as_promised [Lease]
        "what a repeated try promises is kept, counted from that very call"
        covers [TryAcquire/Held/Plain];
    c04_renewals_keep_the_lock [Lease]
        "a lock that is renewed in time stays held for many ttls"
        covers [Renew/Held/Plain];
    c04_a_renewal_is_kept_as_long_as_promised [Lease]
        "no other client gets the lock before the start of the last renewal + valid_for"
        covers [Renew/Held/Plain];
    c04_a_check_promises_what_is_left [Lease]
        "a check promises no more than the rest of the lease"
        covers [Check/Held/Plain];
    c04_a_check_prolongs_nothing [Lease]
        "a lock that is checked but not renewed ends with its lease"
        covers [Check/Held/Plain];
    c04_failed_tries_prolong_nothing [Lease]
        "tries of others do not prolong a holder's lease"
        covers [TryAcquire/New/OtherHolder, TryAcquire/New/Expiry];
    c04_a_slow_answer_promises_no_more [Lease, Faults]
        "a grant whose answer was slow is promised from the start of the call, not from the answer"
        covers [TryAcquire/New/ReplyLate];
    c04_a_slow_renewal_promises_no_more [Lease, Faults]
        "a renewal whose answer was slow is promised from the start of the call, not from the answer"
        covers [Renew/Held/ReplyLate];
    c04_a_hand_over_has_its_full_ttl [Lease]
        "a waiter that is granted the lock has it for as long as the answer says"
        covers [TryAcquire/Waiting/OtherReleases];
    c04_validity_counts_from_the_send [Faults]
        "a guard's validity ends at the latest one ttl less the margin after the request was sent"
        guards [Acquire/Free/ReplyLate];
    c04_a_renewal_counts_from_its_send [Faults]
        "a renewed guard's validity counts from when the renewal was sent"
        guards [Renew/Secure/ReplyLate];
    c04_an_answer_after_the_lease_is_no_grant [Lease, Faults]
        "an acquisition whose answer came after the end of the lease gives no guard on that lease"
        guards [TryAcquire/Free/ReplyLate, TryAcquire/Free/Expiry];
    c04_the_ttl_is_rounded_up []
        "a guard has at least the requested ttl, in steps that the store can keep"
        guards [AcquireTimeout/Free/Plain, TryAcquire/Free/Plain];
    l01_an_abandoned_lock_is_free_after_its_ttl [Lease]
        "a lock whose holder has vanished can be taken one ttl later"
        covers [TryAcquire/New/Expiry];
    l01_a_try_that_died_half_way_blocks_for_one_ttl [Lease]
        "a client that died at any point of its try blocks the lock for at most one ttl"
        covers [TryAcquire/New/Dropped, TryAcquire/New/Expiry];
    l01_a_waiter_gets_an_abandoned_lock [Lease]
        "a waiter gets the lock of a holder that vanished, after its ttl and not before"
        covers [TryAcquire/Waiting/Expiry]
        guards [Acquire/Waiting/Expiry];
}

/// What a grant promised.
async fn promised(claim: &mut dyn Claim) -> Check<Duration> {
    match claim.try_acquire().await? {
        Attempt::Granted { valid_for: Some(valid_for), .. } => Ok(valid_for),
        other => fail!("the lock is free, and the first try was answered {other:?}"),
    }
}

async fn c04_a_grant_says_how_long_it_lasts(cx: Cx) -> Check {
    let backend = cx.backend().await?;
    let mut claim = cx.claim(&backend, "lock")?;
    let valid_for = promised(&mut *claim).await?;
    ensure!(
        valid_for > cx.ttl() / 2,
        "a lease of {:?} is promised for {valid_for:?} only: too little to renew it in time",
        cx.ttl()
    );
    claim.release().await?;
    Ok(())
}

async fn c04_the_lock_is_kept_as_long_as_promised(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for wait in [false, true] {
        let mut claim = a.claim(cx.request("lock")?.with_wait(wait))?;
        let start = cx.now();
        let valid_for = promised(&mut *claim).await?;
        kept_until(&cx, &b, "lock", start + valid_for).await?;
        claim.release().await?;
    }
    Ok(())
}

async fn c04_a_repeat_is_kept_as_long_as_promised(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for way in [Way::AtOnce, Way::AfterAWait] {
        let mut claim = way.held(&cx, &a, with_a_fraction(&cx)).await?;
        cx.sleep(cx.ttl() / 2).await;
        let start = cx.now();
        match claim.try_acquire().await? {
            Attempt::Granted { valid_for: Some(valid_for), .. } => {
                kept_until(&cx, &b, "lock", start + valid_for).await?;
            }
            Attempt::Granted { valid_for: None, .. } => {}
            other => fail!("a repeated try of the holder, {way:?}, was answered {other:?}"),
        }
        claim.release().await?;
    }
    Ok(())
}

async fn c04_renewals_keep_the_lock(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut claim, _) = cx.held(&a, "lock").await?;
    let step = cx.ttl() * 2 / 5;
    // A store may end a hold that is old, too, which is seen where it costs nothing to wait.
    let until = cx.now() + if cx.is_virtual() { Duration::from_secs(200) } else { step * 8 };
    while cx.now() < until {
        cx.sleep(step).await;
        renewed(&mut *claim).await?;
        still_held(&cx, &b, "lock", "while the lock was renewed in time").await?;
    }
    // A store may count them.
    for _ in 0..many_renewals(&cx) {
        renewed(&mut *claim).await?;
    }
    claim.release().await?;
    ensure!(cx.is_free(&b, "lock").await?, "the renewed lock was released and is not free");
    Ok(())
}

async fn c04_a_renewal_is_kept_as_long_as_promised(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut claim, _) = cx.held(&a, "lock").await?;
    let mut until = None;
    // The second one matters where an answer is credited to an earlier request.
    for pause in [cx.ttl() / 2, cx.ttl() / 4] {
        cx.sleep(pause).await;
        let start = cx.now();
        match claim.renew().await? {
            Renewal::Alive { valid_for } => {
                until = until.max(valid_for.map(|valid_for| start + valid_for));
            }
            other => fail!("a renewal in time was answered {other:?}"),
        }
    }
    match until {
        Some(until) => kept_until(&cx, &b, "lock", until).await,
        None => fail!("two renewals in time were answered without any promise"),
    }
}

async fn c04_a_check_promises_what_is_left(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for (way, renews) in Way::all(&cx).iter().flat_map(|way| [(way, false), (way, true)]) {
        let mut claim = way.held(&cx, &a, cx.ttl()).await?;
        if renews {
            renewed(&mut *claim).await?;
        }
        cx.sleep(cx.ttl() / 2).await;
        let start = cx.now();
        match claim.check().await? {
            Renewal::Alive { valid_for: Some(valid_for) } => {
                kept_until(&cx, &b, "lock", start + valid_for).await?;
            }
            Renewal::Alive { valid_for: None } => {}
            other => fail!("a check of a lock that is held, {way:?}, was answered {other:?}"),
        }
        claim.release().await?;
    }
    Ok(())
}

async fn c04_a_check_prolongs_nothing(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for way in Way::all(&cx) {
        let mut claim = way.held(&cx, &a, cx.ttl()).await?;
        let end = cx.now() + cx.ttl();
        while cx.now() < end.minus(cx.ttl() / 10) {
            claim.check().await?;
            cx.sleep(cx.ttl() / 10).await;
        }
        cx.sleep_until(end).await;
        let after = format!("after the end of a lease, {way:?}, that was checked and not renewed");
        free_soon(&cx, &b, "lock", &after).await?;
    }
    Ok(())
}

async fn c04_failed_tries_prolong_nothing(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (claim, _) = cx.held(&a, "lock").await?;
    drop(claim);
    let limit = cx.over();
    free_within(&cx, &b, "lock", limit, "after its holder vanished, and while others try").await
}

async fn c04_a_slow_answer_promises_no_more(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let mut claim = cx.claim(&link.backend, "lock")?;
    link.inject(Fault::DelayNextReply(cx.ttl() / 2)).await?;
    let start = cx.now();
    let valid_for = promised(&mut *claim).await?;
    kept_until(&cx, &other, "lock", start + valid_for).await
}

async fn c04_a_slow_renewal_promises_no_more(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let (mut claim, _) = cx.held(&link.backend, "lock").await?;
    cx.sleep(cx.ttl() / 4).await;
    link.inject(Fault::DelayNextReply(cx.ttl() / 2)).await?;
    let start = cx.now();
    match claim.renew().await? {
        Renewal::Alive { valid_for: Some(valid_for) } => {
            kept_until(&cx, &other, "lock", start + valid_for).await
        }
        Renewal::Alive { valid_for: None } => Ok(()),
        other => fail!("a renewal in time was answered {other:?}"),
    }
}

async fn c04_a_hand_over_has_its_full_ttl(cx: Cx) -> Check {
    for renews in [false, true] {
        a_hand_over_is_kept(&cx, renews, false).await?;
    }
    if cx.capabilities().inspect {
        a_hand_over_is_kept(&cx, false, true).await?;
    }
    // Whoever has a place may renew it before it learns that it has the lock. Another lock: a store may leave one free for a
    // moment that it has handed over for ten seconds.
    if cx.capabilities().fair { an_unseen_hand_over_is_kept(&cx).await } else { Ok(()) }
}

async fn an_unseen_hand_over_is_kept(cx: &Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(cx, &a, "unseen").await?;
    let mut waiter = cx.waiting_claim(&b, "unseen")?;
    let waits_since = cx.now();
    busy(cx, &mut *waiter).await?;
    holder.release().await?;
    cx.sleep(cx.ttl() / 10).await;
    let start = cx.now();
    match waiter.renew().await? {
        Renewal::Alive { valid_for: Some(valid_for) } => {
            kept_until(cx, &c, "unseen", start + valid_for).await?;
        }
        Renewal::Alive { valid_for: None } => {}
        // Then the lock may have gone to the next one.
        _ if cx.now().since(waits_since) >= cx.ttl() / 2 => {
            return Err(Stop::late("the machine was too slow to renew in time"));
        }
        other => fail!("a renewal in time, of a lock that was handed over, was answered {other:?}"),
    }
    waiter.release().await?;
    Ok(())
}

async fn a_hand_over_is_kept(cx: &Cx, renews: bool, is_forced: bool) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let (mut holder, _) = cx.held(&a, "lock").await?;
    let mut waiter = cx.waiting_claim(&b, "lock")?;
    let start = cx.now();
    let mut place = match waiter.try_acquire().await? {
        Attempt::Busy(busy) => busy.valid_for,
        other => fail!("the lock is held, and a waiter was answered {other:?}"),
    };
    cx.sleep(cx.ttl() / 2).await;
    if is_forced {
        force(cx, &a).await?
    } else {
        holder.release().await.map(drop)?
    }
    let looked = cx.now();
    let mut until = match waiter.try_acquire().await? {
        Attempt::Granted { valid_for: Some(valid_for), .. } => looked + valid_for,
        // Place and lock are one lease, so the place's promise holds.
        Attempt::Granted { valid_for: None, .. } => match place.take() {
            Some(valid_for) => start + valid_for,
            None => fail!("neither the place nor the grant says how long it lasts"),
        },
        other => fail!("the lock was released to the only waiter, who was answered {other:?}"),
    };
    if renews {
        // The place may have been that lease, and be old.
        cx.sleep(until.since(cx.now()) / 2).await;
        let start = cx.now();
        match waiter.renew().await? {
            Renewal::Alive { valid_for } => {
                until = until.max(valid_for.map_or(until, |valid_for| start + valid_for));
            }
            _ if cx.now() >= until => {
                return Err(Stop::late("the machine was too slow to renew in time"));
            }
            other => fail!("a renewal in time, of a lock after a wait, was answered {other:?}"),
        }
    }
    kept_until(cx, &c, "lock", until).await?;
    waiter.release().await?;
    Ok(())
}

async fn c04_validity_counts_from_the_send(cx: Cx) -> Check {
    let link = cx.link().await?;
    let locks = cx.builder(&link.backend).call_timeout(cx.ttl()).build()?;
    link.inject(Fault::DelayNextReply(cx.ttl() / 2)).await?;
    let sent = cx.now();
    // Without renewals: the first would be due at once after such an answer.
    let lock = locks.named("lock")?.ttl(cx.ttl()).no_renew();
    let guard = soon(&cx, cx.ttl() + cx.slack(), "taking a free lock", lock.acquire()).await??;
    let limit = cx.ttl() - cx.ttl() / 100 - Duration::from_millis(2);
    let valid_for = (cx.now() + guard.remaining()).since(sent);
    ensure!(
        valid_for <= limit + cx.skew(),
        "the guard believes in the lock for {valid_for:?} after its request, but a lease of {:?} less the margin is {limit:?}",
        cx.ttl()
    );
    guard.release().await?;
    Ok(())
}

async fn c04_a_renewal_counts_from_its_send(cx: Cx) -> Check {
    let link = cx.link().await?;
    let locks = cx.builder(&link.backend).call_timeout(cx.ttl()).build()?;
    let guard = got(&locks.named("lock")?.no_renew()).await?;
    cx.sleep(cx.ttl() / 4).await;
    link.inject(Fault::DelayNextReply(cx.ttl() / 2)).await?;
    let sent = cx.now();
    let renewed = guard.renew().await;
    // A client that keeps a session gives up a connection that is silent for this long: then
    // nothing was prolonged, and the bound below holds all the more.
    if cx.capabilities().binding == Binding::Lease {
        renewed?;
    }
    let limit = cx.ttl() - cx.ttl() / 100 - Duration::from_millis(2);
    let valid_for = (cx.now() + guard.remaining()).since(sent);
    ensure!(
        valid_for <= limit + cx.skew(),
        "after a renewal the guard believes in the lock for {valid_for:?} from the request on, which is more than {limit:?}"
    );
    guard.release().await?;
    Ok(())
}

async fn c04_an_answer_after_the_lease_is_no_grant(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let locks = cx.builder(&link.backend).call_timeout(cx.ttl() * 4).build()?;
    link.inject(Fault::DelayNextReply(cx.ttl() * 2)).await?;
    let guard = match locks.named("lock")?.try_acquire().await {
        // The repair took it again: it must then really be held.
        Ok(Some(guard)) => guard,
        Ok(None) => fail!(
            "nobody else has tried to take the lock, and the answer is that another client holds it"
        ),
        Err(_) => return free_soon(&cx, &other, "lock", "after an acquisition that failed").await,
    };
    ensure!(!guard.remaining().is_zero(), "a guard was returned whose validity had already ended");
    still_held(&cx, &other, "lock", "while a guard believes that it is held").await?;
    guard.release().await?;
    Ok(())
}

async fn c04_the_ttl_is_rounded_up(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let can = cx.capabilities().clone();
    for asked in
        [Duration::from_millis(10), Duration::from_millis(1001), Duration::from_micros(20_500)]
    {
        if can.max_ttl.is_some_and(|longest| asked > longest) {
            continue;
        }
        let guard =
            match locks.named("lock")?.ttl(asked).acquire_timeout(Duration::from_secs(5)).await {
                Ok(guard) => guard,
                // A lease of a few milliseconds may end before a slow store's answer arrives, every
                // time.
                Err(error)
                    if !cx.is_virtual()
                        && asked < Duration::from_millis(100)
                        && (error.is_retryable() || error.kind() == ErrorKind::NotAcquired) =>
                {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
        let (got, step) = (guard.ttl(), can.ttl_step.as_nanos().max(1));
        ensure!(got >= asked && got >= can.min_ttl, "a ttl of {asked:?} was cut to {got:?}");
        ensure!(
            got.as_nanos() % step == 0,
            "the store keeps steps of {:?}, not {got:?}",
            can.ttl_step
        );
        let _ = guard.release().await;
    }
    let guard = take_for(&cx, &locks, "other", cx.long_ttl()).await?;
    ensure!(
        guard.ttl() == cx.long_ttl(),
        "a ttl that the store can keep was changed to {:?}",
        guard.ttl()
    );
    guard.release().await?;
    Ok(())
}

async fn l01_an_abandoned_lock_is_free_after_its_ttl(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (claim, _) = cx.held(&a, "lock").await?;
    drop(claim);
    cx.sleep(cx.ttl()).await;
    free_soon(&cx, &b, "lock", "one ttl after its holder vanished").await
}

async fn l01_a_try_that_died_half_way_blocks_for_one_ttl(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut died = 0;
    at_each_await("try_acquire", async |polls| {
        let mut claim = cx.waiting_claim(&a, &format!("lock{polls}"))?;
        died = polls;
        drop_after(polls, claim.try_acquire()).await.done()
    })
    .await?;
    cx.sleep(cx.ttl()).await;
    for polls in 1..=died {
        let after = format!("one ttl after a client died at await {polls} of its try");
        free_soon(&cx, &b, &format!("lock{polls}"), &after).await?;
    }
    Ok(())
}

async fn l01_a_waiter_gets_an_abandoned_lock(cx: Cx) -> Check {
    let (backend, locks) = (cx.backend().await?, cx.locks().await?);
    let mut claim = cx.claim(&backend, "lock")?;
    let start = cx.now();
    let valid_for = promised(&mut *claim).await?;
    drop(claim);
    let limit = cx.over();
    let waiter = locks.named("lock")?.ttl(cx.long_ttl());
    let guard = soon(&cx, limit, "a waiter gets an abandoned lock", waiter.acquire()).await??;
    let waited = cx.now().since(start);
    ensure_exactly!(
        waited >= valid_for,
        "two holders: a waiter got the lock {waited:?} after a grant for {valid_for:?}"
    );
    let mut probe = cx.claim(&backend, "lock")?;
    busy(&cx, &mut *probe).await?;
    guard.release().await?;
    granted(&mut *probe).await?;
    Ok(())
}
