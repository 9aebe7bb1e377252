//! C18: a look writes nothing, wakes nobody, and costs as much for many names as for one.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{FencingToken, LockBackend, LockKey, OwnerId, Released};

use crate::cases::tools::looks::{Holding, InLine, answer_to_look, labelled, look, look_at};
use crate::cases::tools::{free_within, is_quiet, renewed, turns, within};
use crate::context::{Cx, Link, busy};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, ensure};

cases! {
    c18_a_look_leaves_nothing_behind [Look]
        "looks at held and free names leave no entry, and change neither a hold nor what a release is answered"
        covers [Look/Open/Plain, Look/Open/OtherHolder];
    c18_a_look_is_in_nobodys_way [Look]
        "a lock that is free is granted at the first try, however many look at it meanwhile"
        covers [Look/Open/Plain];
    c18_a_look_prolongs_nothing [Look, Lease]
        "a lease and a place end in time, however often others look"
        covers [Look/Open/Expiry, Look/Open/QueueBehind];
    c18_a_look_wakes_nobody [Look, Push]
        "neither a waiter nor a holder is told that others have looked"
        covers [Look/Open/QueueBehind];
    c18_a_look_at_many_names_makes_no_more_requests [Look, Faults]
        "a look at 64 names makes as many requests as a look at one"
        covers [Look/Open/Plain, Look/Open/OtherHolder];
}

/// What operators see of one lock: the key, the holder and its token, and how many wait.
type Shown = (LockKey, Option<OwnerId>, Option<FencingToken>, Option<usize>);

/// All locks of the case, if the store shows them.
async fn entries(cx: &Cx, backend: &Arc<dyn LockBackend>) -> Check<Vec<Shown>> {
    let Some(admin) = backend.admin() else { return Ok(Vec::new()) };
    let listed = admin.list(cx.prefix(), "").await?.into_iter();
    let shown = listed.map(|info| {
        let (owner, fence) = info.holder.map(|it| (it.owner, it.fence)).unwrap_or_default();
        (info.key, owner, fence, info.waiters)
    });
    Ok(shown.collect())
}

async fn c18_a_look_leaves_nothing_behind(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let keys: Check<Vec<_>> = (0..8).map(|nth| cx.key(&format!("lock{nth}"))).collect();
    let keys = keys?;
    let mut holding = Holding::take(&cx, &a, &keys[0], Some("the holder")).await?;
    let waiter = InLine::enter(&cx, &b, &keys[0], "the next").await?;
    let before = entries(&cx, &c).await?;
    for by in [&a, &b, &c] {
        for _ in 0..5 {
            look(&cx, by, &keys).await?;
        }
    }
    let after = entries(&cx, &c).await?;
    ensure!(before == after, "looks have changed what the store has from {before:?} to {after:?}");
    for key in &keys[1..] {
        // It must be granted at once.
        Holding::take(&cx, &b, key, None).await?.claim.release().await?;
    }
    renewed(&mut *holding.claim).await?;
    let released = holding.claim.release().await?;
    ensure!(released == Released::Freed, "others have looked, and a release says {released:?}");
    let next = waiter.follows(&cx, &c, holding.fence, "after a release").await?;
    next.ends(&cx, &a, "after the release").await?;
    Ok(())
}

async fn c18_a_look_is_in_nobodys_way(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let key = cx.key("lock")?;
    for round in 0..if cx.is_virtual() { 40 } else { 12 } {
        let looks = async {
            look_at(&cx, &a, &key).await?;
            look_at(&cx, &a, &key).await
        };
        let takes = async {
            turns(&cx, round % 8).await;
            Holding::take(&cx, &b, &key, None).await
        };
        let (seen, taken) = tokio::join!(looks, takes);
        seen?;
        let mut holding = taken?;
        let (seen, released) = tokio::join!(look_at(&cx, &a, &key), holding.claim.release());
        seen?;
        let released = released?;
        ensure!(released == Released::Freed, "another looks, and a release says {released:?}");
    }
    Ok(())
}

