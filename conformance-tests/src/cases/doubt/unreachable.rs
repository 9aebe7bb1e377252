//! C6 and C12 for the calls of a claim whose store does not answer, or refuses connections.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Claim, ErrorKind, LockBackend, Renewal, Result};

use crate::Fault;
use crate::cases::tools::detached::Detached;
use crate::cases::tools::{free_soon, holds, soon};
use crate::context::{Cx, Link, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, fail};

cases! {
    c12_calls_of_a_claim_are_bounded [Faults]
        "each call of a claim, in whatever state, ends by itself within its call_timeout when the store never answers, and is an error if it needs an answer"
        covers [TryAcquire/New/Unreachable, TryAcquire/Waiting/Unreachable,
            TryAcquire/Held/Unreachable, Renew/Waiting/Unreachable, Check/Waiting/Unreachable,
            Release/Waiting/Unreachable, Release/Held/Unreachable, Detach/Held/Unreachable];
    c06_no_answer_is_no_renewal [Faults]
        "a renewal or a check that the store does not answer is an error, and not the word that the lock is held"
        covers [Renew/Held/Unreachable, Check/Held/Unreachable];
    c06_a_refused_connection_is_an_error [Faults]
        "a store that refuses connections is an error of each call: the lock is neither lost, nor busy, nor released, and is still held when the store is back"
        covers [Ping/Open/Unreachable, TryAcquire/New/Unreachable, Renew/Held/Unreachable, Check/Held/Unreachable, Release/Held/Unreachable, Release/Done/Plain];
}

/// The time that one call may take.
fn limit(cx: &Cx) -> Duration {
    cx.ttl() / 2
}

/// A claim with that limit.
fn claim(cx: &Cx, link: &Link, name: &str) -> Check<Box<dyn Claim>> {
    let request = cx.request_for(name, cx.long_ttl())?.with_call_timeout(limit(cx));
    Ok(link.backend.claim(request)?)
}

async fn held(cx: &Cx, link: &Link, name: &str) -> Check<Box<dyn Claim>> {
    let mut claim = claim(cx, link, name)?;
    granted(&mut *claim).await?;
    Ok(claim)
}

/// Such a call ends in time, with an error.
async fn fails<T: Debug>(
    cx: &Cx,
    what: &str,
    call: impl Future<Output = Result<T>>,
) -> Check<ErrorKind> {
    match soon(cx, limit(cx) + cx.late(), what, call).await? {
        Err(error) => Ok(error.kind()),
        Ok(answer) => fail!("{what}: no answer came from the store, and the call says {answer:?}"),
    }
}

/// Such a call ends in time, whatever it says: a store may know the answer without being asked.
async fn ends<T>(cx: &Cx, what: &str, call: impl Future<Output = Result<T>>) -> Check {
    let _ = soon(cx, limit(cx) + cx.late(), what, call).await?;
    Ok(())
}

/// A claim with that limit, which waits for a lock that `other` holds.
async fn waits(
    cx: &Cx,
    link: &Link,
    other: &Arc<dyn LockBackend>,
    name: &str,
) -> Check<[Box<dyn Claim>; 2]> {
    let holder = holds(cx, other, name).await?;
    let request = cx.request_for(name, cx.long_ttl())?.with_wait(true);
    let mut waiter = link.backend.claim(request.with_call_timeout(limit(cx)))?;
    busy(cx, &mut *waiter).await?;
    Ok([holder, waiter])
}

