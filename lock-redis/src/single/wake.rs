//! Wakes waiters: pushes to this client, by the owner that they are for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::kit::wake::{self, Slot, Waiter};
use lock_core::{Clock, ClockInstant, OwnerId};

use crate::node::NodeEvent;

/// The claims of this client that hear pushes. A lock that was taken over can have the same owner
/// as another claim, and so can an attempt at that which is refused: all of them are told.
#[derive(Debug)]
pub(super) struct Waiters(wake::Waiters<OwnerId, Turn>);

/// What is known of a claim that waits.
#[derive(Debug)]
struct Turn {
    lock: String,
    /// The place in the order of arrival; 0 if the store has not given one.
    ticket: AtomicU64,
    look: Mutex<Look>,
}

/// When the claim is to try again.
#[derive(Clone, Copy, Debug)]
enum Look {
    /// When it is woken.
    Later,
    At(ClockInstant),
    Now,
}

/// One claim, which hears pushes until this is dropped.
#[derive(Debug)]
pub(super) struct Listening {
    waiter: Waiter<OwnerId, Turn>,
}

impl Default for Waiters {
    fn default() -> Self {
        Self(wake::Waiters::new(|_, slots: &[Arc<Slot<Turn>>]| slots.iter().for_each(look_now)))
    }
}

impl Waiters {
    /// A push that comes before the claim waits is kept.
    pub(super) fn listen(&self, owner: OwnerId, lock: &str) -> Listening {
        let turn = Turn {
            lock: lock.to_owned(),
            ticket: AtomicU64::new(0),
            look: Mutex::new(Look::Later),
        };
        Listening { waiter: self.0.register(owner, turn) }
    }

    /// All claims for this lock look again.
    pub(super) fn wake_lock(&self, lock: &str) {
        self.0.all(|_, slot| {
            if slot.data().lock == lock {
                look_now(slot);
            }
        });
    }

    /// The claim for this lock that has waited longest looks again: the one that looked for all of
    /// this client has gone.
    pub(super) fn wake_next(&self, lock: &str) {
        let mut first: Option<Arc<Slot<Turn>>> = None;
        self.0.all(|_, slot| {
            let turn = slot.data();
            let is_first = first.as_ref().is_none_or(|first| turn.ticket() < first.data().ticket());
            if turn.lock == lock && turn.ticket() > 0 && is_first {
                first = Some(Arc::clone(slot));
            }
        });
        first.iter().for_each(look_now);
    }

    pub(super) fn on_event(&self, event: &NodeEvent<'_>, clock: &dyn Clock) {
        match event {
            // Messages published while the connection was down are lost: all try again.
            NodeEvent::Up => self.0.all(|_, slot| look_now(slot)),
            NodeEvent::Down => {}
            NodeEvent::Message { payload } => {
                if self.on_message(payload, clock).is_none() {
                    let text = String::from_utf8_lossy(&payload[..payload.len().min(64)]);
                    tracing::debug!(target: "distlock", %text, "ignoring an unknown message on our channel");
                }
            }
        }
    }

    /// `g` and the owner: the lock was handed to it. `l` and the owner: it was taken away. `w`, the
    /// owner, a colon and milliseconds: look again then.
    fn on_message(&self, payload: &[u8], clock: &dyn Clock) -> Option<()> {
        let text = std::str::from_utf8(payload).ok()?;
        if text.is_empty() {
            return Some(());
        }
        let (kind, rest) = text.split_at_checked(1)?;
        let (owner, pause) = rest.split_once(':').map_or((rest, None), |(o, p)| (o, Some(p)));
        let owner: OwnerId = owner.parse().ok()?;
        // A push for a claim that no longer exists is ignored.
        match (kind, pause) {
            ("g" | "l", None) => self.0.each(&owner, look_now),
            ("w", Some(pause)) => {
                let at = clock.now() + Duration::from_millis(pause.parse().ok()?);
                self.0.each(&owner, |slot| look_at(slot, at));
            }
            _ => return None,
        }
        Some(())
    }
}

