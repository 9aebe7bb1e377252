//! Whether a lock is held: the only place where that is decided.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{Clock, ClockInstant, Error, FencingToken, LockKey, LostReason, OwnerId, Result};

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

/// The margin that the holder keeps before the end of the lease: 1 % of the ttl for clocks that run
/// at different rates, and 2 ms for those that are coarse (the drift allowance of the Redlock
/// algorithm's implementations).
pub(crate) fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// The end of what a store has promised for a call that was sent at `sent`, less the margin. After an
/// earlier bearer with a longer ttl it may promise more than this ttl, and the clocks drift apart for
/// all of that time.
pub(crate) fn promised_end(sent: ClockInstant, valid_for: Duration, ttl: Duration) -> ClockInstant {
    (sent + valid_for).minus(margin(ttl.max(valid_for)))
}

/// How long before the end of validity the lost signal fires, so the work has a moment to stop.
pub(crate) fn lead(ttl: Duration) -> Duration {
    (ttl / 10).min(Duration::from_millis(50))
}

/// A view of a held lock: its token, its end and its state. Cheap to clone.
///
/// ```
/// use lock_core::{Held, LockState, Locks, testing::MemoryBackend};
///
/// /// A step of the work, somewhere deep inside: it stops if the lock is gone.
/// fn step(held: &Held) -> lock_core::Result<u64> {
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
pub struct Held(Arc<Inner>);

struct Inner {
    key: LockKey,
    owner: OwnerId,
    token: FencingToken,
    ttl: Duration,
    clock: Arc<dyn Clock>,
    /// How long before the end the lost signal fires.
    lead: Duration,
    /// The backend is being closed.
    killed: CancellationToken,
    validity: Mutex<Validity>,
    lost: Notify,
}

/// Only `validity` changes, and in single steps.
impl UnwindSafe for Inner {}
impl RefUnwindSafe for Inner {}

struct Validity {
    until: ClockInstant,
    /// Where `max_hold` ends it; `until` is never later.
    cap: ClockInstant,
    /// The end of the lease, by what the store has promised: it may be later than `until`.
    lease_end: ClockInstant,
    at_risk: bool,
    /// Once set it stays.
    lost: Option<LostReason>,
    /// Cancelled on loss; created on demand.
    token: Option<CancellationToken>,
}

/// What a new hold starts with.
pub(crate) struct Grant {
    pub(crate) key: LockKey,
    pub(crate) owner: OwnerId,
    pub(crate) token: FencingToken,
    pub(crate) ttl: Duration,
    pub(crate) until: ClockInstant,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) killed: CancellationToken,
}

impl Held {
    pub(crate) fn new(clock: Arc<dyn Clock>, grant: Grant) -> Self {
        let Grant { key, owner, token, ttl, until, max_hold, killed } = grant;
        let cap = max_hold.map_or(ClockInstant::FAR_FUTURE, |limit| clock.now() + limit);
        let lead = lead(ttl).min(max_hold.unwrap_or(ttl) / 10);
        let validity = Validity {
            until: until.min(cap),
            cap,
            lease_end: until,
            at_risk: false,
            lost: None,
            token: None,
        };
        let (validity, lost) = (Mutex::new(validity), Notify::new());
        Self(Arc::new(Inner { key, owner, token, ttl, clock, lead, killed, validity, lost }))
    }

    /// The lock.
    pub fn key(&self) -> &LockKey {
        &self.0.key
    }

    /// The identity of this hold. It is a secret of the holder: see [`OwnerId`].
    pub fn owner(&self) -> OwnerId {
        self.0.owner
    }

    /// The fencing token, to be presented to the protected resource with every access.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lock is no longer held: there is then nothing to
    /// present.
    pub fn token(&self) -> Result<FencingToken> {
        match self.state() {
            LockState::Lost(reason) => Err(Error::lost(reason).for_key(&self.0.key)),
            LockState::Secure | LockState::AtRisk => Ok(self.0.token),
        }
    }

    /// How long the store keeps the lock after a renewal: the requested ttl, rounded up to what the
    /// store can keep.
    pub fn ttl(&self) -> Duration {
        self.0.ttl
    }

    /// The time until which the lock counts as held, unless it is renewed before. Counted from the
    /// moment *before* the last successful request was sent, less a margin of 1 % of the ttl +
    /// 2 ms. Once the lock is lost, this is the moment of its loss.
    pub fn valid_until(&self) -> ClockInstant {
        self.0.validity().until
    }

