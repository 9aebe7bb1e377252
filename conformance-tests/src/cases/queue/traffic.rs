//! C15 and L2: how often a holder and a waiter ask the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::{Attempt, ErrorKind, LockBackend};

use crate::cases::tools::layer::Forward;
use crate::cases::tools::{holds, queues, refusal, soon, take, waits, within};
use crate::context::Cx;
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure};

cases! {
    c15_a_retry_hint_is_of_use []
        "the pause that a busy answer proposes is longer than nothing, and ends with the holder's lease"
        covers [TryAcquire/New/OtherHolder];
    l02_a_waiter_does_not_besiege_the_store []
        "a user that waits for a held lock makes few calls to the store"
        covers [TryAcquire/Waiting/Plain]
        guards [AcquireTimeout/Free/OtherHolder];
    c05_waiting_for_a_change_makes_few_requests [Push, Faults]
        "changed waits for a push, and does not ask the store all the time"
        covers [Changed/Waiting/Plain];
    c04_holding_makes_few_requests [Faults]
        "a lock that is held for a while costs a few requests for each renewal"
        covers [Renew/Held/Plain];
}

/// So many holds that a request for each of them, now and then, is seen.
const MANY: usize = 32;

/// How many requests are few: besides those of the lock there are some that keep a connection or a
/// session alive, and one call may need several.
fn few(of: Duration) -> u64 {
    30 + 20 * of.as_secs()
}

async fn c15_a_retry_hint_is_of_use(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut holder, _) = cx.held(&a, "lock").await?;
    for wait in [false, true] {
        let mut claim = b.claim(cx.request("lock")?.with_wait(wait))?;
        for look in 1..=3 {
            let Attempt::Busy(busy) = claim.try_acquire().await? else {
                return cx.not_alone("lock", 2, "two claims hold one lock");
            };
            let Some(pause) = busy.retry_after else { continue };
            ensure!(
                !pause.is_zero(),
                "look {look}: the lock is held, and the store says: try at once"
            );
            let lasts = cx.ttl() + cx.lapse();
            ensure!(
                pause <= lasts,
                "look {look}: the holder's lease ends within {lasts:?}, and the store says: try in {pause:?}"
            );
        }
        claim.release().await?;
    }
    holder.release().await?;
    Ok(())
}

async fn l02_a_waiter_does_not_besiege_the_store(cx: Cx) -> Check {
    let (holder, inner) = (cx.backend().await?, cx.backend().await?);
    let calls = Arc::new(AtomicU64::new(0));
    let counted: Arc<dyn LockBackend> = Arc::new(Forward { inner, calls: Arc::clone(&calls) });
    let mut held = holds(&cx, &holder, "lock").await?;
    // Two who wait can keep each other awake.
    let rival = waits(&cx, &cx.locks().await?, "lock")?;
    let patience = cx.ttl() * 2;
    let waited = cx.locks_on(&counted).named("lock")?.acquire_timeout(patience).await;
    let kind = refusal(&cx, waited, "a wait")?;
    ensure!(kind == ErrorKind::NotAcquired, "a wait for a lock that is held ended with {kind:?}");
    let calls = calls.load(Ordering::Relaxed);
    ensure!(calls <= few(patience), "a waiter made {calls} calls in {patience:?}");
    held.release().await?;
    let next = soon(&cx, cx.over(), "the other one who waits gets the lock", rival);
    next.await???.release().await?;
    Ok(())
}

async fn c05_waiting_for_a_change_makes_few_requests(cx: Cx) -> Check {
    let (holder, link) = (cx.backend().await?, cx.link().await?);
    let mut held = holds(&cx, &holder, "lock").await?;
    let mut waiter = queues(&cx, &link.backend, "lock").await?;
    let (before, patience) = (link.requests()?, cx.ttl() * 2);
    // Spurious changes are allowed, at a pace.
    let _ = within(&cx, patience, async {
        loop {
            let _ = waiter.changed().await;
            cx.sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let requests = link.requests()? - before;
    ensure!(requests <= few(patience), "a waiter made {requests} requests in {patience:?}");
    waiter.release().await?;
    held.release().await?;
    Ok(())
}

async fn c04_holding_makes_few_requests(cx: Cx) -> Check {
    let link = cx.link().await?;
    let guard = take(&cx, &cx.locks_on(&link.backend), "lock").await?;
    let (before, time) = (link.requests()?, cx.ttl() * 3);
    cx.sleep(time).await;
    guard.check().await?;
    let requests = link.requests()? - before;
    ensure!(requests <= few(time), "a holder made {requests} requests in {time:?}");
    guard.release().await?;
    // What is given up costs nothing more, however many there were.
    for _ in 0..MANY {
        holds(&cx, &link.backend, "lock").await?.release().await?;
    }
    let before = link.requests()?;
    cx.sleep(time).await;
    let requests = link.requests()? - before;
    ensure!(
        requests <= few(time),
        "after {MANY} holds that were released a client made {requests} requests in {time:?}"
    );
    Ok(())
}
