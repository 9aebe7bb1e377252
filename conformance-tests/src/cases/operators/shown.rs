//! C1, C11 and C13 for operators: each field of what is shown, against what was asked for and
//! against time, and under which names.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Claim, ClaimRequest, ClockInstant, FencingToken, HolderInfo, LockBackend, LockInfo,
    LockKey, Released, Renewal, Victim,
};

use crate::cases::tools::detached::Detached;
use crate::cases::tools::way::Way;
use crate::cases::tools::{admin, holds, queues, renewed, still_held, until_granted};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop, ensure, fail};

cases! {
    c01_inspection_shows_what_was_asked_for [Inspect]
        "inspection and list show the key, owner, mark, label and fence of the present holder, and of no earlier one"
        covers [Inspect/Open/OtherHolder, List/Open/OtherHolder];
    c01_inspection_follows_the_lease [Inspect, Lease]
        "expires_in is what is left of the lease, for a renewed lease, too"
        covers [Inspect/Open/Plain];
    c01_inspection_follows_the_hold [Inspect]
        "held_for counts from the grant, over renewals and repeated tries, and anew for the next holder"
        covers [Inspect/Open/OtherReleases];
    c13_inspection_counts_no_place_that_has_ended [Inspect, Fair, Lease]
        "a waiter whose place has ended is no longer counted"
        covers [Inspect/Open/QueueBehind];
    c01_a_list_shows_no_lease_that_has_ended [Inspect, Lease]
        "a list leaves out a lease that has ended, whether or not anybody has looked at it since"
        covers [List/Open/Expiry, Inspect/Open/Expiry, ForceRelease/Open/Expiry];
    c11_names_that_share_a_prefix_are_told_apart [Inspect]
        "inspect, list and force_release of a name concern no other name or prefix that begins or matches alike"
        covers [List/Open/Plain, ForceRelease/Open/OtherHolder];
}

/// The holder that an inspection shows, which must be the one in the list, and as old.
async fn shown(cx: &Cx, backend: &Arc<dyn LockBackend>, key: &LockKey) -> Check<HolderInfo> {
    let (admin, begun) = (admin(backend)?, cx.now());
    let Some(info) = admin.inspect(key).await? else { fail!("{key:?} is held, and not shown") };
    ensure!(info.key == *key, "an inspection of {key:?} shows {:?}", info.key);
    let Some(holder) = info.holder else { fail!("{key:?} is held, and shown without a holder") };
    let list = admin.list(key.prefix(), key.name()).await?;
    let [listed] = &list[..] else { fail!("one lock is held, and the list shows {list:?}") };
    let passed = cx.now().since(begun) + grain(cx);
    let near = |one: Option<Duration>, other: Option<Duration>| {
        one.zip(other).is_none_or(|(one, other)| one.abs_diff(other) <= passed)
    };
    let same = listed.holder.as_ref().is_some_and(|listed| {
        (listed.owner, &listed.mark, &listed.label, listed.fence)
            == (holder.owner, &holder.mark, &holder.label, holder.fence)
            && near(listed.expires_in, holder.expires_in)
            && near(listed.held_for, holder.held_for)
    });
    ensure!(
        listed.key == *key && listed.waiters == info.waiters && same,
        "an inspection shows {holder:?}, and the list {listed:?}"
    );
    Ok(holder)
}

fn is_labelled(holder: &HolderInfo, label: Option<&str>, token: FencingToken) -> Check {
    let shown = holder.label.as_deref();
    ensure!(shown == label, "the label {label:?} is shown as {shown:?}");
    ensure!(
        holder.fence.is_none_or(|fence| fence == token),
        "the token {token} is shown as {:?}",
        holder.fence
    );
    Ok(())
}

