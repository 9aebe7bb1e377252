//! C14: the bearer of a lease token can edit it, so none of it is trusted.

use std::sync::Arc;

use lock_core::{
    Bytes, Claim, ClaimRequest, FencingToken, LeaseToken, LockBackend, LockKey, OsRng, OwnerId,
    Released, Renewal,
};
use serde_json::{Value, json};

use crate::cases::tools::detached::{Detached, is_alive, is_final, made};
use crate::cases::tools::{edited, free_soon, holds, kept_until, still_held, take_for};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, ensure, fail};

cases! {
    c14_a_greater_fence_is_not_believed [Detach]
        "a hold that is resumed with a greater fence than its own is refused, and unharmed"
        covers [Claim/Resumed/Plain, Claim/Resumed/Dropped, Renew/Resumed/Plain,
            Check/Resumed/Plain, Release/Lost/Plain];
    c14_a_smaller_fence_is_not_believed [Detach]
        "a hold that is resumed with a smaller fence than its own is refused, and unharmed"
        covers [Claim/Resumed/Plain, Renew/Resumed/Plain, Check/Resumed/Plain, Release/Lost/Plain];
    c14_another_owner_is_not_believed [Detach]
        "a hold that is resumed by another owner is refused, and unharmed"
        covers [Renew/Resumed/OtherHolder, Check/Resumed/OtherHolder, Release/Resumed/OtherHolder];
    c14_another_name_is_not_believed [Detach]
        "a hold that is resumed under another name is refused, and neither lock is harmed"
        covers [Renew/Resumed/Plain, Renew/Resumed/OtherHolder, Check/Resumed/Plain,
            Check/Resumed/OtherHolder, Release/Resumed/Plain, Release/Resumed/OtherHolder];
    c14_another_prefix_is_not_believed [Detach]
        "a hold that is resumed under another prefix is refused, and neither lock is harmed"
        covers [Renew/Resumed/Plain, Renew/Resumed/OtherHolder, Check/Resumed/Plain,
            Check/Resumed/OtherHolder, Release/Resumed/Plain, Release/Resumed/OtherHolder];
    c14_a_shorter_ttl_is_the_requests [Detach]
        "a hold that is resumed with a shorter ttl is prolonged by that ttl, or is refused and unharmed"
        covers [Renew/Resumed/Plain];
    c14_a_longer_ttl_is_the_requests [Detach]
        "a hold that is resumed with a longer ttl is kept for that ttl, or is refused and unharmed"
        covers [Renew/Resumed/Plain];
    c14_damaged_data_harm_nobody [Detach]
        "a hold whose data were cut, lengthened or changed is resumed as it is, or refused and unharmed"
        covers [Claim/Resumed/Plain, Renew/Resumed/Plain];
    c14_the_data_of_another_hold_end_nothing [Detach]
        "a hold that is resumed with the data of another one does not end that other one"
        covers [Renew/Resumed/Plain, Release/Resumed/Plain];
    c14_the_data_of_another_hold_renew_nothing [Detach]
        "a hold that is resumed with the data of another one does not renew that other one"
        covers [Renew/Resumed/Plain];
    c14_an_edited_text_gives_no_guard [Detach]
        "a lease token whose text was edited attaches to nothing, and the true one still does"
        guards [Attach/Detached/Plain, RenewToken/Detached/Plain, ReleaseToken/Detached/Plain];
}

/// A refused claim releases nothing, and its answer says so.
async fn frees_nothing(claim: &mut dyn Claim, what: &str) -> Check {
    let released = claim.release().await.demanded("releasing a claim that was refused")?;
    ensure!(
        released == Released::AlreadyGone,
        "{what} was refused, and its release is {released:?}"
    );
    Ok(())
}

