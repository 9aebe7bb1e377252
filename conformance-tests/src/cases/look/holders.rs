//! C18: whom a look shows, from the grant to the end of the hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use lock_core::{Attempt, ErrorKind, LockBackend, LockKey, Renewal, Resume, Seen};

use crate::cases::identity::names;
use crate::cases::tools::looks::{Holding, InLine, floor, is_above, labelled, look, look_at};
use crate::cases::tools::{error_kind, renewed};
use crate::context::seed::Seeded;
use crate::context::{Cx, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, fail};

cases! {
    c18_a_look_shows_each_hold_at_once [Look]
        "a look of any client that begins after a grant or a release shows it, with the token and the label"
        covers [Look/Open/Plain, Look/Open/OtherHolder, Look/Open/OtherReleases];
    c18_a_look_answers_in_the_order_of_the_names [Look]
        "a look at none, one or up to 64 names, held, free or repeated, shows each in its place"
        covers [Look/Open/Plain, Look/Open/OtherHolder];
    c18_a_look_takes_no_name_for_another [Look]
        "a look tells names and prefixes apart that differ in anything, of whatever characters and length"
        covers [Look/Open/Plain, Look/Open/OtherHolder];
    c18_a_look_follows_the_hold [Look]
        "a hold is shown with its first token and its label after renewals, repeated tries and a hand-over to another process"
        covers [Look/Open/OtherHolder];
    c18_a_look_sees_a_hand_over [Look]
        "a lock that is released while others wait is shown with the next holder, or with a floor below its token, and never with one that only waits"
        covers [Look/Open/QueueBehind, Look/Open/OtherReleases];
    c18_a_look_sees_the_end_of_a_lease [Look, Lease]
        "a lock whose lease has ended is shown as free, and its floor lies between the last token and the next"
        covers [Look/Open/Expiry];
    c18_a_look_sees_the_end_of_a_lease_with_a_queue [Look, Lease]
        "a lock whose lease has ended while another waits is shown with the next holder, or with a floor below its token"
        covers [Look/Open/Expiry, Look/Open/QueueBehind];
    c18_a_look_sees_a_forced_release [Look]
        "a lock that was taken away from its holder is shown as free, or with the next holder"
        covers [Look/Open/Forced];
    s06_a_look_that_is_not_there_is_refused [NoLook]
        "a look that the store does not declare is refused by a typed error"
        covers [Look/Open/Plain];
}

/// Labels that some stores may change.
const LABELS: [Option<&str>; 4] =
    [Some("Host-7/42 Ünï 🔑 日"), None, Some(" a blank "), Some("%_'\\ {}")];

/// The most names of one look of the core.
const MOST: usize = 64;

async fn c18_a_look_shows_each_hold_at_once(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?, cx.backend().await?];
    let key = cx.key("lock")?;
    for round in 0..if cx.is_virtual() { 24 } else { 6 } {
        let label = LABELS[round % LABELS.len()];
        let mut holding = Holding::take(&cx, &clients[round % 3], &key, label).await?;
        for client in &clients {
            holding.is_seen(&cx, client, &format!("in round {round}")).await?;
        }
        holding.claim.release().await?;
        for client in &clients {
            let seen = look_at(&cx, client, &key).await?;
            floor(
                &seen,
                Some(holding.fence.get()),
                &format!("after the release of round {round}"),
            )?;
        }
    }
    Ok(())
}

/// Looks at these names, of which `held` are held.
async fn are_seen(
    cx: &Cx,
    by: &Arc<dyn LockBackend>,
    keys: &[LockKey],
    held: &BTreeMap<LockKey, Holding>,
) -> Check {
    let seen = look(cx, by, keys).await?;
    for (at, (key, seen)) in keys.iter().zip(&seen).enumerate() {
        let when = format!("at place {} of {}", at + 1, keys.len());
        match held.get(key) {
            Some(holding) => holding.is_shown(cx, seen, &when)?,
            None => floor(seen, None, &format!("{when}, {key:?}")).map(drop)?,
        }
    }
    Ok(())
}

/// Takes these locks, each with its name as the label.
async fn take_all<'a>(
    cx: &Cx,
    backend: &Arc<dyn LockBackend>,
    keys: impl Iterator<Item = &'a LockKey>,
) -> Check<BTreeMap<LockKey, Holding>> {
    let mut held = BTreeMap::new();
    for (nth, key) in keys.enumerate() {
        let label = format!("hold {nth}");
        held.insert(key.clone(), Holding::take(cx, backend, key, Some(&label)).await?);
    }
    Ok(held)
}

