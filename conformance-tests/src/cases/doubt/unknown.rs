//! C2, C4, C6, C7 and S3 where an outcome is unknown, and the next call of the same kind meets more.

use std::sync::Arc;

use lock_core::{Attempt, LockBackend, Renewal, Victim};

use crate::Fault;
use crate::cases::tools::{
    admin, answered, at_each_await, at_each_request, free_soon, give_up, give_up_at_last, holds,
    in_time, kept_until, queues, still_held,
};
use crate::context::cancel::drop_after;
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, ensure, ensure_exactly, fail};

cases! {
    c02_many_lost_answers_make_one_entry [Faults]
        "however many tries and releases get no answer, there is one entry with one token, and then none"
        covers [TryAcquire/Unknown/RequestLost, TryAcquire/Unknown/ReplyLost,
            Release/Unknown/RequestLost, Release/Unknown/ReplyLost];
    s03_a_claim_in_doubt_does_not_touch_the_next_holder [Lease, Faults]
        "a call after one without an answer, made when another holds the lock, neither harms it nor claims its hold"
        covers [Release/Unknown/Expiry, Release/Unknown/OtherHolder, Check/Unknown/Expiry,
            Check/Unknown/OtherHolder, Renew/Held/Expiry, Renew/Held/OtherHolder];
    c04_a_slow_check_promises_no_more [Lease, Faults]
        "what a check promises whose answer was slow counts from the start of the call, not from the answer"
        covers [Check/Held/ReplyLate];
    c06_a_check_after_the_end_is_lost [Lease]
        "a check after the end of the lease says Lost, whether the lock is free or another holds it"
        covers [Check/Held/Expiry, Check/Held/OtherHolder];
    c08_a_detach_without_an_answer_can_be_repeated [Detach, Faults]
        "after a detach of which any one request was lost, or had no answer in time, the lock is held, the same call succeeds, and one release frees the lock"
        covers [Detach/Held/Plain, Detach/Held/RequestLost, Detach/Held/ReplyLost,
            Detach/Held/ReplyLate, Release/Detached/Plain];
    c07_a_forced_release_can_be_repeated [Inspect, Faults]
        "a forced release that got no answer or was dropped at any await frees the lock when it is repeated"
        covers [ForceRelease/Open/RequestLost, ForceRelease/Open/ReplyLost,
            ForceRelease/Open/Dropped];
    s03_closing_a_client_leaves_the_others_alone []
        "a client that is closed, once or twice, ends no hold and no place of another"
        covers [Close/Open/Plain, Close/Open/OtherHolder];
}

/// A claim on this link that is given up early and outlives the case.
fn patient(cx: &Cx, link: &crate::context::Link, name: &str) -> Check<Box<dyn lock_core::Claim>> {
    let request = cx.request_for(name, cx.long_ttl())?.with_call_timeout(cx.ttl());
    Ok(link.backend.claim(request)?)
}

async fn c02_many_lost_answers_make_one_entry(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    for fault in [Fault::LoseNextReply, Fault::LoseNextRequest] {
        let mut claim = patient(&cx, &link, "lock")?;
        for nth in 1..=3 {
            link.inject(fault).await?;
            if let Ok(answer @ Attempt::Busy { .. }) = claim.try_acquire().await {
                fail!("{fault:?}, {nth} times: a try of the only client was answered {answer:?}");
            }
        }
        let token = granted(&mut *claim).await?;
        ensure!(granted(&mut *claim).await? == token, "the token changed between two repeats");
        still_held(&cx, &other, "lock", "after several tries without an answer").await?;
        for _ in 1..=2 {
            link.inject(fault).await?;
            let _ = claim.release().await;
        }
        let after = format!("{fault:?} of three tries and two releases");
        give_up(&cx, &mut *claim, &other, "lock", &after).await?;
        let next = cx.fence_if_free(&other, "lock").await?;
        ensure!(next.is_some(), "after {fault:?} the lock is not free");
        ensure_exactly!(next > Some(token), "the token does not rise: {next:?} after {token}");
        let mut doubtful = patient(&cx, &link, "lock")?;
        link.inject(fault).await?;
        let _ = doubtful.try_acquire().await;
        link.inject(fault).await?;
        let _ = doubtful.release().await;
        let after = format!("{fault:?} of a try and a release");
        give_up(&cx, &mut *doubtful, &other, "lock", &after).await?;
    }
    Ok(())
}

async fn s03_a_claim_in_doubt_does_not_touch_the_next_holder(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    for call in ["release", "check", "renewal"] {
        let mut late = cx.claim(&link.backend, call)?;
        if call == "renewal" {
            granted(&mut *late).await?;
            link.inject(Fault::LoseNextReply).await?;
            let _ = late.renew().await;
        } else {
            link.inject(Fault::LoseNextReply).await?;
            let _ = late.try_acquire().await;
        }
        cx.sleep(cx.over()).await;
        let mut next = holds(&cx, &other, call).await?;
        let answer = match call {
            "check" => late.check().await,
            "renewal" => late.renew().await,
            _ => late.release().await.map(|_| Renewal::Lost),
        };
        ensure!(
            !matches!(answer, Ok(Renewal::Alive { .. })),
            "another holds the lock, and the {call} of a claim in doubt says {answer:?}"
        );
        late.release().await?;
        let after = format!("after the {call} of a claim in doubt");
        still_held(&cx, &other, call, &after).await?;
        let checked = next.check().await?;
        ensure!(checked != Renewal::Lost, "{after} the next holder has lost the lock");
        give_up(&cx, &mut *next, &other, call, &after).await?;
    }
    Ok(())
}

