//! C18: looks whose request or answer is lost, late or given up, and holds whose grant was not answered.

use std::slice::from_ref;
use std::time::Duration;

use lock_core::{ErrorKind, LockKey, Renewal, Seen};

use crate::Fault;
use crate::cases::tools::looks::{
    Holding, answer_to_look, floor, holder, is_above, is_whole, labelled, look_at, look_within,
};
use crate::cases::tools::{
    answered, at_each_await, at_each_request, granted_at_last, has_struck, soon, within,
};
use crate::context::cancel::drop_after;
use crate::context::{Cx, Link};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded as _, ensure, fail};

cases! {
    c18_a_look_without_an_answer_is_an_error [Look, Faults]
        "a look shows nothing when the store is silent, fails in time when it refuses connections, and shows the present state when the store is back"
        covers [Look/Open/Unreachable];
    c18_a_look_after_one_that_failed_is_answered [Look, Faults]
        "a look of which a request or an answer is lost or late fails, or shows the truth, and the next look is not answered with what that one has asked"
        covers [Look/Open/RequestLost, Look/Open/ReplyLost, Look/Open/ReplyLate];
    c18_a_look_joins_no_earlier_one [Look, Faults]
        "a look that begins while an earlier one of the same client waits for its answer shows what was granted in between"
        covers [Look/Open/ReplyLate, Look/Open/OtherHolder];
    c18_a_dropped_look_disturbs_nobody [Look]
        "a look that is dropped at any await leaves its client's claims and later looks alone"
        covers [Look/Open/Dropped];
    c18_a_grant_without_an_answer_is_shown [Look, Faults]
        "a lock is shown as held from its grant, also where the holder has had no answer, and with a floor below its token if it was not granted"
        covers [Look/Open/OtherHolder];
}

/// By then a look fails for which no connection can be made.
const REFUSED: Duration = Duration::from_secs(6);

/// A look by this link, when the store is back, of which the first may still fail.
async fn sees_again(cx: &Cx, link: &Link, key: &LockKey) -> Check<Seen> {
    let patience = Duration::from_secs(5) + cx.slack();
    let keys = from_ref(key);
    let seen = answered(cx, patience, async || answer_to_look(cx, &link.backend, keys).await).await;
    let mut seen = seen.demanded("a look when the store is back")?;
    is_whole(keys, &seen)?;
    Ok(seen.remove(0))
}

async fn c18_a_look_without_an_answer_is_an_error(cx: Cx) -> Check {
    let (link, other) = (cx.warm_link("warm-up").await?, cx.backend().await?);
    let (key, label) = (cx.key("lock")?, Some("the holder"));
    let mut holding = Holding::take(&cx, &other, &key, label).await?;
    for fault in [Fault::Partition, Fault::Refuse] {
        holding.is_seen(&cx, &link.backend, "before a fault").await?;
        link.inject(fault).await?;
        let answer = match fault {
            // Whoever asks drops a look at a store that is silent.
            Fault::Partition => look_within(&cx, cx.ttl(), &link.backend, from_ref(&key)).await,
            _ => soon(&cx, REFUSED, "a look", link.backend.look(from_ref(&key))).await?,
        };
        match answer {
            Ok(seen) => fail!("after {fault:?}, a look shows {seen:?}"),
            Err(error) => ensure!(
                matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NoAnswer),
                "after {fault:?}, a look fails by {error}"
            ),
        }
        holding.claim.release().await?;
        link.inject(Fault::Heal).await?;
        let last = holding.fence.get();
        let seen = sees_again(&cx, &link, &key).await?;
        let shown = floor(&seen, Some(last), "when the store is back")?;
        holding = Holding::take(&cx, &other, &key, label).await?;
        is_above(shown, holding.fence, "when the store is back")?;
    }
    holding.ends(&cx, &link.backend, "after the release").await?;
    Ok(())
}