async fn release_all(held: BTreeMap<LockKey, Holding>) -> Check {
    for mut holding in held.into_values() {
        holding.claim.release().await?;
    }
    Ok(())
}

async fn c18_a_look_answers_in_the_order_of_the_names(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut chance = Seeded::announced("c18_a_look_answers_in_the_order_of_the_names");
    let mut any = |count: usize| {
        usize::try_from(chance.below(u64::try_from(count).unwrap_or(1))).unwrap_or(0)
    };
    are_seen(&cx, &b, &[], &BTreeMap::new()).await?;
    let keys: Check<Vec<_>> = (0..MOST).map(|nth| cx.key(&format!("lock{nth}"))).collect();
    let mut keys = keys?;
    let held = take_all(&cx, &a, keys.iter().step_by(3)).await?;
    for many in [1, 2, 7, MOST - 1, MOST] {
        // Some are drawn more than once.
        let drawn: Vec<_> = (0..many).map(|_| keys[any(keys.len())].clone()).collect();
        are_seen(&cx, &b, &drawn, &held).await?;
    }
    let (one, other) = (keys[0].clone(), keys[1].clone());
    are_seen(&cx, &b, &[one.clone(), other.clone(), one.clone(), one], &held).await?;
    are_seen(&cx, &b, &[other.clone(), other], &held).await?;
    for last in (1..keys.len()).rev() {
        keys.swap(last, any(last + 1));
    }
    are_seen(&cx, &b, &keys, &held).await?;
    release_all(held).await?;
    are_seen(&cx, &a, &keys, &BTreeMap::new()).await
}

async fn c18_a_look_takes_no_name_for_another(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for keys in [names::corpus(&cx)?, names::prefixes(&cx)?, names::long(&cx)?] {
        for first in [0, 1] {
            let held = take_all(&cx, &a, keys.iter().skip(first).step_by(2)).await?;
            for part in keys.chunks(MOST) {
                are_seen(&cx, &b, part, &held).await?;
            }
            release_all(held).await?;
        }
    }
    Ok(())
}

async fn c18_a_look_follows_the_hold(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let key = cx.key("lock")?;
    let mut holding = Holding::take(&cx, &a, &key, Some("the label")).await?;
    for _ in 0..2 {
        granted(&mut *holding.claim).await?;
        holding.is_seen(&cx, &b, "after a repeated try").await?;
        renewed(&mut *holding.claim).await?;
        holding.is_seen(&cx, &b, "after a renewal").await?;
        holding.claim.check().await?;
        holding.is_seen(&cx, &b, "after a check").await?;
    }
    if cx.capabilities().detachable {
        let data = holding.claim.detach().await?;
        holding.is_seen(&cx, &b, "after a detach").await?;
        let resume = Resume::new(holding.fence, data);
        holding.claim = b.claim(holding.request.clone().with_resume(resume))?;
        match holding.claim.renew().await? {
            Renewal::Alive { .. } => {}
            other => fail!("the renewal by a lease token is answered {other:?}"),
        }
        holding.is_seen(&cx, &a, "after a renewal by its lease token").await?;
        holding.is_seen(&cx, &b, "after a renewal by its lease token").await?;
    }
    holding.ends(&cx, &a, "after the release").await?;
    Ok(())
}

async fn c18_a_look_sees_a_hand_over(cx: Cx) -> Check {
    let clients = [cx.backend().await?, cx.backend().await?, cx.backend().await?];
    let key = cx.key("lock")?;
    let mut holding = Holding::take(&cx, &clients[0], &key, Some("the first")).await?;
    for turn in 0..if cx.is_virtual() { 12 } else { 6 } {
        let (next, by) = (&clients[(turn + 1) % 3], &clients[turn / 2 % 3]);
        let waiter = InLine::enter(&cx, next, &key, &format!("waiter {turn}")).await?;
        holding.is_seen(&cx, by, "while another waits").await?;
        holding.claim.release().await?;
        holding = waiter.follows(&cx, by, holding.fence, "after a release").await?;
    }
    // One that leaves when its turn has come.
    let mut leaves = InLine::enter(&cx, &clients[0], &key, "one that leaves").await?;
    let last = holding.fence;
    holding.claim.release().await?;
    let given = match look_at(&cx, &clients[1], &key).await? {
        Seen::Held { fence, .. } => fence,
        free => floor(&free, Some(last.get()), "after a release").map(|_| None)?,
    };
    leaves.claim.release().await?;
    let given = given.unwrap_or(last).get();
    let seen = look_at(&cx, &clients[2], &key).await?;
    let floor = floor(&seen, Some(given), "after the only waiter has left")?;
    let next = Holding::take(&cx, &clients[1], &key, None).await?;
    is_above(floor, next.fence, "after the only waiter has left")?;
    next.ends(&cx, &clients[2], "after the last release").await?;
    Ok(())
}

