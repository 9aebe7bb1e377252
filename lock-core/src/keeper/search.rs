//! What a keeper knows while it tries and waits.

use std::time::Duration;

use super::client::Client;
use super::last::Last;
use super::{Patience, schedule};
use crate::ClockInstant;
use crate::kit::backoff::Backoff;

/// As many pauses grow while the lock goes from holder to holder: whoever polls more rarely is never there
/// when it is free for a moment.
const LOOKS_AT_MOVING: u32 = 3;

/// The shortest time between two attempts caused by pushes.
const PUSH_SPACING: Duration = Duration::from_micros(100);

pub(super) struct Search {
    pub(super) patience: Patience,
    pub(super) started: ClockInstant,
    /// When the store last answered anything.
    pub(super) answered_at: ClockInstant,
    /// What the store said last. A call cut short by the deadline says nothing.
    pub(super) last: Option<Last>,
    pub(super) tries: u32,
    /// How many of them had no effect, as their errors say.
    pub(super) without_effect: u32,
    pub(super) place: Place,
    pub(super) pace: Pace,
}

/// The place in the store's queue.
pub(super) struct Place {
    /// Until when the store keeps it; `None` if there is none.
    pub(super) until: Option<ClockInstant>,
    pub(super) renew_at: ClockInstant,
    /// A renewal had no answer: it is repeated before the next attempt (clause C8).
    pub(super) is_unsettled: bool,
}

/// When to try again, and when to ask for pushes.
pub(super) struct Pace {
    /// Busy answers in a row.
    busy: u32,
    backoff: Backoff,
    /// When to try again, whatever happens.
    pub(super) look_at: ClockInstant,
    /// Pushes are not asked for until then, since they failed or came too fast.
    pub(super) push_from: ClockInstant,
}

impl Search {
    pub(super) fn new(patience: Patience, now: ClockInstant) -> Self {
        Self {
            patience,
            started: now,
            answered_at: now,
            last: None,
            tries: 0,
            without_effect: 0,
            place: Place { until: None, renew_at: ClockInstant::FAR_FUTURE, is_unsettled: false },
            pace: Pace { busy: 0, backoff: schedule::backoff(), look_at: now, push_from: now },
        }
    }

    /// The store has answered a look.
    pub(super) fn heard(&mut self, client: &Client, now: ClockInstant) {
        self.answered(client, now);
        self.pace.backoff.reset();
    }

    /// The store has answered anything.
    pub(super) fn answered(&mut self, client: &Client, now: ClockInstant) {
        client.looks.answered();
        self.answered_at = now;
    }

    pub(super) fn deadline(&self) -> ClockInstant {
        match self.patience {
            Patience::Until(deadline) => deadline,
            Patience::Try | Patience::Forever => ClockInstant::FAR_FUTURE,
        }
    }

    /// When something is due while nothing is heard.
    pub(super) fn wake_at(&self, now: ClockInstant) -> ClockInstant {
        let wake_at = self.pace.look_at.min(self.place.renew_at).min(self.deadline());
        if self.pace.push_from > now { wake_at.min(self.pace.push_from) } else { wake_at }
    }
}

impl Place {
    /// A look has found it. That need not have renewed it, so a look never puts the renewal off: a waiter who
    /// looks more often than a renewal is due would lose its place. `sent` is when the store was asked.
    pub(super) fn found(
        &mut self,
        client: &Client,
        sent: ClockInstant,
        until: ClockInstant,
        ttl: Duration,
    ) {
        self.until = Some(until);
        self.renew_at = self.renew_at.min(schedule::renew_at(client, sent, ttl / 3, ttl));
    }

    /// The store has renewed it: records its end, if the store gave one, and plans the next renewal.
    pub(super) fn renewed(
        &mut self,
        client: &Client,
        sent: ClockInstant,
        until: Option<ClockInstant>,
        ttl: Duration,
    ) {
        self.until = until.or(self.until);
        self.renew_at = schedule::renew_at(client, sent, ttl / 3, ttl);
    }

    /// There is no place.
    pub(super) fn is_gone(&mut self) {
        self.until = None;
        self.renew_at = ClockInstant::FAR_FUTURE;
    }
}

impl Pace {
    /// Another client has the lock; the store proposes to retry after `hint`.
    pub(super) fn busy(
        &mut self,
        client: &Client,
        now: ClockInstant,
        hint: Option<Duration>,
        has_moved: bool,
    ) {
        self.busy += 1;
        if has_moved {
            self.busy = self.busy.min(LOOKS_AT_MOVING);
        }
        let wake = client.capabilities.wake;
        self.look_at = now + schedule::after_busy(client, wake, self.busy, hint);
    }

    /// An attempt has failed.
    pub(super) fn failed(&mut self, client: &Client, now: ClockInstant) {
        self.busy = 0;
        self.look_at = now + self.backoff.failed(&*client.rng);
    }

    /// It is not this waiter's turn to look.
    pub(super) fn put_off(&mut self, client: &Client, now: ClockInstant) {
        self.look_at = now + schedule::a_moment(client);
    }

    /// A push has come. A change is kept until it is asked for, so asking a little later misses
    /// nothing, and a store that pushes endlessly is not asked endlessly.
    pub(super) fn pushed(&mut self, now: ClockInstant) {
        self.push_from = now + PUSH_SPACING;
    }

    /// Pushes are unavailable for now.
    pub(super) fn no_pushes(&mut self, client: &Client, now: ClockInstant) {
        self.push_from = now + self.backoff.failed(&*client.rng);
        self.look_at = self.look_at.min(self.push_from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Locks;
    use crate::memory::MemoryBackend;

    #[test]
    fn polls_grow_rare_only_while_one_holder_has_the_lock() {
        let locks = Locks::new(MemoryBackend::poll_only());
        let now = ClockInstant::from_nanos(0);
        let mut pace = Search::new(Patience::Forever, now).pace;
        let mut pause = |has_moved| {
            pace.busy(&locks.0, now, None, has_moved);
            pace.look_at.since(now)
        };
        assert!((0..20).all(|_| pause(true) <= Duration::from_millis(10)));
        assert!((0..20).map(|_| pause(false)).last() >= Some(Duration::from_millis(75)));
        assert!(pause(true) <= Duration::from_millis(10));
    }
}
