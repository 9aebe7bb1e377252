//! C5, C13 and L2: how a waiter is woken, and how it leaves.

use std::time::Duration;

use lock_core::{Attempt, ErrorKind, Released, Renewal};

use crate::Fault;
use crate::cases::tools::detached::Detached;
use crate::cases::tools::{
    STEPS, ended_too_early, holds, is_quiet, longest_name, missed_its_turn, pushed, queues, soon,
    still_waits, take_away, take_for, turns, waits, within,
};
use crate::context::cancel::drop_after;
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, ensure_exactly, fail};

cases! {
    c05_a_release_is_pushed [Push]
        "changed returns when the holder releases"
        covers [Changed/Waiting/OtherReleases];
    c05_a_change_before_the_wait_is_not_missed [Push]
        "a release between the look and the call of changed makes that call return"
        covers [Changed/Waiting/OtherReleases];
    c05_a_change_during_the_look_is_not_missed [Push]
        "a release during try_acquire makes a later call of changed return"
        covers [Changed/Waiting/OtherReleases, TryAcquire/New/OtherReleases];
    c05_a_change_after_an_error_is_not_missed [Push, Faults]
        "a waiter of which a call had no answer is told of a release that comes later"
        covers [Changed/Waiting/ReplyLost, Changed/Waiting/OtherReleases];
    c05_a_dropped_wait_misses_nothing [Push]
        "changed, dropped at any await, does not swallow a change"
        covers [Changed/Waiting/Dropped, Changed/Waiting/OtherReleases];
    c05_a_check_is_no_look [Push]
        "a check or a renewal between a change and the wait does not swallow the change"
        covers [Changed/Waiting/OtherReleases, Check/Waiting/OtherReleases,
            Renew/Waiting/OtherReleases];
    c05_a_change_is_no_grant [Push]
        "after changed, another look decides: a claim is granted the lock only if it is free"
        covers [TryAcquire/Waiting/OtherHolder, TryAcquire/Waiting/Forced];
    c05_changed_is_harmless_anywhere []
        "changed may be called and dropped in every state of a claim, and changes nothing"
        covers [Changed/Held/Plain, Changed/Held/Dropped, Changed/Held/QueueBehind,
            Changed/Waiting/Plain, Changed/Waiting/Dropped, TryAcquire/Held/QueueBehind];
    l02_a_release_wakes_a_waiter []
        "a waiter gets a released lock long before the lease would have ended"
        covers [Release/Held/QueueBehind]
        guards [Acquire/Waiting/OtherReleases, Release/Secure/QueueBehind];
    l02_every_release_wakes_somebody []
        "of many waiters one after the other gets the lock, with no lost wake-up"
        covers [Release/Held/QueueBehind, Changed/Waiting/QueueBehind]
        guards [Acquire/Waiting/OtherReleases, Acquire/Waiting/QueueBehind];
    l02_a_lost_push_is_made_good [Faults]
        "a waiter that was cut off during the release gets the lock by polling"
        covers [Changed/Waiting/Unreachable, TryAcquire/Waiting/Unreachable]
        guards [Acquire/Waiting/Unreachable];
    l02_a_push_is_faster_than_a_look_now_and_then [Push]
        "half of the waiters that are pushed have the lock within a tenth of a second of its release, or twenty answers of the store";
    l02_a_forced_release_wakes_a_waiter []
        "a waiter gets a lock that was taken away from its holder"
        covers [ForceRelease/Open/QueueBehind]
        guards [Acquire/Waiting/Forced, Check/Secure/Forced];
    c13_a_refused_try_leaves_no_place []
        "a busy answer to a claim that does not wait leaves nothing in the way of the next one"
        covers [TryAcquire/New/OtherHolder];
    c13_a_waiter_that_gives_up_leaves_no_place []
        "a waiter that gives up before its turn is not waited for"
        covers [Release/Waiting/Plain, Release/Waiting/QueueBehind];
    c13_a_waiter_that_declines_passes_it_on []
        "a waiter that gives up when the lock is already its own passes it on at once"
        covers [Release/Waiting/OtherReleases, Release/Waiting/QueueBehind];
    c13_a_timed_out_waiter_passes_it_on []
        "an acquire that runs out of time does not keep the next waiter waiting"
        guards [AcquireTimeout/Waiting/Plain, AcquireTimeout/Waiting/QueueBehind];
}

