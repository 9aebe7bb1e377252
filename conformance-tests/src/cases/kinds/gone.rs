//! Holders and waiters of each kind that are gone, or stood still.

use std::time::Duration;

use lock_core::{LostReason, Seen};
use tokio::task::JoinSet;

use crate::Fault;
use crate::cases::tools::kinds::KINDS;
use crate::cases::tools::looks::look;
use crate::cases::tools::{
    answered, has_struck, lost_reason, on_one_thread, soon, stand_still, within,
};
use crate::context::Cx;
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop, ensure, ensure_exactly};

cases! {
    s05_who_stood_still_believes_in_no_kind_of_lock [Look]
        "a client that stood still for longer than its leases first says of each kind of lock that it is lost";
    l01_what_was_held_of_each_kind_is_free_after_a_lease [Look, Faults]
        "what a client that is gone had of each kind of lock goes to others when its lease has ended, and not before";
    l05_a_first_waiter_that_is_gone_keeps_no_permit_from_others [Look, Faults]
        "when the first of those that wait for permits is gone, the others get those that are free long before the end of its lease";
}

/// A read of a lock of its own, beside all that excludes others.
const READ: &str = "another resource";

/// Others may have to connect, and poll.
fn limit(cx: &Cx) -> Duration {
    Duration::from_secs(20) + cx.over()
}

async fn s05_who_stood_still_believes_in_no_kind_of_lock(cx: Cx) -> Check {
    on_one_thread(&cx, async |cx| {
        let locks = cx.locks().await?;
        let mut each = Vec::new();
        for kind in KINDS {
            each.extend(answered(&cx, limit(&cx), async || kind.take_all(&locks).await).await?);
        }
        each.push(Box::new(locks.rw_lock(READ)?.read().await?));
        // So that they are renewed before.
        cx.sleep(cx.ttl() / 2).await;
        stand_still(&cx, cx.ttl() * 2).await;
        for taken in &each {
            let reason = lost_reason(taken.tokens(), "asking for the token after a standstill")?;
            ensure!(reason == LostReason::Expired, "it was lost for another reason: {reason:?}");
        }
        Ok(())
    })
    .await?;
    let others = cx.locks().await?;
    for kind in KINDS {
        let what = format!("others take all {kind:?}");
        let take = answered(&cx, limit(&cx), async || kind.take_all(&others).await);
        for taken in soon(&cx, limit(&cx), &what, take).await?? {
            // Without an answer, it is repeated in the background.
            let _ = taken.release().await;
        }
    }
    Ok(())
}

async fn l01_what_was_held_of_each_kind_is_free_after_a_lease(cx: Cx) -> Check {
    let (link, others) = (cx.link().await?, cx.locks().await?);
    let locks = cx.locks_on(&link.backend);
    let mut each = Vec::new();
    for kind in KINDS {
        each.push((kind, kind.take_all(&locks).await?));
    }
    let read = locks.rw_lock(READ)?.read().await?;
    link.inject(Fault::Partition).await?;
    let (mut waits, read_until) = (JoinSet::new(), read.valid_until());
    for (kind, all) in each {
        let until = all.iter().map(|taken| taken.valid_until()).max().unwrap_or(cx.now());
        // It is out of reach, so this releases nothing.
        drop(all);
        let (cx, others) = (cx.clone(), others.clone());
        waits.spawn(async move {
            let what = format!("another one gets all {kind:?}");
            let all = soon(&cx, limit(&cx), &what, kind.take_all(&others)).await??;
            let now = cx.now();
            ensure_exactly!(now >= until, "{:?} too early, others have {what}", until.since(now));
            for taken in all {
                let _ = taken.release().await;
            }
            Check::Ok(())
        });
    }
    drop(read);
    let write = others.rw_lock(READ)?;
    let write = soon(&cx, limit(&cx), "a writer follows the reader", write.write()).await??;
    let now = cx.now();
    ensure_exactly!(now >= read_until, "{:?} too early, another writes", read_until.since(now));
    write.release().await?;
    while let Some(ended) = waits.join_next().await {
        ended??;
    }
    Ok(())
}

/// How often a client is ended until that was in its turn.
const TRIES: usize = 24;
/// A store that is polled is asked again after that long at the latest.
const SLOWEST_POLL: Duration = Duration::from_secs(13);

/// How far a client has come that waits for permits.
enum Came {
    NotYet,
    /// It is the first one, and has no place in the queue of a permit.
    ToItsTurn,
    Further,
}

async fn l05_a_first_waiter_that_is_gone_keeps_no_permit_from_others(cx: Cx) -> Check {
    let (ours, theirs) = (cx.locks().await?, cx.locks().await?);
    // It tries a slot, and looks at all of them, before it waits for its turn.
    let mut requests = 2;
    for nth in 0..TRIES {
        let name = format!("permits {nth}");
        let permits = ours.semaphore(&name, 2)?.ttl(cx.long_ttl());
        let held = [permits.acquire().await?, permits.acquire().await?];
        match is_gone_after(&cx, &name, requests).await? {
            Came::NotYet => requests += 1,
            // Something else of the client has made a request less this time.
            Came::Further => requests = requests.saturating_sub(1),
            Came::ToItsTurn => {
                let next = theirs.semaphore(&name, 2)?.ttl(cx.long_ttl());
                let mut waiting = JoinSet::new();
                waiting.spawn(async move { next.acquire().await });
                cx.sleep(cx.ttl() / 4).await;
                drop(held);
                // A turn has a ttl of 3 s, and its permits would have one of a minute.
                let limit = cx.round(Duration::from_secs(3)) + cx.lapse() + SLOWEST_POLL;
                let what = "the next one gets a permit";
                if let Some(next) = soon(&cx, limit, what, waiting.join_next()).await? {
                    drop(next??);
                }
                return Ok(());
            }
        }
    }
    Err(Stop::hindered("no waiter was gone after its turn had come, and before it went on"))
}

/// How far a client has come that waits for permits, and is gone after so many requests.
async fn is_gone_after(cx: &Cx, name: &str, requests: u32) -> Check<Came> {
    let (link, other) = (cx.warm_link("warm-up").await?, cx.backend().await?);
    let permits = cx.locks_on(&link.backend).semaphore(name, 2)?.ttl(cx.long_ttl());
    let before = link.struck();
    link.inject_after(requests, Fault::LoseNextRequest).await?;
    // Those that are under way at the same time, too.
    link.inject_into(8, Fault::LoseNextRequest).await?;
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { permits.acquire().await });
    within(cx, cx.over() * 2, has_struck(cx, &link, before)).await;
    link.inject(Fault::Partition).await?;
    waiting.shutdown().await;
    let turnstile = cx.key(&format!("{name}~~pt"))?;
    let seen = look(cx, &other, &[turnstile]).await?;
    if !matches!(seen.first(), Some(Seen::Held { .. })) {
        return Ok(Came::NotYet);
    }
    let Some(shown) = other.admin() else { return Ok(Came::ToItsTurn) };
    for slot in 0..2 {
        let permit = shown.inspect(&cx.key(&format!("{name}~~p{slot}"))?).await?;
        if permit.and_then(|permit| permit.waiters).is_some_and(|waiters| waiters > 0) {
            return Ok(Came::Further);
        }
    }
    Ok(Came::ToItsTurn)
}
