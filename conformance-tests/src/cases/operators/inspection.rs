//! Inspection and forced release, where the store declares them; and C10, that nothing else shows
//! through.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lock_core::{
    Binding, ErrorKind, HolderMark, LockBackend, LockKey, Locks, Released, Renewal, Victim,
};

use crate::cases::tools::detached::Detached;
use crate::cases::tools::layer::Forward;
use crate::cases::tools::{
    admin, after_a_wait, answered, at_each_await, error_kind, free_soon, holds, lost_reason,
    missed_its_turn, queues, renewed, soon, still_held, take, take_for, until_granted,
};
use crate::context::cancel::drop_after;
use crate::context::{Cx, busy};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, ensure, ensure_exactly, fail};

cases! {
    c10_the_store_works_behind_a_layer []
        "a store behind a layer that forwards every call works as without it"
        covers [TryAcquire/New/Plain, Renew/Held/QueueBehind]
        guards [Renew/Secure/QueueBehind, Check/Secure/QueueBehind, Acquire/Waiting/OtherReleases,
            Check/Secure/Plain, Renew/Secure/Plain];
    c10_errors_name_lock_and_store []
        "an error of a user's call names the operation, the lock and the store"
        guards [AcquireTimeout/Waiting/Plain];
    c01_inspection_shows_the_holder [Inspect]
        "inspection shows the holder's owner, label and fence, and how long its lease lasts"
        covers [Inspect/Open/OtherHolder]
        guards [Inspect/Free/OtherHolder];
    c01_inspection_of_a_free_lock_shows_nobody [Inspect]
        "inspection of a lock without holder and waiters is None, even after an expiry"
        covers [Inspect/Open/Plain, Inspect/Open/OtherReleases, Inspect/Open/Expiry,
            List/Open/Plain, List/Open/OtherReleases, List/Open/Expiry]
        guards [Inspect/Free/Plain, Inspect/Free/OtherReleases, Inspect/Free/Expiry];
    c01_questions_about_the_store_take_no_lock [Inspect]
        "ping and diagnose leave no lock behind, under no prefix and not under the one that its client has used";
    c08_a_dropped_inspection_disturbs_nobody [Inspect]
        "an inspection, a list or a forced release that is dropped at any await leaves its client's claims and later inspections alone"
        covers [Inspect/Open/OtherHolder, List/Open/OtherHolder, ForceRelease/Open/OtherHolder];
    c13_inspection_counts_the_waiters [Inspect, Fair]
        "inspection counts the waiters, but not the one that has the lock by now, nor those that have given up"
        covers [Inspect/Open/QueueBehind]
        guards [Inspect/Free/QueueBehind];
    c09_a_forced_release_raises_the_fence [Inspect]
        "a forced release frees the lock, and the next holder's token is greater"
        covers [ForceRelease/Open/Plain, ForceRelease/Open/OtherHolder, TryAcquire/New/Forced]
        guards [ForceRelease/Free/Plain, ForceRelease/Free/OtherHolder, Check/Secure/Forced];
    s03_a_forced_release_of_another_hold_does_nothing [Inspect]
        "a forced release of a hold that was shown takes the lock from no later holder"
        covers [ForceRelease/Open/OtherHolder, ForceRelease/Open/OtherReleases]
        guards [ForceRelease/Free/OtherHolder, ForceRelease/Free/OtherReleases];
    s06_inspection_that_is_not_there_is_refused [NoInspect]
        "inspection that the store does not declare is refused by a typed error"
        covers [Inspect/Open/Plain, List/Open/Plain, ForceRelease/Open/Plain]
        guards [Inspect/Free/Plain, ForceRelease/Free/Plain];
}

async fn c01_questions_about_the_store_take_no_lock(cx: Cx) -> Check {
    let a = cx.backend().await?;
    let admin = admin(&a)?;
    let locks = async || -> Check<Vec<LockKey>> {
        let mut all = admin.list("", "").await?;
        all.extend(admin.list(cx.prefix(), "").await?);
        Ok(all.into_iter().map(|info| info.key).collect())
    };
    holds(&cx, &a, "lock").await?.release().await?;
    let before = locks().await?;
    a.ping().await?;
    admin.diagnose().await?;
    let mut left = locks().await?;
    left.retain(|key| !before.contains(key));
    ensure!(left.is_empty(), "nobody has taken a lock, but after ping and diagnose {left:?} exist");
    Ok(())
}

