//! L3 and L5: the order in which waiters are served, and what dead ones cost the others.

use std::time::Duration;

use lock_core::{Attempt, Locks};

use crate::cases::tools::{
    ended_too_early, holds, many_renewals, queues, renewed, served_in_order, soon, take_for, waits,
    within,
};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, fail};

cases! {
    l03_waiters_are_served_in_order [Fair]
        "waiting claims are granted the lock in the order of their arrival"
        covers [TryAcquire/Waiting/OtherReleases, TryAcquire/Waiting/QueueBehind,
            Release/Held/QueueBehind];
    l03_users_are_served_in_order [Fair]
        "waiting tasks get the lock in the order of their arrival"
        guards [Acquire/Waiting/OtherReleases, Acquire/Waiting/QueueBehind,
            Release/Secure/QueueBehind];
    l03_a_newcomer_does_not_pass [Fair]
        "a claim that comes when the lock was just released does not overtake the waiters"
        covers [TryAcquire/New/OtherReleases, TryAcquire/New/QueueBehind];
    l03_a_newcomer_does_not_pass_after_an_expiry [Fair, Lease]
        "a claim that comes when the holder's lease has ended does not overtake the waiters"
        covers [TryAcquire/New/Expiry, TryAcquire/New/QueueBehind, TryAcquire/Waiting/Expiry];
    l03_a_renewed_place_is_kept [Fair, Lease]
        "a waiter that renews its place keeps it for many ttls"
        covers [Renew/Waiting/Plain, Renew/Waiting/QueueBehind];
    l03_a_waiting_user_keeps_its_place [Fair]
        "a task that waits for many ttls keeps its place"
        guards [Acquire/Waiting/Plain, Acquire/Waiting/QueueBehind];
    l03_every_waiter_is_served []
        "of many tasks that want the lock again and again each gets it, in bounded time"
        guards [Acquire/Waiting/QueueBehind];
    l05_a_dead_waiter_delays_by_one_ttl [Lease]
        "a waiter that died delays the next one by at most its own ttl"
        guards [Acquire/Waiting/Expiry];
    l05_many_dead_waiters_delay_by_one_ttl [Lease]
        "many waiters that died together delay the next one by one ttl, not by one each"
        guards [Acquire/Waiting/Expiry];
    l05_a_waiter_that_died_long_ago_delays_nobody [Lease]
        "a waiter that died more than a ttl before the release is passed over at once"
        covers [TryAcquire/Waiting/Expiry]
        guards [Acquire/Waiting/Expiry];
    l05_a_cancelled_waiter_delays_nobody []
        "a task that stopped waiting is passed over at once"
        guards [Acquire/Waiting/Dropped, Acquire/Waiting/QueueBehind];
}

async fn l03_waiters_are_served_in_order(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?, cx.backend().await?];
    let mut holder = holds(&cx, &clients[0], "lock").await?;
    let mut waiters = Vec::new();
    for i in 0..9 {
        waiters.push(queues(&cx, &clients[i % 3], "lock").await?);
    }
    for turn in 0..waiters.len() {
        holder.release().await?;
        // The last one tries first, but must not be served first.
        for later in (turn + 1..waiters.len()).rev() {
            busy(&cx, &mut *waiters[later]).await?;
        }
        granted(&mut *waiters[turn]).await?;
        std::mem::swap(&mut holder, &mut waiters[turn]);
    }
    holder.release().await?;
    Ok(())
}

/// Waits until the store shows this many waiters: a place is taken only when the request has
/// reached the store, which may take a while on a busy machine. If the store shows none, waits for
/// as long as that should take.
pub(crate) async fn arrived(cx: &Cx, locks: &Locks, waiters: usize) -> Check {
    let shown = async || -> Check<Option<usize>> {
        if !cx.capabilities().inspect {
            return Ok(None);
        }
        Ok(locks.inspect("lock").await?.and_then(|info| info.waiters))
    };
    let start = cx.now();
    while let Some(seen) = shown().await? {
        if seen >= waiters {
            return Ok(());
        }
        let waited = cx.now().since(start);
        ensure!(waited < cx.slack(), "{seen} wait after {waited:?}, but {waiters} have asked");
        cx.sleep(Duration::from_millis(2)).await;
    }
    cx.sleep(Duration::from_millis(if cx.is_virtual() { 5 } else { 100 })).await;
    Ok(())
}

