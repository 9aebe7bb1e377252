//! C1 and C2: every entry has its owner, and an owner has one entry.

use std::collections::HashSet;

use lock_core::{Attempt, Effect, Renewal};

use crate::Fault;
use crate::cases::tools::{
    admin, at_each_request, free_soon, give_up_at_last, granted_at_last, still_held, take,
};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, ensure_exactly, fail};

cases! {
    c01_another_claim_is_another_owner []
        "what one claim has taken is busy for every other claim, including those of the same client"
        covers [TryAcquire/New/OtherHolder, Release/Refused/OtherHolder];
    c01_making_a_claim_sends_nothing []
        "a claim takes nothing before its first call"
        covers [Claim/New/Plain, Claim/New/Dropped];
    c01_every_claim_of_a_user_has_a_new_owner []
        "each acquisition uses an owner id that was never used before"
        guards [TryAcquire/Free/Plain];
    c01_the_store_keeps_the_owner_id [Inspect]
        "the entry in the store carries the claim's owner id"
        covers [TryAcquire/New/Plain, Inspect/Open/OtherHolder];
    c02_a_repeated_try_returns_the_same_token []
        "try_acquire, called again, finds its own entry and returns the same token"
        covers [TryAcquire/Held/Plain];
    c02_a_repeated_try_makes_no_second_entry []
        "one release frees the lock however often try_acquire was called"
        covers [TryAcquire/Held/Plain, Release/Held/Plain];
    c02_a_repeated_try_takes_one_place [Fair]
        "a waiter that looks again has one place in the queue"
        covers [TryAcquire/Waiting/Plain, Release/Waiting/Plain];
    c02_a_lost_reply_is_found_again [Faults]
        "after a try whose answer was lost, the same call finds its own entry, with one token"
        covers [TryAcquire/New/ReplyLost, TryAcquire/Unknown/Plain];
    c02_a_lost_request_is_made_good [Faults]
        "after a try of which any one request was lost, or had no answer in time, the same call takes the lock, with one token"
        covers [TryAcquire/New/RequestLost, TryAcquire/New/ReplyLost, TryAcquire/New/ReplyLate,
            TryAcquire/Unknown/Plain];
}

async fn c01_another_claim_is_another_owner(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut holder, token) = cx.held(&a, "lock").await?;
    for backend in [&a, &b] {
        let mut other = cx.claim(backend, "lock")?;
        busy(&cx, &mut *other).await?;
        other.release().await?;
    }
    ensure!(
        granted(&mut *holder).await? == token,
        "after others had tried, the holder's token was a different one"
    );
    holder.release().await?;
    ensure!(cx.is_free(&b, "lock").await?, "the lock was released and is not free");
    Ok(())
}

async fn c01_making_a_claim_sends_nothing(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let early = cx.waiting_claim(&a, "lock")?;
    cx.sleep(cx.ttl() / 10).await;
    ensure!(cx.is_free(&b, "lock").await?, "a claim that was never called has the lock");
    drop(early);
    cx.sleep(cx.ttl() / 10).await;
    ensure!(cx.is_free(&b, "lock").await?, "a claim that was dropped unused has taken the lock");
    Ok(())
}

async fn c01_every_claim_of_a_user_has_a_new_owner(cx: Cx) -> Check {
    let locks = [cx.locks().await?, cx.locks().await?];
    let mut owners = HashSet::new();
    for round in 0..20 {
        let guard = take(&cx, &locks[round % 2], "lock").await?;
        ensure!(owners.insert(guard.owner()), "an owner id was used for two acquisitions");
        guard.release().await?;
    }
    Ok(())
}

async fn c01_the_store_keeps_the_owner_id(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let request = cx.request("lock")?;
    let (key, owner) = (request.key.clone(), request.owner);
    let mut claim = a.claim(request)?;
    granted(&mut *claim).await?;
    let admin = admin(&b)?;
    let holder = admin.inspect(&key).await?.and_then(|info| info.holder);
    ensure!(
        holder.as_ref().and_then(|holder| holder.owner) == Some(owner),
        "the store shows the holder {holder:?}, not the claim's owner {owner:?}"
    );
    Ok(())
}

async fn c02_a_repeated_try_returns_the_same_token(cx: Cx) -> Check {
    let backend = cx.backend().await?;
    let (mut claim, first) = cx.held(&backend, "lock").await?;
    for _ in 0..3 {
        let again = granted(&mut *claim).await?;
        ensure!(again == first, "the first try returned the token {first}, a repeated one {again}");
    }
    Ok(())
}

async fn c02_a_repeated_try_makes_no_second_entry(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut claim, _) = cx.held(&a, "lock").await?;
    granted(&mut *claim).await?;
    granted(&mut *claim).await?;
    still_held(&cx, &b, "lock", "while the lock was held").await?;
    claim.release().await?;
    ensure!(cx.is_free(&b, "lock").await?, "a second entry of the same owner keeps the lock");
    Ok(())
}

async fn c02_a_repeated_try_takes_one_place(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (mut holder, _) = cx.held(&a, "lock").await?;
    let mut waiter = cx.waiting_claim(&b, "lock")?;
    for _ in 0..3 {
        busy(&cx, &mut *waiter).await?;
    }
    waiter.release().await?;
    holder.release().await?;
    ensure!(
        cx.is_free(&a, "lock").await?,
        "a waiter that had looked three times gave up, and one of its places still takes the lock"
    );
    Ok(())
}

async fn c02_a_lost_reply_is_found_again(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let mut claim = cx.claim(&link.backend, "lock")?;
    link.inject(Fault::LoseNextReply).await?;
    match claim.try_acquire().await {
        Err(error) => ensure!(
            error.effect() == Effect::Unknown,
            "the reply was lost, but the error says that the store did not act: {error}"
        ),
        // A backend may repair it itself.
        Ok(Attempt::Granted { .. }) => {}
        Ok(answer) => fail!("the reply of a grant was lost, and the answer is {answer:?}"),
    }
    let first = granted(&mut *claim).await?;
    ensure!(granted(&mut *claim).await? == first, "the token changed between two repeats");
    ensure!(
        matches!(claim.renew().await?, Renewal::Alive { .. }),
        "the entry that was found again could not be renewed"
    );
    still_held(&cx, &other, "lock", "after a lost reply that was repeated").await?;
    claim.release().await?;
    free_soon(&cx, &other, "lock", "after the release").await?;
    let next = cx.fence_if_free(&other, "lock").await?;
    ensure_exactly!(
        next.is_none_or(|next| next > first),
        "the next token, {next:?}, is not above {first}"
    );
    Ok(())
}

async fn c02_a_lost_request_is_made_good(cx: Cx) -> Check {
    let other = cx.backend().await?;
    at_each_request(&cx, async |one| {
        let mut claim = one.claim(&cx, false)?;
        let after = one.after("a try");
        if let Ok(answer @ Attempt::Busy { .. }) = one.meets(claim.try_acquire()).await? {
            fail!("{after}, which is an error, the answer is {answer:?}");
        }
        let first = granted_at_last(&cx, &mut *claim).await?;
        ensure!(
            granted_at_last(&cx, &mut *claim).await? == first,
            "{after}, the token changed between two repeats"
        );
        still_held(&cx, &other, &one.lock, &after).await?;
        give_up_at_last(&cx, &mut *claim, &other, &one.lock, &after).await
    })
    .await
}
