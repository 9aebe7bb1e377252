//! C1, C4 and C11 at their limits: odd ttls, the shortest and the longest, owners that are almost
//! the same, and many names.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Claim, ClaimRequest, ClockInstant, ErrorKind, HolderMark, LockAdmin, LockBackend,
    LockKey, OsRng, OwnerId, Released, Renewal, Resume, Victim,
};

use crate::cases::tools::way::Way;
use crate::cases::tools::{
    error_kind, free_within, holds, kept_until, of_all, renewed, still_held, with_a_fraction,
};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, ensure, fail};

cases! {
    c04_a_ttl_with_a_fraction_is_kept [Lease]
        "a ttl of no whole second is neither cut nor rounded up beyond the store's step"
        covers [TryAcquire/New/Expiry, Renew/Held/Expiry];
    c04_the_shortest_ttl_is_kept [Lease]
        "a lease of min_ttl, and one that is a step longer, are granted, and end after their ttl"
        covers [Claim/New/Plain];
    c04_the_longest_ttl_is_kept []
        "the longest ttl that is allowed is granted, renewed and shown, and ends with the release"
        covers [Claim/New/Plain];
    c04_a_ttl_beyond_the_longest_is_refused []
        "a ttl above max_ttl, or above 366 days, is refused with its reason, and nothing is taken"
        guards [TryAcquire/Free/Plain];
    c01_owners_that_differ_in_one_bit_are_two []
        "owner ids that differ in their last or first bit only are two owners, in every call"
        covers [TryAcquire/New/OtherHolder, Release/Refused/OtherHolder];
    c14_an_owner_that_differs_in_one_bit_takes_nothing_over [Detach]
        "a claim with the fence of a hold, and an owner id that is wrong in one bit, renews and ends nothing"
        covers [Renew/Resumed/OtherHolder, Check/Resumed/OtherHolder, Release/Resumed/OtherHolder];
    c11_a_thousand_names_are_a_thousand_locks []
        "a thousand locks are held, renewed, listed and released at the same time, each on its own"
        covers [Renew/Held/Plain];
}

/// What a try of a free lock promises.
async fn promised(claim: &mut dyn Claim) -> Check<Duration> {
    match claim.try_acquire().await.demanded("a try of a free lock")? {
        Attempt::Granted { valid_for: Some(valid_for), .. } => Ok(valid_for),
        other => fail!("nobody else has the lock, and its first try was answered {other:?}"),
    }
}

async fn c04_a_ttl_with_a_fraction_is_kept(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let odd = with_a_fraction(&cx);
    let ttl = cx.round(odd);
    ensure!(ttl < odd + cx.capabilities().ttl_step, "a ttl of {odd:?} is rounded up to {ttl:?}");
    let ends = async |start: ClockInstant, valid_for: Duration, after: &str| {
        let sent = cx.now();
        ensure!(valid_for > ttl / 2, "{after}, a lease of {ttl:?} is promised for {valid_for:?}");
        kept_until(&cx, &b, "lock", start + valid_for).await?;
        cx.sleep_until(sent + ttl).await;
        let after = format!("{after} and the end of a lease of {ttl:?}");
        free_within(&cx, &b, "lock", cx.lapse(), &after).await
    };
    let mut claim = a.claim(cx.request_for("lock", odd)?)?;
    let start = cx.now();
    ends(start, promised(&mut *claim).await?, "after a grant").await?;
    for way in Way::all(&cx) {
        let mut claim = way.held(&cx, &a, odd).await?;
        // Otherwise the lease of the grant may last longer.
        cx.sleep(cx.ttl() / 2).await;
        let start = cx.now();
        match claim.renew().await? {
            Renewal::Alive { valid_for: Some(valid_for) } => {
                ends(start, valid_for, &format!("after a renewal, {way:?}")).await?;
            }
            other => fail!("a renewal in time, of {ttl:?}, {way:?}, was answered {other:?}"),
        }
    }
    Ok(())
}

async fn c04_the_shortest_ttl_is_kept(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (least, step) = (cx.capabilities().min_ttl, cx.capabilities().ttl_step);
    for ttl in [cx.round(least), cx.round(least) + step] {
        let _claim = taken_for(&cx, &*a, ttl).await?;
        cx.sleep(ttl).await;
        let after = format!("one ttl after a lease of {ttl:?} was granted");
        free_within(&cx, &b, "lock", cx.lapse(), &after).await?;
    }
    Ok(())
}

/// Takes a free lock. In real time a lease of a few milliseconds may be over before a quorum has
/// answered.
async fn taken_for(cx: &Cx, store: &dyn LockBackend, ttl: Duration) -> Check<Box<dyn Claim>> {
    for _ in 0..if cx.is_virtual() { 0 } else { 10 } {
        let mut claim = store.claim(cx.request_for("lock", ttl)?)?;
        if let Ok(Attempt::Granted { .. }) = claim.try_acquire().await {
            return Ok(claim);
        }
        claim.release().await?;
        cx.sleep(ttl).await;
    }
    let mut claim = store.claim(cx.request_for("lock", ttl)?)?;
    granted(&mut *claim).await?;
    Ok(claim)
}