async fn l03_users_are_served_in_order(cx: Cx) -> Check {
    let clients = [cx.locks().await?, cx.locks().await?];
    let guard = take_for(&cx, &clients[0], "lock", cx.long_ttl()).await?;
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for i in 0..12_usize {
        let lock = clients[i % 2].named("lock")?.ttl(cx.long_ttl());
        let served = served.clone();
        tokio::spawn(async move {
            let guard = lock.acquire().await?;
            let _ = served.send(i);
            guard.release().await
        });
        arrived(&cx, &clients[0], i + 1).await?;
    }
    guard.release().await?;
    for expected in 0..12 {
        let next = soon(&cx, cx.slack(), "a waiter gets the lock", order.recv()).await?;
        ensure!(
            next == Some(expected),
            "waiter {next:?} was served when it was the turn of {expected}"
        );
    }
    Ok(())
}

async fn l03_a_newcomer_does_not_pass(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut waiter = queues(&cx, &b, "lock").await?;
    holder.release().await?;
    for wait in [false, true] {
        let mut newcomer = c.claim(cx.request("lock")?.with_wait(wait))?;
        let answer = newcomer.try_acquire().await?;
        ensure!(
            matches!(answer, Attempt::Busy { .. }),
            "the lock was passed to a waiter, and a newcomer was answered {answer:?}"
        );
        newcomer.release().await?;
    }
    granted(&mut *waiter).await?;
    waiter.release().await?;
    Ok(())
}

async fn l03_a_newcomer_does_not_pass_after_an_expiry(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let (holder, _) = cx.held(&a, "lock").await?;
    drop(holder);
    let mut waiter = queues(&cx, &b, "lock").await?;
    cx.sleep(cx.over()).await;
    let mut newcomer = cx.claim(&c, "lock")?;
    busy(&cx, &mut *newcomer).await?;
    granted(&mut *waiter).await?;
    waiter.release().await?;
    Ok(())
}

async fn l03_a_renewed_place_is_kept(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut first = cx.waiting_claim(&b, "lock")?;
    busy(&cx, &mut *first).await?;
    let mut second = queues(&cx, &c, "lock").await?;
    for _ in 0..8 {
        cx.sleep(cx.ttl() * 2 / 5).await;
        renewed(&mut *first).await?;
    }
    // A store may count them.
    for _ in 0..many_renewals(&cx) {
        renewed(&mut *first).await?;
    }
    holder.release().await?;
    served_in_order(&cx, &mut *first, &mut *second).await
}

async fn l03_a_waiting_user_keeps_its_place(cx: Cx) -> Check {
    let (holder, first, second) = (cx.locks().await?, cx.locks().await?, cx.locks().await?);
    let guard = take_for(&cx, &holder, "lock", cx.long_ttl()).await?;
    let lock = first.named("lock")?;
    let waiting = tokio::spawn(async move { lock.acquire().await });
    cx.sleep(cx.ttl() / 4).await;
    let lock = second.named("lock")?;
    let late = tokio::spawn(async move { lock.acquire().await });
    cx.sleep(cx.ttl() * 5).await;
    guard.release().await?;
    let next = soon(&cx, cx.slack(), "the first waiter gets the lock", waiting).await???;
    ensure!(!late.is_finished(), "the second waiter was granted the lock of the first");
    next.release().await?;
    soon(&cx, cx.slack(), "the second waiter gets the lock", late).await???.release().await?;
    Ok(())
}