async fn c18_a_look_prolongs_nothing(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let (left, queue) = (cx.key("left")?, cx.key("queue")?);
    let mut holding = Holding::take(&cx, &a, &queue, None).await?;
    // A claim that is gone, and a waiter that is gone.
    drop(cx.held(&a, left.name()).await?);
    let mut dead = labelled(&cx, &queue, None)?.with_wait(true);
    dead.ttl = cx.ttl();
    let mut dead = b.claim(dead)?;
    busy(&cx, &mut *dead).await?;
    drop(dead);
    let (begun, keys) = (cx.now(), [left.clone(), queue]);
    while cx.now().since(begun) < cx.over() {
        look(&cx, &b, &keys).await?;
        look(&cx, &c, &keys).await?;
        cx.sleep(cx.ttl() / 8).await;
    }
    ensure!(
        cx.is_free(&c, left.name()).await?,
        "others have looked, and a lease has not ended {:?} after its grant",
        cx.now().since(begun)
    );
    holding.claim.release().await?;
    let limit = Duration::from_millis(300) + cx.slack();
    free_within(&cx, &c, "queue", limit, "after a wait that has ended while others looked").await
}

/// So many looks that each of them would be noticed.
const LOOKS: u32 = 30;
/// Fewer changes than this may be spurious.
const SPURIOUS: u32 = 10;

async fn c18_a_look_wakes_nobody(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let key = cx.key("lock")?;
    let mut holding = Holding::take(&cx, &a, &key, None).await?;
    let mut waiter = InLine::enter(&cx, &b, &key, "one that waits").await?;
    is_quiet(&cx, &mut *holding.claim).await?;
    is_quiet(&cx, &mut *waiter.claim).await?;
    for claim in [&mut holding.claim, &mut waiter.claim] {
        let mut told = 0;
        for _ in 0..LOOKS {
            look_at(&cx, &c, &key).await?;
            if let Some(change) = within(&cx, Duration::from_millis(10), claim.changed()).await {
                change?;
                told += 1;
            }
        }
        ensure!(told < SPURIOUS, "{LOOKS} looks of another client have made {told} changes");
    }
    busy(&cx, &mut *waiter.claim).await?;
    waiter.claim.release().await?;
    holding.ends(&cx, &c, "after the release").await?;
    Ok(())
}

/// The most names of one look of the core.
const MOST: usize = 64;
/// How often the requests of a look are counted: the client may do something else meanwhile.
const COUNTS: usize = 4;
/// In so many more pieces a long request may be sent.
const PIECES: u64 = 4;

/// The fewest requests of a look at these names, which have all been looked at before.
async fn requests(cx: &Cx, link: &Link, keys: &[LockKey]) -> Check<u64> {
    let mut fewest = u64::MAX;
    for _ in 0..COUNTS {
        look(cx, &link.backend, keys).await?;
        let before = link.requests()?;
        answer_to_look(cx, &link.backend, keys).await.demanded("a look")?;
        fewest = fewest.min(link.requests()? - before);
    }
    Ok(fewest)
}

async fn c18_a_look_at_many_names_makes_no_more_requests(cx: Cx) -> Check {
    let (link, other) = (cx.warm_link("warm-up").await?, cx.backend().await?);
    let keys: Check<Vec<_>> = (0..MOST).map(|nth| cx.key(&format!("lock{nth}"))).collect();
    let keys = keys?;
    for held in [false, true] {
        if held {
            for key in &keys {
                Holding::take(&cx, &other, key, Some("the holder")).await?;
            }
        }
        let one = requests(&cx, &link, &keys[..1]).await?;
        let all = requests(&cx, &link, &keys).await?;
        ensure!(
            all <= 2 * one + PIECES,
            "a look at one name makes {one} requests, and a look at {MOST} makes {all}"
        );
    }
    Ok(())
}
