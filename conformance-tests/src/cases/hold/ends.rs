//! C17: nothing but a release ends a hold sooner.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Attempt, ClockInstant, LockBackend, Renewal};

use crate::Fault;
use crate::cases::tools::detached::{Detached, is_alive, made};
use crate::cases::tools::{free_soon, kept_until, soon};
use crate::context::Cx;
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, Stop, ensure, fail};

cases! {
    c17_a_renewal_with_a_shorter_ttl_ends_nothing_sooner [Lease, Detach]
        "a hold that was renewed with a longer ttl lasts for it, whatever is renewed afterwards with a shorter one"
        covers [Renew/Resumed/Plain, Renew/Held/ReplyLate];
    c17_a_late_try_with_a_shorter_ttl_ends_nothing_sooner [Lease, Detach]
        "a try of the owner that arrives after a renewal with a longer ttl leaves the hold to last for it"
        covers [TryAcquire/New/ReplyLate];
    c17_a_guard_outlives_the_late_try_of_the_one_before [Lease, Detach, Faults]
        "a guard that was attached with a longer ttl keeps its lock although a try with the shorter one is still under way"
        guards [Token/Secure/ReplyLate];
}

/// The ttl of the bearer that keeps the hold for longer.
fn longer(cx: &Cx) -> Duration {
    cx.round(cx.ttl() * 2)
}

/// As it may (clause C14): then no call can end the hold sooner.
fn refused() -> Stop {
    Stop::NotApplicable("the store refuses another ttl than that of the hold".to_owned())
}

/// Renews a hold for longer than it was taken for, by another client. Returns until when the store has
/// promised it, or `None` if the store refuses another ttl, as it may (clause C14).
async fn prolonged(
    cx: &Cx,
    other: &Arc<dyn LockBackend>,
    hold: &Detached,
) -> Check<Option<ClockInstant>> {
    let mut request = hold.resumed();
    request.ttl = longer(cx);
    let what = "a claim with a longer ttl";
    let start = cx.now();
    if let Some(mut claim) = made(other, &request, what)? {
        match claim.renew().await {
            Ok(Renewal::Alive { valid_for: Some(valid_for) }) => {
                return Ok(Some(start + valid_for));
            }
            answer => ensure!(!is_alive(answer, what)?, "{what} is promised nothing"),
        }
    }
    hold.is_unharmed(other, what).await?;
    Ok(None)
}

async fn c17_a_renewal_with_a_shorter_ttl_ends_nothing_sooner(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let hold = Detached::take(&cx, &a, "lock", cx.ttl()).await?;
    let Some(until) = prolonged(&cx, &b, &hold).await? else { return Err(refused()) };
    let mut shorter = a.claim(hold.resumed())?;
    for _ in 0..2 {
        let answer = shorter.renew().await?;
        ensure!(
            matches!(answer, Renewal::Alive { .. }),
            "the lock is held, and a renewal with the shorter ttl is answered {answer:?}"
        );
    }
    kept_until(&cx, &b, "lock", until).await?;
    // Nor did it last for longer.
    cx.sleep_until(until).await;
    free_soon(&cx, &b, "lock", "after the end of the longest promise").await
}

async fn c17_a_late_try_with_a_shorter_ttl_ends_nothing_sooner(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let hold = Detached::take(&cx, &a, "lock", cx.ttl()).await?;
    let Some(until) = prolonged(&cx, &b, &hold).await? else { return Err(refused()) };
    // The store cannot tell this request from the first one, if that had been on its way until now.
    match a.claim(hold.request.clone())?.try_acquire().await? {
        Attempt::Granted { token, .. } if token == hold.fence => {}
        other => {
            fail!("the hold has the token {}, and a try of its owner says {other:?}", hold.fence)
        }
    }
    kept_until(&cx, &b, "lock", until).await
}

async fn c17_a_guard_outlives_the_late_try_of_the_one_before(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let impatient = cx.builder(&link.backend).call_timeout(cx.ttl() / 10).build()?;
    // The first try lands when the hold that its repetition has got was taken over.
    let held_up = cx.ttl() * 3 / 4;
    link.inject(Fault::HoldNextRequest(held_up)).await?;
    let lands = cx.now() + held_up;
    let lock = impatient.named("lock")?;
    let first = soon(&cx, cx.ttl() * 2, "taking a free lock", lock.acquire()).await??;
    let token = first.detach().await?;
    let theirs = cx.locks_on(&other).named("lock")?.ttl(longer(&cx)).no_renew();
    let guard = match theirs.attach(&token).await {
        Ok(guard) => guard,
        Err(error) if error.is_retryable() => return Err(error.into()),
        Err(_) => {
            let same = cx.locks_on(&other).named("lock")?.ttl(cx.ttl());
            drop(same.attach(&token).await.demanded("attaching with the ttl of the hold")?);
            return Err(refused());
        }
    };
    cx.sleep_until(lands).await;
    kept_until(&cx, &link.backend, "lock", guard.valid_until()).await?;
    theirs.release(token).await?;
    Ok(())
}
