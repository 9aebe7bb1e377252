//! C8: every call of a claim, dropped at each of its awaits.

use lock_core::{Claim, Renewal};

use super::tools::{at_each_await, free_soon, give_up, holds, kept_until, still_held};
use crate::cancel::{Cut, drop_after};
use crate::case::cases;
use crate::check::{Check, ensure, fail};
use crate::cx::{Cx, busy, granted};

cases! {
    c08_a_dropped_try_can_be_undone []
        "after a try that was dropped at any await, one release leaves nothing"
        covers [TryAcquire/New/Dropped, Release/Unknown/Plain];
    c08_a_dropped_try_can_be_repeated []
        "after a try that was dropped at any await, the same call takes the lock, with one token"
        covers [TryAcquire/New/Dropped, TryAcquire/Unknown/Plain];
    c08_a_dropped_place_can_be_undone []
        "after a wait that was dropped at any await, one release leaves no place behind"
        covers [TryAcquire/New/Dropped, Release/Unknown/OtherHolder];
    c08_a_dropped_renewal_can_be_repeated []
        "after a renewal that was dropped at any await, the same call finds the lock alive"
        covers [Renew/Held/Dropped, Renew/Unknown/Plain];
    c08_a_dropped_renewal_can_be_undone []
        "after a renewal that was dropped at any await, one release frees the lock"
        covers [Renew/Held/Dropped, Release/Unknown/Plain];
    c08_a_dropped_check_changes_nothing []
        "a check that was dropped at any await changes nothing"
        covers [Check/Held/Dropped];
    c08_a_dropped_release_can_be_repeated []
        "after a release that was dropped at any await, the same call frees the lock"
        covers [Release/Held/Dropped, Release/Unknown/Plain];
    c08_a_dropped_detach_can_be_undone [Detach]
        "after a detach that was dropped at any await, one release frees the lock"
        covers [Detach/Held/Plain, Detach/Held/Dropped, Release/Unknown/Plain];
    c08_a_dropped_claim_writes_nothing [Lease]
        "a claim that is dropped leaves its lock as it is until the lease ends"
        covers [Claim/New/Dropped, TryAcquire/New/Expiry];
}

async fn c08_a_dropped_try_can_be_undone(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    at_each_await("try_acquire", async |polls| {
        let mut claim = cx.waiting_claim(&a, "lock")?;
        let cut = drop_after(polls, claim.try_acquire()).await;
        give_up(&cx, &mut *claim, &b, "lock", &format!("a try dropped at await {polls}")).await?;
        cut.done()
    })
    .await
}

async fn c08_a_dropped_try_can_be_repeated(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut last = None;
    at_each_await("try_acquire", async |polls| {
        let mut claim = cx.claim(&a, "lock")?;
        let cut = drop_after(polls, claim.try_acquire()).await;
        let token = granted(&mut *claim).await?;
        ensure!(
            granted(&mut *claim).await? == token,
            "after a try dropped at await {polls}, the token changed between two repeats"
        );
        ensure!(Some(token) > last, "the token {token} does not rise over {last:?}");
        last = Some(token);
        still_held(&cx, &b, "lock", "after a dropped try that was repeated").await?;
        give_up(&cx, &mut *claim, &b, "lock", &format!("a try dropped at await {polls}")).await?;
        cut.done()
    })
    .await
}

async fn c08_a_dropped_place_can_be_undone(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    at_each_await("a waiting try_acquire", async |polls| {
        let mut holder = holds(&cx, &a, "lock").await?;
        let mut waiter = b.claim(cx.request_for("lock", cx.long_ttl())?.with_wait(true))?;
        let cut = drop_after(polls, waiter.try_acquire()).await;
        waiter.release().await?;
        let after = format!("a waiting try dropped at await {polls} and released");
        still_held(&cx, &b, "lock", &after).await?;
        give_up(&cx, &mut *holder, &a, "lock", &after).await?;
        cut.done()
    })
    .await
}

