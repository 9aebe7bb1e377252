//! C3 and S1: at most one holder.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::{Attempt, ClockInstant, ErrorKind, LockBackend, Released};

use crate::Fault;
use crate::cases::tools::{holds, is_lost, queues, still_held, survives_a_restart, take, turns};
use crate::context::history::{History, HoldRecord};
use crate::context::seed::Seeded;
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, ensure_exactly};

cases! {
    c03_of_many_tries_at_once_one_is_granted []
        "of many clients that try at the same moment one gets the lock, and no other before its end"
        covers [TryAcquire/New/Plain, TryAcquire/New/OtherHolder];
    c03_a_slow_answer_is_no_second_grant [Faults]
        "a client with a slow request does not get what another one got first"
        covers [TryAcquire/New/ReplyLate, TryAcquire/New/OtherHolder];
    c03_a_place_that_has_ended_is_not_granted [Lease]
        "a waiter whose place ran out is not granted the lock while another client holds it"
        covers [TryAcquire/Waiting/Expiry, TryAcquire/Waiting/OtherHolder];
    c03_two_releases_make_one_grant []
        "the one lock that a release frees goes to only one of the clients that try at once"
        covers [Release/Done/OtherHolder, TryAcquire/New/OtherReleases];
    s01_a_plain_counter_loses_no_increment []
        "increments of a plain counter under the lock are never lost"
        guards [Acquire/Free/OtherHolder, Acquire/Waiting/OtherReleases, Release/Secure/QueueBehind];
    s01_holds_of_many_tasks_never_overlap []
        "the periods in which many tasks of many clients believe that they hold the lock are disjoint"
        guards [Acquire/Free/OtherHolder, AcquireTimeout/Waiting/OtherReleases,
            Release/Secure/QueueBehind, DropGuard/Secure/QueueBehind];
    s01_of_many_users_that_try_one_gets_it []
        "of many tasks that call try_acquire at once exactly one gets a guard"
        guards [TryAcquire/Free/Plain, TryAcquire/Free/OtherHolder];
    s01_the_next_holder_comes_after_the_end_of_belief [Faults]
        "a holder that is cut off has lost the lock by its own clock before another one gets it"
        guards [Acquire/Waiting/Expiry, Signal/Secure/Unreachable];
    s01_a_hold_survives_a_restart_of_the_store [Alone]
        "what the store has acknowledged is still held after the store was killed and restarted, or, where that is declared, is lost and reported as lost"
        covers [Release/Held/Restart, Renew/Held/Restart, TryAcquire/Held/Restart,
            Release/Lost/Restart, Release/Lost/OtherHolder];
}

async fn c03_of_many_tries_at_once_one_is_granted(cx: Cx) -> Check {
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(cx.backend().await?);
    }
    let mut chance = Seeded::announced("c03_of_many_tries_at_once_one_is_granted");
    for round in 0..if cx.is_virtual() { 40 } else { 10 } {
        let tries = (0..8).map(|i| {
            let delay = u32::try_from(chance.below(4)).unwrap_or(0);
            try_for_long(cx.clone(), Arc::clone(&clients[i % clients.len()]), delay)
        });
        let tasks: Vec<_> = tries.map(tokio::spawn).collect();
        let mut grants = Vec::new();
        for task in tasks {
            grants.extend(task.await??);
        }
        ensure!(!grants.is_empty(), "in round {round} no claim got a free lock");
        // On a machine that stalled, a lease may have ended before the last one tried.
        grants.sort_by_key(|grant| grant.from);
        for pair in grants.windows(2) {
            ensure_exactly!(
                pair[0].until <= pair[1].from,
                "in round {round} {} of 8 claims were granted one lock: one until {:?}, and another one at {:?}",
                grants.len(),
                pair[0].until,
                pair[1].from
            );
        }
        for mut grant in grants {
            grant.claim.release().await?;
        }
    }
    Ok(())
}

/// A claim that was granted the lock: certainly from when it got the answer until the store's
/// promise ends.
struct Grant {
    claim: Box<dyn lock_core::Claim>,
    from: ClockInstant,
    until: ClockInstant,
}

async fn try_for_long(
    cx: Cx,
    backend: Arc<dyn LockBackend>,
    turns_before: u32,
) -> Check<Option<Grant>> {
    turns(&cx, turns_before).await;
    let mut claim = backend.claim(cx.request_for("lock", cx.long_ttl())?)?;
    let sent = cx.now();
    Ok(match claim.try_acquire().await? {
        Attempt::Granted { valid_for, .. } => {
            let until = valid_for.map_or(ClockInstant::FAR_FUTURE, |valid_for| sent + valid_for);
            Some(Grant { claim, from: cx.now(), until })
        }
        _ => None,
    })
}

