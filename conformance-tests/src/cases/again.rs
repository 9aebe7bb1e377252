//! C9 for a claim that tries again when its hold has ended: it has a new hold, and a new token.

use std::sync::Arc;

use lock_core::{Claim, FencingToken, LockBackend};

use super::tools::take_away;
use crate::case::cases;
use crate::check::{Check, ensure_exactly, fail};
use crate::cx::{Cx, busy, granted};

cases! {
    c09_a_try_after_the_end_has_a_new_token [Lease]
        "a claim whose lease has ended, and that tries again after another holder, has a greater token than that one"
        covers [TryAcquire/Held/Expiry, TryAcquire/Held/OtherReleases];
    c09_a_try_after_a_loss_has_a_new_token []
        "a claim whose lock was taken away, and that tries again after another holder, has a greater token than that one"
        covers [TryAcquire/Held/Forced];
}

async fn c09_a_try_after_the_end_has_a_new_token(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut claim, first) = cx.held(&a, "lock").await?;
    cx.sleep(cx.over()).await;
    tries_again(&cx, &mut *claim, first, &b).await
}

async fn c09_a_try_after_a_loss_has_a_new_token(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut claim = a.claim(cx.request_for("lock", cx.long_ttl())?)?;
    let first = granted(&mut *claim).await?;
    take_away(&cx, &b, "lock").await?;
    tries_again(&cx, &mut *claim, first, &b).await
}

/// The hold with the token `first` has ended: another one has the lock, and then this claim again.
async fn tries_again(
    cx: &Cx,
    claim: &mut dyn Claim,
    first: FencingToken,
    other: &Arc<dyn LockBackend>,
) -> Check {
    let mut next = other.claim(cx.request_for("lock", cx.long_ttl())?)?;
    let second = granted(&mut *next).await?;
    ensure_exactly!(second > first, "the next holder's token {second} is not above {first}");
    busy(claim).await?;
    next.release().await?;
    let third = granted(claim).await?;
    ensure_exactly!(
        third > second,
        "a claim that has the lock again holds it with the token {third}, and another one had {second} before"
    );
    claim.release().await?;
    match cx.fence_if_free(other, "lock").await? {
        Some(last) => {
            ensure_exactly!(last > third, "the next token {last} is not above {third}");
            Ok(())
        }
        None => fail!("the lock was released, and is taken"),
    }
}
