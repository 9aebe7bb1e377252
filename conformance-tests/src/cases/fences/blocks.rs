//! C16: blocks of fencing tokens.

use lock_core::{ClaimRequest, ErrorKind, FencingToken, Renewal, Resume};

use crate::cases::tools::{after_a_wait, free_soon, got, holds, still_held, survives_a_restart};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, ensure_exactly, fail};

cases! {
    c16_blocks_rise_over_releases [Blocks]
        "no token of a block is given again after its release, whether it was used or not"
        covers [TryAcquire/New/OtherReleases];
    c16_blocks_rise_over_ends_by_others [Blocks, Lease]
        "no token of a block is given again when the lease ended, or the lock was taken away"
        covers [TryAcquire/New/Expiry, TryAcquire/New/Forced];
    c16_blocks_rise_from_waiter_to_waiter [Blocks]
        "each waiter gets the block that it has asked for"
        covers [TryAcquire/Waiting/OtherReleases];
    c16_blocks_rise_over_a_restart_of_the_store [Blocks, Alone]
        "no token of a block is given again after a restart of the store that keeps its data"
        covers [TryAcquire/New/Restart];
    c16_a_repeated_try_returns_the_same_block [Blocks]
        "a repeated try returns the first token of the same block, and uses up no other"
        covers [TryAcquire/Held/Plain];
    c16_only_its_own_block_attaches [Blocks, Detach]
        "a claim that names a token outside of the block that the store has recorded renews and releases nothing"
        covers [Renew/Resumed/Plain];
    c16_inspection_shows_the_first_token [Blocks, Inspect]
        "inspection shows the first token of a block"
        covers [Inspect/Open/OtherHolder];
    c16_a_cohort_without_blocks_is_refused [NoBlocks]
        "a cohort on a store without blocks is refused by a typed error, and sends nothing";
}

/// As many tokens as there are microseconds in ten seconds: a store that takes its tokens from a clock
/// does not get above them by waiting.
const MANY: u32 = 10_000_000;

/// A request for a block.
fn request(cx: &Cx, fences: u32) -> Check<ClaimRequest> {
    Ok(cx.request_for("lock", cx.long_ttl())?.with_fences(fences))
}

/// Records a block, whose tokens must be above all before.
fn next(last: &mut u64, first: FencingToken, fences: u32, after: &str) -> Check {
    let first = first.get();
    ensure_exactly!(first > *last, "{after} a block begins with {first}, and {last} was given");
    *last = first + u64::from(fences) - 1;
    Ok(())
}

async fn c16_blocks_rise_over_releases(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?];
    let mut last = 0;
    for cycle in 0..if cx.is_virtual() { 200 } else { 40 } {
        // The last one moves a count that has 32 bits back; on a server it would put the fences of all other tests
        // hours ahead of the clock.
        let fences = [1, 5, MANY, if cx.is_virtual() { u32::MAX } else { 2 }][cycle % 4];
        let mut claim = clients[cycle / 2 % 2].claim(request(&cx, fences)?)?;
        next(&mut last, granted(&mut *claim).await?, fences, "after a release")?;
        claim.release().await?;
    }
    Ok(())
}

async fn c16_blocks_rise_over_ends_by_others(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?];
    let mut last = 0;
    for cycle in 0..3 {
        let mut claim = clients[cycle % 2].claim(cx.request("lock")?.with_fences(MANY))?;
        next(&mut last, granted(&mut *claim).await?, MANY, "after a lease that ended")?;
        drop(claim);
        cx.sleep(cx.over()).await;
    }
    for cycle in 0..4 {
        let mut claim = clients[cycle % 2].claim(request(&cx, MANY)?)?;
        next(&mut last, granted(&mut *claim).await?, MANY, "after a forced release")?;
        cx.store().break_hold(&cx.key("lock")?).await?;
        claim.release().await?;
    }
    Ok(())
}

async fn c16_blocks_rise_from_waiter_to_waiter(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?];
    let mut last = 0;
    let mut holder = clients[0].claim(request(&cx, 7)?)?;
    next(&mut last, granted(&mut *holder).await?, 7, "at first")?;
    for turn in 0..8 {
        let fences = [MANY, 1, 3][turn % 3];
        let mut waiter = clients[turn % 2].claim(request(&cx, fences)?.with_wait(true))?;
        busy(&cx, &mut *waiter).await?;
        holder.release().await?;
        next(&mut last, granted(&mut *waiter).await?, fences, "from a waiter to the next")?;
        holder = waiter;
    }
    holder.release().await?;
    Ok(())
}

