//! C8 and C12: a claim that is dropped, with whatever call was under way. After the request that was on its way
//! has arrived, nothing of it writes any more, and a new claim of the same owner can release what it left.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::{Claim, ClockInstant, LockBackend, Renewal};

use crate::cases::tools::{answered, at_each_await, free_soon, holds, queues, soon, until_granted};
use crate::context::cancel::drop_after;
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop, ensure, fail};

cases! {
    c08_a_dropped_claim_writes_nothing [Lease]
        "a claim that is dropped at any await of a call leaves at most what the request under way has made, which ends with its lease"
        covers [Claim/New/Dropped, TryAcquire/New/Dropped, TryAcquire/New/Expiry,
            TryAcquire/Waiting/Dropped, Renew/Waiting/Dropped, Check/Waiting/Dropped,
            Release/Waiting/Dropped, Renew/Held/Dropped, Check/Held/Dropped, Detach/Held/Dropped,
            Release/Held/Dropped];
    c08_a_dropped_claim_disturbs_no_other []
        "a claim that is dropped at any await of a call leaves its client's other claims alone, which hold, wait and try as before"
        covers [TryAcquire/New/Dropped, TryAcquire/Waiting/Dropped, Renew/Waiting/Dropped,
            Check/Waiting/Dropped, Release/Waiting/Dropped, Renew/Held/Dropped,
            Check/Held/Dropped, Detach/Held/Dropped, Release/Held/Dropped];
    c12_a_new_claim_releases_what_a_dropped_one_left []
        "a release by a new claim of the same owner frees what a claim has left that was dropped at any await of a try, be it the lock or a place"
        covers [TryAcquire/New/Dropped, Release/New/Plain];
}

/// What a claim is when its call begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    New,
    Waits,
    /// It waits, and the lock has become free.
    Next,
    Holds,
}

/// The calls during which a claim is dropped.
const CALLS: [(Before, &str); 11] = [
    (Before::New, "try_acquire"),
    (Before::Waits, "try_acquire"),
    (Before::Waits, "renew"),
    (Before::Waits, "check"),
    (Before::Waits, "release"),
    (Before::Next, "try_acquire"),
    (Before::Holds, "try_acquire"),
    (Before::Holds, "renew"),
    (Before::Holds, "check"),
    (Before::Holds, "detach"),
    (Before::Holds, "release"),
];

/// The calls that are legal on this store.
fn calls(cx: &Cx) -> impl Iterator<Item = (Before, &'static str)> {
    let detaches = cx.capabilities().detachable;
    CALLS.into_iter().filter(move |(_, call)| detaches || *call != "detach")
}

/// Long enough to drop a claim at every await, and to look at all of them, while the first lease runs.
fn ttl(cx: &Cx) -> Duration {
    3 * cx.ttl()
}

/// A lock whose claim was dropped.
struct Left {
    lock: String,
    /// Its lease is not older.
    since: ClockInstant,
    /// Whom it waited for.
    holder: Option<Box<dyn Claim>>,
}

impl Left {
    /// Whether a try gets it, if its lease runs for certain: some stores begin with less than a whole ttl.
    async fn is_free(&self, cx: &Cx, other: &Arc<dyn LockBackend>) -> Check<bool> {
        let is_free = cx.is_free(other, &self.lock).await?;
        if cx.now() >= self.since + ttl(cx) * 2 / 3 {
            return Err(Stop::late("the machine was too slow to look before a lease ended"));
        }
        Ok(is_free)
    }
}

/// Drops a claim of `a` in a call, when that has been polled so often; also says whether the call was
/// done before.
async fn left_behind(
    cx: &Cx,
    [a, b]: &[Arc<dyn LockBackend>; 2],
    (before, call): (Before, &str),
    polls: usize,
) -> Check<(Left, bool)> {
    let lock = format!("{before:?} {call} {polls}");
    let mut holder = None;
    if matches!(before, Before::Waits | Before::Next) {
        holder = Some(holds(cx, b, &lock).await?);
    }
    let mut claim = a.claim(cx.request_for(&lock, ttl(cx))?.with_wait(true))?;
    let since = cx.now();
    match before {
        Before::New => {}
        Before::Waits | Before::Next => busy(cx, &mut *claim).await?,
        Before::Holds => drop(granted(&mut *claim).await?),
    }
    if before == Before::Next
        && let Some(mut holder) = holder.take()
    {
        holder.release().await?;
    }
    let done = match call {
        "try_acquire" => drop_after(polls, claim.try_acquire()).await.done()?,
        "renew" => drop_after(polls, claim.renew()).await.done()?,
        "check" => drop_after(polls, claim.check()).await.done()?,
        "detach" => drop_after(polls, claim.detach()).await.done()?,
        _ => drop_after(polls, claim.release()).await.done()?,
    };
    drop(claim);
    Ok((Left { lock, since, holder }, done))
}

