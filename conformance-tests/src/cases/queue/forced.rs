//! A forced release, and a hand-over that is declined, with a queue behind.

use std::sync::Arc;

use lock_core::{Attempt, Claim, LockBackend, Released, Renewal, Victim};

use crate::cases::tools::{
    admin, force, holds, is_quiet, pushed, queues, renewed, served_in_order, soon, still_held,
    still_waits,
};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, ensure_exactly};

cases! {
    l03_a_forced_release_keeps_the_queue [Inspect, Fair]
        "after a forced release the waiters get the lock, in the order of their arrival"
        covers [ForceRelease/Open/QueueBehind, TryAcquire/Waiting/Forced];
    l03_no_newcomer_passes_after_a_forced_release [Inspect, Fair]
        "after a forced release the lock goes to the first waiter, and to nobody who comes later"
        covers [TryAcquire/New/Forced];
    c09_a_forced_release_with_a_queue_raises_the_fence [Inspect, Fair]
        "the waiter that gets the lock after a forced release has a greater token than the old holder"
        covers [ForceRelease/Open/QueueBehind];
    c05_a_forced_release_is_pushed [Inspect, Push]
        "changed returns when the lock is taken away from its holder"
        covers [Changed/Waiting/Forced];
    c05_closing_a_client_deafens_no_other [Push]
        "after a client was closed, changed of another client's waiter returns when the holder releases"
        covers [Changed/Waiting/OtherReleases];
    c05_who_was_told_in_vain_is_told_again [Push]
        "a waiter that was told, and finds the lock taken by another one, is told of the next release"
        covers [Changed/Waiting/OtherReleases];
    c05_a_holder_is_told_of_its_loss [Inspect, Push]
        "changed of a holder returns when the lock is taken away, whether it had to wait for it or not, and is silent before"
        covers [Changed/Held/Forced];
    s03_a_forced_release_of_a_waiter_does_nothing [Inspect]
        "a forced release that names a waiter takes neither the lock from its holder nor the place from the waiter"
        covers [ForceRelease/Open/OtherHolder];
    c05_a_declined_lock_is_pushed_on [Push]
        "when a waiter gives up at its turn, changed of the next one returns"
        covers [Release/Waiting/QueueBehind, Changed/Waiting/OtherReleases];
}

async fn l03_a_forced_release_keeps_the_queue(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let _holder = holds(&cx, &a, "lock").await?;
    let mut first = queues(&cx, &b, "lock").await?;
    let mut second = queues(&cx, &c, "lock").await?;
    force(&cx, &a).await?;
    // Another look would take a new place.
    renewed(&mut *second).await?;
    served_in_order(&cx, &mut *first, &mut *second).await
}

async fn l03_no_newcomer_passes_after_a_forced_release(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let _holder = holds(&cx, &a, "lock").await?;
    let mut waiter = queues(&cx, &b, "lock").await?;
    force(&cx, &a).await?;
    let mut newcomer = cx.claim(&c, "lock")?;
    busy(&cx, &mut *newcomer).await?;
    granted(&mut *waiter).await?;
    waiter.release().await?;
    Ok(())
}

async fn c09_a_forced_release_with_a_queue_raises_the_fence(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let old = granted(&mut *holder).await?;
    let mut waiter = queues(&cx, &b, "lock").await?;
    force(&cx, &a).await?;
    let new = granted(&mut *waiter).await?;
    ensure_exactly!(new > old, "after a forced release the waiter has {new}, not above {old}");
    waiter.release().await?;
    Ok(())
}

async fn c05_a_forced_release_is_pushed(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for waiters in 1..=2 {
        let mut holder = holds(&cx, &a, "lock").await?;
        let mut waiting = pushed(queues(&cx, &b, "lock").await?);
        let behind = if waiters == 2 { Some(queues(&cx, &a, "lock").await?) } else { None };
        cx.sleep(cx.ttl() / 4).await;
        still_waits(&cx, "lock", &mut waiting).await?;
        force(&cx, &a).await?;
        let what = format!("the first of {waiters} waiters is told of a forced release");
        soon(&cx, cx.slack(), &what, waiting).await???;
        if let Some(mut behind) = behind {
            behind.release().await?;
        }
        holder.release().await?;
    }
    Ok(())
}

