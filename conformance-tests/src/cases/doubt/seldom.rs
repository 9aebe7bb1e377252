//! What a store seldom meets: tries at once on a lease that has ended, answers that come after the end
//! of a lease, long queues, and operators whose link is slow or cut.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Attempt, Claim, FencingToken, Released, Renewal, Victim};

use crate::Fault;
use crate::cases::tools::{
    admin, answered, at_each_request, free_within, holds, in_time, queues, soon,
};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, ensure, ensure_exactly, fail};

cases! {
    c03_of_many_tries_on_an_ended_lease_one_is_granted [Lease]
        "of many clients that try at the same moment when a lease has ended, exactly one gets the lock"
        covers [TryAcquire/New/Expiry, TryAcquire/New/OtherHolder];
    c09_a_grant_that_is_answered_after_its_end_has_the_smaller_token [Lease, Faults]
        "a try that gets the answer to any one of its requests after its lease has ended does not return the next holder's token"
        covers [TryAcquire/New/ReplyLate, TryAcquire/New/Expiry];
    l01_a_repeated_try_ends_one_ttl_later [Lease]
        "a lock that is not renewed is free one ttl after the last repeated try"
        covers [TryAcquire/Held/Plain];
    l01_a_hand_over_ends_one_ttl_later [Lease, Fair]
        "a lock that was handed to a waiter and is not renewed is free one ttl after the hand-over"
        covers [TryAcquire/Waiting/OtherReleases];
    c04_a_place_is_kept_as_long_as_each_look_says [Fair]
        "a place in the queue is there until the start of the last look + valid_for"
        covers [TryAcquire/Waiting/Plain, Check/Waiting/Plain, Release/Waiting/Plain];
    l03_a_long_queue_is_served_in_order [Fair]
        "many waiters with different ttls get the lock in the order of their arrival"
        covers [TryAcquire/Waiting/OtherReleases];
    c07_closing_leaves_the_places_of_others [Fair]
        "a client that is closed leaves the places of other clients in the queue"
        covers [Close/Open/OtherHolder];
    c01_a_lock_with_waiters_only_is_shown [Fair, Inspect]
        "a lock that was released and has a waiter is shown and listed"
        covers [Inspect/Open/OtherReleases, List/Open/OtherReleases];
    s03_a_late_answer_in_a_forced_release_takes_no_later_hold [Inspect, Faults]
        "a forced release of a hold that gets the answer to any one of its requests late leaves the next holder alone"
        covers [ForceRelease/Open/ReplyLate, ForceRelease/Open/OtherHolder];
    s06_an_operator_without_an_answer_gets_an_error [Inspect, Faults]
        "inspection, listing and forced release are errors when the store refuses connections, and no lost or late answer shows a held lock as free"
        covers [Inspect/Open/Unreachable, List/Open/Unreachable, ForceRelease/Open/Unreachable];
}

/// How many requests of one call are answered late, one after the other.
const REQUESTS: u32 = 4;

async fn c03_of_many_tries_on_an_ended_lease_one_is_granted(cx: Cx) -> Check {
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(cx.backend().await?);
    }
    for round in 0..if cx.is_virtual() { 10 } else { 2 } {
        let name = format!("lock {round}");
        drop(cx.held(&clients[0], &name).await?);
        cx.sleep(cx.over()).await;
        let mut tries = Vec::new();
        for client in &clients {
            let mut claim = client.claim(cx.request_for(&name, cx.long_ttl())?)?;
            tries.push(tokio::spawn(async move { claim.try_acquire().await }));
        }
        let mut grants = Vec::new();
        for attempt in tries {
            if let Attempt::Granted { token, .. } = attempt.await?? {
                grants.push(token);
            }
        }
        let seen = format!(
            "in round {round} 8 clients tried at once when a lease had ended, and the tokens granted are {grants:?}"
        );
        if grants.len() > 1 {
            return cx.not_alone(&name, 2, seen);
        }
        ensure!(grants.len() == 1, "{seen}");
    }
    Ok(())
}

async fn c09_a_grant_that_is_answered_after_its_end_has_the_smaller_token(cx: Cx) -> Check {
    let other = cx.backend().await?;
    for skip in 0..REQUESTS {
        let (link, name) = (cx.link().await?, format!("lock {skip}"));
        link.inject_after(skip, Fault::DelayNextReply(cx.ttl() / 2)).await?;
        let mut late = link.backend.claim(cx.request_for(&name, cx.ttl() / 8)?)?;
        let late = tokio::spawn(async move { late.try_acquire().await });
        cx.sleep(cx.ttl() / 16).await;
        let mut next = other.claim(cx.request_for(&name, cx.long_ttl())?)?;
        let token = lock_of(&cx, &mut *next, "the next client", cx.over() + cx.ttl()).await?;
        if let Ok(Attempt::Granted { token: first, .. }) = late.await? {
            ensure_exactly!(
                first < token,
                "a try whose answer to request {} was late says token {first}, and the next holder was granted {token}",
                skip + 1
            );
        }
    }
    Ok(())
}