async fn c05_a_change_after_an_error_is_not_missed(cx: Cx) -> Check {
    let (holder, link) = (cx.backend().await?, cx.link().await?);
    for call in ["try_acquire", "renew", "check"] {
        let mut held = holds(&cx, &holder, call).await?;
        let mut waiter =
            link.backend.claim(cx.request_for(call, cx.long_ttl())?.with_wait(true))?;
        busy(&cx, &mut *waiter).await?;
        link.inject(Fault::LoseNextReply).await?;
        let _ = match call {
            "try_acquire" => waiter.try_acquire().await.err(),
            "renew" => waiter.renew().await.err(),
            _ => waiter.check().await.err(),
        };
        // What is not granted yet is waited for, and not asked for again and again.
        let waiting = tokio::spawn(async move {
            loop {
                waiter.changed().await?;
                if let Ok(Attempt::Granted { .. }) = waiter.try_acquire().await {
                    return Check::Ok(waiter);
                }
            }
        });
        cx.sleep(cx.ttl() / 2).await;
        held.release().await?;
        let what = format!("a waiter whose {call} had no answer is told of a release");
        let mut next = soon(&cx, cx.slack(), &what, waiting).await???;
        if cx.capabilities().inspect {
            is_quiet(&cx, &mut *next).await?;
            take_away(&cx, &holder, call).await?;
            let what = format!("a holder whose {call} had no answer is told of its loss");
            soon(&cx, cx.slack(), &what, next.changed()).await??;
        }
        next.release().await?;
    }
    Ok(())
}

async fn c05_a_release_is_pushed(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    // The first waits so long that a subscription which ends after a while is seen.
    let long = if cx.is_virtual() { cx.long_ttl() * 3 / 4 } else { Duration::from_secs(6) };
    for (name, pause) in
        [("lock", long), (&longest_name(), cx.ttl() / 4), ("日本 a/b%:* 🔑", cx.ttl() / 4)]
    {
        let mut holder = holds(&cx, &a, name).await?;
        let mut waiting = pushed(queues(&cx, &b, name).await?);
        cx.sleep(pause).await;
        still_waits(&cx, name, &mut waiting).await?;
        holder.release().await?;
        let what = format!("a waiter for {name:?} is told of a release");
        soon(&cx, cx.slack(), &what, waiting).await???;
    }
    if cx.capabilities().detachable {
        let hold = Detached::take(&cx, &a, "detached", cx.long_ttl()).await?;
        let mut waiting = pushed(queues(&cx, &b, "detached").await?);
        cx.sleep(cx.ttl() / 4).await;
        still_waits(&cx, "detached", &mut waiting).await?;
        a.claim(hold.resumed())?.release().await?;
        soon(&cx, cx.slack(), "a waiter is told of a release by token", waiting).await???;
    }
    Ok(())
}

/// How many hand-overs are timed.
const HAND_OVERS: u64 = 20;

async fn l02_a_push_is_faster_than_a_look_now_and_then(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut answers, mut hand_overs) = (Vec::new(), Vec::new());
    for nth in 0..HAND_OVERS {
        let name = format!("lock {nth}");
        let mut holder = holds(&cx, &a, &name).await?;
        let mut waiter = queues(&cx, &b, &name).await?;
        let clock = cx.clone();
        let waiting = tokio::spawn(async move {
            loop {
                waiter.changed().await?;
                if let Attempt::Granted { .. } = waiter.try_acquire().await? {
                    let granted = clock.now();
                    waiter.release().await?;
                    return Check::Ok(granted);
                }
            }
        });
        let asked = cx.now();
        holder.check().await?;
        answers.push(cx.now().since(asked));
        // At any time of a look now and then.
        cx.sleep(Duration::from_millis(10 * (nth + 1))).await;
        let released = cx.now();
        holder.release().await?;
        let granted = soon(&cx, cx.ttl() * 8, "a waiter is told of a release", waiting).await???;
        hand_overs.push(granted.since(released));
    }
    let (answer, hand_over) = (median(answers), median(hand_overs));
    // Who looks every 400 ms has half of them after 200 ms.
    let limit = Duration::from_millis(100).max(answer * 20);
    ensure!(
        hand_over <= limit,
        "the store declares pushes, half of {HAND_OVERS} hand-overs took longer than {hand_over:?}, and an answer takes {answer:?}"
    );
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

async fn c05_a_change_before_the_wait_is_not_missed(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for pause in [Duration::ZERO, Duration::from_millis(5), cx.ttl() / 4] {
        let mut holder = holds(&cx, &a, "lock").await?;
        let mut waiter = queues(&cx, &b, "lock").await?;
        holder.release().await?;
        cx.sleep(pause).await;
        soon(&cx, cx.slack(), "changed, called after the release", waiter.changed()).await??;
        granted(&mut *waiter).await?;
        waiter.release().await?;
    }
    Ok(())
}

