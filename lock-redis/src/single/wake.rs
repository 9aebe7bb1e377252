//! How a waiter is woken: pushes to this client, by the owner that they are for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Clock, ClockInstant, OwnerId};
use tokio::sync::Notify;

use crate::node::NodeEvent;

/// The claims of this client that hear pushes. A lock that was taken over can have the same owner
/// as another claim, and so can an attempt at that which is refused: neither takes the other's place.
#[derive(Debug, Default)]
pub(crate) struct Wakers(Mutex<HashMap<OwnerId, Vec<Arc<Waker>>>>);

/// One claim's ear. A push that comes before anybody listens is kept.
#[derive(Debug)]
pub(crate) struct Waker {
    lock: String,
    /// The place in the order of arrival; 0 if the store has not given one.
    ticket: AtomicU64,
    pending: AtomicBool,
    look_at: Mutex<Option<ClockInstant>>,
    notify: Notify,
}

impl Wakers {
    fn map(&self) -> MutexGuard<'_, HashMap<OwnerId, Vec<Arc<Waker>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(&self, owner: OwnerId, lock: &str) -> Arc<Waker> {
        let waker = Arc::new(Waker {
            lock: lock.to_owned(),
            ticket: AtomicU64::new(0),
            pending: AtomicBool::new(false),
            look_at: Mutex::default(),
            notify: Notify::new(),
        });
        self.map().entry(owner).or_default().push(Arc::clone(&waker));
        waker
    }

    pub(crate) fn forget(&self, owner: &OwnerId, waker: &Arc<Waker>) {
        let mut map = self.map();
        if let Some(ears) = map.get_mut(owner) {
            ears.retain(|known| !Arc::ptr_eq(known, waker));
            if ears.is_empty() {
                map.remove(owner);
            }
        }
    }

    /// All claims for this lock look again.
    pub(crate) fn wake_lock(&self, lock: &str) {
        self.map().values().flatten().filter(|waker| waker.lock == lock).for_each(|w| w.wake());
    }

    /// The claim for this lock that has waited longest looks again: the one that looked for all of
    /// this client has gone.
    pub(crate) fn wake_next(&self, lock: &str) {
        let map = self.map();
        let waiting =
            map.values().flatten().filter(|waker| waker.lock == lock && waker.ticket() > 0);
        if let Some(first) = waiting.min_by_key(|waker| waker.ticket()) {
            first.wake();
        }
    }

    pub(crate) fn on_event(&self, event: &NodeEvent<'_>, clock: &dyn Clock) {
        match event {
            // What was published while nobody listened is lost: all look again.
            NodeEvent::Up => self.map().values().flatten().for_each(|waker| waker.wake()),
            NodeEvent::Down => {}
            NodeEvent::Message { payload, .. } => {
                if self.on_message(payload, clock).is_none() {
                    let text = String::from_utf8_lossy(&payload[..payload.len().min(64)]);
                    tracing::debug!(target: "distlock", %text, "a message on our channel is none of ours");
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
        let pause = match (kind, pause) {
            ("g" | "l", None) => None,
            ("w", Some(pause)) => Some(Duration::from_millis(pause.parse().ok()?)),
            _ => return None,
        };
        // A claim that has gone in the meantime is nobody's concern.
        for waker in self.map().get(&owner).into_iter().flatten() {
            match pause {
                None => waker.wake(),
                Some(pause) => waker.look_at(clock.now() + pause),
            }
        }
        Some(())
    }
}

impl Waker {
    pub(crate) fn set_ticket(&self, ticket: u64) {
        self.ticket.store(ticket, Relaxed);
    }

    fn ticket(&self) -> u64 {
        self.ticket.load(Relaxed)
    }

    pub(crate) fn wake(&self) {
        self.pending.store(true, Relaxed);
        self.notify.notify_one();
    }

    fn look_at(&self, at: ClockInstant) {
        *self.time() = Some(at);
        self.notify.notify_one();
    }

    fn time(&self) -> MutexGuard<'_, Option<ClockInstant>> {
        self.look_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the appointment: a look has just been made, which replaces it.
    pub(crate) fn looked(&self) {
        *self.time() = None;
    }

    /// Ready when there was a push since it was last ready, or when it is time to look.
    pub(crate) async fn woken(&self, clock: &dyn Clock) {
        loop {
            // The permit of `notify` is kept, so nothing is missed between the check and the wait.
            if self.pending.swap(false, Relaxed) {
                return;
            }
            let at = *self.time();
            tokio::select! {
                () = self.notify.notified() => {}
                () = clock.sleep_until(at.unwrap_or(ClockInstant::FAR_FUTURE)) => {
                    let mut due = self.time();
                    if due.is_some_and(|due| due <= clock.now()) {
                        *due = None;
                        return;
                    }
                }
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
    async fn a_push_is_kept_until_somebody_listens() {
        let (wakers, clock) = (Wakers::default(), SystemClock::default());
        let waker = wakers.register(owner(1), "a");
        let message = format!("g{}", owner(1).to_hex());
        wakers.on_message(message.as_bytes(), &clock).unwrap();
        tokio::time::timeout(Duration::from_secs(5), waker.woken(&clock)).await.unwrap();
        let again = tokio::time::timeout(Duration::from_millis(20), waker.woken(&clock)).await;
        assert!(again.is_err(), "one push wakes once");
    }

    #[tokio::test]
    async fn whoever_has_waited_longest_looks_next() {
        let (wakers, clock) = (Wakers::default(), SystemClock::default());
        let (late, other, early) = (
            wakers.register(owner(1), "a"),
            wakers.register(owner(2), "b"),
            wakers.register(owner(3), "a"),
        );
        let new = wakers.register(owner(4), "a");
        for (waker, ticket) in [(&late, 30), (&other, 10), (&early, 20)] {
            waker.set_ticket(ticket);
        }
        wakers.wake_next("a");
        tokio::time::timeout(Duration::from_secs(5), early.woken(&clock)).await.unwrap();
        for waker in [&late, &other, &new] {
            let woken = tokio::time::timeout(Duration::from_millis(20), waker.woken(&clock));
            assert!(woken.await.is_err(), "{waker:?}");
        }
        wakers.forget(&owner(3), &early);
        wakers.wake_next("a");
        tokio::time::timeout(Duration::from_secs(5), late.woken(&clock)).await.unwrap();
    }

    #[tokio::test]
    async fn an_appointment_wakes_in_time_and_not_before() {
        let (wakers, clock) = (Wakers::default(), SystemClock::default());
        let waker = wakers.register(owner(1), "a");
        let message = format!("w{}:60", owner(1).to_hex());
        wakers.on_message(message.as_bytes(), &clock).unwrap();
        let start = clock.now();
        tokio::time::timeout(Duration::from_secs(5), waker.woken(&clock)).await.unwrap();
        assert!(clock.now().since(start) >= Duration::from_millis(55));
    }

    #[test]
    fn strange_messages_are_ignored() {
        let (wakers, clock) = (Wakers::default(), SystemClock::default());
        for payload in ["x", "g", "gzz", "w:1", "g\u{e9}", &format!("w{}:x", owner(1).to_hex())] {
            assert!(wakers.on_message(payload.as_bytes(), &clock).is_none(), "{payload}");
        }
        assert!(wakers.on_message(&[0xff, 0xfe], &clock).is_none());
    }
}