/// The claim, if it was granted.
async fn try_later(
    cx: Cx,
    backend: Arc<dyn LockBackend>,
    turns_before: u32,
) -> Check<Option<Box<dyn lock_core::Claim>>> {
    turns(&cx, turns_before).await;
    let mut claim = cx.claim(&backend, "lock")?;
    Ok(matches!(claim.try_acquire().await?, Attempt::Granted { .. }).then_some(claim))
}

async fn c03_a_slow_answer_is_no_second_grant(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    // Less than the time after which a client takes its server for silent.
    link.inject(Fault::DelayNextReply(cx.ttl() / 8)).await?;
    let slow = tokio::spawn(try_later(cx.clone(), Arc::clone(&link.backend), 0));
    cx.sleep(cx.ttl() / 16).await;
    let fast = try_later(cx.clone(), Arc::clone(&other), 0).await?;
    let slow = slow.await??;
    if fast.is_some() && slow.is_some() {
        let seen = "two clients hold the lock: one looked, the other took it, then the first one took it too";
        return cx.not_alone("lock", 2, seen);
    }
    ensure!(fast.is_some() || slow.is_some(), "the lock was free, but neither client got it");
    Ok(())
}

async fn c03_a_place_that_has_ended_is_not_granted(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut late = cx.waiting_claim(&b, "lock")?;
    busy(&cx, &mut *late).await?;
    cx.sleep(cx.over()).await;
    let mut next = queues(&cx, &c, "lock").await?;
    holder.release().await?;
    granted(&mut *next).await?;
    busy(&cx, &mut *late).await?;
    ensure!(
        granted(&mut *next).await.is_ok(),
        "the holder lost the lock to a waiter whose place had run out"
    );
    Ok(())
}

async fn c03_two_releases_make_one_grant(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for _ in 0..10 {
        let (mut holder, _) = cx.held(&a, "lock").await?;
        let (release, first, second) = tokio::join!(
            async {
                holder.release().await?;
                holder.release().await
            },
            try_later(cx.clone(), Arc::clone(&a), 1),
            try_later(cx.clone(), Arc::clone(&b), 1),
        );
        release?;
        let (first, second) = (first?, second?);
        if first.is_some() && second.is_some() {
            return cx.not_alone("lock", 2, "two claims hold the lock after one release");
        }
        for mut claim in first.into_iter().chain(second) {
            claim.release().await?;
        }
    }
    Ok(())
}

async fn s01_a_plain_counter_loses_no_increment(cx: Cx) -> Check {
    let (tasks, times) = if cx.is_virtual() { (8, 25) } else { (6, 10) };
    // Read and written separately: not an atomic increment.
    let counter = Arc::new(AtomicU64::new(0));
    let clients = [cx.locks().await?, cx.locks().await?, cx.locks().await?];
    let mut workers = Vec::new();
    for task in 0..tasks {
        let (locks, counter) = (clients[task % 3].clone(), Arc::clone(&counter));
        workers.push(tokio::spawn(async move {
            let mut in_time = true;
            for _ in 0..times {
                let guard = locks.named("counter")?.acquire().await?;
                let seen = counter.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                counter.store(seen + 1, Ordering::SeqCst);
                // Else a holder may have stood still until its lease had ended.
                in_time &= guard.token().is_ok();
                guard.release().await?;
            }
            Ok::<_, lock_core::Error>(in_time)
        }));
    }
    let mut in_time = true;
    for worker in workers {
        in_time &= worker.await??;
    }
    let (total, expected) =
        (counter.load(Ordering::SeqCst), u64::try_from(tasks * times).unwrap_or(0));
    ensure_exactly!(
        total == expected || !in_time,
        "{expected} increments under the lock made {total}"
    );
    ensure!(total == expected, "{expected} increments under the lock made {total}");
    Ok(())
}

