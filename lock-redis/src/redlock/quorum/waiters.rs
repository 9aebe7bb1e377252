//! How a waiter is woken: by what a release publishes on every node.
//!
//! There is no hand-over on a quorum, since the nodes would choose different waiters. A release
//! publishes to the first two waiting clients, in the order of their tickets. The first one tries
//! when a quorum of nodes has notified it, since the lock is free by then; the second one, and any
//! client that has heard from fewer nodes, tries a little later, at random, to avoid split votes.

use std::time::Duration;

use lock_core::Clock;
use lock_kit::wake::{self, Slot};
use parking_lot::Mutex;

use crate::node::NodeEvent;

/// After the first push, when fewer than a quorum have followed or another client goes first.
const SHORT_DELAY: Duration = Duration::from_millis(3);

/// Stands before the owner id of a holder, in place of a lock's key: no key begins with it. A forced
/// release publishes that.
const HOLDER: char = '\u{1e}';

/// The waiting claims of one client by their locks, and its holders by their owner ids.
#[derive(Debug)]
pub(crate) struct QuorumWaiters(wake::Waiters<String, Mutex<NodePushes>>);

/// What the nodes have published for one claim.
#[derive(Clone, Copy, Debug, Default)]
struct NodePushes {
    /// One bit for each node that has published.
    nodes: u16,
    /// Whether some node named this client second.
    second: bool,
}

impl Default for QuorumWaiters {
    fn default() -> Self {
        Self(wake::Waiters::new(|_, slots: &[std::sync::Arc<Slot<Mutex<NodePushes>>>]| {
            slots.iter().for_each(|slot| slot.wake());
        }))
    }
}

impl QuorumWaiters {
    /// Registers a waiter for the lock with this key, until the value is dropped.
    pub(crate) fn waiter(&self, lock: &str) -> QuorumWaiter {
        QuorumWaiter(self.0.register(lock.to_owned(), Mutex::default()))
    }

    /// Registers the holder with this owner id, until the value is dropped.
    pub(crate) fn holder(&self, owner: &str) -> QuorumWaiter {
        self.waiter(&format!("{HOLDER}{owner}"))
    }

    /// What has come from node number `node`.
    pub(crate) fn on_event(&self, node: usize, event: &NodeEvent<'_>) {
        match event {
            NodeEvent::Message { payload } => self.published(node, payload),
            // Earlier messages are lost, so all waiters try again. Holders need not: their renewals
            // do.
            NodeEvent::Up => self.0.all(|lock, slot| {
                if !lock.starts_with(HOLDER) {
                    note(slot, node, true);
                }
            }),
        }
    }

    /// `0` or `1` for who goes first, then the lock's key.
    fn published(&self, node: usize, payload: &[u8]) {
        let text = std::str::from_utf8(payload).ok();
        if let Some((rank, lock)) = text.and_then(|text| text.split_at_checked(1)) {
            self.0.each(lock, |slot| note(slot, node, rank != "0"));
        }
    }
}

fn note(slot: &Slot<Mutex<NodePushes>>, node: usize, second: bool) {
    let mut pushes = slot.data().lock();
    pushes.nodes |= 1 << node;
    pushes.second |= second;
    drop(pushes);
    slot.wake();
}

/// A waiter or a holder of a [`QuorumWaiters`].
#[derive(Debug)]
pub(crate) struct QuorumWaiter(wake::Waiter<String, Mutex<NodePushes>>);

impl QuorumWaiter {
    /// Forgets what was published so far. Called before a try: later messages are noticed.
    pub(crate) fn arm(&self) {
        *self.0.data().lock() = NodePushes::default();
    }

    /// Whether no other claim of this client waits for the same lock.
    pub(crate) fn is_last(&self) -> bool {
        !self.0.any_other(|_| true)
    }

    /// Returns when another try is worthwhile. What was published since the last
    /// [`arm`](Self::arm) counts, however often this is dropped in between.
    pub(crate) async fn due(&self, quorum: usize, clock: &dyn Clock, chance: f64) {
        loop {
            let pushes = *self.0.data().lock();
            let count = pushes.nodes.count_ones() as usize;
            if count >= quorum && !pushes.second {
                return;
            }
            if count == 0 {
                self.0.woken().await;
                continue;
            }
            // The permit is kept, so nothing is missed between the check and the wait.
            tokio::select! {
                () = self.0.woken(), if count < quorum => {}
                () = clock.sleep(SHORT_DELAY.mul_f64(1.0 + chance)) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::testing::TokioClock;

    #[tokio::test(start_paused = true)]
    async fn the_first_client_looks_when_a_quorum_has_published() {
        let waiters = QuorumWaiters::default();
        let waiter = waiters.waiter("a");
        let clock = TokioClock::default();
        waiters.published(0, b"0a");
        waiters.published(2, b"0b");
        let early = tokio::time::timeout(Duration::from_millis(1), waiter.due(2, &clock, 0.5));
        assert!(early.await.is_err(), "one of three nodes is no quorum");
        waiters.published(1, b"0a");
        let now = tokio::time::Instant::now();
        waiter.due(2, &clock, 0.5).await;
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_client_and_a_lonely_push_come_a_little_later() {
        let waiters = QuorumWaiters::default();
        let waiter = waiters.waiter("a");
        let clock = TokioClock::default();
        for pushes in [vec![(0, "1a"), (1, "1a")], vec![(2, "0a")]] {
            waiter.arm();
            for (node, payload) in pushes {
                waiters.published(node, payload.as_bytes());
            }
            let now = tokio::time::Instant::now();
            waiter.due(2, &clock, 0.5).await;
            assert!(now.elapsed() >= SHORT_DELAY, "{:?}", now.elapsed());
        }
    }
}