async fn c12_calls_of_a_claim_are_bounded(cx: Cx) -> Check {
    // Its first claim has had more time.
    let (link, other) = (cx.warm_link("warm-up").await?, cx.backend().await?);
    let mut new = claim(&cx, &link, "new")?;
    let mut again = held(&cx, &link, "again").await?;
    let mut renewed = held(&cx, &link, "renewed").await?;
    let mut checked = held(&cx, &link, "checked").await?;
    let mut detached = held(&cx, &link, "detached").await?;
    let mut released = held(&cx, &link, "released").await?;
    let [_a, mut looks] = waits(&cx, &link, &other, "looks").await?;
    let [_b, mut place] = waits(&cx, &link, &other, "place").await?;
    let [_c, mut checked_place] = waits(&cx, &link, &other, "checked place").await?;
    let [_d, mut leaves] = waits(&cx, &link, &other, "leaves").await?;
    let mut borne = Vec::new();
    if cx.capabilities().detachable {
        for name in ["renewed by token", "checked by token", "released by token"] {
            let hold = Detached::take(&cx, &other, name, cx.long_ttl()).await?;
            borne.push(link.backend.claim(hold.resumed().with_call_timeout(limit(&cx)))?);
        }
    }
    link.inject(Fault::Partition).await?;
    let by_token = async {
        let [renewed, checked, released] = &mut borne[..] else { return Ok(()) };
        let calls = tokio::try_join!(
            fails(&cx, "renew by token without a store", renewed.renew()),
            fails(&cx, "check by token without a store", checked.check()),
            fails(&cx, "release by token without a store", released.release()),
        );
        calls.map(drop)
    };
    let calls = tokio::try_join!(
        by_token,
        fails(&cx, "try_acquire without a store", new.try_acquire()),
        fails(&cx, "a second try_acquire without a store", again.try_acquire()),
        fails(&cx, "renew without a store", renewed.renew()),
        fails(&cx, "check without a store", checked.check()),
        ends(&cx, "detach without a store", detached.detach()),
        fails(&cx, "release without a store", released.release()),
        fails(&cx, "a look without a store", looks.try_acquire()),
        ends(&cx, "renew of a place without a store", place.renew()),
        ends(&cx, "check of a place without a store", checked_place.check()),
        ends(&cx, "release of a place without a store", leaves.release()),
    );
    calls.map(drop)
}

async fn c06_no_answer_is_no_renewal(cx: Cx) -> Check {
    let link = cx.link().await?;
    let mut claim = held(&cx, &link, "lock").await?;
    for fault in [Fault::Partition, Fault::Refuse] {
        link.inject(fault).await?;
        fails(&cx, &format!("check after {fault:?}"), claim.check()).await?;
        fails(&cx, &format!("renew after {fault:?}"), claim.renew()).await?;
    }
    Ok(())
}

async fn c06_a_refused_connection_is_an_error(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let mut new = claim(&cx, &link, "new")?;
    let mut kept = held(&cx, &link, "kept").await?;
    let token = granted(&mut *kept).await?;
    let mut released = held(&cx, &link, "released").await?;
    link.inject(Fault::Refuse).await?;
    let kinds = tokio::try_join!(
        fails(&cx, "try_acquire", new.try_acquire()),
        fails(&cx, "release", released.release()),
        async {
            let checked = fails(&cx, "check", kept.check()).await?;
            Ok([checked, fails(&cx, "renew", kept.renew()).await?])
        },
    )?;
    for kind in [kinds.0, kinds.1, kinds.2[0], kinds.2[1]] {
        ensure!(
            matches!(kind, ErrorKind::Unavailable | ErrorKind::NoAnswer),
            "a store that refuses connections is reported as {kind:?}"
        );
    }
    let ping = soon(&cx, Duration::from_secs(6), "ping", link.backend.ping()).await?;
    ensure!(ping.is_err(), "a store that refuses connections answers a ping");
    link.inject(Fault::Heal).await?;
    let patience = Duration::from_secs(5) + cx.slack();
    let renewal = soon(&cx, patience, "a renewal when the store is back", async {
        loop {
            match kept.renew().await {
                Ok(renewal) => return renewal,
                Err(_) => cx.sleep(Duration::from_millis(50)).await,
            }
        }
    });
    let renewal = renewal.await?;
    ensure!(
        matches!(renewal, Renewal::Alive { .. }),
        "the store is back and has the lock still, and a renewal says {renewal:?}"
    );
    let again = granted(&mut *kept).await?;
    ensure!(again == token, "after refused connections the token {token} became {again}");
    released.release().await?;
    free_soon(&cx, &other, "released", "after a release that was refused, and then answered").await
}