    /// [`valid_until`](Self::valid_until) on the wall clock, for people and logs.
    pub fn valid_until_wall_clock(&self) -> SystemTime {
        self.valid_until().to_system_time(&*self.0.clock)
    }

    /// How much longer the lock counts as held; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        let validity = self.0.validity();
        match validity.lost {
            Some(_) => Duration::ZERO,
            None => validity.until.since(self.0.clock.now()),
        }
    }

    /// Held, at risk or lost, by the local clock.
    pub fn state(&self) -> LockState {
        let validity = self.0.validity();
        match (validity.lost, validity.at_risk) {
            (Some(reason), _) => LockState::Lost(reason),
            (None, true) => LockState::AtRisk,
            (None, false) => LockState::Secure,
        }
    }

    /// Cancelled when the loss is marked.
    pub(super) fn loss_token(&self) -> CancellationToken {
        let mut validity = self.0.validity();
        let token = validity.token.get_or_insert_default().clone();
        if validity.lost.is_some() {
            token.cancel();
        }
        token
    }

    pub(crate) fn lost_notify(&self) -> &Notify {
        &self.0.lost
    }

    /// Ready when the backend is being closed.
    pub(crate) async fn killed(&self) {
        self.0.killed.cancelled().await;
    }

    pub(crate) fn fence(&self) -> FencingToken {
        self.0.token
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.0.clock
    }

    /// When the lost signal fires.
    pub(crate) fn signal_at(&self) -> ClockInstant {
        self.valid_until().minus(self.0.lead)
    }

    /// Until when the store has promised to keep the lock, whatever has become of the guard.
    pub(crate) fn lease_end(&self) -> ClockInstant {
        self.0.validity().lease_end
    }

    /// Moves the end of validity, unless it has passed: a guard never returns from lost. An answer
    /// that promises less than an earlier one does not shorten it, since both promises hold.
    pub(crate) fn extend(&self, until: ClockInstant) {
        let mut validity = self.0.validity();
        if validity.lost.is_none() {
            validity.lease_end = validity.lease_end.max(until);
            validity.until = validity.until.max(until).min(validity.cap);
        }
    }

    /// Whether the last renewal failed.
    pub(crate) fn set_at_risk(&self, at_risk: bool) {
        self.0.validity().at_risk = at_risk;
    }

    /// Ends the hold for `reason`, unless it has ended. Returns why it had ended before.
    pub(crate) fn lose(&self, reason: LostReason) -> Option<LostReason> {
        let mut validity = self.0.validity();
        let before = validity.lost;
        if before.is_none() {
            validity.end(reason, self.0.clock.now());
        }
        drop(validity);
        if before.is_none() {
            self.0.lost.notify_waiters();
        }
        before
    }

    /// Ends the hold because its time is over, by whichever limit that was. The first to notice
    /// marks it: its keeper, or a task that waits for the loss.
    pub(crate) fn expire(&self) -> LostReason {
        let reason = {
            let validity = self.0.validity();
            validity.lost.unwrap_or_else(|| validity.reason_of_end())
        };
        match self.lose(reason) {
            Some(before) => before,
            None => {
                tracing::error!(target: "distlock", key = %self.0.key, %reason, "lost");
                reason
            }
        }
    }
}

impl Inner {
    /// The validity as of now: an end that has passed is marked before it can be read.
    fn validity(&self) -> MutexGuard<'_, Validity> {
        let mut validity = self.validity.lock().unwrap_or_else(PoisonError::into_inner);
        if validity.lost.is_none() {
            let now = self.clock.now();
            if now >= validity.until {
                let reason = validity.reason_of_end();
                validity.end(reason, now);
                self.lost.notify_waiters();
            } else if self.killed.is_cancelled() {
                validity.end(LostReason::Closed, now);
                self.lost.notify_waiters();
            }
        }
        validity
    }
}

impl Validity {
    fn end(&mut self, reason: LostReason, now: ClockInstant) {
        self.lost = Some(reason);
        self.until = self.until.min(now);
        if let Some(token) = &self.token {
            token.cancel();
        }
    }

    fn reason_of_end(&self) -> LostReason {
        if self.until == self.cap { LostReason::MaxHold } else { LostReason::Expired }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("key", &self.0.key)
            .field("token", &self.0.token)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