async fn c05_a_change_during_the_look_is_not_missed(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for steps in 0..STEPS {
        let mut holder = holds(&cx, &a, "lock").await?;
        let mut waiter = b.claim(cx.request_for("lock", cx.long_ttl())?.with_wait(true))?;
        let (looked, released) = tokio::join!(waiter.try_acquire(), async {
            turns(&cx, steps).await;
            holder.release().await
        });
        released?;
        if let Attempt::Busy { .. } = looked? {
            let what = format!("changed, after a release {steps} turns into the look");
            soon(&cx, cx.slack(), &what, waiter.changed()).await??;
            granted(&mut *waiter).await?;
        }
        waiter.release().await?;
    }
    Ok(())
}

async fn c05_a_dropped_wait_misses_nothing(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for polls in 1..=6 {
        let mut holder = holds(&cx, &a, "lock").await?;
        let mut waiter = queues(&cx, &b, "lock").await?;
        // Dropped before, while and after the release.
        for _ in 0..3 {
            drop(within(&cx, Duration::from_millis(2), drop_after(polls, waiter.changed())).await);
        }
        let (released, _) = tokio::join!(
            holder.release(),
            drop_after(polls, async {
                let _ = within(&cx, Duration::from_millis(2), waiter.changed()).await;
            })
        );
        released?;
        // A dropped call may have been ready, or not: a later look or a later call must see it.
        if let Attempt::Busy { .. } = waiter.try_acquire().await? {
            soon(&cx, cx.slack(), "changed, called again after it was dropped", waiter.changed())
                .await??;
            granted(&mut *waiter).await?;
        }
        waiter.release().await?;
    }
    Ok(())
}

async fn c05_a_check_is_no_look(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for renews in [false, true] {
        let mut holder = holds(&cx, &a, "lock").await?;
        let mut waiter = queues(&cx, &b, "lock").await?;
        holder.release().await?;
        cx.sleep(cx.ttl() / 20).await;
        if renews {
            waiter.renew().await?
        } else {
            waiter.check().await?
        };
        let what = "changed, after a release and a call that is no look";
        soon(&cx, cx.slack(), what, waiter.changed()).await??;
        granted(&mut *waiter).await?;
        waiter.release().await?;
    }
    Ok(())
}

async fn c05_a_change_is_no_grant(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut waiter = queues(&cx, &b, "lock").await?;
    holder.release().await?;
    soon(&cx, cx.slack(), "a waiter is told of a release", waiter.changed()).await??;
    // Between the push and the look, the lock that the waiter may have been given is taken away.
    cx.store().break_hold(&cx.key("lock")?).await?;
    let mut other = c.claim(cx.request_for("lock", cx.long_ttl())?)?;
    if let Attempt::Granted { .. } = other.try_acquire().await? {
        busy(&cx, &mut *waiter).await?;
    } else {
        granted(&mut *waiter).await?;
    }
    waiter.release().await?;
    other.release().await?;
    Ok(())
}

async fn c05_changed_is_harmless_anywhere(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let token = granted(&mut *holder).await?;
    let mut waiter = queues(&cx, &b, "lock").await?;
    for polls in 1..=4 {
        drop(within(&cx, Duration::from_millis(2), drop_after(polls, holder.changed())).await);
        drop(within(&cx, Duration::from_millis(2), drop_after(polls, waiter.changed())).await);
        ensure!(granted(&mut *holder).await? == token, "changed cost the holder its lock");
        busy(&cx, &mut *waiter).await?;
    }
    holder.release().await?;
    granted(&mut *waiter).await?;
    waiter.release().await?;
    Ok(())
}

async fn l02_a_release_wakes_a_waiter(cx: Cx) -> Check {
    let (holder, waiter) = (cx.locks().await?, cx.locks().await?);
    let guard = take_for(&cx, &holder, "lock", cx.long_ttl()).await?;
    let waiting = waits(&cx, &waiter, "lock")?;
    cx.sleep(cx.ttl()).await;
    if waiting.is_finished() {
        return ended_too_early(&cx, "lock", waiting.await?);
    }
    guard.release().await?;
    let next = soon(
        &cx,
        Duration::from_millis(300) + cx.slack(),
        "a waiter gets a released lock",
        waiting,
    );
    next.await???.release().await?;
    Ok(())
}

async fn l02_every_release_wakes_somebody(cx: Cx) -> Check {
    let clients = [cx.locks().await?, cx.locks().await?, cx.locks().await?];
    let guard = take_for(&cx, &clients[0], "lock", cx.long_ttl()).await?;
    let mut waiting = tokio::task::JoinSet::new();
    for i in 0..12 {
        let lock = clients[i % 3].named("lock")?.ttl(cx.long_ttl());
        waiting.spawn(async move { lock.acquire().await?.release().await });
    }
    cx.sleep(cx.ttl() / 2).await;
    guard.release().await?;
    for served in 0..12 {
        let limit = Duration::from_millis(300) + cx.slack();
        let what =
            format!("waiter {} of 12 gets the lock that the one before released", served + 1);
        match soon(&cx, limit, &what, waiting.join_next()).await? {
            Some(done) => drop(done??),
            None => fail!("a waiter vanished"),
        }
    }
    Ok(())
}