async fn l03_every_waiter_is_served(cx: Cx) -> Check {
    let clients = [cx.locks().await?, cx.locks().await?];
    let mut workers = Vec::new();
    for i in 0..8 {
        let lock = clients[i % 2].named("lock")?.ttl(cx.long_ttl());
        let cx = cx.clone();
        workers.push(tokio::spawn(async move {
            for _ in 0..4 {
                let guard = lock.acquire().await?;
                cx.sleep(Duration::from_millis(2)).await;
                guard.release().await?;
            }
            Ok::<_, lock_core::Error>(())
        }));
    }
    for (i, worker) in workers.into_iter().enumerate() {
        let limit = Duration::from_secs(20) + cx.slack();
        soon(&cx, limit, &format!("task {i} of 8 gets the lock four times"), worker).await???;
    }
    Ok(())
}

/// A user waits behind `dead` waiters that die before the lock is released; how long it took. Meanwhile the
/// holder renews, and others look.
async fn behind_the_dead(cx: &Cx, dead: usize, dead_for: Duration) -> Check<Duration> {
    let (backend, holder, waiter) = (cx.backend().await?, cx.locks().await?, cx.locks().await?);
    let guard = take_for(cx, &holder, "lock", cx.long_ttl()).await?;
    for _ in 0..dead {
        let mut claim = cx.waiting_claim(&backend, "lock")?;
        busy(cx, &mut *claim).await?;
    }
    let waiting = waits(cx, &waiter, "lock")?;
    let end = cx.now() + dead_for + cx.ttl() / 20;
    let mut alive = queues(cx, &backend, "lock").await?;
    while cx.now() < end {
        cx.sleep_until(end.min(cx.now() + cx.ttl() / 4)).await;
        busy(cx, &mut *alive).await?;
        guard.renew().await?;
    }
    alive.release().await?;
    let start = cx.now();
    guard.release().await?;
    let limit = cx.ttl() * 3 + cx.lapse();
    let next = soon(cx, limit, "a waiter behind dead ones gets the lock", waiting).await???;
    let took = cx.now().since(start);
    next.release().await?;
    Ok(took)
}

async fn l05_a_dead_waiter_delays_by_one_ttl(cx: Cx) -> Check {
    let took = behind_the_dead(&cx, 1, Duration::ZERO).await?;
    let limit = cx.over();
    ensure!(
        took <= limit,
        "one dead waiter with a ttl of {:?} cost the next one {took:?}",
        cx.ttl()
    );
    Ok(())
}

async fn l05_many_dead_waiters_delay_by_one_ttl(cx: Cx) -> Check {
    let took = behind_the_dead(&cx, 5, Duration::ZERO).await?;
    let limit = cx.over();
    ensure!(
        took <= limit,
        "five dead waiters with a ttl of {:?} cost the next one {took:?}",
        cx.ttl()
    );
    Ok(())
}

async fn l05_a_waiter_that_died_long_ago_delays_nobody(cx: Cx) -> Check {
    let took = behind_the_dead(&cx, 2, cx.ttl() * 2).await?;
    let limit = Duration::from_millis(300) + cx.slack();
    ensure!(
        took <= limit,
        "waiters that died two ttls before the release cost the next one {took:?}"
    );
    Ok(())
}

async fn l05_a_cancelled_waiter_delays_nobody(cx: Cx) -> Check {
    let (holder, first, second) = (cx.locks().await?, cx.locks().await?, cx.locks().await?);
    let guard = take_for(&cx, &holder, "lock", cx.long_ttl()).await?;
    let lock = first.named("lock")?.ttl(cx.long_ttl());
    let mut cancelled = Box::pin(lock.acquire());
    if let Some(second) = within(&cx, cx.ttl() / 10, &mut cancelled).await {
        return ended_too_early(&cx, "lock", second);
    }
    let patient = waits(&cx, &second, "lock")?;
    cx.sleep(cx.ttl() / 10).await;
    drop(cancelled);
    guard.release().await?;
    let limit = Duration::from_millis(300) + cx.slack();
    let next = soon(&cx, limit, "the waiter behind one that was cancelled gets the lock", patient);
    next.await???.release().await?;
    let mut probe = cx.claim(&cx.backend().await?, "lock")?;
    match probe.try_acquire().await? {
        Attempt::Granted { .. } => {}
        other => fail!("all have left, but a try is answered {other:?}"),
    }
    probe.release().await?;
    Ok(())
}
