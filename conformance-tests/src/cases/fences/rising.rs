//! C9 and S2: fencing tokens rise forever. A claim that tries again when its hold has ended has a new hold,
//! and a new token.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Claim, Fencing, FencingToken, LockBackend, Released};

use crate::Fault;
use crate::cases::tools::{holds, queues, survives_a_restart, take, take_away, take_for};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, ensure_exactly, fail};

cases! {
    c09_fences_rise_over_releases []
        "the token rises from one holder to the next, over many cycles of many clients"
        covers [TryAcquire/New/OtherReleases];
    c09_fences_rise_over_expiries [Lease]
        "the token rises when the lock changes hands because a lease ended"
        covers [TryAcquire/New/Expiry];
    c09_fences_rise_over_forced_releases []
        "the token rises when the lock was taken away from its holder"
        covers [TryAcquire/New/Forced, Release/Held/Forced];
    c09_fences_rise_from_waiter_to_waiter []
        "the token rises from one waiter to the next"
        covers [TryAcquire/Waiting/OtherReleases];
    c09_fences_rise_over_a_long_rest []
        "the token rises even when the lock was unused for many ttls"
        covers [TryAcquire/New/OtherReleases];
    c09_fences_rise_over_unknown_outcomes [Faults]
        "the token rises over tries with an unknown outcome"
        covers [TryAcquire/New/RequestLost, TryAcquire/New/ReplyLost, TryAcquire/Unknown/Plain,
            Release/Unknown/Plain];
    c09_fences_rise_over_a_restart_of_the_store [Alone]
        "the token of a released lock rises over a restart of the store that keeps its data"
        covers [TryAcquire/New/Restart];
    c09_each_name_has_rising_fences []
        "the tokens of many names rise, independently for each name"
        covers [TryAcquire/New/Plain];
    s02_a_guard_has_one_token []
        "the token of a guard is the same from the grant to the end"
        guards [Renew/Secure/Plain, Token/Secure/Plain];
    s02_later_guards_have_greater_tokens []
        "an acquisition that starts after another was answered has a greater token"
        covers [TryAcquire/New/Forced]
        guards [TryAcquire/Free/OtherReleases, TryAcquire/Free/Forced];
    c09_a_try_after_the_end_has_a_new_token [Lease]
        "a claim whose lease has ended, and that tries again after another holder, has a greater token than that one"
        covers [TryAcquire/Held/Expiry, TryAcquire/Held/OtherReleases];
    c09_a_try_after_a_loss_has_a_new_token []
        "a claim whose lock was taken away, and that tries again after another holder, has a greater token than that one"
        covers [TryAcquire/Held/Forced];
}

/// Records the next token of one name, which must be above the last.
fn next(last: &mut Option<FencingToken>, token: FencingToken, after: &str) -> Check {
    ensure_exactly!(Some(token) > *last, "{after} the token {token} does not rise over {last:?}");
    *last = Some(token);
    Ok(())
}

async fn c09_fences_rise_over_releases(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?, cx.backend().await?];
    let mut last = None;
    for cycle in 0..if cx.is_virtual() { 1000 } else { 150 } {
        let (mut claim, token) = cx.held(&clients[cycle % 3], "lock").await?;
        next(&mut last, token, &format!("in cycle {cycle}"))?;
        claim.release().await?;
    }
    Ok(())
}

async fn c09_fences_rise_over_expiries(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut last = None;
    for client in [&a, &b, &a] {
        let (claim, token) = cx.held(client, "lock").await?;
        next(&mut last, token, "after a lease that ended")?;
        drop(claim);
        cx.sleep(cx.over()).await;
    }
    Ok(())
}

async fn c09_fences_rise_over_forced_releases(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let key = cx.key("lock")?;
    let mut last = None;
    for client in [&a, &b, &a, &b] {
        let (mut claim, token) = cx.held(client, "lock").await?;
        next(&mut last, token, "after a forced release")?;
        cx.store().break_hold(&key).await?;
        claim.release().await?;
    }
    Ok(())
}

async fn c09_fences_rise_from_waiter_to_waiter(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?];
    let mut last = None;
    let mut holder = holds(&cx, &clients[0], "lock").await?;
    next(&mut last, granted(&mut *holder).await?, "at first")?;
    for i in 0..10 {
        let mut waiter = queues(&cx, &clients[i % 2], "lock").await?;
        holder.release().await?;
        let token = granted(&mut *waiter).await?;
        next(&mut last, token, "from one waiter to the next")?;
        ensure!(granted(&mut *waiter).await? == token, "a waiter's token changed after its grant");
        holder = waiter;
    }
    holder.release().await?;
    Ok(())
}

