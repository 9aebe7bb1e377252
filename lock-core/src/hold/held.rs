//! Whether a lock is held, the only place where that is decided, and the signal that it is lost.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use crate::mutex::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::terms::LockTerms;
use crate::{
    ClaimRequest, Clock, ClockInstant, Error, FencingToken, LockKey, LostReason, OwnerId, Result,
};

/// What a holder may believe, by the local clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockState {
    /// The lock is held, and the last renewal succeeded.
    Secure,
    /// The lock is held, but the last renewal failed: unless one succeeds, it will be lost at
    /// [`Held::valid_until`].
    AtRisk,
    /// The lock is no longer held, and this guard will never hold it again.
    Lost(LostReason),
}

/// The margin that the holder keeps before the end of the lease: 1 % of the TTL for clocks that run
/// at different rates, and 2 ms for those that are coarse (the drift allowance of the Redlock
/// algorithm's implementations).
pub(crate) fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// The end of what a store has promised for a call that was sent at `sent`, less the margin. After an
/// earlier bearer with a longer TTL it may promise more than this TTL, and the clocks drift apart for
/// all of that time.
pub(super) fn promised_end(sent: ClockInstant, valid_for: Duration, ttl: Duration) -> ClockInstant {
    (sent + valid_for).minus(margin(ttl.max(valid_for)))
}

/// How long before the end of validity the lost signal fires, so the work has a moment to stop.
pub(crate) fn lead(ttl: Duration) -> Duration {
    (ttl / 10).min(Duration::from_millis(50))
}

/// A view of a held lock: its token, its end and its state. Cheap to clone.
///
/// ```
/// # use lock_core as distlock;
/// use distlock::{Held, LockState, Locks, testing::MemoryBackend};
///
/// /// A step of the work, somewhere deep inside: it stops if the lock is gone.
/// fn step(held: &Held) -> distlock::Result<u64> {
///     Ok(held.token()?.get())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// let guard = locks.named("order:42")?.acquire().await?;
/// let held = guard.held().clone();
/// step(&held)?;
/// guard.release().await?;
/// assert!(step(&held).is_err());
/// assert!(matches!(held.state(), LockState::Lost(_)));
/// # Ok(()) }
/// ```
///
/// It stays accurate for as long as it lives, but does not keep the lock: only the guard does.
/// Everything here is answered from the local clock and never waits.
#[derive(Clone)]
pub struct Held {
    hold: Arc<SharedHold>,
    /// Of a lock of another kind, which has this hold.
    user: Option<Arc<HoldUser>>,
}

/// A lock that is made of an exclusive one, under a name of its own. Several can have one hold, and each may
/// leave it to the others.
struct HoldUser {
    key: LockKey,
    token: FencingToken,
    granted_at: ClockInstant,
    /// Cancelled when it leaves, and when the hold is lost.
    ended: CancellationToken,
    left_at: OnceLock<ClockInstant>,
    sets: Mutex<SetTokens>,
}

/// The tokens of the sets to which a hold belongs, each under the addresses of what it consists of. However often a set
/// is made of the same holds, it has one token.
#[derive(Default)]
struct SetTokens(HashMap<Vec<usize>, CancellationToken>);

impl SetTokens {
    fn of(&mut self, set: &[usize]) -> CancellationToken {
        match self.0.get(set) {
            Some(token) if !token.is_cancelled() => token.clone(),
            _ => {
                let token = CancellationToken::new();
                self.add(set, &token);
                token
            }
        }
    }

    /// Those of sets that have ended are forgotten, from time to time: a hold may outlast many.
    fn add(&mut self, set: &[usize], token: &CancellationToken) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|_, token| !token.is_cancelled());
            self.0.reserve(self.0.len() + 1);
        }
        self.0.insert(set.to_vec(), token.clone());
    }

    fn cancel(&mut self) {
        self.0.drain().for_each(|(_, token)| token.cancel());
    }
}