/// Every way to start with this request is refused.
async fn is_refused(backend: &Arc<dyn LockBackend>, request: &ClaimRequest, what: &str) -> Check {
    if let Some(mut claim) = made(backend, request, what)? {
        ensure!(!is_alive(claim.renew().await, what)?, "{what} renews the hold");
        frees_nothing(&mut *claim, what).await?;
    }
    if let Some(mut claim) = made(backend, request, what)? {
        ensure!(!is_alive(claim.check().await, what)?, "{what} is told that it has the hold");
        frees_nothing(&mut *claim, what).await?;
    }
    // Dropping it does nothing, either.
    if let Some(mut claim) = made(backend, request, what)? {
        is_alive(claim.renew().await, what)?;
    }
    Ok(())
}

async fn c14_a_greater_fence_is_not_believed(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let hold = Detached::take(&cx, &a, "lock", cx.long_ttl()).await?;
    // The second one has the true fence in its lower half.
    for more in [1, 1 << 32, FencingToken::MAX.get() - hold.fence.get()] {
        let fence = FencingToken::new(hold.fence.get() + more)?;
        let what = format!("a claim that says {fence} for the fence {}", hold.fence);
        is_refused(&b, &hold.resumed_with(fence, &hold.data), &what).await?;
        still_held(&cx, &a, "lock", &what).await?;
        hold.is_unharmed(&b, &what).await?;
    }
    Ok(())
}

async fn c14_a_smaller_fence_is_not_believed(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut before, earlier) = cx.held(&a, "lock").await?;
    before.release().await?;
    let hold = Detached::take(&cx, &a, "lock", cx.long_ttl()).await?;
    for fence in [earlier, FencingToken::new(hold.fence.get() - 1)?, FencingToken::new(1)?] {
        let what = format!("a claim that says {fence} for the fence {}", hold.fence);
        is_refused(&b, &hold.resumed_with(fence, &hold.data), &what).await?;
        still_held(&cx, &a, "lock", &what).await?;
        hold.is_unharmed(&b, &what).await?;
    }
    Ok(())
}

async fn c14_another_owner_is_not_believed(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let hold = Detached::take(&cx, &a, "lock", cx.long_ttl()).await?;
    let mut request = hold.resumed();
    request.owner = OwnerId::generate(&OsRng)?;
    let what = "a claim of another owner";
    is_refused(&b, &request, what).await?;
    if let Some(mut claim) = made(&b, &request, what)? {
        frees_nothing(&mut *claim, what).await?;
    }
    still_held(&cx, &a, "lock", what).await?;
    hold.is_unharmed(&b, what).await?;
    // A place in the queue is no hold.
    let place = cx.request_for("lock", cx.long_ttl())?.with_wait(true);
    let mut waiter = a.claim(place.clone())?;
    busy(&cx, &mut *waiter).await?;
    let what = "a claim of a waiter that has a lease token";
    is_refused(&b, &hold.resumed_of(place), what).await?;
    waiter.release().await?;
    hold.is_unharmed(&b, what).await
}

/// The token of one lock gets nothing under the key of a free lock or of a held one.
async fn only_its_own_key(cx: &Cx, what: &str, free: LockKey, held: LockKey) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let hold = Detached::take(cx, &a, "lock", cx.long_ttl()).await?;
    let mut request = cx.request_for("any", cx.long_ttl())?;
    request.key = held.clone();
    let mut holder = a.claim(request)?;
    granted(&mut *holder).await?;
    for key in [&free, &held] {
        let mut request = hold.resumed();
        request.key = key.clone();
        is_refused(&b, &request, what).await?;
        if let Some(mut claim) = made(&b, &request, what)? {
            frees_nothing(&mut *claim, what).await?;
        }
    }
    ensure!(is_alive(holder.renew().await, what)?, "{what} has ended another owner's hold");
    let mut request = cx.request("any")?;
    request.key = free;
    let mut probe = a.claim(request)?;
    granted(&mut *probe).await?;
    probe.release().await?;
    hold.is_unharmed(&b, what).await
}

