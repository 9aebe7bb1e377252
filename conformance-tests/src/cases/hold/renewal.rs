//! C6 and S3: what a renewal may say, and what it must not touch.

use lock_core::{Claim, Effect, Released, Renewal};

use crate::Fault;
use crate::cases::tools::{
    answered, at_each_request, free_soon, give_up, give_up_at_last, holds, is_lost, kept_until,
    of_all, still_held, take,
};
use crate::context::{Cx, Link, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop, ensure, ensure_exactly, fail};

cases! {
    c06_a_renewal_after_the_end_is_lost [Lease]
        "a lease that has ended is not renewed, even if no other client has taken the lock"
        covers [Renew/Held/Expiry];
    c06_a_renewal_after_a_loss_is_lost []
        "when the lock was taken away, the next renewal says Lost"
        covers [Renew/Held/Forced, Release/Lost/Plain];
    c06_a_check_after_a_loss_is_lost []
        "when the lock was taken away, the next check says Lost"
        covers [Check/Held/Plain, Check/Held/Forced];
    c06_an_error_is_not_a_loss [Faults]
        "a renewal or a check without an answer is an error of unknown effect, never Lost"
        covers [Renew/Held/RequestLost, Renew/Held/ReplyLost, Check/Held/RequestLost,
            Check/Held/ReplyLost];
    c06_a_failed_renewal_can_be_repeated [Faults]
        "after a renewal of which any one request was lost, or had no answer in time, the same call finds the lock alive"
        covers [Renew/Held/RequestLost, Renew/Held/ReplyLost, Renew/Held/ReplyLate];
    c04_all_holds_of_a_client_are_renewed [Lease]
        "of the many locks that a client holds and renews at the same moments, each is kept"
        covers [Renew/Held/Plain];
    c06_a_check_after_an_unknown_try_asks [Faults]
        "a check after a try without an answer does not report a held lock as Lost"
        covers [Check/Unknown/Plain];
    c06_a_guard_outlives_lost_answers [Faults]
        "a guard whose renewals now and then get no answer is not lost"
        guards [Signal/Secure/RequestLost, Signal/Secure/ReplyLost, Token/Secure/RequestLost,
            Token/Secure/ReplyLost];
    s03_a_late_renewal_does_not_touch_the_next_holder [Lease]
        "the renewal of a holder whose lease has ended neither takes nor prolongs the next one's"
        covers [Renew/Held/OtherHolder];
    s03_a_renewal_that_was_held_up_does_nothing [Lease, Faults]
        "a renewal that reaches the store after the next holder came changes nothing"
        covers [Renew/Held/ReplyLate, Renew/Held/OtherHolder, Renew/Held/OtherReleases];
    s03_a_late_release_does_not_free_the_next_holder [Lease]
        "the release of a holder whose lease has ended leaves the next holder alone"
        covers [Release/Held/OtherHolder];
    s03_a_release_that_was_held_up_does_nothing [Lease, Faults]
        "a release that reaches the store after the next holder came changes nothing"
        covers [Release/Held/ReplyLate, Release/Held/OtherHolder];
    s03_a_slow_release_does_not_free_the_next_holder [Lease, Faults]
        "a release that takes longer than the lease does not free the next holder"
        covers [Release/Held/ReplyLate, Release/Held/OtherHolder];
    s03_a_release_that_races_with_a_loss_frees_nobody_else []
        "a release at the moment the lock changes hands does not free the next holder"
        covers [Release/Held/OtherHolder, Release/Held/Forced];
    s03_a_late_guard_does_not_touch_the_next_holder [Faults]
        "a guard that was lost and is released later leaves the next holder alone"
        guards [Release/Lost/OtherHolder, Release/Lost/Unreachable];
}