async fn c05_closing_a_client_deafens_no_other(cx: Cx) -> Check {
    let (a, b, closed) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let waiting = pushed(queues(&cx, &b, "lock").await?);
    drop(queues(&cx, &closed, "lock").await?);
    closed.close().await?;
    cx.sleep(cx.ttl() / 4).await;
    holder.release().await?;
    soon(&cx, cx.slack(), "a waiter of another client is told of a release", waiting).await??
}

async fn c05_who_was_told_in_vain_is_told_again(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut waiter = queues(&cx, &b, "lock").await?;
    for _ in 0..2 {
        holder.release().await?;
        soon(&cx, cx.slack(), "a waiter is told of a release", waiter.changed()).await??;
        // Before it looks, what it may have been given is taken away, and another one asks.
        cx.store().break_hold(&cx.key("lock")?).await?;
        holder = c.claim(cx.request_for("lock", cx.long_ttl())?)?;
        if !matches!(holder.try_acquire().await?, Attempt::Granted { .. }) {
            break;
        }
        busy(&cx, &mut *waiter).await?;
    }
    let waiting = tokio::spawn(async move {
        while !matches!(waiter.try_acquire().await?, Attempt::Granted { .. }) {
            waiter.changed().await?;
        }
        waiter.release().await.map(drop)
    });
    cx.sleep(cx.ttl() / 4).await;
    holder.release().await?;
    let what = "a waiter that was told in vain is told of the next release";
    soon(&cx, cx.slack(), what, waiting).await???;
    Ok(())
}

async fn c05_a_holder_is_told_of_its_loss(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for by in [&b, &a] {
        let mut first = holds(&cx, &a, "lock").await?;
        is_told_of_its_loss(&cx, &mut *first, by, "that never waited").await?;
    }
    let mut first = holds(&cx, &a, "lock").await?;
    let mut next = b.claim(cx.request_for("lock", cx.long_ttl())?.with_wait(true))?;
    busy(&cx, &mut *next).await?;
    first.release().await?;
    soon(&cx, cx.slack(), "a waiter is told of a release", async {
        while !matches!(next.try_acquire().await?, Attempt::Granted { .. }) {
            next.changed().await?;
        }
        Check::Ok(())
    })
    .await??;
    is_told_of_its_loss(&cx, &mut *next, &a, "that had to wait").await
}

async fn is_told_of_its_loss(
    cx: &Cx,
    holder: &mut dyn Claim,
    other: &Arc<dyn LockBackend>,
    who: &str,
) -> Check {
    is_quiet(cx, holder).await?;
    force(cx, other).await?;
    let what = format!("a holder {who} is told that its lock was taken away");
    soon(cx, cx.slack(), &what, holder.changed()).await??;
    let check = holder.check().await?;
    ensure!(check == Renewal::Lost, "after a forced release, a holder {who} is checked: {check:?}");
    Ok(())
}

async fn s03_a_forced_release_of_a_waiter_does_nothing(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let request = cx.request_for("lock", cx.long_ttl())?.with_wait(true);
    let mark = Victim::Shown(request.owner.into());
    let mut waiter = b.claim(request)?;
    busy(&cx, &mut *waiter).await?;
    let answer = admin(&c)?.force_release(&cx.key("lock")?, &mark).await?;
    ensure!(
        answer == Released::AlreadyGone,
        "a forced release that names a waiter, who holds nothing, is answered {answer:?}"
    );
    still_held(&cx, &c, "lock", "after a forced release that names a waiter").await?;
    busy(&cx, &mut *waiter).await?;
    holder.release().await?;
    granted(&mut *waiter).await?;
    waiter.release().await?;
    Ok(())
}

async fn c05_a_declined_lock_is_pushed_on(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    for has_heard in [false, true] {
        let mut holder = holds(&cx, &a, "lock").await?;
        let mut chosen = queues(&cx, &b, "lock").await?;
        let waiting = pushed(queues(&cx, &c, "lock").await?);
        cx.sleep(cx.ttl() / 4).await;
        holder.release().await?;
        // By now a store that hands over has given it to `chosen`, who no longer wants it.
        if has_heard {
            soon(&cx, cx.slack(), "the first waiter is told", chosen.changed()).await??;
        }
        chosen.release().await?;
        let what = "the next waiter is told that the lock was declined";
        soon(&cx, cx.slack(), what, waiting).await???;
    }
    Ok(())
}