async fn c18_a_look_sees_the_end_of_a_lease(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let key = cx.key("lock")?;
    for (holder, by) in [(&a, &b), (&b, &b)] {
        let mut request = labelled(&cx, &key, Some("one that is gone"))?;
        request.ttl = cx.ttl();
        let gone = Holding::of(holder, request).await?;
        let last = gone.fence.get();
        drop(gone);
        cx.sleep(cx.over()).await;
        let when = "after a lease that has ended";
        let seen = look_at(&cx, by, &key).await?;
        // A store that ends it too late still tells the truth.
        let is_over =
            !matches!(&seen, Seen::Held { fence: Some(fence), .. } if fence.get() == last);
        ensure!(is_over, "{when}, a look shows the hold that should be over");
        let floor = floor(&seen, Some(last), when)?;
        let next = Holding::take(&cx, &a, &key, None).await?;
        is_above(floor, next.fence, when)?;
        next.is_seen(&cx, by, when).await?;
        next.ends(&cx, by, "after the release").await?;
    }
    Ok(())
}

async fn c18_a_look_sees_the_end_of_a_lease_with_a_queue(cx: Cx) -> Check {
    let (a, b, c) = (cx.backend().await?, cx.backend().await?, cx.backend().await?);
    let key = cx.key("lock")?;
    let mut request = labelled(&cx, &key, Some("one that is gone"))?;
    request.ttl = cx.ttl();
    let gone = Holding::of(&a, request).await?;
    let granted_by = cx.now();
    let mut waiter = InLine::enter(&cx, &b, &key, "the next").await?;
    let (mut floors, mut early) = (Vec::new(), None);
    let when = "after a lease that has ended while another waits";
    let holding = loop {
        let is_over = cx.now().since(granted_by) >= cx.over();
        match look_at(&cx, &c, &key).await? {
            Seen::Held { fence, .. } if fence == Some(gone.fence) => {
                ensure!(!is_over, "{when}, a look shows the one before");
            }
            free @ Seen::Free { .. } => floors.push(floor(&free, Some(gone.fence.get()), when)?),
            held => early = Some(held),
        }
        match waiter.claim.try_acquire().await? {
            Attempt::Granted { token, .. } => break waiter.has(token),
            _ => ensure!(!is_over && early.is_none(), "{when}, that one is refused"),
        }
        cx.sleep(cx.ttl() / 16).await;
    };
    if let Some(early) = early {
        holding.is_expected(&early, when)?;
    }
    for floor in floors {
        is_above(floor, holding.fence, when)?;
    }
    holding.is_seen(&cx, &c, when).await?;
    holding.ends(&cx, &c, "after the release").await?;
    Ok(())
}

async fn c18_a_look_sees_a_forced_release(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let key = cx.key("lock")?;
    let when = "after a forced release";
    for (holder, by) in [(&a, &b), (&b, &b)] {
        let mut taken = Holding::take(&cx, holder, &key, Some("the one before")).await?;
        cx.store().break_hold(&key).await?;
        let floor = floor(&look_at(&cx, by, &key).await?, Some(taken.fence.get()), when)?;
        let mut next = Holding::take(&cx, &a, &key, Some("the next")).await?;
        is_above(floor, next.fence, when)?;
        // The one before finds nothing of its own.
        taken.claim.release().await?;
        next.is_seen(&cx, by, when).await?;
        let waiter = InLine::enter(&cx, by, &key, "one that waits").await?;
        cx.store().break_hold(&key).await?;
        let last = waiter.follows(&cx, by, next.fence, when).await?;
        next.claim.release().await?;
        last.is_seen(&cx, by, when).await?;
        last.ends(&cx, by, "after the release").await?;
    }
    Ok(())
}

async fn s06_a_look_that_is_not_there_is_refused(cx: Cx) -> Check {
    let (backend, key) = (cx.backend().await?, cx.key("lock")?);
    let kind = error_kind(backend.look(std::slice::from_ref(&key)).await, "a look")?;
    ensure!(kind == ErrorKind::Unsupported, "what the store cannot do is refused with {kind:?}");
    Ok(())
}
