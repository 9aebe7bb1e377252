//! C2, C4, C5, C6 and C8 for a place in the queue: how long it is kept, what a check says of it,
//! and calls of a waiter that are dropped.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Attempt, Binding, Claim, LockBackend, Renewal, Result};

use super::tools::{at_each_await, holds, queues, renewed, served_in_order, soon};
use crate::cancel::{Cut, drop_after};
use crate::case::cases;
use crate::check::{Check, Stop, ensure, fail};
use crate::cx::{Cx, busy, granted};

cases! {
    c05_a_wait_dropped_with_its_event_keeps_it [Push]
        "changed, dropped at any await after the change had reached it, is ready when called again"
        covers [Changed/Waiting/Dropped];
    c04_a_place_is_kept_as_long_as_promised [Fair]
        "a waiter keeps its turn until the start of its try + valid_for"
        covers [TryAcquire/Waiting/OtherReleases];
    c06_a_check_of_a_waiter_says_whether_it_has_a_place []
        "a check of a waiter is alive, for no longer than was promised, if it has a place, and lost if not"
        covers [Check/Waiting/Plain];
    c06_a_check_of_a_place_that_has_ended_is_lost [Fair, Lease]
        "a check of a place that was not renewed says that it is lost, and another try takes a new one"
        covers [Check/Waiting/Expiry, TryAcquire/PlaceLost/Plain];
    c08_a_dropped_check_of_a_place_changes_nothing [Fair]
        "a check of a place that was dropped at any await leaves the waiter its turn"
        covers [Check/Waiting/Dropped];
    c08_a_dropped_renewal_of_a_place_can_be_repeated [Fair]
        "after a renewal of a place that was dropped at any await, the same call finds the place alive"
        covers [Renew/Waiting/Dropped, Renew/Unknown/QueueBehind];
    c08_a_dropped_renewal_of_a_place_can_be_undone [Fair]
        "after a renewal of a place that was dropped at any await, one release leaves no place behind"
        covers [Release/Unknown/QueueBehind];
}

async fn c05_a_wait_dropped_with_its_event_keeps_it(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for polls in 1..=6 {
        // The change comes before the wait, or wakes it.
        for waits_first in [false, true] {
            let mut holder = holds(&cx, &a, "lock").await?;
            let mut waiter = queues(&cx, &b, "lock").await?;
            let cut = if waits_first {
                let wait = drop_after(polls, waiter.changed());
                let (cut, released) = tokio::join!(wait, holder.release());
                released?;
                cut
            } else {
                holder.release().await?;
                cx.sleep(cx.ttl() / 50).await;
                drop_after(polls, waiter.changed()).await
            };
            if !cut.done()? {
                let what = format!("changed, called again after it was dropped at await {polls}");
                soon(&cx, cx.slack(), &what, waiter.changed()).await??;
            }
            granted(&mut *waiter).await?;
            waiter.release().await?;
        }
    }
    Ok(())
}

/// Takes a place in the queue of a held lock; how long it is promised.
async fn place(claim: &mut dyn Claim) -> Check<Duration> {
    match claim.try_acquire().await? {
        Attempt::Busy(busy) => match busy.valid_for {
            Some(valid_for) => Ok(valid_for),
            None => fail!("the store declares `fair`, but a waiter was given no place: {busy:?}"),
        },
        other => fail!("the lock is held, and a waiter was answered {other:?}"),
    }
}

async fn c04_a_place_is_kept_as_long_as_promised(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut first = cx.waiting_claim(&b, "lock")?;
    let start = cx.now();
    let valid_for = place(&mut *first).await?;
    ensure!(
        valid_for > cx.ttl() / 2,
        "a place of {:?} is promised for {valid_for:?} only: too little to renew it in time",
        cx.ttl()
    );
    let mut second = queues(&cx, &c, "lock").await?;
    let until = start + valid_for;
    cx.sleep_until(until.minus(cx.ttl() / 8)).await;
    holder.release().await?;
    let (turn, answer) = (second.try_acquire().await?, first.try_acquire().await?);
    if cx.now() >= until {
        return Err(Stop::hindered("the machine was too slow to look before the place ended"));
    }
    ensure!(
        matches!(turn, Attempt::Busy { .. }) && matches!(answer, Attempt::Granted { .. }),
        "{:?} before the end of what was promised to the first waiter, it was answered {answer:?}, and the second one {turn:?}",
        until.since(cx.now())
    );
    first.release().await?;
    granted(&mut *second).await?;
    second.release().await?;
    Ok(())
}

