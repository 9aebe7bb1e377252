//! How a waiter is woken.
//!
//! SQLite and MySQL cannot push to another process, so their waiters poll: the core does that, with
//! jitter, and this module tells it when the next poll is worthwhile. A dialect that can push gives
//! each claim a [`NotifiedClaim`], and wakes one of them for each message.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use lock_core::{Attempt, Busy, Error, ErrorKind, HolderInfo, Result};
use lock_kit::wake::{self, Look, Slot, first_that_listens};
use tokio::sync::{mpsc, watch};

/// The pause before the next poll when another client was writing, so it could not be seen whether
/// the lock is free. A write takes as long as the disk needs to sync.
pub(crate) const WHILE_CONTENDED: Duration = Duration::from_millis(5);

/// The answer to a waiter: another client has the lock, for `left` unless it is renewed. No place
/// in the table has to be kept alive (clause C13).
pub(crate) fn busy(left: Option<Duration>) -> Attempt {
    Attempt::Busy(until_free(left))
}

/// The same, where the answer shows who has it.
pub(crate) fn held_by(holder: HolderInfo) -> Attempt {
    Attempt::Busy(until_free(holder.expires_in).with_holder(holder))
}

/// A lease may end at this very moment, and a pause is never zero.
fn until_free(left: Option<Duration>) -> Busy {
    Busy::default().with_retry_after(left.map(|left| left.max(Duration::from_micros(1))))
}

/// The waiters of one client, by the name that they listen for.
#[derive(Debug)]
pub(crate) struct NotifiedClaims {
    /// Each with whether its claim currently wants the lock.
    slots: wake::Waiters<Arc<str>, AtomicBool>,
    /// Whether messages currently arrive.
    up: watch::Sender<bool>,
}

impl NotifiedClaims {
    /// The second value yields names whose message was unwanted: no claim wants the lock any more.
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Arc<str>>) {
        let (unwanted, receiver) = mpsc::unbounded_channel();
        let slots = wake::Waiters::new(move |name: &Arc<str>, slots: &[Arc<Slot<AtomicBool>>]| {
            let waiting = slots.iter().filter(|slot| slot.data().load(SeqCst));
            if !first_that_listens(waiting) {
                // An error means that the client is closed.
                let _ = unwanted.send(Arc::clone(name));
            }
        });
        (Arc::new(Self { slots, up: watch::Sender::new(false) }), receiver)
    }

    /// `wanted`: the claim wants to know when the lock is free, not only when it was taken away.
    pub(crate) fn register(self: &Arc<Self>, name: &str, wanted: bool) -> NotifiedClaim {
        let slot = self.slots.register(name.into(), AtomicBool::new(false));
        NotifiedClaim { slot, waiters: Arc::clone(self), name: name.into(), wanted }
    }

    /// The lock may be free: one waiter of this client checks.
    pub(crate) fn wake_one(&self, name: &str) {
        self.slots.permit(&Arc::<str>::from(name));
    }

    /// Something has happened to the lock: all waiters check.
    pub(crate) fn wake_all(&self, name: &str) {
        self.slots.each(name, |slot| slot.wake());
    }

    /// Messages arrive again, but some were lost: all waiters check. A holder learns of a loss at
    /// its next renewal.
    pub(crate) fn set_up(&self, up: bool) {
        self.up.send_replace(up);
        if up {
            self.slots.all(|_, slot| {
                if slot.data().load(SeqCst) {
                    slot.wake();
                }
            });
        }
    }
}

/// A claim that is told of changes. On drop, an unhandled message passes to the next waiter.
#[derive(Debug)]
pub(crate) struct NotifiedClaim {
    slot: wake::Waiter<Arc<str>, AtomicBool>,
    waiters: Arc<NotifiedClaims>,
    name: Arc<str>,
    wanted: bool,
}

impl NotifiedClaim {
    /// Whether to be on the list of waiters: messages arrive, and the claim wants them.
    pub(crate) fn waits(&self) -> bool {
        self.wanted && *self.waiters.up.borrow()
    }

    /// Whether another claim of this client waits for the same lock.
    pub(crate) fn has_company(&self) -> bool {
        self.slot.any_other(|waits| waits.load(SeqCst))
    }