/// Tries until the lock is granted.
async fn lock_of(
    cx: &Cx,
    claim: &mut dyn Claim,
    who: &str,
    limit: Duration,
) -> Check<FencingToken> {
    let start = cx.now();
    loop {
        let looked = cx.now().since(start);
        if let Attempt::Granted { token, .. } = claim.try_acquire().await? {
            return Ok(token);
        }
        if looked >= limit {
            fail!("the lock should go to {who}, which is not granted it within {limit:?}");
        }
        cx.sleep(Duration::from_millis(10)).await;
    }
}

async fn l01_a_repeated_try_ends_one_ttl_later(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut claim, _) = cx.held(&a, "lock").await?;
    granted(&mut *claim).await?;
    granted(&mut *claim).await?;
    free_within(&cx, &b, "lock", cx.over(), "after the last of three tries of its holder").await
}

async fn l01_a_hand_over_ends_one_ttl_later(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut holder, _) = cx.held(&a, "lock").await?;
    let mut waiter = cx.waiting_claim(&b, "lock")?;
    busy(&cx, &mut *waiter).await?;
    holder.release().await?;
    lock_of(&cx, &mut *waiter, "the only waiter", cx.slack()).await?;
    free_within(&cx, &a, "lock", cx.over(), "after a hand-over to a waiter").await
}

async fn c04_a_place_is_kept_as_long_as_each_look_says(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let _holder = holds(&cx, &a, "lock").await?;
    let margin = Duration::from_millis(if cx.is_virtual() { 2 } else { 50 });
    let mut waiter = cx.waiting_claim(&b, "lock")?;
    for look in 1..=3 {
        // Also the promise of one that has looked often, and the last of a renewal.
        for _ in 1..look * 2 {
            place_of(&mut *waiter).await?;
        }
        let start = cx.now();
        let mut place = place_of(&mut *waiter).await?;
        if look == 3
            && let Renewal::Alive { valid_for: Some(longer) } = waiter.renew().await?
        {
            place = longer;
        }
        cx.sleep_until((start + place).minus(margin)).await;
        let answer = waiter.check().await.demanded("a check of a place")?;
        ensure_exactly!(
            answer != Renewal::Lost || cx.now() >= start + place,
            "look {look} promised the place for {place:?}, and a check {:?} after it says {answer:?}",
            cx.now().since(start)
        );
        if cx.now() >= start + place {
            return Ok(());
        }
    }
    let start = cx.now();
    let place = place_of(&mut *waiter).await?;
    let released = waiter.release().await?;
    ensure_exactly!(
        released == Released::Freed || cx.now() >= start + place,
        "a look promised the place for {place:?}, and its release {:?} after it says {released:?}",
        cx.now().since(start)
    );
    Ok(())
}

/// For how long a look at a lock that is held promises the place of the waiter.
async fn place_of(waiter: &mut dyn Claim) -> Check<Duration> {
    match waiter.try_acquire().await? {
        Attempt::Busy(busy) => match busy.valid_for {
            Some(place) => Ok(place),
            None => fail!("a look of a waiter says nothing of its place"),
        },
        other => fail!("a look at a lock that is held was answered {other:?}"),
    }
}

async fn l03_a_long_queue_is_served_in_order(cx: Cx) -> Check {
    const WAITERS: u32 = 24;
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut waiters = Vec::new();
    for i in 0..WAITERS {
        let ttl = cx.long_ttl() + Duration::from_secs((WAITERS - i).into());
        let client = if i % 2 == 0 { &a } else { &b };
        let mut waiter = client.claim(cx.request_for("lock", ttl)?.with_wait(true))?;
        busy(&cx, &mut *waiter).await?;
        waiters.push(waiter);
    }
    holder.release().await?;
    while !waiters.is_empty() {
        let mut first = waiters.remove(0);
        let place = WAITERS as usize - waiters.len();
        if let Some(last) = waiters.last_mut() {
            busy(&cx, &mut **last).await?;
        }
        let what = format!("waiter {place} of {WAITERS}");
        lock_of(&cx, &mut *first, &what, cx.slack()).await?;
        first.release().await?;
    }
    Ok(())
}

