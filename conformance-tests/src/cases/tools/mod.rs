//! Tools shared by several modules of cases.

pub(crate) mod contest;
pub(crate) mod detached;
pub(crate) mod kinds;
pub(crate) mod layer;
pub(crate) mod looks;
pub(crate) mod way;

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lock_core::{
    Attempt, Claim, ClaimRequest, ClockInstant, DataLoss, Error, ErrorKind, FencingToken,
    LeaseToken, Lock, LockAdmin, LockBackend, LockGuard, LockKey, LockState, Locks, LostReason,
    Released, Renewal, Victim,
};
use serde_json::Value;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::Fault;
use crate::context::cancel::{Cut, blocked_runtime};
use crate::context::{Cx, Link, busy, could_look, granted};
use crate::runner::check::{Check, Explain, Stop, ensure, ensure_exactly, fail};

/// The largest number of awaits that is tried.
const MOST_POLLS: usize = 200;

/// Runs a call that is dropped at its first await, then at its second, and so on, until `round`
/// says that it completed first.
pub(crate) async fn at_each_await(
    call: &str,
    mut round: impl AsyncFnMut(usize) -> Check<bool>,
) -> Check {
    for polls in 1..=MOST_POLLS {
        if round(polls).await? {
            return Ok(());
        }
    }
    fail!("{call} was not done after {MOST_POLLS} polls")
}

/// What a bearer of a lease token can make of its text; an error if that is no lease token any more.
pub(crate) fn edited(token: &LeaseToken, edit: impl FnOnce(&mut Value)) -> Check<LeaseToken> {
    let text = token.to_text();
    let (scheme, body) =
        text.split_once('.').ok_or("it has no scheme").or_hindered("reading a lease token")?;
    let json = URL_SAFE_NO_PAD.decode(body).or_hindered("reading a lease token")?;
    let mut fields: Value = serde_json::from_slice(&json).or_hindered("reading a lease token")?;
    edit(&mut fields);
    let body = URL_SAFE_NO_PAD.encode(fields.to_string());
    format!("{scheme}.{body}").parse().explain("editing a lease token")
}

/// More requests than one call makes.
const MOST_REQUESTS: u32 = 16;

/// A client, of whose next call one request, or its answer, is lost or late.
pub(crate) struct Disturbed {
    link: Link,
    pub(super) lock: String,
    limit: Duration,
    fault: Fault,
    /// How many requests of the call come before the one that meets the fault.
    skip: u32,
    is_met: Cell<bool>,
}

impl Disturbed {
    /// The client itself.
    pub(super) fn backend(&self) -> &Arc<dyn LockBackend> {
        &self.link.backend
    }

    /// A contender whose calls end before a late answer has arrived.
    pub(super) fn claim(&self, cx: &Cx, wait: bool) -> Check<Box<dyn Claim>> {
        let request = cx.request_for(&self.lock, cx.long_ttl())?.with_wait(wait);
        Ok(self.link.backend.claim(request.with_call_timeout(self.limit))?)
    }

    /// Such a contender, which has the lock, or, if `wait` is set, a place in the queue of another one.
    pub(super) async fn entered(&self, cx: &Cx, wait: bool) -> Check<Box<dyn Claim>> {
        let mut claim = self.claim(cx, wait)?;
        if wait {
            busy(cx, &mut *claim).await?;
        } else {
            granted(&mut *claim).await?;
        }
        Ok(claim)
    }

    /// Makes the call that meets the fault, if it makes that many requests.
    pub(super) async fn meets<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Check<Result<T, Error>> {
        let (made, struck) = (self.link.requests()?, self.link.struck());
        self.link.inject_after(self.skip, self.fault).await?;
        let answer = call.await;
        let made = self.link.requests()? - made;
        let is_met = match struck.zip(self.link.struck()) {
            Some((before, now)) => now > before,
            None => made > u64::from(self.skip),
        };
        if self.skip == 0 && made > 0 && !is_met {
            return Err(Stop::missed(self.fault));
        }
        self.is_met.set(is_met);
        Ok(answer)
    }

    /// Whether the store acts on the call's first request, and its answer does not come in time.
    pub(super) fn loses_the_first_answer(&self) -> bool {
        self.skip == 0 && self.fault != Fault::LoseNextRequest
    }

    /// Whether the store hears nothing of the call.
    pub(super) fn loses_the_first_request(&self) -> bool {
        self.is_met.get() && self.skip == 0 && self.fault == Fault::LoseNextRequest
    }

