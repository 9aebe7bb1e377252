//! How a waiter is woken: by what a release publishes on every node.
//!
//! There is no hand-over on a quorum, since the nodes would choose different waiters. A release
//! publishes to the first two clients that wait, in the order of their tickets. The first one looks
//! when a quorum of nodes have told it to, since the lock is free by then; the second one, and
//! whoever has heard of fewer nodes, a little later, and at random, so that the votes do not split.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::Clock;
use tokio::sync::Notify;

/// After the first push, when fewer than a quorum have followed or another client goes first.
const SHORT_DELAY: Duration = Duration::from_millis(3);

/// Stands before the owner id of a holder, in place of a lock's key: no key begins with it. A forced
/// release publishes that.
pub(crate) const HOLDER: char = '\u{1e}';

/// The waiting claims of one client by their locks, and its holders by their owner ids.
#[derive(Default)]
pub(crate) struct Hub {
    waiters: Mutex<HashMap<String, Vec<Arc<Bell>>>>,
}

/// Without the owner ids among its names, which are secrets of the holders.
impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

/// What wakes one waiting claim.
pub(crate) struct Bell {
    rung: Mutex<Rung>,
    notify: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rung {
    /// One bit for each node that has published.
    nodes: u16,
    /// Whether some node named this client second.
    second: bool,
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bell").field(&self.rung).finish()
    }
}

impl Hub {
    /// Registers a waiter for the lock with this key, until the value is dropped.
    pub(crate) fn register(self: &Arc<Self>, lock: &str) -> Registration {
        let bell = Arc::new(Bell { rung: Mutex::default(), notify: Notify::new() });
        self.waiters().entry(lock.to_owned()).or_default().push(Arc::clone(&bell));
        Registration { hub: Arc::clone(self), lock: lock.to_owned(), bell }
    }

    /// What node number `node` published: `0` or `1` for who goes first, then the lock's key.
    pub(crate) fn published(&self, node: usize, payload: &[u8]) {
        let Some((rank, lock)) =
            std::str::from_utf8(payload).ok().and_then(|text| text.split_at_checked(1))
        else {
            return;
        };
        if let Some(bells) = self.waiters().get(lock) {
            bells.iter().for_each(|bell| bell.ring(node, rank != "0"));
        }
    }

    /// A node's connection stands anew: what was published before is lost, so all who wait look again.
    /// Holders need not: their renewals do.
    pub(crate) fn reconnected(&self, node: usize) {
        let waiters = self.waiters();
        let waiting = waiters.iter().filter(|(lock, _)| !lock.starts_with(HOLDER));
        waiting.flat_map(|(_, bells)| bells).for_each(|bell| bell.ring(node, true));
    }

    fn waiters(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<Bell>>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiter of a [`Hub`].
pub(crate) struct Registration {
    hub: Arc<Hub>,
    lock: String,
    bell: Arc<Bell>,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("bell", &self.bell).finish_non_exhaustive()
    }
}

impl Registration {
    /// Forgets what was published so far. Called before a look, so that what follows is heard.
    pub(crate) fn arm(&self) {
        *self.bell.rung() = Rung::default();
    }

    /// Whether no other claim of this client waits for the same lock.
    pub(crate) fn is_last(&self) -> bool {
        self.hub.waiters().get(&self.lock).is_none_or(|bells| bells.len() <= 1)
    }

    /// Returns when another look is worth while. What was published since the last
    /// [`arm`](Self::arm) counts, however often this is dropped in between.
    pub(crate) async fn rung(&self, quorum: usize, clock: &dyn Clock, chance: f64) {
        loop {
            let heard = self.bell.notify.notified();
            let rung = *self.bell.rung();
            let count = rung.nodes.count_ones() as usize;
            if count >= quorum && !rung.second {
                return;
            }
            if count == 0 {
                heard.await;
                continue;
            }
            tokio::select! {
                () = heard, if count < quorum => {}
                () = clock.sleep(SHORT_DELAY.mul_f64(1.0 + chance)) => return,
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut waiters = self.hub.waiters();
        if let Some(bells) = waiters.get_mut(&self.lock) {
            bells.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
            if bells.is_empty() {
                waiters.remove(&self.lock);
            }
        }
    }
}

impl Bell {
    fn ring(&self, node: usize, second: bool) {
        let mut rung = self.rung();
        rung.nodes |= 1 << node;
        rung.second |= second;
        drop(rung);
        self.notify.notify_one();
    }

    fn rung(&self) -> MutexGuard<'_, Rung> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::testing::TokioClock;

    #[tokio::test(start_paused = true)]
    async fn the_first_client_looks_when_a_quorum_has_published() {
        let hub = Arc::new(Hub::default());
        let waiter = hub.register("a");
        let clock = TokioClock::default();
        hub.published(0, b"0a");
        hub.published(2, b"0b");
        let early = tokio::time::timeout(Duration::from_millis(1), waiter.rung(2, &clock, 0.5));
        assert!(early.await.is_err(), "one of three nodes is no quorum");
        hub.published(1, b"0a");
        let now = tokio::time::Instant::now();
        waiter.rung(2, &clock, 0.5).await;
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_client_and_a_lonely_push_come_a_little_later() {
        let hub = Arc::new(Hub::default());
        let waiter = hub.register("a");
        let clock = TokioClock::default();
        for pushes in [vec![(0, "1a"), (1, "1a")], vec![(2, "0a")]] {
            waiter.arm();
            for (node, payload) in pushes {
                hub.published(node, payload.as_bytes());
            }
            let now = tokio::time::Instant::now();
            waiter.rung(2, &clock, 0.5).await;
            assert!(now.elapsed() >= SHORT_DELAY, "{:?}", now.elapsed());
        }
        drop(waiter);
        assert!(hub.waiters().is_empty());
    }
}