async fn c07_closing_leaves_the_places_of_others(cx: Cx) -> Check {
    let (a, b, leaver) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut waiter = queues(&cx, &b, "lock").await?;
    let mut own = leaver.claim(cx.request_for("another", cx.long_ttl())?)?;
    granted(&mut *own).await?;
    leaver.close().await?;
    let place = waiter.check().await?;
    ensure!(
        place != Renewal::Lost,
        "another client was closed, and a check of a place says {place:?}"
    );
    holder.release().await?;
    lock_of(&cx, &mut *waiter, "the only waiter", cx.slack()).await.map(drop)
}

async fn c01_a_lock_with_waiters_only_is_shown(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let _waiter = queues(&cx, &b, "lock").await?;
    holder.release().await?;
    let key = cx.key("lock")?;
    let shown = admin(&a)?.inspect(&key).await?;
    ensure!(shown.is_some(), "a lock was released and has a waiter, and inspection shows nothing");
    let listed = admin(&a)?.list(cx.prefix(), "lock").await?;
    ensure!(
        listed.iter().any(|info| info.key == key),
        "a lock was released and has a waiter, and the list is {listed:?}"
    );
    Ok(())
}

async fn s03_a_late_answer_in_a_forced_release_takes_no_later_hold(cx: Cx) -> Check {
    let a = cx.backend().await?;
    for skip in 0..REQUESTS {
        let (link, name) = (cx.link().await?, format!("lock {skip}"));
        let mut first = holds(&cx, &a, &name).await?;
        let key = cx.key(&name)?;
        let holder = admin(&a)?.inspect(&key).await?.and_then(|info| info.holder);
        let Some(holder) = holder else { fail!("inspection shows no holder") };
        let victim = Victim::Shown(holder.mark);
        link.inject_after(skip, Fault::DelayNextReply(cx.ttl() / 4)).await?;
        let operator = Arc::clone(&link.backend);
        let forced = tokio::spawn(async move {
            match operator.admin() {
                Some(admin) => admin.force_release(&key, &victim).await.map(Some),
                None => Ok(None),
            }
        });
        cx.sleep(cx.ttl() / 8).await;
        first.release().await?;
        let mut next = holds(&cx, &a, &name).await?;
        let forced = forced.await?;
        let held = next.check().await?;
        ensure_exactly!(
            held != Renewal::Lost,
            "a forced release of the hold before, whose answer to request {} was late, says {forced:?}, and a check of the next hold says {held:?}",
            skip + 1
        );
    }
    Ok(())
}

async fn s06_an_operator_without_an_answer_gets_an_error(cx: Cx) -> Check {
    let (link, a) = (cx.link().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let (key, limit) = (cx.key("lock")?, Duration::from_secs(6));
    link.inject(Fault::Refuse).await?;
    let operator = admin(&link.backend)?;
    let shown = soon(&cx, limit, "inspect", operator.inspect(&key)).await?;
    ensure!(shown.is_err(), "connections are refused, and inspection says {shown:?}");
    let listed = soon(&cx, limit, "list", operator.list(cx.prefix(), "")).await?;
    ensure!(listed.is_err(), "connections are refused, and the list is {listed:?}");
    let forced =
        soon(&cx, limit, "force_release", operator.force_release(&key, &Victim::Anybody)).await?;
    ensure!(forced.is_err(), "connections are refused, and a forced release says {forced:?}");
    let held = holder.check().await?;
    ensure!(held != Renewal::Lost, "no forced release got through, and a check says {held:?}");
    holder.release().await?;
    for call in ["an inspection", "a list"] {
        at_each_request(&cx, async |one| {
            let mut holder = holds(&cx, &a, &one.lock).await?;
            let (operator, key) = (admin(one.backend())?, cx.key(&one.lock)?);
            let ask = async || match call {
                "a list" => Ok(operator.list(key.prefix(), key.name()).await?.pop()),
                _ => operator.inspect(&key).await,
            };
            let (first, after) = (in_time(&cx, cx.ttl() / 2, ask()), one.after(call));
            let first = one.meets(first).await?;
            let again = answered(&cx, cx.ttl() * 2, ask).await.demanded(&after)?;
            for shown in first.into_iter().chain([again]) {
                ensure!(
                    shown.as_ref().is_some_and(|info| info.holder.is_some()),
                    "{after}, a lock that is held is shown as {shown:?}"
                );
            }
            holder.release().await?;
            Ok(())
        })
        .await?;
    }
    Ok(())
}