    pub(super) fn after(&self, call: &str) -> String {
        format!("after {:?} at request {} of {call}", self.fault, self.skip + 1)
    }
}

/// Runs `round` with a call of which the first request is lost, then with one of which the second is
/// lost, until the call makes no more; the same with answers that are lost, and with answers that come
/// when the call has ended. Each time there is another client and another lock.
///
/// A fault that the call has not met befalls a later one: see [`answered`].
pub(crate) async fn at_each_request(
    cx: &Cx,
    mut round: impl AsyncFnMut(&Disturbed) -> Check,
) -> Check {
    let limit = cx.ttl() / 2;
    let faults =
        [Fault::LoseNextRequest, Fault::LoseNextReply, Fault::DelayNextReply(limit * 3 / 2)];
    for fault in faults {
        for skip in 0.. {
            if skip == MOST_REQUESTS {
                return Err(Stop::hindered(format_args!(
                    "a call, or what the client does besides, makes more than {MOST_REQUESTS} requests"
                )));
            }
            let (link, lock) = (cx.warm_link("warm-up").await?, format!("{fault:?} at {skip}"));
            let one = Disturbed { link, lock, limit, fault, skip, is_met: Cell::new(false) };
            round(&one).await?;
            if !one.is_met.get() {
                break;
            }
        }
    }
    Ok(())
}

/// Makes a call until it is answered, for at most `limit`.
pub(crate) async fn answered<T>(
    cx: &Cx,
    limit: Duration,
    mut call: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let limit = cx.now() + limit;
    loop {
        match call().await {
            Err(error) if error.is_retryable() && cx.now() < limit => {
                cx.sleep(Duration::from_millis(20)).await;
            }
            answer => return answer,
        }
    }
}

/// The token of a try that is made until it is answered, and must be granted.
pub(crate) async fn granted_at_last(cx: &Cx, claim: &mut dyn Claim) -> Check<FencingToken> {
    match answered(cx, cx.ttl() * 2, async || claim.try_acquire().await).await? {
        Attempt::Granted { token, .. } => Ok(token),
        other => fail!("a try of a lock that is free, or its own, was answered {other:?}"),
    }
}

/// Releases what a claim may have, until that is answered; after that the lock must be free at once.
pub(crate) async fn give_up_at_last(
    cx: &Cx,
    claim: &mut dyn Claim,
    other: &Arc<dyn LockBackend>,
    name: &str,
    after: &str,
) -> Check {
    answered(cx, cx.ttl() * 2, async || claim.release().await).await?;
    ensure!(
        cx.is_free(other, name).await?,
        "{after} and a release that was answered, the lock is still taken"
    );
    Ok(())
}

/// How long a server may read its data after a restart.
const READING: Duration = Duration::from_secs(20);

/// What a store answers after a restart. A server that accepts connections may still be reading its
/// data, so errors are no answer yet.
pub(crate) async fn after_restart<T>(
    cx: &Cx,
    ask: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    answered(cx, READING, ask).await
}

/// Restarts the store, and asks it whether this claim still holds its lock. If the store declares
/// that a restart loses data, the lock may be lost, but the store must then say so.
/// The claim is one of [`holds`]: after its ttl the store may have ended it, restarted or not.
pub(crate) async fn survives_a_restart(cx: &Cx, claim: &mut dyn Claim) -> Check<bool> {
    let before = cx.now();
    cx.store().restart().await?;
    let answer = after_restart(cx, async || claim.renew().await).await;
    let answer = answer.explain("a renewal after a restart of the store")?;
    let (took, ttl) = (cx.now().since(before), cx.long_ttl());
    match answer {
        Renewal::Alive { .. } => Ok(true),
        Renewal::Lost if cx.capabilities().loses_data_on.contains(&DataLoss::Restart) => Ok(false),
        Renewal::Lost if took >= ttl => Err(Stop::late(format_args!(
            "the restart took {took:?}, so the hold may have come to the end of its ttl of {ttl:?}"
        ))),
        other => {
            fail!("no loss by a restart is declared, and the renewal after one says {other:?}")
        }
    }
}

/// Waits for a fault for one request to strike, if anybody counts. There were `before`.
pub(crate) async fn has_struck(cx: &Cx, link: &Link, before: Option<u64>) {
    while before.is_some() && link.struck() == before {
        cx.sleep(Duration::from_millis(1)).await;
    }
}