async fn c04_a_slow_check_promises_no_more(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let (mut claim, _) = cx.held(&link.backend, "lock").await?;
    cx.sleep(cx.ttl() / 4).await;
    link.inject(Fault::DelayNextReply(cx.ttl() / 4)).await?;
    let start = cx.now();
    match claim.check().await? {
        Renewal::Alive { valid_for: Some(valid_for) } => {
            kept_until(&cx, &other, "lock", start + valid_for).await
        }
        Renewal::Alive { valid_for: None } => Ok(()),
        other => fail!("a check of a lock that is held was answered {other:?}"),
    }
}

async fn c06_a_check_after_the_end_is_lost(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for name in ["free", "taken"] {
        let (mut late, _) = cx.held(&a, name).await?;
        cx.sleep(cx.over()).await;
        let next = if name == "taken" { Some(holds(&cx, &b, name).await?) } else { None };
        let answer = late.check().await?;
        ensure!(answer == Renewal::Lost, "the lease has ended, the lock is {name}: {answer:?}");
        late.release().await?;
        if let Some(mut next) = next {
            still_held(&cx, &a, name, "after a check by the holder before").await?;
            next.release().await?;
        }
        free_soon(&cx, &b, name, "after all releases").await?;
    }
    Ok(())
}

async fn c08_a_detach_without_an_answer_can_be_repeated(cx: Cx) -> Check {
    let other = cx.backend().await?;
    at_each_request(&cx, async |one| {
        let (mut claim, after) = (one.entered(&cx, false).await?, one.after("a detach"));
        let _ = one.meets(claim.detach()).await?;
        match answered(&cx, cx.ttl() * 2, async || claim.detach().await).await {
            Err(error) if !error.is_retryable() => {
                fail!("{after}, another one is refused: {error}")
            }
            answer => drop(answer?),
        }
        still_held(&cx, &other, &one.lock, &after).await?;
        give_up_at_last(&cx, &mut *claim, &other, &one.lock, &after).await
    })
    .await
}

async fn c07_a_forced_release_can_be_repeated(cx: Cx) -> Check {
    let (backend, other) = (cx.backend().await?, cx.backend().await?);
    let taken_away = async |by: &Arc<dyn LockBackend>, name: &str, token, what: &str| {
        let (admin, key) = (admin(by)?, cx.key(name)?);
        let again = async || admin.force_release(&key, &Victim::Anybody).await;
        answered(&cx, cx.ttl() * 2, again).await.demanded(what)?;
        let next = cx.fence_if_free(&other, name).await?;
        ensure!(next.is_some(), "after {what} and its repetition the lock is not free");
        ensure_exactly!(next > Some(token), "the token does not rise: {next:?} after {token}");
        Check::Ok(())
    };
    at_each_request(&cx, async |one| {
        let mut holder = holds(&cx, &other, &one.lock).await?;
        let (token, key) = (granted(&mut *holder).await?, cx.key(&one.lock)?);
        let forced = admin(one.backend())?.force_release(&key, &Victim::Anybody);
        // It is given up before an answer that is late.
        let _ = one.meets(in_time(&cx, cx.ttl() / 2, forced)).await?;
        taken_away(one.backend(), &one.lock, token, &one.after("a forced release")).await?;
        holder.release().await?;
        Ok(())
    })
    .await?;
    let (key, admin) = (cx.key("lock")?, admin(&backend)?);
    at_each_await("force_release", async |polls| {
        let mut holder = holds(&cx, &other, "lock").await?;
        let token = granted(&mut *holder).await?;
        let cut = drop_after(polls, admin.force_release(&key, &Victim::Anybody)).await;
        let what = format!("a forced release dropped at await {polls}");
        taken_away(&backend, "lock", token, &what).await?;
        holder.release().await?;
        cut.done()
    })
    .await
}

async fn s03_closing_a_client_leaves_the_others_alone(cx: Cx) -> Check {
    let (a, b, closed) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let mut holder = holds(&cx, &a, "lock").await?;
    let token = granted(&mut *holder).await?;
    let mut waiter = queues(&cx, &b, "lock").await?;
    drop(queues(&cx, &closed, "lock").await?);
    for times in 1..=2 {
        let answer = closed.close().await;
        ensure!(answer.is_ok() || times == 1, "a client that is closed already: {answer:?}");
        answer?;
        busy(&cx, &mut *waiter).await?;
        ensure!(granted(&mut *holder).await? == token, "the holder's token changed");
    }
    holder.release().await?;
    granted(&mut *waiter).await?;
    waiter.release().await?;
    Ok(())
}