async fn c09_fences_rise_over_a_long_rest(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut last = None;
    // A store's sweep must not remove the count, too.
    let rest = if cx.is_virtual() { Duration::from_secs(500) } else { cx.ttl() * 3 };
    for (client, rest) in [(&a, Duration::ZERO), (&b, rest), (&a, rest)] {
        cx.sleep(rest).await;
        let (mut claim, token) = cx.held(client, "lock").await?;
        next(&mut last, token, "after a long rest")?;
        claim.release().await?;
    }
    Ok(())
}

async fn c09_fences_rise_over_unknown_outcomes(cx: Cx) -> Check {
    let (link, other) = (cx.link().await?, cx.backend().await?);
    let mut last = None;
    for fault in [Fault::LoseNextReply, Fault::LoseNextRequest, Fault::LoseNextReply] {
        link.inject(fault).await?;
        let mut claim = cx.claim(&link.backend, "lock")?;
        let _ = claim.try_acquire().await;
        next(&mut last, granted(&mut *claim).await?, &format!("after {fault:?}"))?;
        claim.release().await?;
        link.inject(fault).await?;
        let mut undone = cx.claim(&link.backend, "lock")?;
        let _ = undone.try_acquire().await;
        undone.release().await?;
        match cx.fence_if_free(&other, "lock").await? {
            Some(token) => next(&mut last, token, &format!("after {fault:?} that was undone"))?,
            None => fail!("after {fault:?} and a release the lock is still taken"),
        }
    }
    Ok(())
}

async fn c09_fences_rise_over_a_restart_of_the_store(cx: Cx) -> Check {
    let (backend, other) = (cx.backend().await?, cx.backend().await?);
    let mut witness = holds(&cx, &other, "witness").await?;
    let mut last = None;
    for _ in 0..2 {
        let (mut claim, token) = cx.held(&backend, "lock").await?;
        next(&mut last, token, "after a restart of the store")?;
        let answer = claim.release().await?;
        ensure!(answer == Released::Freed, "the release of a lock that is held: {answer:?}");
        // A store that has lost its data may count from the start again, unless it has declared
        // that it does not.
        let is_whole = survives_a_restart(&cx, &mut *witness).await?;
        if !is_whole && cx.capabilities().fencing == Fencing::BestEffort {
            return Ok(());
        }
    }
    Ok(())
}

async fn c09_each_name_has_rising_fences(cx: Cx) -> Check {
    let backend = cx.backend().await?;
    let names: Vec<_> = (0..10).map(|i| format!("lock{i}")).collect();
    let mut last = vec![None; names.len()];
    for _ in 0..5 {
        let mut held = Vec::new();
        for (name, last) in names.iter().zip(&mut last) {
            let (claim, token) = cx.held(&backend, name).await?;
            next(last, token, "among many names")?;
            held.push(claim);
        }
        for mut claim in held {
            claim.release().await?;
        }
    }
    Ok(())
}

async fn s02_a_guard_has_one_token(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let guard = take(&cx, &locks, "lock").await?;
    let token = guard.token()?;
    for _ in 0..6 {
        cx.sleep(cx.ttl() / 2).await;
        guard.renew().await?;
        ensure!(guard.token()? == token, "the token of a guard changed while it was held");
    }
    guard.release().await?;
    Ok(())
}

async fn s02_later_guards_have_greater_tokens(cx: Cx) -> Check {
    let clients = [cx.locks().await?, cx.locks().await?];
    let mut last = None;
    for i in 0..10 {
        let guard = take_for(&cx, &clients[i % 2], "lock", cx.ttl()).await?;
        next(&mut last, guard.token()?, "of a later guard")?;
        // Given up in each possible way.
        match i % 3 {
            0 => drop(guard.release().await?),
            1 => {
                drop(guard);
                cx.sleep(cx.slack()).await;
            }
            _ => {
                cx.store().break_hold(&cx.key("lock")?).await?;
                let _ = guard.release().await;
            }
        }
    }
    Ok(())
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
    busy(cx, claim).await?;
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