async fn c01_inspection_shows_what_was_asked_for(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let key = cx.key("lock")?;
    let mut marks = Vec::new();
    for label in [
        Some("Host-7/42 Ünï 🔑 日"),
        None,
        Some(" a blank "),
        Some("%_'\\ {}"),
        Some(&*"x".repeat(LockKey::MAX_LEN)),
    ] {
        let label = label.map(ToOwned::to_owned);
        let request = cx.request_for("lock", cx.long_ttl())?.with_label(label.clone());
        let owner = request.owner;
        let mut claim = a.claim(request)?;
        let token = granted(&mut *claim).await?;
        let holder = shown(&cx, &b, &key).await?;
        ensure!(holder.owner == Some(owner), "{owner:?} holds, and {:?} is shown", holder.owner);
        is_labelled(&holder, label.as_deref(), token)?;
        let mark = holder.mark.clone();
        ensure!(!marks.contains(&mark), "two holds are shown with the same mark");
        renewed(&mut *claim).await?;
        let later = shown(&cx, &b, &key).await?;
        ensure!(
            (later.owner, &later.mark, &later.label, later.fence)
                == (holder.owner, &mark, &holder.label, holder.fence),
            "a renewal has changed what is shown from {holder:?} to {later:?}"
        );
        marks.push(mark);
        claim.release().await?;
    }
    handed_over(&cx, &a, &b).await?;
    let left = admin(&b)?.inspect(&key).await?;
    ensure!(left.is_none(), "the lock is free, and shown as {left:?}");
    Ok(())
}

/// What is shown of a holder that had to wait is its own, too.
async fn handed_over(cx: &Cx, a: &Arc<dyn LockBackend>, b: &Arc<dyn LockBackend>) -> Check {
    let request = cx.request_for("lock", cx.long_ttl())?.with_label(Some("first".to_owned()));
    let mut first = a.claim(request)?;
    granted(&mut *first).await?;
    let request = cx.request_for("lock", cx.long_ttl())?.with_label(Some("second".to_owned()));
    let mut second = b.claim(request.with_wait(true))?;
    busy(cx, &mut *second).await?;
    first.release().await?;
    let token = granted(&mut *second).await?;
    let holder = shown(cx, a, &cx.key("lock")?).await?;
    is_labelled(&holder, Some("second"), token)?;
    renewed(&mut *second).await?;
    is_labelled(&shown(cx, a, &cx.key("lock")?).await?, Some("second"), token)?;
    second.release().await?;
    Ok(())
}

/// A moment that lies between two readings of the clock.
#[derive(Clone, Copy, Debug)]
struct Between(ClockInstant, ClockInstant);

impl Between {
    /// Makes a call, during which something happens.
    async fn of<T>(cx: &Cx, call: impl Future<Output = Check<T>>) -> Check<(Self, T)> {
        let before = cx.now();
        let done = call.await?;
        Ok((Self(before, cx.now()), done))
    }

    /// The least and the greatest time that may have passed since `earlier`.
    fn since(self, earlier: Self) -> (Duration, Duration) {
        (self.0.since(earlier.1), self.1.since(earlier.0))
    }
}

/// How inexact a store may be that shows whole milliseconds, or steps.
pub(super) fn grain(cx: &Cx) -> Duration {
    cx.capabilities().ttl_step.max(Duration::from_millis(2))
}

/// What an inspection shows of a lease of `ttl` that was made or renewed at `since`, and was promised
/// for `valid_for` then: less than its ttl if it was granted ahead.
async fn follows(
    cx: &Cx,
    backend: &Arc<dyn LockBackend>,
    ttl: Duration,
    (since, valid_for): (Between, Duration),
    after: &str,
) -> Check {
    let look = async { shown(cx, backend, &cx.key("lock")?).await };
    let (looked, holder) = Between::of(cx, look).await?;
    let (least, most) = looked.since(since);
    let (step, grain) = (cx.capabilities().ttl_step, grain(cx));
    let low = valid_for.saturating_sub(most + grain);
    let high = (ttl + step + grain).saturating_sub(least);
    ensure!(
        holder.expires_in.is_none_or(|left| (low..=high).contains(&left)),
        "{after}, {least:?} to {most:?} ago, a lease of {ttl:?} is shown to end in {:?}, not in {low:?} to {high:?}",
        holder.expires_in
    );
    Ok(())
}