async fn c16_blocks_rise_over_a_restart_of_the_store(cx: Cx) -> Check {
    let backend = cx.backend().await?;
    let mut last = 0;
    let mut before = backend.claim(request(&cx, MANY)?)?;
    next(&mut last, granted(&mut *before).await?, MANY, "at first")?;
    before.release().await?;
    let mut over = holds(&cx, &backend, "another").await?;
    survives_a_restart(&cx, &mut *over).await?;
    over.release().await?;
    let mut after = backend.claim(request(&cx, 1)?)?;
    next(&mut last, granted(&mut *after).await?, 1, "after a restart")?;
    after.release().await?;
    Ok(())
}

async fn c16_a_repeated_try_returns_the_same_block(cx: Cx) -> Check {
    let backend = cx.backend().await?;
    let mut claim = backend.claim(request(&cx, 5)?)?;
    let first = granted(&mut *claim).await?;
    for _ in 0..3 {
        let again = granted(&mut *claim).await?;
        ensure_exactly!(again == first, "a repeated try returned {again} instead of {first}");
    }
    claim.release().await?;
    Ok(())
}

async fn c16_only_its_own_block_attaches(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    // The block is that of a holder who had to wait.
    let hold = request(&cx, 5)?;
    let (mut claim, first) = after_a_wait(&cx, &a, &a, hold.clone()).await?;
    let first = first.get();
    let data = claim.detach().await?;
    let resumed = |first, fences| -> Check<ClaimRequest> {
        let resume = Resume::new(FencingToken::new(first)?, data.clone());
        Ok(hold.clone().with_fences(fences).with_resume(resume))
    };
    for (first, fences) in
        [(first + 1, 5), (first, 6), (first - 1, 5), (first - 1, 6), (first + 5, 1), (1, MANY)]
    {
        let what = format!("a claim on the block of {fences} from {first}");
        for releases in [false, true] {
            let mut forged = b.claim(resumed(first, fences)?)?;
            if releases {
                forged.release().await?;
            } else {
                let answer = forged.renew().await;
                ensure!(
                    matches!(&answer, Ok(Renewal::Lost))
                        || answer.as_ref().is_err_and(|error| !error.is_retryable()),
                    "the renewal of {what} is answered {answer:?}"
                );
            }
            still_held(&cx, &a, "lock", &what).await?;
        }
    }
    let mut right = b.claim(resumed(first, 5)?)?;
    match right.renew().await? {
        Renewal::Alive { .. } => {}
        other => fail!("the renewal of the right block is answered {other:?}"),
    }
    right.release().await?;
    free_soon(&cx, &a, "lock", "after the release of the right block").await
}

async fn c16_inspection_shows_the_first_token(cx: Cx) -> Check {
    let (backend, locks) = (cx.backend().await?, cx.locks().await?);
    let mut claim = backend.claim(request(&cx, MANY)?.with_label(Some("the label".into())))?;
    let first = granted(&mut *claim).await?;
    for info in [locks.inspect("lock").await?, locks.list("").await?.pop()] {
        let Some(holder) = info.and_then(|info| info.holder) else {
            fail!("a lock that is held is shown without its holder");
        };
        ensure!(holder.fence == Some(first), "{:?} is shown for {first}", holder.fence);
        let label = holder.label.as_deref();
        ensure!(label == Some("the label"), "a holder with a block is labelled {label:?}");
    }
    claim.release().await?;
    Ok(())
}

async fn c16_a_cohort_without_blocks_is_refused(cx: Cx) -> Check {
    let backend = cx.backend().await?;
    let locks = cx.locks_on(&backend);
    let refused = [
        locks.named("lock")?.cohort(2).try_acquire().await.err(),
        cx.builder(&backend).cohort(2).build().err(),
    ];
    for error in refused {
        let Some(error) = error else { fail!("a cohort was granted without its tokens") };
        ensure!(error.kind() == ErrorKind::Unsupported, "a cohort is refused by {error}");
    }
    got(&locks.named("lock")?.cohort(1)).await?.release().await?;
    Ok(())
}