async fn c08_a_dropped_inspection_disturbs_nobody(cx: Cx) -> Check {
    let a = cx.backend().await?;
    let (key, admin) = (cx.key("lock")?, admin(&a)?);
    let mut holder = holds(&cx, &a, "lock").await?;
    for call in ["inspect", "list", "force_release"] {
        at_each_await(call, async |polls| {
            let done = match call {
                "inspect" => drop_after(polls, admin.inspect(&key)).await.done()?,
                "list" => drop_after(polls, admin.list(key.prefix(), key.name())).await.done()?,
                _ => {
                    let other = format!("other {polls}");
                    let _taken = holds(&cx, &a, &other).await?;
                    let forced = cx.key(&other)?;
                    let force = admin.force_release(&forced, &Victim::Anybody);
                    drop_after(polls, force).await.done()?
                }
            };
            let after = format!("after {call} was dropped at await {polls}");
            match answered(&cx, cx.slack(), async || holder.renew().await).await {
                Ok(Renewal::Alive { .. }) => {}
                other => fail!("{after}, a renewal is answered {other:?}"),
            }
            match answered(&cx, cx.slack(), async || admin.inspect(&key).await).await {
                Ok(Some(_)) => {}
                other => fail!("{after}, an inspection is answered {other:?}"),
            }
            Ok(done)
        })
        .await?;
    }
    holder.release().await?;
    Ok(())
}

async fn c10_the_store_works_behind_a_layer(cx: Cx) -> Check {
    let calls = Arc::new(AtomicU64::new(0));
    let layered =
        |inner| -> Arc<dyn LockBackend> { Arc::new(Forward { inner, calls: Arc::clone(&calls) }) };
    let (a, b) = (layered(cx.backend().await?), layered(cx.backend().await?));
    let plain = cx.backend().await?;
    let (holder, waiter) = (cx.locks_on(&a), cx.locks_on(&b));
    let guard = take(&cx, &holder, "lock").await?;
    let lock = waiter.named("lock")?;
    let waiting = tokio::spawn(async move { lock.acquire().await });
    cx.sleep(cx.ttl() * 2).await;
    still_held(&cx, &plain, "lock", "behind a layer").await?;
    guard.check().await?;
    guard.renew().await?;
    guard.release().await?;
    soon(&cx, cx.slack(), "a waiter behind a layer gets the lock", waiting)
        .await???
        .release()
        .await?;
    free_soon(&cx, &plain, "lock", "after its release behind a layer").await?;
    let calls = calls.load(Ordering::Relaxed);
    ensure!(calls >= 6, "the layer saw {calls} calls: some went past it");
    Ok(())
}

async fn c10_errors_name_lock_and_store(cx: Cx) -> Check {
    let (holder, locks) = (cx.locks().await?, cx.locks().await?);
    let guard = take(&cx, &holder, "the lock").await?;
    let error = match locks.named("the lock")?.acquire_timeout(cx.ttl() / 10).await {
        Ok(_guard) => return cx.not_alone("the lock", 2, "two guards of one lock"),
        Err(error) => error,
    };
    let text = error.to_string();
    ensure!(
        error.backend() == Some(locks.backend_name()),
        "the error does not name the store: {text}"
    );
    ensure!(
        error.key().is_some_and(|key| key.contains("the lock")),
        "the error does not name the lock: {text}"
    );
    ensure!(error.operation().is_some(), "the error does not name the operation: {text}");
    guard.release().await?;
    Ok(())
}

async fn c01_inspection_shows_the_holder(cx: Cx) -> Check {
    let (backend, other) = (cx.backend().await?, cx.locks().await?);
    let locks = cx.locks_on(&backend);
    let guard = locks.named("lock")?.label("host-7/42 ünï").acquire().await?;
    cx.sleep(cx.ttl() / 10).await;
    let step = cx.capabilities().ttl_step;
    let Some(info) = other.inspect("lock").await? else {
        fail!("a lock that is held is not shown")
    };
    let Some(holder) = info.holder else { fail!("a lock that is held is shown without a holder") };
    ensure!(info.key == *guard.key(), "another lock is shown: {:?}", info.key);
    ensure!(holder.owner == Some(guard.owner()), "the holder is shown as {:?}", holder.owner);
    ensure!(
        holder.label.as_deref() == Some("host-7/42 ünï"),
        "the label is shown as {:?}",
        holder.label
    );
    ensure!(
        holder.fence.is_none_or(|fence| guard.token().is_ok_and(|token| token == fence)),
        "the fence is shown as {:?}, and is {:?}",
        holder.fence,
        guard.token()
    );
    ensure!(
        holder.expires_in.is_none_or(|left| left <= cx.ttl() + step && !left.is_zero()),
        "a lease of {:?} is shown to end in {:?}",
        cx.ttl(),
        holder.expires_in
    );
    guard.release().await?;
    Ok(())
}