async fn c01_inspection_follows_the_lease(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (short, long) = (cx.round(cx.ttl() * 5), cx.long_ttl());
    let pause = (cx.capabilities().ttl_step * 3).max(cx.ttl() / 4);
    for ttl in [short, long] {
        let mut claim = a.claim(cx.request_for("lock", ttl)?)?;
        let granted = async {
            match claim.try_acquire().await? {
                Attempt::Granted { valid_for: Some(valid_for), .. } => Ok(valid_for),
                other => {
                    fail!("nobody else has the lock, and its first try was answered {other:?}")
                }
            }
        };
        let since = Between::of(&cx, granted).await?;
        follows(&cx, &b, ttl, since, "after its grant").await?;
        cx.sleep(pause).await;
        follows(&cx, &b, ttl, since, "after its grant").await?;
        follows_a_renewal(&cx, &mut *claim, &b, ttl).await?;
        claim.release().await?;
    }
    for way in &Way::all(&cx)[1..] {
        let (since, mut claim) = Between::of(&cx, way.held(&cx, &a, long)).await?;
        // At least as much is promised.
        let since = (since, long / 2);
        follows(&cx, &b, long, since, &format!("after it was got, {way:?}")).await?;
        // Otherwise the first lease hides a renewal that is shorter.
        cx.sleep(pause).await;
        follows_a_renewal(&cx, &mut *claim, &b, long).await?;
        claim.release().await?;
    }
    Ok(())
}

async fn follows_a_renewal(
    cx: &Cx,
    claim: &mut dyn Claim,
    backend: &Arc<dyn LockBackend>,
    ttl: Duration,
) -> Check {
    let renewed = async {
        match claim.renew().await? {
            Renewal::Alive { valid_for } => Ok(valid_for.unwrap_or_default()),
            other => fail!("a renewal in time was answered {other:?}"),
        }
    };
    let since = Between::of(cx, renewed).await?;
    follows(cx, backend, ttl, since, "after its renewal").await
}

/// How old a hold gets before it is looked at: so old that a clock which stands still after a while is seen,
/// where that costs nothing.
fn age(cx: &Cx) -> Duration {
    let pause = if cx.is_virtual() { cx.long_ttl() / 4 } else { cx.ttl() / 8 };
    (grain(cx) * 3).max(pause)
}

/// The lock is shown as held since then.
async fn is_as_old(cx: &Cx, backend: &Arc<dyn LockBackend>, since: Between, after: &str) -> Check {
    let key = cx.key("lock")?;
    let (looked, holder) = Between::of(cx, shown(cx, backend, &key)).await?;
    let (least, most) = looked.since(since);
    let (low, high) = (least.saturating_sub(grain(cx)), most + grain(cx));
    ensure!(
        holder.held_for.is_none_or(|held| (low..=high).contains(&held)),
        "{after}, the lock has been held for {low:?} to {high:?}, and is shown as held for {:?}",
        holder.held_for
    );
    Ok(())
}

async fn c01_inspection_follows_the_hold(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let pause = age(&cx);
    let follows = async |since: Between, after: &str| is_as_old(&cx, &b, since, after).await;
    let mut first = a.claim(cx.request_for("lock", cx.long_ttl())?)?;
    let (since, _) = Between::of(&cx, granted(&mut *first)).await?;
    cx.sleep(pause).await;
    follows(since, "after the grant").await?;
    renewed(&mut *first).await?;
    follows(since, "after a renewal").await?;
    granted(&mut *first).await?;
    follows(since, "after a repeated try").await?;
    // A waiter that is handed the lock holds it from then on.
    let request = cx.request_for("lock", cx.long_ttl())?.with_wait(true);
    let owner = request.owner;
    let mut next = b.claim(request)?;
    busy(&cx, &mut *next).await?;
    cx.sleep(pause).await;
    let handed = async {
        first.release().await?;
        until_granted(&cx, &mut *next).await
    };
    let (since, ()) = Between::of(&cx, handed).await?;
    follows(since, "after the lock was passed on").await?;
    let holder = shown(&cx, &b, &cx.key("lock")?).await?;
    ensure!(holder.owner == Some(owner), "{owner:?} was next, and {:?} is shown", holder.owner);
    cx.sleep(pause).await;
    follows(since, "after the lock was passed on").await?;
    renewed(&mut *next).await?;
    follows(since, "after the lock was passed on and renewed").await?;
    next.release().await?;
    if cx.capabilities().detachable { taken_over(&cx, &a, &b).await } else { Ok(()) }
}