async fn s01_holds_of_many_tasks_never_overlap(cx: Cx) -> Check {
    let chance = Seeded::announced("s01_holds_of_many_tasks_never_overlap");
    let history = History::default();
    let mut workers = Vec::new();
    let clients = [cx.locks().await?, cx.locks().await?, cx.locks().await?, cx.locks().await?];
    let times = if cx.is_virtual() { 25 } else { 8 };
    for task in 0..8_u32 {
        let locks = clients[task as usize % clients.len()].clone();
        let (cx, history) = (cx.clone(), history.clone());
        let mut chance = Seeded::from(chance.seed() ^ u64::from(task));
        workers.push(tokio::spawn(async move {
            let mut loops = 0;
            while loops < times {
                let invoked = cx.now().as_nanos();
                let lock = locks.named("lock")?;
                // Some give up, some never release: neither may leave a trace in the order.
                let guard = match chance.below(8) {
                    0 => match lock.acquire_timeout(cx.ttl() / 50).await {
                        Ok(guard) => guard,
                        // On a busy machine the answer itself may come too late.
                        Err(error)
                            if matches!(
                                error.kind(),
                                ErrorKind::NotAcquired | ErrorKind::NoAnswer
                            ) =>
                        {
                            continue;
                        }
                        Err(error) => return Err(error.into()),
                    },
                    _ => lock.acquire().await?,
                };
                loops += 1;
                let granted = cx.now().as_nanos();
                let fence = guard.token()?.get();
                cx.sleep(Duration::from_micros(chance.below(5000))).await;
                let valid_until = (cx.now() + guard.remaining()).as_nanos();
                let mut hold = HoldRecord::new(task, invoked, granted, fence, valid_until);
                let before = cx.now().as_nanos();
                hold.release_invoked = Some(before);
                if chance.below(8) == 0 {
                    drop(guard);
                } else {
                    guard.release().await?;
                    hold.released = Some(cx.now().as_nanos());
                }
                history.add(hold);
            }
            Check::Ok(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    let holds = history.len();
    ensure!(holds == 8 * times, "{holds} holds were recorded, not {}", 8 * times);
    let checked = history.check();
    ensure_exactly!(checked.is_ok(), "{checked:?}");
    Ok(())
}

async fn s01_of_many_users_that_try_one_gets_it(cx: Cx) -> Check {
    let clients = [cx.locks().await?, cx.locks().await?];
    for _ in 0..5 {
        let tries = (0..12).map(|i| {
            let lock = clients[i % 2].named("lock");
            tokio::spawn(async move { lock?.try_acquire().await })
        });
        let tries: Vec<_> = tries.collect();
        let mut guards = Vec::new();
        for attempt in tries {
            guards.extend(attempt.await??);
        }
        let held = guards.iter().filter(|guard| !is_lost(guard)).count();
        ensure_exactly!(held <= 1, "{held} of 12 tasks hold one lock");
        ensure!(guards.len() == 1, "{} of 12 tries got a free lock", guards.len());
        for guard in guards {
            guard.release().await?;
        }
    }
    Ok(())
}

async fn s01_the_next_holder_comes_after_the_end_of_belief(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.locks().await?);
    let guard = take(&cx, &cx.locks_on(&link.backend), "lock").await?;
    let fence = guard.token()?;
    cx.sleep(cx.ttl()).await;
    ensure!(
        !is_lost(&guard),
        "a lock that is renewed was lost without a fault: {:?}",
        guard.state()
    );
    link.inject(Fault::Partition).await?;
    let next = crate::cases::tools::soon(
        &cx,
        cx.over(),
        "a waiter gets the lock of a holder that is cut off",
        other.named("lock")?.acquire(),
    )
    .await??;
    ensure_exactly!(
        is_lost(&guard),
        "two guards believe that they hold the lock: {:?}",
        guard.state()
    );
    ensure_exactly!(next.token()? > fence, "the new holder's token is not greater");
    Ok(())
}

async fn s01_a_hold_survives_a_restart_of_the_store(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut claim = holds(&cx, &a, "lock").await?;
    let token = granted(&mut *claim).await?;
    if !survives_a_restart(&cx, &mut *claim).await? {
        let (mut next, _) = cx.held(&b, "lock").await?;
        let released = claim.release().await?;
        ensure!(
            released == Released::AlreadyGone,
            "a hold was lost in a restart, and its release is answered {released:?}"
        );
        still_held(&cx, &a, "lock", "after the release of a hold that was lost").await?;
        next.release().await?;
        return Ok(());
    }
    still_held(&cx, &b, "lock", "after a restart of the store").await?;
    let again = granted(&mut *claim).await?;
    ensure!(again == token, "after a restart of the store the token {token} became {again}");
    claim.release().await?;
    let next = cx.fence_if_free(&b, "lock").await?;
    ensure_exactly!(
        next.is_some_and(|next| next > token),
        "the next token, {next:?}, is not above {token}"
    );
    Ok(())
}