/// An address may be used again, and the sets of its first user have ended then.
impl Drop for SetTokens {
    fn drop(&mut self) {
        self.cancel();
    }
}

struct SharedHold {
    key: LockKey,
    owner: OwnerId,
    token: FencingToken,
    ttl: Duration,
    clock: Arc<dyn Clock>,
    granted_at: ClockInstant,
    /// How long before the end the lost signal fires.
    lead: Duration,
    /// The backend is being closed.
    killed: CancellationToken,
    validity: Mutex<Validity>,
    lost: Notify,
}

/// Only `validity` changes, and in single steps.
impl UnwindSafe for SharedHold {}
impl RefUnwindSafe for SharedHold {}

struct Validity {
    until: ClockInstant,
    /// Where `max_hold` ends it; `until` is never later.
    cap: ClockInstant,
    /// The end of the lease, by what the store has promised: it may be later than `until`.
    lease_end: ClockInstant,
    /// No release takes effect before.
    free_at: ClockInstant,
    at_risk: bool,
    /// Once set it stays.
    lost: Option<LostReason>,
    /// Cancelled on loss; created on demand.
    token: Option<CancellationToken>,
    sets: SetTokens,
}

impl Held {
    /// What was requested is granted with this token, and valid until then. It ends sooner if it is `killed`.
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        request: &ClaimRequest,
        terms: &LockTerms,
        token: FencingToken,
        until: ClockInstant,
        killed: CancellationToken,
    ) -> Self {
        let (key, owner) = (request.key.clone(), request.owner);
        let LockTerms { ttl, max_hold, .. } = *terms;
        let granted_at = clock.now();
        let cap = max_hold.map_or(ClockInstant::FAR_FUTURE, |limit| granted_at + limit);
        let lead = lead(ttl).min(max_hold.unwrap_or(ttl) / 10);
        let validity = Validity {
            until: until.min(cap),
            cap,
            lease_end: until,
            free_at: granted_at,
            at_risk: false,
            lost: None,
            token: None,
            sets: SetTokens::default(),
        };
        let (validity, lost) = (Mutex::new(validity), Notify::new());
        let hold =
            SharedHold { key, owner, token, ttl, clock, granted_at, lead, killed, validity, lost };
        Self { hold: Arc::new(hold), user: None }
    }

    /// The same hold, as that of a lock of another kind, which has this name and token.
    pub(crate) fn used_as(&self, key: LockKey, token: FencingToken) -> Self {
        let ended = self.loss_token().child_token();
        let (granted_at, left_at) = (self.hold.clock.now(), OnceLock::new());
        let user = HoldUser { key, token, granted_at, ended, left_at, sets: Mutex::default() };
        Self { hold: Arc::clone(&self.hold), user: Some(Arc::new(user)) }
    }

    /// Its user has released it; others may still have the hold.
    pub(crate) fn leave(&self) {
        if let Some(user) = &self.user {
            user.left_at.get_or_init(|| self.hold.clock.now());
            user.ended.cancel();
            user.sets.lock().cancel();
        }
    }

    /// The lock.
    pub fn key(&self) -> &LockKey {
        self.user.as_ref().map_or(&self.hold.key, |user| &user.key)
    }

    /// The identity of this acquisition of the lock. It is a secret of the holder: see [`OwnerId`].
    pub fn owner(&self) -> OwnerId {
        self.hold.owner
    }

    /// The fencing token, to be presented to the protected resource with every access.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lock is no longer held: there is then nothing to
    /// present.
    pub fn token(&self) -> Result<FencingToken> {
        match self.state() {
            LockState::Lost(reason) => Err(Error::lost(reason).for_key(self.key())),
            LockState::Secure | LockState::AtRisk => Ok(self.fence()),
        }
    }

    /// How long the lock is held after a renewal: the requested TTL, rounded up to what the store can
    /// keep.
    pub fn ttl(&self) -> Duration {
        self.hold.ttl
    }

    /// The time until which the lock counts as held, unless it is renewed before. Counted from the
    /// moment *before* the last successful request was sent, less a margin of 1 % of the TTL +
    /// 2 ms. Once the lock is lost, this is the moment of its loss.
    pub fn valid_until(&self) -> ClockInstant {
        let until = self.hold.validity().until;
        self.left_at().map_or(until, |left| until.min(left))
    }

    /// [`valid_until`](Self::valid_until) on the wall clock, for people and logs.
    pub fn valid_until_wall_clock(&self) -> SystemTime {
        self.valid_until().to_system_time(&*self.hold.clock)
    }

    /// How much longer the lock counts as held; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.valid_until().since(self.hold.clock.now())
    }

    /// Held, at risk or lost, by the local clock.
    pub fn state(&self) -> LockState {
        if self.left_at().is_some() {
            return LockState::Lost(LostReason::Released);
        }
        let validity = self.hold.validity();
        match (validity.lost, validity.at_risk) {
            (Some(reason), _) => LockState::Lost(reason),
            (None, true) => LockState::AtRisk,
            (None, false) => LockState::Secure,
        }
    }

    pub(crate) fn fence(&self) -> FencingToken {
        self.user.as_ref().map_or(self.hold.token, |user| user.token)
    }

    /// Waits until its user has left.
    async fn left(&self) {
        match &self.user {
            Some(user) => user.ended.cancelled().await,
            None => std::future::pending().await,
        }
    }

    fn left_at(&self) -> Option<ClockInstant> {
        self.user.as_ref()?.left_at.get().copied()
    }

    /// When the lost signal fires.
    pub(crate) fn signal_at(&self) -> ClockInstant {
        self.valid_until().minus(self.hold.lead)
    }

    /// Until when the store has promised to keep the lock, whatever has become of the guard.
    pub(crate) fn lease_end(&self) -> ClockInstant {
        self.hold.validity().lease_end
    }

    /// When a release takes effect at the earliest: as long after the grant as its
    /// [`min_hold`](crate::Lock::min_hold).
    pub fn free_at(&self) -> ClockInstant {
        self.hold.validity().free_at
    }

    /// Keeps it from others until `least` after the grant. Several users of one hold may each ask for that.
    pub(crate) fn keep_for(&self, least: Duration) {
        let granted_at = self.user.as_ref().map_or(self.hold.granted_at, |user| user.granted_at);
        let free_at = granted_at + least;
        let mut validity = self.hold.validity();
        validity.free_at = validity.free_at.max(free_at);
    }

    /// Moves the end of validity, unless it has passed: a guard never returns from lost. An answer
    /// that promises less than an earlier one does not shorten it, since both promises hold.
    pub(crate) fn extend(&self, until: ClockInstant) {
        let mut validity = self.hold.validity();
        if validity.lost.is_none() {
            validity.lease_end = validity.lease_end.max(until);
            validity.until = validity.until.max(until).min(validity.cap);
        }
    }

    /// Whether the last renewal failed.
    pub(crate) fn set_at_risk(&self, at_risk: bool) {
        self.hold.validity().at_risk = at_risk;
    }

    /// The token that is cancelled on loss, and belongs to this hold alone.
    fn loss_token(&self) -> CancellationToken {
        let mut validity = self.hold.validity();
        let token = validity.token.get_or_insert_default().clone();
        if validity.lost.is_some() {
            token.cancel();
        }
        token
    }

    /// The token of the set of these holds, which is cancelled when one of them is lost.
    pub(crate) fn set_token(holds: &[Self]) -> CancellationToken {
        let set: Vec<_> = holds.iter().map(Self::address).collect();
        let token = holds.first().map(|first| first.hold.validity().sets.of(&set));
        let token = token.unwrap_or_default();
        for held in holds {
            if let Some(user) = &held.user {
                user.sets.lock().add(&set, &token);
            }
            held.hold.validity().sets.add(&set, &token);
            // Whoever leaves, or ends it, from now on finds the token.
            if matches!(held.state(), LockState::Lost(_)) {
                token.cancel();
            }
        }
        token
    }

    /// Of the user, who may leave the hold to others, if there is one.
    fn address(&self) -> usize {
        match &self.user {
            Some(user) => Arc::as_ptr(user).addr(),
            None => Arc::as_ptr(&self.hold).addr(),
        }
    }

    /// Ends the hold for `reason`, unless it has ended. Returns why it had ended before.
    pub(crate) fn lose(&self, reason: LostReason) -> Option<LostReason> {
        let validity = self.hold.validity();
        let before = validity.lost;
        if before.is_none() {
            self.hold.end(validity, reason, self.hold.clock.now());
        }
        before
    }

    /// Ends the hold because its time is over, by whichever limit that was. The first to notice
    /// marks it: its keeper, or a task that waits for the loss. `None` if a renewal has come before.
    pub(crate) fn expire(&self) -> Option<LostReason> {
        let validity = self.hold.validity();
        if let Some(before) = validity.lost {
            return Some(before);
        }
        let now = self.hold.clock.now();
        if now < validity.until.minus(self.hold.lead) {
            return None;
        }
        let reason = validity.reason_of_end();
        self.hold.end(validity, reason, now);
        Some(reason)
    }
}

