//! C18: the floor of a free name, which no token so far exceeds and every later one does.

use std::time::Duration;

use lock_core::{Fencing, FencingToken};

use crate::cases::tools::looks::{
    Holding, answer_to_look, floor, is_above, is_whole, labelled, look,
};
use crate::cases::tools::{after_restart, survives_a_restart};
use crate::context::Cx;
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded as _};

cases! {
    c18_a_floor_lies_between_the_last_token_and_the_next [Look]
        "the floor of a free name is not below its last token, and below each token that is given after the look, whatever other names were given"
        covers [Look/Open/Plain, Look/Open/OtherReleases];
    c18_a_floor_is_not_below_the_last_of_a_block [Look, Blocks]
        "a hold with a block is shown with its first token, and the floor after it is not below its last"
        covers [Look/Open/OtherHolder, Look/Open/OtherReleases];
    c18_a_look_after_a_restart_shows_what_the_store_has [Look, Alone]
        "after a restart a look shows a hold that the store has kept, none that it has lost, and a floor that no token so far exceeds where the tokens are durable"
        covers [Look/Open/Restart];
}

/// What was seen of one name: its last token, and the greatest floor that was shown.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    last: Option<u64>,
    floor: Option<FencingToken>,
}

async fn c18_a_floor_lies_between_the_last_token_and_the_next(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?, cx.backend().await?];
    let keys = [cx.key("lock")?, cx.key("other")?, cx.key("seldom")?];
    let mut bounds = [Bounds::default(); 3];
    for cycle in 0..if cx.is_virtual() { 120 } else { 24 } {
        let (holder, by) = (&clients[cycle % 3], &clients[(cycle / 2 + 1) % 3]);
        let seen = look(&cx, by, &keys).await?;
        for (bounds, seen) in bounds.iter_mut().zip(&seen) {
            let shown = floor(seen, bounds.last, &format!("in cycle {cycle}"))?;
            bounds.floor = bounds.floor.max(shown);
        }
        // So that each has tokens of its own, and the last one is seen for long without any.
        let at = if cycle % 12 == 11 { 2 } else { usize::from(cycle % 3 == 0) };
        let mut holding = Holding::take(&cx, holder, &keys[at], None).await?;
        is_above(bounds[at].floor, holding.fence, &format!("in cycle {cycle}"))?;
        bounds[at].last = Some(holding.fence.get());
        holding.claim.release().await?;
    }
    // Longer than a name is kept in a store that forgets those that rest.
    cx.sleep(if cx.is_virtual() { Duration::from_secs(180) } else { cx.ttl() * 3 }).await;
    let (seen, when) = (look(&cx, &clients[0], &keys).await?, "after a long rest");
    for ((key, bounds), seen) in keys.iter().zip(bounds).zip(&seen) {
        let shown = floor(seen, bounds.last, when)?;
        let next = Holding::take(&cx, &clients[1], key, None).await?;
        is_above(shown, next.fence, when)?;
        next.ends(&cx, &clients[2], when).await?;
    }
    Ok(())
}

/// More tokens than a store has given by chance while it was looked at.
const MANY: u32 = 10_000_000;

async fn c18_a_floor_is_not_below_the_last_of_a_block(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let key = cx.key("lock")?;
    let (mut shown, when) = (None, "after a block");
    for fences in [5, 1, MANY, 2, 1] {
        let request = labelled(&cx, &key, Some("one with a block"))?.with_fences(fences);
        let mut holding = Holding::of(&a, request).await?;
        is_above(shown, holding.fence, when)?;
        holding.is_seen(&cx, &b, "with a block").await?;
        holding.claim.release().await?;
        let last = holding.fence.get() + u64::from(fences) - 1;
        shown = floor(&look(&cx, &b, std::slice::from_ref(&key)).await?[0], Some(last), when)?;
    }
    let next = Holding::take(&cx, &b, &key, None).await?;
    is_above(shown, next.fence, when)?;
    next.ends(&cx, &a, "after the release").await?;
    Ok(())
}

async fn c18_a_look_after_a_restart_shows_what_the_store_has(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (kept, free) = (cx.key("kept")?, cx.key("free")?);
    let mut holding = Holding::take(&cx, &b, &kept, Some("kept")).await?;
    let before = Holding::take(&cx, &a, &free, None).await?;
    let last = before.fence.get();
    before.ends(&cx, &b, "after the release").await?;
    let is_kept = survives_a_restart(&cx, &mut *holding.claim).await?;
    let keys = [kept, free];
    let answer = after_restart(&cx, async || answer_to_look(&cx, &a, &keys).await).await;
    let seen = answer.demanded("a look after a restart")?;
    is_whole(&keys, &seen)?;
    let when = "after a restart of the store";
    let knows = is_kept || cx.capabilities().fencing == Fencing::Durable;
    let least = |token: u64| knows.then_some(token);
    if is_kept {
        holding.is_shown(&cx, &seen[0], when)?;
    } else {
        floor(&seen[0], least(holding.fence.get()), when)?;
    }
    let shown = floor(&seen[1], least(last), when)?;
    let next = Holding::take(&cx, &b, &keys[1], None).await?;
    is_above(shown, next.fence, when)?;
    holding.claim.release().await?;
    next.ends(&cx, &b, "after the release").await?;
    Ok(())
}