async fn c04_all_holds_of_a_client_are_renewed(cx: Cx) -> Check {
    const HOLDS: usize = 24;
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let name = |nth: usize| format!("lock {nth}");
    let mut claims = Vec::with_capacity(HOLDS);
    // No lease of a hold begins earlier.
    let mut since = cx.now();
    for nth in 0..HOLDS {
        let mut claim = a.claim(cx.request_for(&name(nth), cx.ttl() * 2)?)?;
        granted(&mut *claim).await?;
        claims.push(claim);
    }
    for _ in 0..4 {
        cx.sleep(cx.ttl() * 2 / 3).await;
        let begun = cx.now();
        let renewals = of_all(claims, |mut claim| {
            let clock = cx.clone();
            async move {
                let renewal = claim.renew().await?;
                Ok((claim, (renewal, clock.now())))
            }
        });
        claims = Vec::with_capacity(HOLDS);
        for (claim, (renewal, at)) in renewals.await? {
            if at.since(since) >= cx.ttl() * 2 {
                return Err(Stop::late("the machine was too slow to renew in time"));
            }
            ensure!(matches!(renewal, Renewal::Alive { .. }), "a renewal in time says {renewal:?}");
            claims.push(claim);
        }
        since = begun;
    }
    for nth in 0..HOLDS {
        still_held(&cx, &b, &name(nth), "after its renewals, together with those of others")
            .await?;
    }
    for claim in &mut claims {
        claim.release().await?;
    }
    Ok(())
}

async fn c06_a_renewal_after_the_end_is_lost(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut claim, _) = cx.held(&a, "lock").await?;
    cx.sleep(cx.over()).await;
    let answer = claim.renew().await?;
    ensure!(
        answer == Renewal::Lost,
        "a renewal after the end of the lease was answered {answer:?}"
    );
    ensure!(
        cx.is_free(&b, "lock").await?,
        "a renewal after the end of the lease took the lock again"
    );
    claim.release().await?;
    Ok(())
}

async fn c06_a_renewal_after_a_loss_is_lost(cx: Cx) -> Check {
    let backend = cx.backend().await?;
    let (mut claim, _) = cx.held(&backend, "lock").await?;
    cx.store().break_hold(&cx.key("lock")?).await?;
    let answer = claim.renew().await?;
    ensure!(answer == Renewal::Lost, "a renewal of a lock that was taken away: {answer:?}");
    claim.release().await?;
    ensure!(cx.is_free(&backend, "lock").await?, "the renewal took the lock again");
    Ok(())
}

async fn c06_a_check_after_a_loss_is_lost(cx: Cx) -> Check {
    let backend = cx.backend().await?;
    let (mut claim, _) = cx.held(&backend, "lock").await?;
    ensure!(
        matches!(claim.check().await?, Renewal::Alive { .. }),
        "a check of a lock that is held says that it is not"
    );
    cx.store().break_hold(&cx.key("lock")?).await?;
    let answer = claim.check().await?;
    ensure!(answer == Renewal::Lost, "a check of a lock that was taken away: {answer:?}");
    claim.release().await?;
    Ok(())
}

async fn c06_an_error_is_not_a_loss(cx: Cx) -> Check {
    let link = cx.link().await?;
    let (mut claim, _) = cx.held(&link.backend, "lock").await?;
    for fault in [Fault::LoseNextReply, Fault::LoseNextRequest] {
        link.inject(fault).await?;
        match claim.renew().await {
            Ok(Renewal::Lost) => {
                fail!("{fault:?}: a renewal without an answer was taken for a loss")
            }
            Err(error) if fault == Fault::LoseNextReply => ensure!(
                error.effect() == Effect::Unknown,
                "the answer to a renewal was lost, but its error says that nothing happened: {error}"
            ),
            _ => {}
        }
        ensure!(
            matches!(claim.renew().await?, Renewal::Alive { .. }),
            "{fault:?}: the lock is held, and the repeated renewal says that it is lost"
        );
        link.inject(fault).await?;
        if let Ok(Renewal::Lost) = claim.check().await {
            fail!("{fault:?}: a check without an answer was taken for a loss");
        }
        ensure!(
            matches!(claim.check().await?, Renewal::Alive { .. }),
            "{fault:?}: the lock is held, and the repeated check says that it is lost"
        );
    }
    claim.release().await?;
    Ok(())
}