/// A claim that holds the lock, and how its next renewal ended when it was dropped at `polls`.
async fn dropped_renewal(cx: &Cx, claim: &mut dyn Claim, polls: usize) -> Check<bool> {
    match drop_after(polls, claim.renew()).await {
        Cut::Done(Ok(Renewal::Alive { .. })) => Ok(true),
        Cut::Done(other) => fail!("a renewal of a lock that is held was answered {other:?}"),
        Cut::Dropped => {
            cx.sleep(std::time::Duration::from_millis(1)).await;
            Ok(false)
        }
    }
}

async fn c08_a_dropped_renewal_can_be_repeated(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut claim, token) = cx.held(&a, "lock").await?;
    at_each_await("renew", async |polls| {
        let done = dropped_renewal(&cx, &mut *claim, polls).await?;
        let start = cx.now();
        match claim.renew().await? {
            Renewal::Alive { valid_for } if done => {
                if let Some(valid_for) = valid_for {
                    kept_until(&cx, &b, "lock", start + valid_for / 2).await?;
                }
                ensure!(granted(&mut *claim).await? == token, "renewals changed the token");
                claim.release().await?;
            }
            Renewal::Alive { .. } => {}
            other => fail!("after a renewal dropped at await {polls} the next one says {other:?}"),
        }
        Ok(done)
    })
    .await
}

async fn c08_a_dropped_renewal_can_be_undone(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    at_each_await("renew", async |polls| {
        let (mut claim, _) = cx.held(&a, "lock").await?;
        let done = dropped_renewal(&cx, &mut *claim, polls).await?;
        give_up(&cx, &mut *claim, &b, "lock", &format!("a renewal dropped at await {polls}"))
            .await?;
        Ok(done)
    })
    .await
}

async fn c08_a_dropped_check_changes_nothing(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut claim = holds(&cx, &a, "lock").await?;
    let token = granted(&mut *claim).await?;
    at_each_await("check", async |polls| {
        let cut = drop_after(polls, claim.check()).await;
        still_held(&cx, &b, "lock", "after a check that was dropped").await?;
        ensure!(granted(&mut *claim).await? == token, "a dropped check changed the token");
        match cut {
            Cut::Done(Ok(Renewal::Alive { .. })) => Ok(true),
            Cut::Done(other) => fail!("a check of a lock that is held was answered {other:?}"),
            Cut::Dropped => Ok(false),
        }
    })
    .await
}

async fn c08_a_dropped_release_can_be_repeated(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    at_each_await("release", async |polls| {
        let (mut claim, _) = cx.held(&a, "lock").await?;
        let cut = drop_after(polls, claim.release()).await;
        give_up(&cx, &mut *claim, &b, "lock", &format!("a release dropped at await {polls}"))
            .await?;
        cut.done()
    })
    .await
}

async fn c08_a_dropped_detach_can_be_undone(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    at_each_await("detach", async |polls| {
        let (mut claim, _) = cx.held(&a, "lock").await?;
        let cut = drop_after(polls, claim.detach()).await;
        if cut.done()? {
            still_held(&cx, &b, "lock", "after it was detached").await?;
            return Ok(true);
        }
        give_up(&cx, &mut *claim, &b, "lock", &format!("a detach dropped at await {polls}"))
            .await?;
        Ok(false)
    })
    .await
}

async fn c08_a_dropped_claim_writes_nothing(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let start = cx.now();
    let (claim, _) = cx.held(&a, "lock").await?;
    drop(claim);
    let mut probe = cx.claim(&b, "lock")?;
    while cx.now().since(start) < cx.ttl() * 3 / 4 {
        busy(&mut *probe).await?;
        cx.sleep(cx.ttl() / 20).await;
    }
    cx.sleep_until(start + cx.ttl()).await;
    free_soon(&cx, &b, "lock", "one ttl after its claim was dropped").await
}