async fn c01_inspection_of_a_free_lock_shows_nobody(cx: Cx) -> Check {
    let (locks, other, backend) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    ensure!(other.inspect("lock").await?.is_none(), "a lock that was never held is shown");
    take(&cx, &locks, "lock").await?.release().await?;
    ensure!(other.inspect("lock").await?.is_none(), "a lock that was released is shown");
    // A hold bound to a session does not end with its claim.
    if cx.capabilities().binding == Binding::Lease {
        let (claim, _) = cx.held(&backend, "lock").await?;
        drop(claim);
        cx.sleep(cx.over()).await;
        let shown = other.inspect("lock").await?;
        ensure!(shown.is_none(), "a lock whose lease has ended is shown: {shown:?}");
    }
    let listed = other.list("").await?;
    ensure!(listed.is_empty(), "no lock is held, but the list shows {listed:?}");
    Ok(())
}

async fn c13_inspection_counts_the_waiters(cx: Cx) -> Check {
    let (a, b, other) = (cx.backend().await?, cx.backend().await?, cx.locks().await?);
    let waiters = async || -> Check<Option<usize>> {
        let shown = other.inspect("lock").await?.and_then(|info| info.waiters);
        let mut list = other.list("lock").await?;
        ensure!(list.len() == 1, "one lock is held, and listed is {list:?}");
        let listed = list.pop().and_then(|info| info.waiters);
        ensure!(shown == listed, "an inspection shows {shown:?} waiters, and the list {listed:?}");
        Ok(shown)
    };
    let mut holder = holds(&cx, &a, "lock").await?;
    let mut waiting = Vec::new();
    for expected in 0..3 {
        let shown = waiters().await?;
        ensure!(shown.is_none_or(|n| n == expected), "{expected} wait, and {shown:?} are shown");
        let mut refused = cx.claim(&b, "lock")?;
        busy(&cx, &mut *refused).await?;
        let mut waiter = queues(&cx, &b, "lock").await?;
        busy(&cx, &mut *waiter).await?;
        waiting.push(waiter);
    }
    holder.release().await?;
    let mut holder = waiting.remove(0);
    until_granted(&cx, &mut *holder).await?;
    let shown = waiters().await?;
    ensure!(
        shown.is_none_or(|n| n == 2),
        "the first of three waiters has the lock, and {shown:?} are shown to wait"
    );
    for mut waiter in waiting {
        waiter.release().await?;
    }
    let shown = waiters().await?;
    ensure!(shown.is_none_or(|n| n == 0), "all have given up, and {shown:?} are shown");
    holder.release().await?;
    Ok(())
}

async fn c09_a_forced_release_raises_the_fence(cx: Cx) -> Check {
    let (locks, admin, other) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    let guard = take_for(&cx, &locks, "lock", cx.long_ttl()).await?;
    let fence = guard.token()?;
    let answer = admin.force_release_any("lock").await?;
    ensure!(answer == Released::Freed, "a forced release was answered {answer:?}");
    let next = cx.fence_if_free(&other, "lock").await?;
    ensure!(next.is_some(), "after a forced release the lock is not free");
    ensure_exactly!(next > Some(fence), "the token does not rise: {next:?} after {fence}");
    lost_reason(guard.check().await, "check")?;
    let again = admin.force_release_any("lock").await?;
    ensure!(
        again == Released::AlreadyGone,
        "a forced release of a free lock was answered {again:?}"
    );
    Ok(())
}

/// What the store shows about the current holder.
async fn mark(admin: &Locks, name: &str) -> Check<HolderMark> {
    let holder = admin.inspect(name).await?.and_then(|info| info.holder);
    let Some(holder) = holder else { fail!("an inspection shows no holder of a held lock") };
    Ok(holder.mark)
}