/// What is shown of a hold that was handed on by its lease token is as old as the hold.
async fn taken_over(cx: &Cx, a: &Arc<dyn LockBackend>, b: &Arc<dyn LockBackend>) -> Check {
    let request = cx.request_for("lock", cx.long_ttl())?;
    let mut claim = a.claim(request.clone())?;
    let (since, fence) = Between::of(cx, granted(&mut *claim)).await?;
    let before = shown(cx, a, &request.key).await?;
    cx.sleep(age(cx)).await;
    let hold = Detached { request, fence, data: claim.detach().await? };
    is_as_old(cx, a, since, "after it was detached").await?;
    let mut bearer = b.claim(hold.resumed())?;
    renewed(&mut *bearer).await?;
    is_as_old(cx, a, since, "after its bearer has renewed it").await?;
    let after = shown(cx, a, &hold.request.key).await?;
    ensure!(
        (after.owner, &after.mark, after.fence) == (before.owner, &before.mark, before.fence),
        "the bearer of its lease token has changed what is shown from {before:?} to {after:?}"
    );
    bearer.release().await?;
    Ok(())
}

async fn c13_inspection_counts_no_place_that_has_ended(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let key = cx.key("lock")?;
    let waiters = async || -> Check<Option<usize>> {
        let info = admin(&b)?.inspect(&key).await?;
        Ok(info.and_then(|info: LockInfo| info.waiters))
    };
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut patient = queues(&cx, &b, "lock").await?;
    let mut dead = cx.waiting_claim(&b, "lock")?;
    busy(&cx, &mut *dead).await?;
    let since = cx.now();
    let before = waiters().await?;
    ensure!(before.is_none_or(|n| n == 2), "two wait, and {before:?} are shown");
    drop(dead);
    cx.sleep(cx.ttl() / 4).await;
    let soon = waiters().await?;
    if cx.now() >= since + cx.ttl() / 2 {
        return Err(Stop::late("the machine was too slow to count two places"));
    }
    ensure!(
        soon.is_none_or(|n| n == 2),
        "a place runs that nobody has given up, and {soon:?} of two are shown"
    );
    cx.sleep(cx.over()).await;
    let after = waiters().await?;
    ensure!(after.is_none_or(|n| n == 1), "one place has ended, and {after:?} are shown");
    patient.release().await?;
    holder.release().await?;
    Ok(())
}

async fn c01_a_list_shows_no_lease_that_has_ended(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (dead, _) = cx.held(&a, "lock a").await?;
    drop(dead);
    let mut alive = holds(&cx, &a, "lock b").await?;
    cx.sleep(cx.over()).await;
    let admin = admin(&b)?;
    for _ in 0..2 {
        let list = admin.list(cx.prefix(), "lock").await?;
        ensure!(
            list.len() == 1 && list[0].key == cx.key("lock b")?,
            "the lease of \"lock a\" has ended and \"lock b\" is held, but the list shows {list:?}"
        );
    }
    let shown = admin.inspect(&cx.key("lock a")?).await?;
    ensure!(shown.is_none(), "a lock whose lease has ended is shown as {shown:?}");
    let freed = admin.force_release(&cx.key("lock a")?, &Victim::Anybody).await?;
    ensure!(
        freed == Released::AlreadyGone,
        "a forced release of a lease that has ended was answered {freed:?}"
    );
    alive.release().await?;
    Ok(())
}