    /// Starts a look, which covers every message received before it. A look dropped without an
    /// [answer](Self::answered) does not count.
    pub(crate) fn look(&self) -> Look<'_, AtomicBool> {
        if self.wanted {
            self.slot.data().store(true, SeqCst);
        }
        self.slot.look()
    }

    /// The answer to the look: whether the lock is ours now.
    pub(crate) fn answered(&self, look: Look<'_, AtomicBool>, granted: bool) {
        look.done();
        if granted {
            self.slot.data().store(false, SeqCst);
            // Messages during the look concern the lock before it was ours.
            self.slot.forget();
        }
    }

    /// Clause C5: a message that arrived since the last look began is not missed.
    pub(crate) async fn changed(&self) -> Result<()> {
        let mut up = self.waiters.up.subscribe();
        tokio::select! {
            biased;
            () = self.slot.woken() => Ok(()),
            // The sender is in `waiters`.
            _ = up.wait_for(|up| !up) => {
                Err(Error::new(ErrorKind::Unavailable, "the connection for notifications is down"))
            }
        }
    }

    /// The claim no longer waits. An unhandled message is passed on. True if it was waiting, and no
    /// other claim of this client waits for the lock.
    pub(crate) fn leave(&self) -> bool {
        let waited = self.slot.data().swap(false, SeqCst);
        if waited {
            self.slot.hand_on();
        }
        waited && !self.has_company()
    }

    /// Makes another claim of this client that waits for the lock check again.
    pub(crate) fn alert_company(&self) {
        if self.has_company() {
            self.waiters.wake_one(&self.name);
        }
    }
}

/// Who is woken, and what becomes of a message that its receiver does not follow.
#[cfg(test)]
mod tests {
    use lock_core::HolderMark;

    use super::*;

    const NEVER: Duration = Duration::from_millis(20);

    #[test]
    fn a_pause_is_never_zero() {
        let mut holder = HolderInfo::new(HolderMark::new("x"));
        holder.expires_in = Some(Duration::ZERO);
        for attempt in [busy(Some(Duration::ZERO)), held_by(holder)] {
            let Attempt::Busy(busy) = attempt else { panic!("{attempt:?}") };
            assert!(busy.retry_after > Some(Duration::ZERO), "{busy:?}");
        }
    }

    fn waiters() -> (Arc<NotifiedClaims>, mpsc::UnboundedReceiver<Arc<str>>) {
        let (waiters, unwanted) = NotifiedClaims::new();
        waiters.set_up(true);
        (waiters, unwanted)
    }

    async fn is_woken(waiter: &NotifiedClaim) -> bool {
        tokio::time::timeout(NEVER, waiter.changed()).await.is_ok_and(|changed| changed.is_ok())
    }

    fn look_in_vain(waiter: &NotifiedClaim) {
        waiter.answered(waiter.look(), false);
    }

    #[tokio::test(start_paused = true)]
    async fn what_its_receiver_does_not_follow_is_handed_on() {
        let (waiters, mut unwanted) = waiters();
        let (first, second) = (waiters.register("a", true), waiters.register("a", true));
        look_in_vain(&first);
        waiters.wake_one("a");
        // Dropped after it was told, and in the middle of a look.
        assert!(is_woken(&first).await);
        drop(first.look());
        look_in_vain(&second);
        drop(first);
        assert!(is_woken(&second).await);
        assert!(second.leave(), "no other claim waits here");
        assert_eq!(&*unwanted.try_recv().expect("handed on to another client"), "a");
        assert!(!second.leave(), "once");
        assert!(unwanted.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_hears_of_its_loss_and_not_of_releases() {
        let (waiters, mut unwanted) = waiters();
        let holder = waiters.register("a", true);
        let look = holder.look();
        waiters.wake_one("a");
        holder.answered(look, true);
        assert!(!is_woken(&holder).await, "that was before it had the lock");
        waiters.wake_one("a");
        assert_eq!(&*unwanted.try_recv().expect("no claim waits"), "a");
        assert!(!is_woken(&holder).await);
        waiters.wake_all("a");
        assert!(is_woken(&holder).await);
        // A try that does not wait wants no message either.
        let trying = waiters.register("a", false);
        look_in_vain(&trying);
        assert!(!trying.waits() && !holder.has_company());
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_connection_waiting_is_an_error_and_afterwards_all_look() {
        let (waiters, _unwanted) = waiters();
        let waiter = waiters.register("a", true);
        look_in_vain(&waiter);
        waiters.set_up(false);
        assert!(waiter.changed().await.is_err());
        assert!(!waiter.waits());
        waiters.set_up(true);
        assert!(is_woken(&waiter).await);
    }
}