async fn c06_a_check_of_a_waiter_says_whether_it_has_a_place(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut waiter = cx.waiting_claim(&b, "lock")?;
    let place = match waiter.try_acquire().await? {
        Attempt::Busy(busy) => busy.valid_for,
        other => fail!("the lock is held, and a waiter was answered {other:?}"),
    };
    let until = cx.now() + cx.ttl() + cx.capabilities().ttl_step;
    cx.sleep(cx.ttl() / 4).await;
    for _ in 0..2 {
        let start = cx.now();
        match (place, waiter.check().await?) {
            (Some(_), Renewal::Alive { valid_for }) => ensure!(
                cx.capabilities().binding != Binding::Lease
                    || valid_for.is_none_or(|left| start + left <= until),
                "a check of a place of {:?} promises {valid_for:?} after {:?}",
                cx.ttl(),
                cx.ttl() / 4
            ),
            (None, Renewal::Lost) => {}
            (place, answer) => {
                fail!(
                    "a waiter was promised a place for {place:?}, and a check is answered {answer:?}"
                )
            }
        }
    }
    busy(&mut *waiter).await?;
    holder.release().await?;
    granted(&mut *waiter).await?;
    waiter.release().await?;
    Ok(())
}

async fn c06_a_check_of_a_place_that_has_ended_is_lost(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut waiter = cx.waiting_claim(&b, "lock")?;
    place(&mut *waiter).await?;
    // The queue outlives the place.
    let mut patient = queues(&cx, &a, "lock").await?;
    cx.sleep(cx.over()).await;
    let answer = waiter.check().await?;
    ensure!(
        answer == Renewal::Lost,
        "a place of {:?} was not renewed, and a check {:?} later says {answer:?}",
        cx.ttl(),
        cx.over()
    );
    patient.release().await?;
    place(&mut *waiter).await?;
    renewed(&mut *waiter).await?;
    holder.release().await?;
    granted(&mut *waiter).await?;
    waiter.release().await?;
    Ok(())
}

/// A held lock and two waiters, of which the first makes a call that is dropped.
struct Queue {
    holder: Box<dyn Claim>,
    first: Box<dyn Claim>,
    second: Box<dyn Claim>,
}

impl Queue {
    async fn of(cx: &Cx, clients: &[Arc<dyn LockBackend>; 3]) -> Check<Self> {
        let [a, b, c] = clients;
        let (holder, first) = (holds(cx, a, "lock").await?, queues(cx, b, "lock").await?);
        Ok(Self { holder, first, second: queues(cx, c, "lock").await? })
    }

    /// The holder leaves, and the waiters are served in their order.
    async fn serves_all(mut self) -> Check {
        self.holder.release().await?;
        served_in_order(&mut *self.first, &mut *self.second).await
    }
}

/// Whether a call for a place that is alive was done before it was dropped.
fn alive(cut: Cut<Result<Renewal>>, call: &str) -> Check<bool> {
    match cut {
        Cut::Done(Ok(Renewal::Alive { .. })) => Ok(true),
        Cut::Done(other) => fail!("a {call} of a place that is kept was answered {other:?}"),
        Cut::Dropped => Ok(false),
    }
}

async fn c08_a_dropped_check_of_a_place_changes_nothing(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?, cx.backend().await?];
    at_each_await("check", async |polls| {
        let mut queue = Queue::of(&cx, &clients).await?;
        let done = alive(drop_after(polls, queue.first.check()).await, "check")?;
        let answer = queue.first.check().await?;
        ensure!(
            matches!(answer, Renewal::Alive { .. }),
            "after a check dropped at await {polls} the next one says {answer:?}"
        );
        queue.serves_all().await?;
        Ok(done)
    })
    .await
}

async fn c08_a_dropped_renewal_of_a_place_can_be_repeated(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?, cx.backend().await?];
    at_each_await("renew", async |polls| {
        let mut queue = Queue::of(&cx, &clients).await?;
        let done = alive(drop_after(polls, queue.first.renew()).await, "renewal")?;
        let answer = queue.first.renew().await?;
        ensure!(
            matches!(answer, Renewal::Alive { .. }),
            "after a renewal dropped at await {polls} the next one says {answer:?}"
        );
        queue.serves_all().await?;
        Ok(done)
    })
    .await
}

async fn c08_a_dropped_renewal_of_a_place_can_be_undone(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?, cx.backend().await?];
    at_each_await("renew", async |polls| {
        let mut queue = Queue::of(&cx, &clients).await?;
        let done = alive(drop_after(polls, queue.first.renew()).await, "renewal")?;
        queue.first.release().await?;
        queue.holder.release().await?;
        granted(&mut *queue.second).await?;
        queue.second.release().await?;
        Ok(done)
    })
    .await
}