impl SharedHold {
    /// The validity as of now: an end that has passed is marked before it can be read.
    fn validity(&self) -> MutexGuard<'_, Validity> {
        let validity = self.validity.lock();
        if validity.lost.is_some() {
            return validity;
        }
        let now = self.clock.now();
        if now >= validity.until {
            let reason = validity.reason_of_end();
            self.end(validity, reason, now);
        } else if self.killed.is_cancelled() {
            self.end(validity, LostReason::Closed, now);
        } else {
            return validity;
        }
        // The end is final.
        self.validity.lock()
    }

    /// Marks the end, once, wakes all who wait for it, and records it if its holder did not want it.
    fn end(&self, mut validity: MutexGuard<'_, Validity>, reason: LostReason, now: ClockInstant) {
        validity.end(reason, now);
        drop(validity);
        self.lost.notify_waiters();
        if matches!(reason, LostReason::Expired | LostReason::MaxHold | LostReason::Taken) {
            tracing::error!(target: "distlock", key = %self.key, %reason, "lost");
        }
    }
}

impl Validity {
    fn end(&mut self, reason: LostReason, now: ClockInstant) {
        self.lost = Some(reason);
        self.until = self.until.min(now);
        if let Some(token) = &self.token {
            token.cancel();
        }
        self.sets.cancel();
    }