async fn c14_another_name_is_not_believed(cx: Cx) -> Check {
    only_its_own_key(&cx, "a claim on another name", cx.key("free")?, cx.key("held")?).await
}

async fn c14_another_prefix_is_not_believed(cx: Cx) -> Check {
    let prefixed = |with: &str| LockKey::new(format!("{}{with}", cx.prefix()), "lock");
    only_its_own_key(&cx, "a claim with another prefix", prefixed("f")?, prefixed("h")?).await
}

async fn c14_a_shorter_ttl_is_the_requests(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let before = cx.round(cx.ttl() * 2);
    let hold = Detached::take(&cx, &a, "lock", before).await?;
    // The earlier promise stands (clause C4), so this checks what the renewal adds.
    let promised = cx.now() + before;
    cx.sleep(before * 3 / 4).await;
    let mut request = hold.resumed();
    request.ttl = cx.ttl();
    let what = "a claim with a shorter ttl";
    let Some(mut claim) = made(&b, &request, what)? else {
        return hold.is_unharmed(&b, what).await;
    };
    let start = cx.now();
    match claim.renew().await {
        Ok(Renewal::Alive { valid_for: Some(valid_for) }) => {
            ensure!(valid_for <= request.ttl, "{what} is promised {valid_for:?}");
            let end = promised.max(cx.now() + request.ttl);
            kept_until(&cx, &a, "lock", start + valid_for).await?;
            cx.sleep_until(end).await;
            free_soon(&cx, &a, "lock", "one ttl after a claim with a shorter ttl has renewed it")
                .await
        }
        answer => {
            ensure!(!is_alive(answer, what)?, "{what} is not told how long the lock lasts");
            frees_nothing(&mut *claim, what).await?;
            hold.is_unharmed(&b, what).await
        }
    }
}

async fn c14_a_longer_ttl_is_the_requests(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let hold = Detached::take(&cx, &a, "lock", cx.ttl()).await?;
    let mut request = hold.resumed();
    request.ttl = cx.long_ttl();
    let what = "a claim with a longer ttl";
    let Some(mut claim) = made(&b, &request, what)? else {
        return hold.is_unharmed(&b, what).await;
    };
    match claim.renew().await {
        Ok(Renewal::Alive { valid_for: Some(valid_for) }) => {
            let enough = request.ttl / 2;
            ensure!(valid_for > enough, "{what}, {:?}, is promised {valid_for:?}", request.ttl);
            cx.sleep(cx.over()).await;
            still_held(&cx, &a, "lock", "while a claim with a longer ttl has it").await
        }
        answer => {
            ensure!(!is_alive(answer, what)?, "{what} is not told how long the lock lasts");
            frees_nothing(&mut *claim, what).await?;
            hold.is_unharmed(&b, what).await
        }
    }
}

/// Bytes that differ from `data`, from slightly to completely.
fn damaged(data: &Bytes) -> Vec<Bytes> {
    let mut wrong = vec![Vec::new(), vec![0], vec![0; 8], vec![0xff; 8], vec![b'x'; 64]];
    let whole = data.to_vec();
    let some = || (0..whole.len()).step_by(whole.len().div_ceil(16).max(1));
    wrong.extend(some().map(|length| whole[..length].to_vec()));
    wrong.push([&*whole, b"\0"].concat());
    for at in some() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        wrong.push(flipped);
    }
    wrong.into_iter().map(Bytes::from).filter(|wrong| wrong != data).collect()
}

async fn c14_damaged_data_harm_nobody(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let hold = Detached::take(&cx, &a, "lock", cx.long_ttl()).await?;
    let mut other = holds(&cx, &a, "other").await?;
    for data in damaged(&hold.data) {
        let what = format!("a claim with the data {data:02x?} for {:02x?}", hold.data);
        let request = hold.resumed_with(hold.fence, &data);
        if let Some(mut claim) = made(&b, &request, &what)?
            && !is_alive(claim.renew().await, &what)?
        {
            frees_nothing(&mut *claim, &what).await?;
        }
        hold.is_unharmed(&b, &what).await?;
    }
    ensure!(is_alive(other.renew().await, "a renewal")?, "damaged data have ended another hold");
    Ok(())
}