async fn c06_a_check_after_an_unknown_try_asks(cx: Cx) -> Check {
    let (link, other) = (cx.warm_link("lock").await?, cx.backend().await?);
    // A store may make several requests for a try, of which only one makes the entry.
    for skip in 0..8 {
        let request = cx.request_for("lock", cx.long_ttl())?;
        let mut claim = link.backend.claim(request)?;
        link.inject_after(skip, Fault::LoseNextReply).await?;
        let tried = claim.try_acquire().await;
        let unknown = matches!(&tried, Err(error) if error.effect() == Effect::Unknown);
        if unknown && !cx.is_free(&other, "lock").await? {
            let checked = claim.check().await;
            ensure!(
                !matches!(checked, Ok(Renewal::Lost)) || cx.is_free(&other, "lock").await?,
                "the answer of a try was lost, the lock is held, and a check of the claim says Lost"
            );
            at_last_released(&cx, &mut *claim).await?;
            return free_soon(&cx, &other, "lock", "after its release").await;
        }
        at_last_released(&cx, &mut *claim).await?;
        free_soon(&cx, &other, "lock", "after the release of a try without an answer").await?;
    }
    Err(Stop::NotApplicable("no try that took the lock lost its answer".to_owned()))
}

/// A release that is repeated until the client has found its way back to the store.
async fn at_last_released(cx: &Cx, claim: &mut dyn Claim) -> Check {
    answered(cx, cx.slack() * 2, async || claim.release().await).await?;
    Ok(())
}

async fn c06_a_failed_renewal_can_be_repeated(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let (mut claim, token) = cx.held(&link.backend, "lock").await?;
    for fault in [Fault::LoseNextReply, Fault::LoseNextRequest] {
        link.inject(fault).await?;
        let _ = claim.renew().await;
        let start = cx.now();
        match claim.renew().await? {
            Renewal::Alive { valid_for: Some(valid_for) } => {
                kept_until(&cx, &other, "lock", start + valid_for / 2).await?;
            }
            Renewal::Alive { .. } => {}
            other => fail!("{fault:?}: the repeated renewal was answered {other:?}"),
        }
    }
    ensure!(granted(&mut *claim).await? == token, "renewals changed the token");
    give_up(&cx, &mut *claim, &other, "lock", "after renewals").await?;
    for call in ["a renewal", "a check"] {
        at_each_request(&cx, async |one| {
            let (mut claim, after) = (one.entered(&cx, false).await?, one.after(call));
            let mut ask = async || match call {
                "a check" => claim.check().await,
                _ => claim.renew().await,
            };
            let answer = one.meets(ask()).await?;
            ensure!(!matches!(answer, Ok(Renewal::Lost)), "{after}, a held lock is lost");
            match answered(&cx, cx.ttl() * 2, ask).await? {
                Renewal::Alive { .. } => {}
                other => fail!("{after}, the repeated one was answered {other:?}"),
            }
            give_up_at_last(&cx, &mut *claim, &other, &one.lock, &after).await
        })
        .await?;
    }
    Ok(())
}

async fn c06_a_guard_outlives_lost_answers(cx: Cx) -> Check {
    let link = cx.link().await?;
    let guard = take(&cx, &cx.locks_on(&link.backend), "lock").await?;
    let fence = guard.token()?;
    for fault in [Fault::LoseNextReply, Fault::LoseNextRequest, Fault::LoseNextReply] {
        link.inject(fault).await?;
        cx.sleep(cx.ttl()).await;
        ensure!(!is_lost(&guard), "after {fault:?} the guard is lost: {:?}", guard.state());
        ensure!(guard.token()? == fence, "the token of a guard has changed");
    }
    guard.release().await?;
    Ok(())
}

async fn s03_a_late_renewal_does_not_touch_the_next_holder(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let (mut late, first) = cx.held(&a, "lock").await?;
    cx.sleep(cx.over()).await;
    let start = cx.now();
    let (mut next, second) = cx.held(&b, "lock").await?;
    ensure_exactly!(second > first, "the next holder's token {second} is not above {first}");
    cx.sleep(cx.ttl() * 4 / 5).await;
    let answer = late.renew().await?;
    ensure!(answer == Renewal::Lost, "a late renewal under the next holder: {answer:?}");
    cx.sleep_until(start + cx.over()).await;
    ensure!(
        cx.is_free(&c, "lock").await?,
        "the late renewal of the old holder prolonged the next one's lease"
    );
    next.release().await?;
    late.release().await?;
    Ok(())
}

/// A holder whose calls end long before its lease.
async fn impatient_holder(cx: &Cx, link: &Link) -> Check<Box<dyn Claim>> {
    let request = cx.request("lock")?.with_call_timeout(cx.ttl() / 4);
    let mut claim = link.backend.claim(request)?;
    granted(&mut *claim).await?;
    Ok(claim)
}