    fn reason_of_end(&self) -> LostReason {
        if self.until == self.cap { LostReason::MaxHold } else { LostReason::Expired }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("key", self.key())
            .field("token", &self.fence())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Fires when the lock is lost; awaiting it returns the reason. Cheap to clone, and any number of
/// tasks may await it.
///
/// ```
/// # use lock_core::{Locks, LostReason, memory::MemoryBackend};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let store = MemoryBackend::queued();
/// # let locks = Locks::new(store.clone());
/// let guard = locks.named("order:42")?.acquire().await?;
/// # store.lose_now("order:42");
/// tokio::select! {
///     reason = guard.lost() => assert_eq!(reason, LostReason::Taken),
///     () = async { /* the work */ std::future::pending().await } => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a signal does nothing unless it is awaited or asked"]
pub struct LostSignal(Held);

impl Held {
    /// A signal that fires when the lock is lost: at the latest min(50 ms, TTL / 10) before the end
    /// of validity, as soon as the runtime runs. It needs no I/O.
    pub fn lost(&self) -> LostSignal {
        LostSignal(self.clone())
    }
}

impl LostSignal {
    /// Why the lock is lost, if it is.
    pub fn reason(&self) -> Option<LostReason> {
        match self.0.state() {
            LockState::Lost(reason) => Some(reason),
            LockState::Secure | LockState::AtRisk => None,
        }
    }

    /// A token that is cancelled when the lock is lost, for code that takes one. Cancelling it
    /// affects neither the lock nor other tokens.
    ///
    /// It is cancelled by the task that keeps the lock, so the runtime of the `Locks` must be
    /// driven; [`wait`](Self::wait) depends on the clock alone.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let store = MemoryBackend::queued();
    /// # let locks = Locks::new(store.clone());
    /// let guard = locks.named("order:42")?.acquire().await?;
    /// let stop = guard.lost().cancellation_token();
    /// let work = tokio::spawn(async move { stop.run_until_cancelled(std::future::pending::<()>()).await });
    /// store.lose_now("order:42");
    /// assert_eq!(work.await.unwrap(), None, "stopped");
    /// # Ok(()) }
    /// ```
    #[must_use = "a token does nothing unless it is asked or awaited"]
    pub fn cancellation_token(&self) -> CancellationToken {
        match &self.0.user {
            Some(user) => user.ended.child_token(),
            None => self.0.loss_token().child_token(),
        }
    }

    /// Waits until the lock is lost. Fires a moment before the end of validity by the clock alone, and
    /// when the `Locks` is closed, so for these it needs neither the store nor the runtime of the
    /// `Locks`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn wait(&self) -> LostReason {
        let SharedHold { clock, killed, lost, .. } = &*self.0.hold;
        loop {
            // Arm, then check, then wait.
            let mut notified = std::pin::pin!(lost.notified());
            notified.as_mut().enable();
            if let Some(reason) = self.reason() {
                return reason;
            }
            // A renewal moves it; this then waits again.
            let end = self.0.signal_at();
            if clock.now() >= end {
                match self.0.expire() {
                    Some(reason) => return reason,
                    None => continue,
                }
            }
            tokio::select! {
                biased;
                () = notified => {}
                () = self.0.left() => {}
                // The keeper says so, too, but its runtime may stand still.
                () = killed.cancelled() => {}
                () = clock.sleep_until(end) => {}
            }
        }
    }
}

impl IntoFuture for LostSignal {
    type Output = LostReason;
    type IntoFuture = Pin<Box<dyn Future<Output = LostReason> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.wait().await })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;
    use crate::testing::ManualClock;

    const SECOND: Duration = Duration::from_secs(1);

    fn hold(clock: &ManualClock, max_hold: Option<Duration>) -> Held {
        let (key, owner) = (LockKey::new("", "a").unwrap(), OwnerId::from_bytes([1; 16]));
        let request = ClaimRequest::new(key, owner, 10 * SECOND);
        let (token, until) = (FencingToken::new(1).unwrap(), clock.now() + 10 * SECOND);
        let terms = LockTerms { ttl: 10 * SECOND, max_hold, ..LockTerms::for_a_test() };
        let killed = CancellationToken::new();
        Held::new(Arc::new(clock.clone()), &request, &terms, token, until, killed)
    }

    #[test]
    fn the_end_is_exact_and_for_ever() {
        let clock = ManualClock::default();
        let held = hold(&clock, None);
        clock.advance(10 * SECOND - Duration::from_nanos(1));
        assert_eq!(held.state(), LockState::Secure);
        clock.advance(Duration::from_nanos(1));
        // An answer that comes at this very moment is too late.
        held.extend(clock.now() + 10 * SECOND);
        assert_eq!(held.state(), LockState::Lost(LostReason::Expired));
        assert_eq!(held.remaining(), Duration::ZERO);
        assert!(held.token().is_err());
        assert_eq!(held.lose(LostReason::Released), Some(LostReason::Expired));
    }

    #[test]
    fn a_renewal_prolongs_and_heals_but_never_past_max_hold() {
        let clock = ManualClock::default();
        let held = hold(&clock, Some(15 * SECOND));
        held.set_at_risk(true);
        assert_eq!(held.state(), LockState::AtRisk);
        clock.advance(5 * SECOND);
        held.extend(clock.now() + 20 * SECOND);
        held.set_at_risk(false);
        assert_eq!((held.state(), held.remaining()), (LockState::Secure, 10 * SECOND));
        clock.advance(10 * SECOND);
        assert_eq!(held.state(), LockState::Lost(LostReason::MaxHold));
    }

    #[test]
    fn an_answer_that_promises_less_does_not_shorten() {
        let clock = ManualClock::default();
        let held = hold(&clock, None);
        held.extend(clock.now() + SECOND);
        assert_eq!(held.remaining(), 10 * SECOND);
    }

    #[test]
    fn the_end_on_the_wall_clock_is_as_far_away() {
        let clock = ManualClock::default();
        let held = hold(&clock, None);
        let (before, shown, after) =
            (SystemTime::now(), held.valid_until_wall_clock(), SystemTime::now());
        assert!((before + 10 * SECOND..=after + 10 * SECOND).contains(&shown));
        let ago = clock.now();
        clock.advance(15 * SECOND);
        let (before, shown, after) =
            (SystemTime::now(), ago.to_system_time(&clock), SystemTime::now());
        assert!((before - 15 * SECOND..=after - 15 * SECOND).contains(&shown));
    }

    /// What the tasks and threads that share a hold do with it. Each is one step under its lock, so every
    /// interleaving of threads is a sequence of these.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Time passes: to the signal of the loss, to the end of the lease, to that of `max_hold`.
        Tick(u64),
        /// The keeper has an answer: the lease lasts so many seconds from now.
        Renewed(u32),
        RenewalFailed,
        /// The keeper sees that the signal is due.
        Expire,
        /// The store has said that it is gone.
        Taken,
        /// The guard is dropped.
        Released,
        /// The backend is being closed.
        Killed,
    }

    const STEPS: [Step; 9] = [
        Step::Tick(9_950),
        Step::Tick(50),
        Step::Tick(5_000),
        Step::Renewed(10),
        Step::RenewalFailed,
        Step::Expire,
        Step::Taken,
        Step::Released,
        Step::Killed,
    ];

    /// A task that waits for the signal.
    struct Waiting {
        signal: Option<Pin<Box<dyn Future<Output = LostReason> + Send>>>,
        woken: Arc<Woken>,
        heard: Option<LostReason>,
    }

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }

    impl Waiting {
        fn on(held: &Held) -> Self {
            let signal: Pin<Box<dyn Future<Output = _> + Send>> =
                Box::pin(held.lost().into_future());
            let mut waiting = Self {
                signal: Some(signal),
                woken: Arc::new(Woken(AtomicBool::new(true))),
                heard: None,
            };
            waiting.runs_if_woken();
            waiting
        }

        fn runs_if_woken(&mut self) {
            let waker = Waker::from(Arc::clone(&self.woken));
            let mut cx = Context::from_waker(&waker);
            while self.woken.0.swap(false, SeqCst)
                && let Some(signal) = &mut self.signal
            {
                if let Poll::Ready(reason) = signal.as_mut().poll(&mut cx) {
                    self.heard = Some(reason);
                    self.signal = None;
                }
            }
        }
    }

    /// Does the steps, and checks after each what the hold says.
    fn play(steps: &[Step], max_hold: Option<Duration>) {
        let clock = ManualClock::default();
        let begun = clock.now();
        let held = hold(&clock, max_hold);
        let mut waiting = Waiting::on(&held);
        let cancelled = held.lost().cancellation_token();
        let cap = max_hold.map_or(ClockInstant::FAR_FUTURE, |limit| begun + limit);
        let mut promised = begun + 10 * SECOND;
        let mut lost = None;
        for step in steps {
            match *step {
                Step::Tick(ms) => clock.advance(Duration::from_millis(ms)),
                Step::Renewed(seconds) => {
                    let until = clock.now() + seconds * SECOND;
                    // The answer counts only if the hold is not over by then.
                    if !matches!(held.state(), LockState::Lost(_)) {
                        promised = promised.max(until);
                    }
                    held.extend(until);
                }
                Step::RenewalFailed => held.set_at_risk(true),
                // A renewal may have come since it was due.
                Step::Expire => {
                    let _ = held.expire();
                }
                Step::Taken => {
                    let _ = held.lose(LostReason::Taken);
                }
                Step::Released => {
                    let _ = held.lose(LostReason::Released);
                }
                Step::Killed => held.hold.killed.cancel(),
            }
            waiting.runs_if_woken();
            let now = clock.now();
            match held.state() {
                LockState::Lost(reason) => {
                    assert_eq!(
                        *lost.get_or_insert(reason),
                        reason,
                        "it is lost once, for one reason"
                    );
                    waiting.runs_if_woken();
                    assert_eq!(waiting.heard, Some(reason), "whoever waits hears of it");
                    assert!(cancelled.is_cancelled() && held.token().is_err());
                    assert!(held.remaining().is_zero() && held.valid_until() <= now);
                }
                LockState::Secure | LockState::AtRisk => {
                    assert_eq!(lost, None, "it never returns");
                    assert!(now < promised && now < cap && !held.hold.killed.is_cancelled());
                    assert_eq!(held.valid_until(), promised.min(cap));
                    assert_eq!(held.lease_end(), promised);
                    assert!(
                        waiting.heard.is_none()
                            && !cancelled.is_cancelled()
                            && held.token().is_ok()
                    );
                }
            }
        }
    }

    #[test]
    fn every_interleaving_of_the_threads_that_share_a_hold() {
        const LONGEST: u32 = 5;
        for max_hold in [None, Some(12 * SECOND)] {
            for sequence in 0..STEPS.len().pow(LONGEST) {
                let at = |place| sequence / STEPS.len().pow(place) % STEPS.len();
                let steps: Vec<_> = (0..LONGEST).map(|place| STEPS[at(place)]).collect();
                let played = std::panic::catch_unwind(|| play(&steps, max_hold));
                assert!(played.is_ok(), "{steps:?} with max_hold {max_hold:?}");
            }
        }
    }

    #[test]
    fn a_hold_forgets_the_sets_that_it_outlasts() {
        let clock = ManualClock::default();
        let lasting = [hold(&clock, None), hold(&clock, None)];
        let read = || lasting[1].used_as(lasting[1].key().clone(), lasting[1].fence());
        let (reads, lasts) = ([lasting[0].clone(), read()], Held::set_token(&lasting));
        for _ in 0..1_000 {
            Held::set_token(&lasting);
            Held::set_token(&reads);
            let brief = [lasting[0].clone(), hold(&clock, None), read()];
            let token = Held::set_token(&brief);
            brief[1].lose(LostReason::Released);
            assert!(token.is_cancelled());
        }
        for held in &lasting {
            let sets = held.hold.validity().sets.0.len();
            assert!(sets < 40, "{sets}");
        }
        let read = Held::set_token(&reads);
        reads[1].leave();
        assert!(read.is_cancelled() && Held::set_token(&reads).is_cancelled());
        assert!(!lasts.is_cancelled());
        lasting[1].lose(LostReason::Taken);
        assert!(lasts.is_cancelled());
    }

    #[test]
    fn the_token_of_a_set_outlives_the_set_but_no_hold_of_it() {
        let clock = ManualClock::default();
        let lasts = hold(&clock, None);
        for _ in 0..100 {
            // The next one may have the address of the last one.
            let token = Held::set_token(&[lasts.clone(), hold(&clock, None)]);
            assert!(token.is_cancelled(), "nobody has the second hold any more");
        }
    }

    #[test]
    fn the_margin_and_the_lead_are_as_documented() {
        let ms = Duration::from_millis;
        for (ttl, before_the_end, signal) in
            [(10, 2, 1), (300, 5, 30), (500, 7, 50), (30_000, 302, 50)]
        {
            assert_eq!(margin(ms(ttl)).as_millis(), before_the_end, "{ttl}");
            assert_eq!(lead(ms(ttl)).as_millis(), signal, "{ttl}");
        }
    }
}