fn look_now(slot: &Arc<Slot<Turn>>) {
    *slot.data().look() = Look::Now;
    slot.wake();
}

fn look_at(slot: &Arc<Slot<Turn>>, at: ClockInstant) {
    let mut look = slot.data().look();
    if !matches!(*look, Look::Now) {
        *look = Look::At(at);
    }
    drop(look);
    slot.wake();
}

impl Turn {
    fn ticket(&self) -> u64 {
        self.ticket.load(Relaxed)
    }

    fn look(&self) -> MutexGuard<'_, Look> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listening {
    pub(super) fn set_ticket(&self, ticket: u64) {
        self.waiter.data().ticket.store(ticket, Relaxed);
    }

    /// The claim looks again when it waits next.
    pub(super) fn wake(&self) {
        look_now(self.waiter.slot());
    }

    /// Forgets the appointment: a look is about to be made, which replaces it.
    pub(super) fn looked(&self) {
        let mut look = self.waiter.data().look();
        if let Look::At(_) = *look {
            *look = Look::Later;
        }
    }

    /// Ready when there was a push since it was last ready, or when it is time to look.
    pub(super) async fn woken(&self, clock: &dyn Clock) {
        loop {
            let at = {
                let mut look = self.waiter.data().look();
                match *look {
                    Look::At(at) if at > clock.now() => at,
                    Look::Later => ClockInstant::FAR_FUTURE,
                    Look::Now | Look::At(_) => {
                        *look = Look::Later;
                        return;
                    }
                }
            };
            // The permit is kept, so nothing is missed between the check and the wait.
            tokio::select! {
                () = self.waiter.woken() => {}
                () = clock.sleep_until(at) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::SystemClock;

    fn owner(n: u8) -> OwnerId {
        OwnerId::from_bytes([n; 16])
    }

    #[tokio::test]
    async fn the_one_that_has_waited_longest_looks_next() {
        let (waiters, clock) = (Waiters::default(), SystemClock::default());
        let (late, other, early) = (
            waiters.listen(owner(1), "a"),
            waiters.listen(owner(2), "b"),
            waiters.listen(owner(3), "a"),
        );
        let new = waiters.listen(owner(4), "a");
        for (waiter, ticket) in [(&late, 30), (&other, 10), (&early, 20)] {
            waiter.set_ticket(ticket);
        }
        waiters.wake_next("a");
        tokio::time::timeout(Duration::from_secs(5), early.woken(&clock)).await.unwrap();
        for waiter in [&late, &other, &new] {
            let woken = tokio::time::timeout(Duration::from_millis(20), waiter.woken(&clock));
            assert!(woken.await.is_err(), "{waiter:?}");
        }
        drop(early);
        waiters.wake_next("a");
        tokio::time::timeout(Duration::from_secs(5), late.woken(&clock)).await.unwrap();
    }

    #[tokio::test]
    async fn an_appointment_wakes_in_time_and_not_before() {
        let (waiters, clock) = (Waiters::default(), SystemClock::default());
        let waiter = waiters.listen(owner(1), "a");
        let message = format!("w{}:60", owner(1).to_hex());
        waiters.on_message(message.as_bytes(), &clock).unwrap();
        let start = clock.now();
        tokio::time::timeout(Duration::from_secs(5), waiter.woken(&clock)).await.unwrap();
        assert!(clock.now().since(start) >= Duration::from_millis(55));
    }

    #[test]
    fn strange_messages_are_ignored() {
        let (waiters, clock) = (Waiters::default(), SystemClock::default());
        for payload in ["x", "g", "gzz", "w:1", "g\u{e9}", &format!("w{}:x", owner(1).to_hex())] {
            assert!(waiters.on_message(payload.as_bytes(), &clock).is_none(), "{payload}");
        }
        assert!(waiters.on_message(&[0xff, 0xfe], &clock).is_none());
    }
}