/// Waits for `work` for at most `limit`.
pub(crate) async fn within<T>(
    cx: &Cx,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = cx.sleep(limit) => None,
    }
}

/// A call of a client that is given up at `limit`.
pub(crate) async fn in_time<T>(
    cx: &Cx,
    limit: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let answer = within(cx, limit, call).await;
    answer.unwrap_or_else(|| Err(Error::new(ErrorKind::NoAnswer, "it was not answered in time")))
}

/// Like [`within`], but fails if `work` is not done by then.
pub(crate) async fn soon<T>(
    cx: &Cx,
    limit: Duration,
    what: &str,
    work: impl Future<Output = T>,
) -> Check<T> {
    match within(cx, limit, work).await {
        Some(done) => Ok(done),
        None => fail!("{what}: not within {limit:?}"),
    }
}

/// Asks until the claim is granted: a server of several may not have heard yet that the lock is free.
pub(crate) async fn until_granted(cx: &Cx, claim: &mut dyn Claim) -> Check {
    while let Attempt::Busy { .. } = claim.try_acquire().await? {
        cx.sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// No other client gets the lock before `until`. Exact: a probe counts only if it was granted
/// before then.
pub(crate) async fn kept_until(
    cx: &Cx,
    other: &Arc<dyn LockBackend>,
    name: &str,
    until: ClockInstant,
) -> Check {
    let last_look = until.minus(Duration::from_millis(if cx.is_virtual() { 2 } else { 20 }));
    let step = cx.ttl() / 16;
    loop {
        let mut probe = cx.claim(other, name)?;
        if let Attempt::Granted { .. } = probe.try_acquire().await? {
            let now = cx.now();
            probe.release().await?;
            ensure_exactly!(
                now >= until,
                "another client got the lock {:?} before the time for which the store had promised it",
                until.since(now)
            );
            return Ok(());
        }
        let now = cx.now();
        if now >= last_look {
            return Ok(());
        }
        cx.sleep_until((now + step).min(last_look)).await;
    }
}

/// Takes the lock away from its holder, by a client that is there already where the store allows
/// that.
pub(crate) async fn take_away(cx: &Cx, other: &Arc<dyn LockBackend>, name: &str) -> Check {
    let key = cx.key(name)?;
    match other.admin() {
        Some(admin) => drop(admin.force_release(&key, &Victim::Anybody).await?),
        None => cx.store().break_hold(&key).await?,
    }
    Ok(())
}

/// Waits until nothing more is told to a holder whose lock nobody touches.
pub(crate) async fn is_quiet(cx: &Cx, holder: &mut dyn Claim) -> Check {
    /// What there is to tell of a connection, and of pushes that came together with the answer.
    const MOST: u32 = 20;
    let mut told = 0;
    while let Some(change) = within(cx, cx.ttl() / 4, holder.changed()).await {
        change?;
        told += 1;
        ensure!(told < MOST, "a holder whose lock nobody touches was told of {told} changes");
    }
    Ok(())
}

/// The lock is free by the time at which a lease that has ended, or was given up, must be over.
pub(crate) async fn free_soon(
    cx: &Cx,
    other: &Arc<dyn LockBackend>,
    name: &str,
    after: &str,
) -> Check {
    free_within(cx, other, name, cx.lapse(), after).await
}

/// The lock is free within `limit`.
pub(crate) async fn free_within(
    cx: &Cx,
    other: &Arc<dyn LockBackend>,
    name: &str,
    limit: Duration,
    after: &str,
) -> Check {
    match cx.freed_within(other, name, limit).await? {
        Some(_) => Ok(()),
        None => fail!("{after}, the lock is still taken {limit:?} later"),
    }
}

/// The lock is held. The store has promised it to its holder, if to anybody: a probe that got it and gave
/// it back promises nothing any more.
pub(crate) async fn still_held(
    cx: &Cx,
    other: &Arc<dyn LockBackend>,
    name: &str,
    after: &str,
) -> Check {
    if cx.is_free(other, name).await? {
        return cx.not_alone(name, 1, format_args!("{after}, another client could take the lock"));
    }
    Ok(())
}

/// A claim that holds the lock, which must be free, for longer than the case takes.
pub(crate) async fn holds(
    cx: &Cx,
    backend: &Arc<dyn LockBackend>,
    name: &str,
) -> Check<Box<dyn Claim>> {
    let mut claim = backend.claim(cx.request_for(name, cx.long_ttl())?)?;
    granted(&mut *claim).await?;
    Ok(claim)
}

/// A claim that waits for the held lock, and keeps its place for longer than the case takes.
pub(crate) async fn queues(
    cx: &Cx,
    backend: &Arc<dyn LockBackend>,
    name: &str,
) -> Check<Box<dyn Claim>> {
    let mut claim = backend.claim(cx.request_for(name, cx.long_ttl())?.with_wait(true))?;
    busy(cx, &mut *claim).await?;
    Ok(claim)
}

/// A claim of this request that has waited for the lock, which another one of `before` has passed on to it.
pub(crate) async fn after_a_wait(
    cx: &Cx,
    before: &Arc<dyn LockBackend>,
    backend: &Arc<dyn LockBackend>,
    request: ClaimRequest,
) -> Check<(Box<dyn Claim>, FencingToken)> {
    let mut holder = holds(cx, before, request.key.name()).await?;
    let mut waiter = backend.claim(request.with_wait(true))?;
    busy(cx, &mut *waiter).await?;
    holder.release().await?;
    let token = granted(&mut *waiter).await?;
    Ok((waiter, token))
}

/// A task that waits for pushes until this waiter has the lock, and releases it.
pub(crate) fn pushed(mut waiter: Box<dyn Claim>) -> JoinHandle<Check> {
    tokio::spawn(async move {
        loop {
            waiter.changed().await?;
            if let Attempt::Granted { .. } = waiter.try_acquire().await? {
                waiter.release().await?;
                return Ok(());
            }
        }
    })
}

/// What to say of a waiter for a held lock.
const GRANTED_TOO_EARLY: &str = "a waiter was granted a lock that is held";

/// Such a task still waits, since the lock is held.
pub(crate) async fn still_waits(cx: &Cx, name: &str, waiting: &mut JoinHandle<Check>) -> Check {
    if !waiting.is_finished() {
        return Ok(());
    }
    waiting.await??;
    cx.not_alone(name, 1, GRANTED_TOO_EARLY)
}

/// A user's wait for a held lock has ended: by an error, or with a second guard.
pub(crate) fn ended_too_early(cx: &Cx, name: &str, second: Result<LockGuard, Error>) -> Check {
    let _second = second?;
    cx.not_alone(name, 2, GRANTED_TOO_EARLY)
}

/// How many calls are under way at a time.
const AT_ONCE: usize = 32;

/// Makes one call of each claim, many at a time.
pub(crate) async fn of_all<T, F>(
    claims: Vec<Box<dyn Claim>>,
    call: impl Fn(Box<dyn Claim>) -> F,
) -> Check<Vec<(Box<dyn Claim>, T)>>
where
    T: Send + 'static,
    F: Future<Output = lock_core::Result<(Box<dyn Claim>, T)>> + Send + 'static,
{
    let (mut calls, mut done) = (JoinSet::new(), Vec::with_capacity(claims.len()));
    for claim in claims {
        if calls.len() == AT_ONCE
            && let Some(first) = calls.join_next().await
        {
            done.push(first??);
        }
        calls.spawn(call(claim));
    }
    while let Some(next) = calls.join_next().await {
        done.push(next??);
    }
    Ok(done)
}

/// The lock was given up, and goes to the first waiter, then to the second. The second one asks first.
pub(crate) async fn served_in_order(
    cx: &Cx,
    first: &mut dyn Claim,
    second: &mut dyn Claim,
) -> Check {
    busy(cx, second).await?;
    granted(first).await?;
    first.release().await?;
    granted(second).await?;
    second.release().await?;
    Ok(())
}

/// The inspection of a store that declares one.
pub(crate) fn admin(backend: &Arc<dyn LockBackend>) -> Check<&dyn LockAdmin> {
    match backend.admin() {
        Some(admin) => Ok(admin),
        None => fail!("`inspect` is declared, but there is no admin"),
    }
}

/// Takes "lock" away from its holder, which must be possible.
pub(crate) async fn force(cx: &Cx, backend: &Arc<dyn LockBackend>) -> Check {
    let answer = admin(backend)?.force_release(&cx.key("lock")?, &Victim::Anybody).await?;
    ensure!(answer == Released::Freed, "a forced release of a held lock: {answer:?}");
    Ok(())
}

/// A user that waits for the lock in a separate task.
pub(crate) fn waits(
    cx: &Cx,
    locks: &Locks,
    name: &str,
) -> Check<JoinHandle<Result<LockGuard, Error>>> {
    let lock = locks.named(name)?.ttl(cx.long_ttl());
    Ok(tokio::spawn(async move { lock.acquire().await }))
}

/// Takes the lock through the user API; it must be free.
pub(crate) async fn take(cx: &Cx, locks: &Locks, name: &str) -> Check<LockGuard> {
    take_for(cx, locks, name, cx.ttl()).await
}

pub(crate) async fn take_for(
    cx: &Cx,
    locks: &Locks,
    name: &str,
    ttl: Duration,
) -> Check<LockGuard> {
    got(&locks.named(name)?.ttl(cx.round(ttl))).await
}

/// A guard of this lock, which must be free.
pub(crate) async fn got(lock: &Lock) -> Check<LockGuard> {
    let begun = Instant::now();
    match lock.try_acquire().await? {
        Some(guard) => Ok(guard),
        None => {
            could_look(begun)?;
            fail!(
                "{:?} should be free, but try_acquire says that another client holds it",
                lock.key().name()
            )
        }
    }
}

/// A renewal in time, which must succeed.
pub(crate) async fn renewed(claim: &mut dyn Claim) -> Check {
    match claim.renew().await? {
        Renewal::Alive { .. } => Ok(()),
        other => fail!("a renewal in time was answered {other:?}"),
    }
}

/// Says if the machine was too slow to ask a waiter since its turn has come: a store may give the lock to the next
/// one then.
pub(crate) fn missed_its_turn(cx: &Cx, turn: ClockInstant) -> Check {
    if cx.now().since(turn) > cx.ttl() / 8 {
        return Err(Stop::late("the machine was too slow to ask a waiter at its turn"));
    }
    Ok(())
}

/// A name of as many bytes as one may have, in wide characters.
pub(crate) fn longest_name() -> String {
    "🔑".repeat(LockKey::MAX_LEN / "🔑".len())
}

/// A ttl of no whole second: seven tenths, a millisecond, and half of one are each lost by another rounding.
pub(crate) fn with_a_fraction(cx: &Cx) -> Duration {
    cx.ttl() + Duration::from_micros(701_500)
}

/// More renewals than a store may count before it takes a hold, or a place, for too old.
pub(crate) fn many_renewals(cx: &Cx) -> u32 {
    if cx.is_virtual() { 1000 } else { 120 }
}

/// The guard says that it is lost, without asking the store.
pub(crate) fn is_lost(guard: &LockGuard) -> bool {
    matches!(guard.state(), LockState::Lost(_))
}

/// An error that says that the lock is lost, and why.
pub(crate) fn lost_reason<T>(result: Result<T, Error>, what: &str) -> Check<LostReason> {
    match result {
        Ok(_) => fail!("{what} succeeded although the lock is lost"),
        Err(error) => match error.lost_reason() {
            Some(reason) => Ok(reason),
            None => fail!("{what} of a lost lock did not say that it is lost, but: {error}"),
        },
    }
}

/// Why a user was refused a lock that another one holds.
pub(crate) fn refusal<T>(cx: &Cx, result: Result<T, Error>, what: &str) -> Check<ErrorKind> {
    match result {
        Ok(_second) => cx.second_holder(format_args!("{what} was granted a lock that is held")),
        Err(error) => Ok(error.kind()),
    }
}

/// An error of this kind.
pub(crate) fn error_kind<T>(result: Result<T, impl Into<Error>>, what: &str) -> Check<ErrorKind> {
    match result.map_err(Into::into) {
        Ok(_) => fail!("{what} succeeded"),
        Err(error) => Ok(error.kind()),
    }
}

/// Whether a wait for a held lock ended as it should. In real time a busy machine may not get a
/// single answer from the store within a short deadline, and must say so.
pub(crate) fn is_busy(cx: &Cx, kind: ErrorKind) -> bool {
    kind == ErrorKind::NotAcquired || (!cx.is_virtual() && kind == ErrorKind::NoAnswer)
}

/// Runs `work` until it is done, or drops it after `steps` turns of the scheduler, so the tasks
/// behind it are caught at each of their awaits.
pub(crate) async fn drop_after_steps<T>(
    cx: &Cx,
    steps: u32,
    work: impl Future<Output = T>,
) -> Cut<T> {
    tokio::select! {
        biased;
        done = work => Cut::Done(done),
        () = turns(cx, steps) => Cut::Dropped,
    }
}

/// How long an answer is held back for which a call waits that is dropped.
const HELD_BACK: Duration = Duration::from_millis(30);

/// A client whose calls are dropped at each of their awaits.
pub(crate) struct Dropper {
    pub(crate) locks: Locks,
    /// If the answers of the store can be held back.
    link: Option<Link>,
}

impl Dropper {
    pub(crate) async fn new(cx: &Cx) -> Check<Self> {
        if cx.is_virtual() {
            return Ok(Self { locks: cx.locks().await?, link: None });
        }
        match cx.link().await {
            Ok(link) => Ok(Self {
                locks: cx.locks_on(&link.backend),
                link: link.struck().is_some().then_some(link),
            }),
            Err(Stop::NotApplicable(_)) => Ok(Self { locks: cx.locks().await?, link: None }),
            Err(stop) => Err(stop),
        }
    }

    /// Runs `work` until it is done, or drops it: in the first half of the [`STEPS`] a little later each
    /// time, and in the second while the answer to its first request is under way, to its second, and
    /// so on. A slow store is never reached by the first, nor is the second needed without one.
    pub(crate) async fn drops<T>(
        &self,
        cx: &Cx,
        step: u32,
        work: impl Future<Output = T>,
    ) -> Check<Cut<T>> {
        let (Some(link), Some(request)) = (&self.link, step.checked_sub(STEPS / 2)) else {
            return Ok(drop_after_steps(cx, step, work).await);
        };
        let before = link.struck();
        link.inject_after(request, Fault::DelayNextReply(HELD_BACK)).await?;
        let held_back = has_struck(cx, link, before);
        let cut = tokio::select! {
            biased;
            done = work => Cut::Done(done),
            // It may make no such request, and go on waiting.
            _ = within(cx, HELD_BACK * 2, held_back) => Cut::Dropped,
        };
        // A plan that was not used up would shift the next one.
        link.inject(Fault::Heal).await?;
        Ok(cut)
    }
}

/// Lets other tasks run: a number of turns, or in real time a number of moments.
pub(crate) async fn turns(cx: &Cx, steps: u32) {
    if cx.is_virtual() {
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
    } else {
        cx.sleep(Duration::from_micros(200) * steps).await;
    }
}

/// How many turns are tried.
pub(crate) const STEPS: u32 = 16;

/// Releases what a claim may have; after that the lock must be free at once.
pub(crate) async fn give_up(
    cx: &Cx,
    claim: &mut dyn Claim,
    other: &Arc<dyn LockBackend>,
    name: &str,
    after: &str,
) -> Check {
    claim.release().await?;
    ensure!(
        cx.is_free(other, name).await?,
        "{after} and a release that was answered, the lock is still taken"
    );
    Ok(())
}

/// Runs `work` on a runtime with one thread, which is all that its client has. In virtual time each case has one.
pub(crate) async fn on_one_thread<F: Future<Output = Check>>(
    cx: &Cx,
    work: impl FnOnce(Cx) -> F + Send + 'static,
) -> Check {
    let (cx, case) = (cx.clone(), tokio::runtime::Handle::current());
    if cx.is_virtual() {
        return work(cx).await;
    }
    tokio::task::spawn_blocking(move || {
        let _in_case = case.enter();
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(single) => single.block_on(work(cx)),
            Err(error) => fail!("no runtime: {error}"),
        }
    })
    .await?
}

/// Nothing of this runtime runs for so long, if it has one thread.
pub(crate) async fn stand_still(cx: &Cx, duration: Duration) {
    if cx.is_virtual() {
        blocked_runtime(duration).await;
    } else {
        block_this_thread(duration);
    }
}

/// As work does that never yields.
#[expect(clippy::disallowed_methods, reason = "the cases are about a runtime that is blocked")]
pub(crate) fn block_this_thread(duration: Duration) {
    std::thread::sleep(duration);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::memory::RealTime;

    #[tokio::test]
    async fn a_call_is_dropped_while_its_answer_is_under_way() {
        for (step, is_dropped) in [(STEPS / 2, true), (STEPS / 2 + 1, false)] {
            let cx = Cx::start(&RealTime::default(), false).await.unwrap();
            let calls = Dropper::new(&cx).await.unwrap();
            let lock = calls.locks.named("lock").unwrap();
            let cut = calls.drops(&cx, step, lock.try_acquire()).await.unwrap();
            assert_eq!(matches!(cut, Cut::Dropped), is_dropped, "a try makes one request: {step}");
        }
    }
}