async fn c14_the_data_of_another_hold_end_nothing(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mine = Detached::take(&cx, &a, "mine", cx.long_ttl()).await?;
    let theirs = Detached::take(&cx, &a, "theirs", cx.long_ttl()).await?;
    let what = "a claim with the data of another hold";
    let request = mine.resumed_with(mine.fence, &theirs.data);
    if let Some(mut claim) = made(&b, &request, what)?
        && !is_alive(claim.renew().await, what)?
    {
        frees_nothing(&mut *claim, what).await?;
        mine.is_unharmed(&b, what).await?;
    }
    theirs.is_unharmed(&b, what).await?;
    // Without a previous check: this may free mine, but never theirs.
    if let Some(mut claim) = made(&b, &request, what)? {
        claim.release().await.map(drop).or_else(|error| is_final(&error, what))?;
    }
    still_held(&cx, &a, "theirs", "after a release with its data by another owner").await?;
    theirs.is_unharmed(&b, what).await
}

async fn c14_the_data_of_another_hold_renew_nothing(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mine = Detached::take(&cx, &a, "mine", cx.long_ttl()).await?;
    let theirs = Detached::take(&cx, &a, "theirs", cx.ttl()).await?;
    let end = cx.now() + cx.ttl();
    let what = "a claim with the data of another hold";
    let request = mine.resumed_with(mine.fence, &theirs.data);
    while cx.now() < end.minus(cx.ttl() / 8) {
        if let Some(mut claim) = made(&b, &request, what)? {
            is_alive(claim.renew().await, what)?;
        }
        cx.sleep(cx.ttl() / 8).await;
    }
    cx.sleep_until(end).await;
    free_soon(&cx, &a, "theirs", "after its end, for all that others renewed with its data").await
}

async fn c14_an_edited_text_gives_no_guard(cx: Cx) -> Check {
    let (first, second, other) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    let guard = take_for(&cx, &first, "lock", cx.long_ttl()).await?;
    let fence = guard.token()?;
    let (token, lock) = (guard.detach().await?, second.named("lock")?.ttl(cx.long_ttl()));
    let stranger = OwnerId::generate(&OsRng)?.to_hex();
    let edits = [
        ("f", json!(fence.get() + 1)),
        ("f", json!(FencingToken::MAX.get())),
        ("f", json!((fence.get() - 1).max(1))),
        ("o", json!(stranger)),
        ("n", json!("other")),
        ("p", json!(format!("{}other", cx.prefix()))),
        ("b", json!("other")),
    ];
    for (field, value) in edits {
        let edited = edit(&token, field, &value)?;
        if edited == token {
            continue; // a fence of 1 has none before it
        }
        let what = format!("a lease token with {field} = {value}");
        for answer in [lock.attach(&edited).await.map(drop), lock.renew(&edited).await.map(drop)] {
            match answer {
                Ok(()) => fail!("{what} is trusted"),
                Err(error) => is_final(&error, &what)?,
            }
        }
        still_held(&cx, &other, "lock", &what).await?;
    }
    let renewed = lock.renew(&token).await.demanded("renewing with the true token")?;
    ensure!(renewed.fence == fence, "the true token has the fence {}", renewed.fence);
    let released = lock.release(token).await?;
    ensure!(released == Released::Freed, "a release with the true token is {released:?}");
    Ok(())
}

/// What a bearer of the text can do to it.
fn edit(token: &LeaseToken, field: &str, value: &Value) -> Check<LeaseToken> {
    edited(token, |fields| fields[field] = value.clone())
}
