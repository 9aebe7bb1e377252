//! What a keeper knows while it looks and waits.

use super::Patience;
use super::gate::Last;
use crate::{ClockInstant, Error};

/// What is known while looking and waiting.
pub(super) struct Search {
    pub(super) patience: Patience,
    pub(super) deadline: ClockInstant,
    pub(super) started: ClockInstant,
    /// When the store last answered anything.
    pub(super) heard: ClockInstant,
    /// Busy answers, failures and tries: the first two in a row, the last in all.
    pub(super) busy: u32,
    pub(super) failures: u32,
    pub(super) tries: u32,
    /// The store's last answer, if it was an error (or none came).
    pub(super) error: Option<Error>,
    /// Whether the store has said "busy", last of all.
    pub(super) said_busy: bool,
    /// Until when the store keeps our place in its queue.
    pub(super) place_until: Option<ClockInstant>,
    /// When the place is renewed.
    pub(super) renew_place_at: ClockInstant,
    /// A renewal of the place had no answer: it is repeated before the next look (clause C8).
    pub(super) place_unsettled: bool,
    /// Until then pushes are not asked for, since they failed, or came in a row.
    pub(super) no_push_until: ClockInstant,
    /// When to look again, whatever happens.
    pub(super) look_at: ClockInstant,
}

impl Search {
    pub(super) fn new(patience: Patience, now: ClockInstant) -> Self {
        let deadline = match patience {
            Patience::Until(deadline) => deadline,
            Patience::Try | Patience::Forever => ClockInstant::FAR_FUTURE,
        };
        Self {
            patience,
            deadline,
            started: now,
            heard: now,
            busy: 0,
            failures: 0,
            tries: 0,
            error: None,
            said_busy: false,
            place_until: None,
            renew_place_at: ClockInstant::FAR_FUTURE,
            place_unsettled: false,
            no_push_until: now,
            look_at: now,
        }
    }

    /// The store has answered.
    pub(super) fn answered(&mut self, now: ClockInstant) {
        self.heard = now;
        self.failures = 0;
        self.error = None;
    }

    /// The store's last answer, for those who wait behind this one.
    pub(super) fn last(&self) -> Last {
        match &self.error {
            Some(error) if !self.said_busy => Last::Failure(error.clone()),
            _ => Last::Answer,
        }
    }
}