/// The longest ttl that a user may ask for, in whole steps.
fn longest(cx: &Cx) -> Duration {
    const MOST: Duration = Duration::from_secs(366 * 24 * 3600);
    let can = cx.capabilities();
    let most = can.max_ttl.map_or(MOST, |longest| longest.min(MOST));
    let excess = most.as_nanos() % can.ttl_step.as_nanos().max(1);
    most.saturating_sub(Duration::from_nanos(u64::try_from(excess).unwrap_or(0)))
}

async fn c04_the_longest_ttl_is_kept(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let ttl = longest(&cx);
    let claim = a.claim(cx.request_for("lock", ttl)?);
    let mut claim = claim.demanded(&format!("a claim for {ttl:?}"))?;
    let valid_for = promised(&mut *claim).await?;
    ensure!(valid_for > ttl / 2, "a lease of {ttl:?} is promised for {valid_for:?} only");
    renewed(&mut *claim).await?;
    if let Some(admin) = b.admin() {
        let shown = admin.inspect(&cx.key("lock")?).await?.and_then(|info| info.holder);
        let left = shown.as_ref().and_then(|holder| holder.expires_in);
        ensure!(
            shown.is_some() && left.is_none_or(|left| left > ttl / 2),
            "a lease of {ttl:?} that was just renewed is shown as {shown:?}"
        );
    }
    still_held(&cx, &b, "lock", &format!("after a grant for {ttl:?}")).await?;
    claim.release().await?;
    ensure!(cx.is_free(&b, "lock").await?, "a lock with a ttl of {ttl:?} was released and is held");
    Ok(())
}

async fn c04_a_ttl_beyond_the_longest_is_refused(cx: Cx) -> Check {
    let (locks, backend) = (cx.locks().await?, cx.backend().await?);
    for beyond in [longest(&cx) + cx.capabilities().ttl_step, Duration::MAX] {
        let asked = locks.named("lock")?.ttl(beyond).try_acquire().await;
        let kind = error_kind(asked, &format!("try_acquire with a ttl of {beyond:?}"))?;
        ensure!(kind == ErrorKind::InvalidInput, "a ttl of {beyond:?} is refused with {kind:?}");
    }
    ensure!(cx.is_free(&backend, "lock").await?, "a refused ttl has taken the lock");
    Ok(())
}

/// An owner, and those that differ from it in one bit at an end.
fn almost_the_same() -> Check<(OwnerId, [OwnerId; 3])> {
    let mut bytes = *OwnerId::generate(&OsRng)?.as_bytes();
    // A letter at either end, which a text that ignores case would fold.
    (bytes[0], bytes[15]) = (0xab, 0xba);
    let flipped = |byte: usize, bit: u8| {
        let mut other = bytes;
        other[byte] ^= bit;
        OwnerId::from_bytes(other)
    };
    Ok((OwnerId::from_bytes(bytes), [flipped(15, 1), flipped(15, 0x10), flipped(0, 0x80)]))
}

fn owned(cx: &Cx, owner: OwnerId) -> Check<ClaimRequest> {
    let mut request = cx.request_for("lock", cx.long_ttl())?;
    request.owner = owner;
    Ok(request)
}

async fn c01_owners_that_differ_in_one_bit_are_two(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (owner, others) = almost_the_same()?;
    let mut holder = a.claim(owned(&cx, owner)?)?;
    let token = granted(&mut *holder).await?;
    for other in others {
        for backend in [&a, &b] {
            let mut stranger = backend.claim(owned(&cx, other)?)?;
            busy(&cx, &mut *stranger).await?;
            let answer = stranger.release().await?;
            ensure!(
                answer == Released::AlreadyGone,
                "a release by an owner that is wrong in one bit was answered {answer:?}"
            );
            let mut waiter = backend.claim(owned(&cx, other)?.with_wait(true))?;
            busy(&cx, &mut *waiter).await?;
            waiter.release().await?;
        }
        let again = granted(&mut *holder).await?;
        ensure!(
            again == token,
            "an owner that differs in one bit has changed the token to {again}"
        );
        if let Some(admin) = b.admin() {
            let shown = admin.inspect(&cx.key("lock")?).await?.and_then(|info| info.holder);
            let Some(shown) = shown else { fail!("the lock is held, and shown without a holder") };
            ensure!(
                shown.owner == Some(owner),
                "the holder {owner:?} is shown as {:?}",
                shown.owner
            );
            not_taken_by_its_like(&cx, admin, &shown.mark).await?;
        }
    }
    holder.release().await?;
    ensure!(cx.is_free(&b, "lock").await?, "the lock was released and is not free");
    Ok(())
}