async fn c18_a_look_after_one_that_failed_is_answered(cx: Cx) -> Check {
    let other = cx.backend().await?;
    at_each_request(&cx, async |one| {
        let (held, free) = (cx.key(&one.lock)?, cx.key(&format!("{} free", one.lock))?);
        let mut holding = Holding::take(&cx, &other, &held, Some("the holder")).await?;
        let after = one.after("a look");
        let asked = from_ref(&held);
        // It is given up before an answer that is late.
        let answer = one.meets(look_within(&cx, cx.ttl() / 2, one.backend(), asked)).await?;
        if let Ok(seen) = answer {
            is_whole(asked, &seen)?;
            holding.is_shown(&cx, &seen[0], &after)?;
        }
        for (key, is_held) in [(&free, false), (&held, true)] {
            let keys = from_ref(key);
            let look = async || answer_to_look(&cx, one.backend(), keys).await;
            let seen = answered(&cx, cx.ttl() * 2, look).await.demanded(&after)?;
            is_whole(keys, &seen)?;
            match is_held {
                true => holding.is_shown(&cx, &seen[0], &after)?,
                false => floor(&seen[0], None, &after).map(drop)?,
            }
        }
        holding.claim.release().await?;
        let seen = look_at(&cx, one.backend(), &held).await?;
        floor(&seen, Some(holding.fence.get()), "after the release")?;
        Ok(())
    })
    .await
}

async fn c18_a_look_joins_no_earlier_one(cx: Cx) -> Check {
    let (link, other) = (cx.warm_link("warm-up").await?, cx.backend().await?);
    let key = cx.key("lock")?;
    look_at(&cx, &link.backend, &key).await?;
    let before = link.struck();
    // Less than the time after which a client takes its server for silent.
    link.inject(Fault::DelayNextReply(cx.ttl() / 8)).await?;
    let early = {
        let (cx, link, key) = (cx.clone(), link.clone(), key.clone());
        tokio::spawn(async move { look_at(&cx, &link.backend, &key).await })
    };
    // Most likely the store has acted on it by then.
    within(&cx, cx.ttl() / 16, has_struck(&cx, &link, before)).await;
    let holding = Holding::take(&cx, &other, &key, Some("the holder")).await?;
    let when = "while an earlier look has had no answer";
    holding.is_seen(&cx, &link.backend, when).await?;
    match early.await?? {
        free @ Seen::Free { .. } => is_above(floor(&free, None, when)?, holding.fence, when)?,
        seen => holding.is_shown(&cx, &seen, when)?,
    }
    holding.is_seen(&cx, &link.backend, "after both looks").await?;
    holding.ends(&cx, &link.backend, "after the release").await?;
    Ok(())
}

async fn c18_a_dropped_look_disturbs_nobody(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (held, free) = (cx.key("held")?, cx.key("free")?);
    let mut holding = Holding::take(&cx, &a, &held, Some("the holder")).await?;
    at_each_await("a look", async |polls| {
        let done = drop_after(polls, a.look(from_ref(&held))).await.done()?;
        let after = format!("after a look was dropped at await {polls}");
        for key in [&free, &held] {
            let look = async || answer_to_look(&cx, &a, from_ref(key)).await;
            let seen = answered(&cx, cx.slack(), look).await.demanded(&after)?;
            is_whole(from_ref(key), &seen)?;
            match *key == held {
                true => holding.is_shown(&cx, &seen[0], &after)?,
                false => floor(&seen[0], None, &after).map(drop)?,
            }
        }
        let renewal = answered(&cx, cx.slack(), async || holding.claim.renew().await).await;
        let renewal = renewal.demanded(&after)?;
        ensure!(renewal != Renewal::Lost, "{after}, a renewal is answered {renewal:?}");
        holding.is_seen(&cx, &b, &after).await?;
        Ok(done)
    })
    .await?;
    holding.ends(&cx, &b, "after the release").await?;
    Ok(())
}

async fn c18_a_grant_without_an_answer_is_shown(cx: Cx) -> Check {
    let by = cx.backend().await?;
    at_each_request(&cx, async |one| {
        let key = cx.key(&one.lock)?;
        let request = labelled(&cx, &key, Some("the holder"))?.with_call_timeout(cx.ttl() / 2);
        let mut claim = one.backend().claim(request.clone())?;
        let when = one.after("a try");
        let _ = one.meets(claim.try_acquire()).await?;
        let before = holder(&by, &key).await?;
        let seen = look_at(&cx, &by, &key).await?;
        let fence = granted_at_last(&cx, &mut *claim).await?;
        let was_granted = before == Some((request.owner, fence));
        let holding = Holding { claim, request, fence };
        match &seen {
            Seen::Free { .. } if !was_granted => {
                is_above(floor(&seen, None, &when)?, fence, &when)?
            }
            seen => holding.is_shown_early(&cx, seen, &when)?,
        }
        holding.is_seen(&cx, &by, &when).await?;
        holding.ends(&cx, &by, "after the release").await?;
        Ok(())
    })
    .await
}