async fn s03_a_forced_release_of_another_hold_does_nothing(cx: Cx) -> Check {
    let (locks, admin, other) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    let old = take(&cx, &locks, "lock").await?;
    let old_mark = mark(&admin, "lock").await?;
    old.release().await?;
    let guard = take(&cx, &locks, "lock").await?;
    let _elsewhere = take(&cx, &locks, "elsewhere").await?;
    let another = mark(&admin, "elsewhere").await?;
    for (what, other_mark) in [("has ended", old_mark), ("is of another lock", another)] {
        let answer = admin.force_release("lock", &other_mark).await?;
        ensure!(
            answer == Released::AlreadyGone,
            "the hold that was shown {what}, but the answer is {answer:?}"
        );
        for name in ["lock", "elsewhere"] {
            still_held(&cx, &other, name, "after a forced release of another hold").await?;
        }
    }
    guard.renew().await.demanded("a renewal after a forced release of another hold")?;
    let answer = admin.force_release("lock", &mark(&admin, "lock").await?).await?;
    ensure!(
        answer == Released::Freed,
        "the hold that was shown is alive, but the answer is {answer:?}"
    );
    free_soon(&cx, &other, "lock", "after a forced release of its owner").await?;
    a_handed_hold_is_taken(&cx, &admin).await?;
    if cx.capabilities().detachable {
        for is_borne in [false, true] {
            a_detached_hold_is_taken(&cx, &admin, is_borne).await?;
        }
    }
    if cx.capabilities().fair {
        a_hold_that_nobody_knows_of_is_taken(&cx, &admin).await?;
    }
    Ok(())
}

/// A hold whose lease token is out can be taken away, also from a bearer who has renewed it.
async fn a_detached_hold_is_taken(cx: &Cx, admin: &Locks, is_borne: bool) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let hold = Detached::take(cx, &a, "lock", cx.long_ttl()).await?;
    let shown = mark(admin, "lock").await?;
    let mut bearer = b.claim(hold.resumed())?;
    if is_borne {
        renewed(&mut *bearer).await?;
    }
    let answer = admin.force_release("lock", &shown).await?;
    ensure!(
        answer == Released::Freed,
        "a hold with a lease token was shown and taken away, but the answer is {answer:?}"
    );
    let renewal = bearer.renew().await?;
    ensure!(
        renewal == Renewal::Lost,
        "a hold was taken away, and its bearer's renewal is answered {renewal:?}"
    );
    free_soon(cx, &a, "lock", "after a forced release of a hold with a lease token").await
}

/// Where a lock has come to a waiter that has not looked yet, and is shown so, it can be taken away.
async fn a_hold_that_nobody_knows_of_is_taken(cx: &Cx, admin: &Locks) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut first = holds(cx, &a, "lock").await?;
    let mut unaware = queues(cx, &b, "lock").await?;
    first.release().await?;
    let turn = cx.now();
    if let Some(holder) = admin.inspect("lock").await?.and_then(|info| info.holder) {
        let answer = admin.force_release("lock", &holder.mark).await?;
        missed_its_turn(cx, turn)?;
        ensure!(
            answer == Released::Freed,
            "the next holder is shown, and taken away before it knows, but the answer is {answer:?}"
        );
        let check = unaware.check().await?;
        ensure!(check == Renewal::Lost, "its lock was taken away, and its check says {check:?}");
    }
    unaware.release().await?;
    Ok(())
}

/// The mark of a hold names it for as long as it lasts, also where its holder had to wait, and has renewed it
/// since. Its loss concerns no later holder.
async fn a_handed_hold_is_taken(cx: &Cx, admin: &Locks) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let request = cx.request_for("lock", cx.long_ttl())?;
    let (mut holder, _) = after_a_wait(cx, &a, &b, request).await?;
    let shown = mark(admin, "lock").await?;
    renewed(&mut *holder).await?;
    let answer = admin.force_release("lock", &shown).await?;
    ensure!(
        answer == Released::Freed,
        "a hold after a wait was shown, renewed and taken away, but the answer is {answer:?}"
    );
    let mut next = holds(cx, &a, "lock").await?;
    renewed(&mut *next).await?;
    still_held(cx, &b, "lock", "after the hold before it was taken away").await?;
    next.release().await?;
    Ok(())
}

async fn s06_inspection_that_is_not_there_is_refused(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    for kind in [
        error_kind(locks.inspect("lock").await, "inspect")?,
        error_kind(locks.list("").await, "list")?,
        error_kind(locks.force_release_any("lock").await, "force_release")?,
    ] {
        ensure!(
            kind == ErrorKind::Unsupported,
            "what the store cannot do is refused with {kind:?}"
        );
    }
    Ok(())
}