async fn c08_a_dropped_claim_writes_nothing(cx: Cx) -> Check {
    let mut work: Vec<Pin<Box<dyn Future<Output = Check>>>> = Vec::new();
    for (before, call) in calls(&cx) {
        let clients = [cx.backend().await?, cx.backend().await?];
        work.push(Box::pin(ends_with_its_lease(cx.clone(), clients, before, call)));
    }
    poll_fn(|context| {
        let mut failed = None;
        work.retain_mut(|one| match one.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(stop)) => {
                failed.get_or_insert(stop);
                false
            }
        });
        match failed {
            Some(stop) => Poll::Ready(Err(stop)),
            None if work.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    })
    .await
}

/// Looks at what each dropped claim has left: soon after it was dropped, shortly before the end of its
/// lease, and after that.
async fn ends_with_its_lease(
    cx: Cx,
    clients: [Arc<dyn LockBackend>; 2],
    before: Before,
    call: &'static str,
) -> Check {
    let mut all = Vec::new();
    at_each_await(call, async |polls| {
        let (left, done) = left_behind(&cx, &clients, (before, call), polls).await?;
        all.push(left);
        Ok(done)
    })
    .await?;
    let dropped = cx.now();
    let after = |left: &Left| format!("after the claim of {:?} was dropped", left.lock);
    let other = &clients[1];
    if before != Before::Waits {
        // What was under way has arrived.
        cx.sleep_until(dropped + cx.ttl() / 4).await;
        let mut was_free = Vec::new();
        for left in &all {
            let is_free = left.is_free(&cx, other).await?;
            if is_free && before == Before::Holds && call != "release" {
                let seen = format_args!("{}, another client could take the lock", after(left));
                return cx.not_alone(&left.lock, 1, seen);
            }
            was_free.push(is_free);
        }
        cx.sleep_until(all[0].since + ttl(&cx) / 2).await;
        for (left, was_free) in all.iter().zip(was_free) {
            let is_free = left.is_free(&cx, other).await?;
            ensure!(
                is_free == was_free,
                "{} something wrote: a try says free: {was_free}, and another one later {is_free}",
                after(left)
            );
        }
    }
    cx.sleep_until(dropped + ttl(&cx)).await;
    for mut left in all {
        if let Some(mut holder) = left.holder.take() {
            holder.release().await?;
        }
        free_soon(&cx, other, &left.lock, &format!("one ttl {}", after(&left))).await?;
    }
    Ok(())
}

async fn c08_a_dropped_claim_disturbs_no_other(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?];
    let [a, b] = &clients;
    let mut holder = holds(&cx, a, "held").await?;
    let token = granted(&mut *holder).await?;
    let mut before = holds(&cx, b, "waited for").await?;
    let mut waiter = queues(&cx, a, "waited for").await?;
    // One that waits for what its client holds takes nothing along, either.
    drop(queues(&cx, a, "held").await?);
    for (state, call) in calls(&cx) {
        at_each_await(call, async |polls| {
            let (left, done) = left_behind(&cx, &clients, (state, call), polls).await?;
            let after = format!("after the claim of {:?} was dropped", left.lock);
            // A connection may end with the call that was dropped, but another one serves the rest.
            match answered(&cx, cx.slack(), async || holder.renew().await).await {
                Ok(Renewal::Alive { .. }) => {}
                other => fail!("{after}, the renewals of another one are answered {other:?}"),
            }
            let again = soon(&cx, cx.slack(), &after, granted(&mut *holder)).await??;
            ensure!(again == token, "{after}, the token of another one changed to {again}");
            busy(&cx, &mut *waiter).await?;
            ensure!(cx.is_free(a, "free").await?, "{after}, the client gets no free lock");
            Ok(done)
        })
        .await?;
    }
    before.release().await?;
    let turn = until_granted(&cx, &mut *waiter);
    soon(&cx, cx.slack(), "the turn of a waiter of the client", turn).await??;
    waiter.release().await?;
    holder.release().await?;
    Ok(())
}

async fn c12_a_new_claim_releases_what_a_dropped_one_left(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut all = Vec::new();
    for state in ["free", "held"] {
        at_each_await("try_acquire", async |polls| {
            let lock = format!("{state} {polls}");
            let holder = if state == "held" { Some(holds(&cx, &b, &lock).await?) } else { None };
            let request = cx.request_for(&lock, cx.long_ttl())?.with_wait(true);
            let mut claim = a.claim(request.clone())?;
            let done = drop_after(polls, claim.try_acquire()).await.done()?;
            all.push((lock, request, holder));
            Ok(done)
        })
        .await?;
    }
    // What was under way has arrived.
    cx.sleep(cx.ttl() / 4).await;
    for (lock, request, holder) in all {
        a.claim(request)?.release().await?;
        if let Some(mut holder) = holder {
            holder.release().await?;
        }
        ensure!(
            cx.is_free(&b, &lock).await?,
            "after the claim of {lock:?} was dropped, and a new claim of its owner released, the lock is still taken"
        );
    }
    Ok(())
}