async fn s03_a_renewal_that_was_held_up_does_nothing(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let mut late = impatient_holder(&cx, &link).await?;
    link.inject(Fault::HoldNextRequest(cx.over() + cx.ttl() / 2)).await?;
    let _ = late.renew().await;
    cx.sleep(cx.over()).await;
    let (mut next, token) = cx.held(&other, "lock").await?;
    cx.sleep(cx.ttl() * 7 / 10).await;
    ensure!(
        granted(&mut *next).await? == token,
        "a renewal of the old holder, held up on its way, took the lock from the next one"
    );
    next.release().await?;
    ensure!(
        cx.is_free(&other, "lock").await?,
        "a renewal of the old holder, held up on its way, made its entry again"
    );
    Ok(())
}

async fn s03_a_late_release_does_not_free_the_next_holder(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut late, _) = cx.held(&a, "lock").await?;
    cx.sleep(cx.over()).await;
    let (mut next, _) = cx.held(&b, "lock").await?;
    let answer = late.release().await?;
    ensure!(
        answer == Released::AlreadyGone,
        "a release that found another holder was answered {answer:?}"
    );
    still_held(&cx, &a, "lock", "after the release of the old holder").await?;
    ensure!(
        matches!(next.check().await?, Renewal::Alive { .. }),
        "the next holder has lost the lock"
    );
    next.release().await?;
    Ok(())
}

async fn s03_a_release_that_was_held_up_does_nothing(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let mut late = impatient_holder(&cx, &link).await?;
    link.inject(Fault::HoldNextRequest(cx.over() + cx.ttl() / 4)).await?;
    let _ = late.release().await;
    cx.sleep(cx.over()).await;
    let (mut next, _) = cx.held(&other, "lock").await?;
    cx.sleep(cx.ttl() / 2).await;
    let mut third = cx.claim(&other, "lock")?;
    busy(&cx, &mut *third).await?;
    next.release().await?;
    Ok(())
}

async fn s03_a_slow_release_does_not_free_the_next_holder(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    // A driver must not give the call up before the late answer.
    let request = cx.request("lock")?.with_call_timeout(cx.long_ttl());
    let mut late = link.backend.claim(request)?;
    granted(&mut *late).await?;
    link.inject(Fault::DelayNextReply(cx.over() + cx.slack())).await?;
    let release = tokio::spawn(async move { late.release().await });
    cx.sleep(cx.over()).await;
    let mut next = holds(&cx, &other, "lock").await?;
    // Its answer may be anything; what matters is its effect on the next holder.
    let _ = release.await?;
    cx.sleep(cx.ttl() / 10).await;
    still_held(&cx, &other, "lock", "after a slow release of the old holder").await?;
    next.release().await?;
    Ok(())
}

async fn s03_a_release_that_races_with_a_loss_frees_nobody_else(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let key = cx.key("lock")?;
    for steps in 0..12 {
        let (mut old, _) = cx.held(&a, "lock").await?;
        let mut next = cx.claim(&b, "lock")?;
        let (released, attempt) = tokio::join!(old.release(), async {
            crate::cases::tools::turns(&cx, steps).await;
            cx.store().break_hold(&key).await?;
            Check::Ok(next.try_acquire().await?)
        });
        released?;
        if matches!(attempt?, lock_core::Attempt::Granted { .. }) {
            still_held(&cx, &a, "lock", "after a release that raced with a change of hands")
                .await?;
        }
        next.release().await?;
    }
    Ok(())
}

async fn s03_a_late_guard_does_not_touch_the_next_holder(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.locks().await?);
    let old = take(&cx, &cx.locks_on(&link.backend), "lock").await?;
    link.inject(Fault::Partition).await?;
    cx.sleep(cx.over()).await;
    let next = take(&cx, &other, "lock").await?;
    let fence = next.token()?;
    link.inject(Fault::Heal).await?;
    let reason = crate::cases::tools::lost_reason(old.release().await, "release")?;
    ensure!(
        reason == lock_core::LostReason::Expired,
        "a guard that ran out before its release says that it was lost because {reason}"
    );
    cx.sleep(cx.ttl() * 2).await;
    ensure!(!is_lost(&next), "the release of the old guard cost the next one the lock");
    ensure!(next.check().await.is_ok(), "the store says that the next holder has lost the lock");
    ensure!(next.token()? == fence, "the next holder's token has changed");
    next.release().await?;
    Ok(())
}