/// Held, each with another owner. Every one begins or matches like another one.
const HELD: [&str; 8] = ["a", "a b", "a%", "a*", "a/b", "a/b/c", "ab", "b"];
/// Free, though they begin or match like those.
const FREE: [&str; 6] = ["A", "a/", "a_", "abc", "a/b/", "?"];

async fn hold(
    backend: &Arc<dyn LockBackend>,
    cx: &Cx,
    key: &LockKey,
) -> Check<(ClaimRequest, Box<dyn Claim>)> {
    let mut request = cx.request_for("any", cx.long_ttl())?;
    request.key = key.clone();
    let mut claim = backend.claim(request.clone())?;
    granted(&mut *claim).await?;
    Ok((request, claim))
}

async fn c11_names_that_share_a_prefix_are_told_apart(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let admin = admin(&b)?;
    let mut held = Vec::new();
    for name in HELD {
        held.push(hold(&a, &cx, &cx.key(name)?).await?);
    }
    // The same name under prefixes that begin like ours.
    for more in ["a", "/", "%"] {
        let prefix = format!("{}{more}", cx.prefix());
        held.push(hold(&a, &cx, &LockKey::new(prefix, "a")?).await?);
    }
    for (request, _) in &held {
        let owner = admin.inspect(&request.key).await?.and_then(|info| info.holder?.owner);
        ensure!(
            owner == Some(request.owner),
            "{:?} is held by {:?}, and shown as held by {owner:?}",
            request.key,
            request.owner
        );
    }
    for name in FREE {
        let (key, none) = (cx.key(name)?, Released::AlreadyGone);
        let shown = admin.inspect(&key).await?;
        ensure!(shown.is_none(), "{name:?} is free, and shown as {shown:?}");
        let freed = admin.force_release(&key, &Victim::Anybody).await?;
        ensure!(
            freed == none,
            "a forced release of {name:?}, which is free, was answered {freed:?}"
        );
    }
    for start in HELD.iter().chain(&FREE).chain(&[""]) {
        let list = admin.list(cx.prefix(), start).await?;
        let listed: Vec<_> = list.iter().map(|info| (info.key.prefix(), info.key.name())).collect();
        let expected: Vec<_> = HELD
            .iter()
            .filter(|name| name.starts_with(start))
            .map(|name| (cx.prefix(), *name))
            .collect();
        ensure!(listed == expected, "the list of {start:?} shows {listed:?}, not {expected:?}");
    }
    for (more, expected) in [("a", 1), ("%", 1), ("_", 0), ("?", 0), ("*", 0)] {
        let list = admin.list(&format!("{}{more}", cx.prefix()), "").await?;
        ensure!(
            list.len() == expected,
            "{expected} locks are held under a prefix that ends in {more:?}, and listed are {list:?}"
        );
    }
    // Each is taken away on its own; those that come after it are left alone.
    while !held.is_empty() {
        let (request, _) = held.remove(0);
        let freed = admin.force_release(&request.key, &Victim::Anybody).await?;
        ensure!(freed == Released::Freed, "{:?} is held, but the answer is {freed:?}", request.key);
        for (other, claim) in &mut held {
            let check = claim.check().await?;
            ensure!(
                matches!(check, Renewal::Alive { .. }),
                "a forced release of {:?} has cost {:?} its lock: a check says {check:?}",
                request.key,
                other.key
            );
        }
    }
    still_free(&cx, &a).await
}

/// None of the names is held any more, and each can be taken.
async fn still_free(cx: &Cx, backend: &Arc<dyn LockBackend>) -> Check {
    for name in HELD {
        let mut claim = holds(cx, backend, name).await?;
        still_held(cx, backend, name, "after it was taken again").await?;
        claim.release().await?;
    }
    Ok(())
}
