//! The set of pending timers behind a clock, without a way to wait.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::mutex::MutexGuard;

use super::ClockInstant;

/// Timers by due time. The number distinguishes timers of the same instant.
#[derive(Debug, Default)]
pub(super) struct Timers {
    pending: BTreeMap<(ClockInstant, u64), Waker>,
    next_id: u64,
}

impl Timers {
    /// The time of the earliest timer.
    pub(super) fn earliest(&self) -> Option<ClockInstant> {
        self.pending.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes all that are due at `now` and returns their wakers, to be woken without the lock.
    pub(super) fn take_due(&mut self, now: ClockInstant) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(entry) = self.pending.first_entry() {
            if entry.key().0 > now {
                break;
            }
            due.push(entry.remove());
        }
        due
    }
}

/// What a clock with [`Timers`] offers its sleepers.
pub(super) trait TimerSource: Send + Sync + 'static {
    fn now(&self) -> ClockInstant;
    fn timers(&self) -> MutexGuard<'_, Timers>;
    /// Called with the lock held, after a timer was added.
    fn added(&self, timers: &mut Timers);
}

/// A timer that registers itself when it is first polled and forgets itself when it is dropped.
pub(super) struct TimerSleep<S: TimerSource> {
    source: Arc<S>,
    at: ClockInstant,
    id: Option<u64>,
}

impl<S: TimerSource> TimerSleep<S> {
    pub(super) fn new(source: Arc<S>, at: ClockInstant) -> Self {
        Self { source, at, id: None }
    }
}

impl<S: TimerSource> Future for TimerSleep<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // The clock is read under the lock: a driver that fires in between would otherwise miss a
        // timer that is registered just too late. A waker is dropped only after the lock, since
        // dropping one may run anything.
        let mut timers = this.source.timers();
        if this.source.now() >= this.at {
            let old = this.id.take().and_then(|id| timers.pending.remove(&(this.at, id)));
            drop(timers);
            drop(old);
            return Poll::Ready(());
        }
        let id = *this.id.get_or_insert_with(|| {
            timers.next_id += 1;
            timers.next_id
        });
        let old = timers.pending.insert((this.at, id), cx.waker().clone());
        this.source.added(&mut timers);
        drop(timers);
        drop(old);
        Poll::Pending
    }
}

impl<S: TimerSource> Drop for TimerSleep<S> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut timers = self.source.timers();
            let old = timers.pending.remove(&(self.at, id));
            drop(timers);
            drop(old);
        }
    }
}