/// A forced release takes a hold away by its whole mark, not by the beginning of it.
async fn not_taken_by_its_like(cx: &Cx, admin: &dyn LockAdmin, mark: &HolderMark) -> Check {
    let mut like = mark.as_bytes().to_vec();
    if let Some(last) = like.last_mut() {
        *last = if *last == b'0' { b'1' } else { b'0' };
    }
    let victim = Victim::Shown(HolderMark::new(like));
    // A store may refuse what is no mark of its own.
    let answer = admin.force_release(&cx.key("lock")?, &victim).await;
    ensure!(
        !matches!(answer, Ok(Released::Freed)),
        "a forced release took a hold away by a mark that is wrong in its last byte"
    );
    Ok(())
}

async fn c14_an_owner_that_differs_in_one_bit_takes_nothing_over(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let (owner, others) = almost_the_same()?;
    let mut holder = a.claim(owned(&cx, owner)?)?;
    let token = granted(&mut *holder).await?;
    let data = holder.detach().await?;
    for other in others {
        for call in ["renew", "check", "release"] {
            let request = owned(&cx, other)?.with_resume(Resume::new(token, data.clone()));
            // Data that name the true owner may be refused at once.
            let Ok(mut stranger) = b.claim(request) else { continue };
            let answer = match call {
                "renew" => stranger.renew().await,
                "check" => stranger.check().await,
                _ => Ok(Renewal::Lost),
            };
            match answer {
                Ok(Renewal::Lost) => {}
                Err(error) if !error.is_retryable() => {}
                other => {
                    fail!("{call} by an owner that is wrong in one bit was answered {other:?}")
                }
            }
            match stranger.release().await {
                Ok(Released::Freed) => {
                    fail!("an owner that is wrong in one bit has freed the lock")
                }
                Err(error) if error.is_retryable() => return Err(error.into()),
                _ => {}
            }
        }
        still_held(&cx, &b, "lock", "after the calls of an owner that is wrong in one bit").await?;
    }
    holder.release().await?;
    ensure!(cx.is_free(&b, "lock").await?, "the lock was released and is not free");
    Ok(())
}

const MANY: usize = 1000;

async fn c11_a_thousand_names_are_a_thousand_locks(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    // Neighbours, which no list of theirs shows.
    let mut neighbours = vec![holds(&cx, &a, "lock").await?, holds(&cx, &a, "locks").await?];
    let mut request = cx.request_for("lock", cx.long_ttl())?;
    request.key = LockKey::new(format!("{}~", cx.prefix()), "lock 0000")?;
    neighbours.push(a.claim(request)?);
    granted(&mut *neighbours[2]).await?;
    let name = |at: usize| format!("lock {at:04}");
    let claims: Check<Vec<_>> =
        (0..MANY).map(|at| Ok(a.claim(cx.request_for(&name(at), cx.long_ttl())?)?)).collect();
    let tried = of_all(claims?, |mut claim| async move {
        let answer = claim.try_acquire().await?;
        Ok((claim, answer))
    });
    let mut held = Vec::with_capacity(MANY);
    for (claim, answer) in tried.await? {
        ensure!(
            matches!(answer, Attempt::Granted { .. }),
            "only other names are held, and {claim:?} was answered {answer:?}"
        );
        held.push(claim);
    }
    for at in (0..MANY).step_by(MANY / 10) {
        still_held(&cx, &b, &name(at), &format!("while {MANY} locks are held")).await?;
    }
    listed(&cx, &b, (0..MANY).map(name).collect()).await?;
    let renewed = of_all(held, |mut claim| async move {
        let answer = claim.renew().await?;
        Ok((claim, answer))
    });
    let mut held = Vec::with_capacity(MANY);
    for (claim, answer) in renewed.await? {
        ensure!(
            matches!(answer, Renewal::Alive { .. }),
            "of {MANY} renewals at once, that of {claim:?} was answered {answer:?}"
        );
        held.push(claim);
    }
    let released = of_all(held, |mut claim| async move {
        let answer = claim.release().await?;
        Ok((claim, answer))
    });
    for (claim, answer) in released.await? {
        ensure!(answer == Released::Freed, "the release of {claim:?} was answered {answer:?}");
    }
    listed(&cx, &b, Vec::new()).await?;
    for mut neighbour in neighbours {
        neighbour.release().await?;
    }
    Ok(())
}

/// The store lists just these names, in order, if it lists any.
async fn listed(cx: &Cx, backend: &Arc<dyn LockBackend>, names: Vec<String>) -> Check {
    let Some(admin) = backend.admin() else { return Ok(()) };
    let list = admin.list(cx.prefix(), "lock ").await?;
    let shown: Vec<_> = list.iter().map(|info| info.key.name()).collect();
    let first = shown.iter().zip(&names).position(|(shown, name)| shown != name);
    ensure!(
        first.is_none() && shown.len() == names.len(),
        "of {} locks that are held the list shows {}; the first difference is at {first:?}",
        names.len(),
        shown.len()
    );
    Ok(())
}