async fn l02_a_lost_push_is_made_good(cx: Cx) -> Check {
    let (holder, link) = (cx.locks().await?, cx.link().await?);
    let waiter = cx.locks_on(&link.backend);
    let guard = take_for(&cx, &holder, "lock", cx.long_ttl()).await?;
    let waiting = waits(&cx, &waiter, "lock")?;
    cx.sleep(cx.ttl() / 2).await;
    link.inject(Fault::Partition).await?;
    guard.release().await?;
    cx.sleep(cx.ttl() / 2).await;
    link.inject(Fault::Heal).await?;
    // The core's slowest polling interval is 12.5 s.
    let limit = Duration::from_secs(13) + cx.slack();
    soon(&cx, limit, "a waiter whose push was lost gets the lock", waiting)
        .await???
        .release()
        .await?;
    Ok(())
}

async fn l02_a_forced_release_wakes_a_waiter(cx: Cx) -> Check {
    let (holder, waiter) = (cx.locks().await?, cx.locks().await?);
    let guard = take_for(&cx, &holder, "lock", cx.long_ttl()).await?;
    let waiting = waits(&cx, &waiter, "lock")?;
    cx.sleep(cx.ttl() / 4).await;
    take_away(&cx, &cx.backend().await?, "lock").await?;
    let limit = Duration::from_secs(13) + cx.slack();
    let next = soon(&cx, limit, "a waiter gets a lock that was taken away", waiting).await???;
    ensure_exactly!(
        guard.check().await.is_err(),
        "two holders: the old one is told that it holds the lock"
    );
    next.release().await?;
    Ok(())
}

async fn c13_a_refused_try_leaves_no_place(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let (mut holder, _) = cx.held(&a, "lock").await?;
    let mut refused = cx.claim(&b, "lock")?;
    for _ in 0..2 {
        match refused.try_acquire().await? {
            Attempt::Busy(busy) if busy.valid_for.is_none() => {}
            other => {
                fail!("a try that does not wait has no place to keep, but was answered {other:?}")
            }
        }
    }
    holder.release().await?;
    ensure!(
        cx.is_free(&c, "lock").await?,
        "the lock was released, but a claim that did not want to wait is in the way"
    );
    refused.release().await?;
    Ok(())
}

async fn c13_a_waiter_that_gives_up_leaves_no_place(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut impatient = queues(&cx, &b, "lock").await?;
    // Of the same client, which speaks for each of its waiters alone.
    let mut patient = queues(&cx, &b, "lock").await?;
    let mut next = queues(&cx, &c, "lock").await?;
    impatient.release().await?;
    busy(&cx, &mut *next).await?;
    holder.release().await?;
    granted(&mut *patient).await?;
    patient.release().await?;
    granted(&mut *next).await?;
    next.release().await?;
    Ok(())
}

async fn c13_a_waiter_that_declines_passes_it_on(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut chosen = queues(&cx, &b, "lock").await?;
    let mut next = queues(&cx, &c, "lock").await?;
    holder.release().await?;
    let turn = cx.now();
    // By now a store that hands over has given it to `chosen`, who no longer wants it, but has a place or the
    // lock until it says so.
    if cx.capabilities().fair {
        let told = (chosen.renew().await?, chosen.check().await?, chosen.release().await?);
        let has_none = told.0 == Renewal::Lost || told.1 == Renewal::Lost;
        if has_none || told.2 != Released::Freed {
            missed_its_turn(&cx, turn)?;
            fail!(
                "a renewal, a check and a release of a waiter at its turn were answered {told:?}"
            );
        }
    }
    chosen.release().await?;
    granted(&mut *next).await?;
    next.release().await?;
    Ok(())
}

async fn c13_a_timed_out_waiter_passes_it_on(cx: Cx) -> Check {
    let (holder, first, second) = (cx.locks().await?, cx.locks().await?, cx.locks().await?);
    let guard = take_for(&cx, &holder, "lock", cx.long_ttl()).await?;
    let lock = first.named("lock")?.ttl(cx.long_ttl());
    let limit = cx.ttl() / 2;
    let impatient = tokio::spawn(async move { lock.acquire_timeout(limit).await });
    cx.sleep(cx.ttl() / 10).await;
    let patient = waits(&cx, &second, "lock")?;
    match impatient.await? {
        Err(error) if error.kind() == ErrorKind::NotAcquired => {}
        other => fail!("a waiter that ran out of time was answered {other:?}"),
    }
    guard.release().await?;
    let limit = Duration::from_millis(300) + cx.slack();
    soon(&cx, limit, "the next waiter gets the lock", patient).await???.release().await?;
    Ok(())
}
