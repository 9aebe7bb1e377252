//! Requests that may still take effect in the store, and until when.
//!
//! A request that makes an entry and got no answer may be carried out at any time, even after the
//! release that was meant to undo it. What the answer to a release proves therefore
//! depends on what was in doubt when it was sent.
//!
//! ```
//! use std::time::Duration;
//! use lock_core::{Clock, Released};
//! use lock_core::testing::ManualClock;
//! use lock_core::in_doubt::InDoubt;
//!
//! let clock = ManualClock::default();
//! let mut doubt = InDoubt::default();
//! let gone_at = clock.now() + Duration::from_secs(30);
//! // Sent, and its answer never comes.
//! let _request = doubt.sent(clock.now(), gone_at);
//! let before = doubt.open(clock.now());
//! // A release is sent. It may overtake the request …
//! assert!(!before.is_settled_by(Released::AlreadyGone));
//! // … but if it found an entry, that was this one request's.
//! assert!(before.is_settled_by(Released::Freed));
//! clock.advance(Duration::from_secs(30));
//! assert!(doubt.open(clock.now()).is_nothing(), "the entry that it made has ended");
//! ```
//!
//! A request counts as over once the store must have ended what the request made, had it arrived at
//! once. A request that spends longer in the network is outside this model; what it makes ends with
//! its lease, and its fence is never used.

use crate::{ClockInstant, Released};

/// The requests of one owner that make an entry: a place or a lock.
#[derive(Clone, Debug, Default)]
pub struct InDoubt {
    open: Vec<Sent>,
    last: u64,
    has_entry: bool,
    gone_at: Option<ClockInstant>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    request: Request,
    until: ClockInstant,
}

/// A request recorded by [`InDoubt::sent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request(u64);

/// What was in doubt when a release was sent. Only this determines what its answer proves: a
/// request that is answered during the release may have been carried out after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    requests: usize,
    has_entry: bool,
}

impl InDoubt {
    /// For an owner that already has an entry, as after taking over a hold.
    pub fn with_entry() -> Self {
        Self { has_entry: true, ..Self::default() }
    }

    /// Records, before it is sent, a request that may make an entry, which the store ends by
    /// `until`.
    pub fn sent(&mut self, now: ClockInstant, until: ClockInstant) -> Request {
        self.open.retain(|sent| sent.until > now);
        self.last += 1;
        let request = Request(self.last);
        self.open.push(Sent { request, until });
        self.lasts_until(until);
        request
    }

    /// Records that the request was answered, or failed without an effect, and whether by the
    /// answer there is an entry in the store. A request that failed with an unknown effect stays in
    /// doubt.
    pub fn answered(&mut self, request: Request, has_entry: bool) {
        self.open.retain(|sent| sent.request != request);
        self.has_entry |= has_entry;
    }

    /// Records that the entry in the store may last until then, because of a request that prolongs
    /// it.
    pub fn lasts_until(&mut self, until: ClockInstant) {
        self.gone_at = self.gone_at.max(Some(until));
    }

    /// Records that nothing is in the store and nothing can arrive: the store has said so, or the
    /// lease or session that the requests depend on has ended.
    pub fn settled(&mut self) {
        *self = Self { last: self.last, ..Self::default() };
    }

    /// What is in doubt now: call this before a release is sent.
    pub fn open(&self, now: ClockInstant) -> Open {
        let requests = self.open.iter().filter(|sent| sent.until > now).count();
        Open { requests, has_entry: self.has_entry }
    }

    /// The same for a single request, where a release undoes only that one.
    pub fn open_of(&self, request: Request, now: ClockInstant) -> Open {
        let open = |sent: &&Sent| sent.request == request && sent.until > now;
        Open { requests: self.open.iter().filter(open).count(), has_entry: false }
    }

    /// When the last of the requests in doubt is over; `None` if none is in doubt.
    pub fn until(&self) -> Option<ClockInstant> {
        self.open.iter().map(|sent| sent.until).max()
    }

    /// When the store will have ended everything this owner ever made or prolonged; `None` if
    /// nothing was sent.
    pub fn gone_at(&self) -> Option<ClockInstant> {
        self.gone_at
    }
}

impl Open {
    /// Whether no request is in doubt. There may still be an entry.
    pub fn is_clear(self) -> bool {
        self.requests == 0
    }

    /// Whether there is no entry, now or later, so nothing has to be released.
    pub fn is_nothing(self) -> bool {
        self.is_clear() && !self.has_entry
    }

    /// Whether the answer to the release proves that nothing is in the store, now or later. Either
    /// no request was in doubt, or the freed entry is that of the only one.
    pub fn is_settled_by(self, released: Released) -> bool {
        match released {
            Released::Freed => self.is_clear() || (self.requests == 1 && !self.has_entry),
            Released::AlreadyGone => self.is_clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Released::{AlreadyGone, Freed};

    const NOW: ClockInstant = ClockInstant::from_nanos(1);
    const END: ClockInstant = ClockInstant::from_nanos(9);

    #[test]
    fn an_answer_after_the_release_was_sent_proves_nothing() {
        let mut doubt = InDoubt::default();
        let request = doubt.sent(NOW, END);
        for open in [doubt.open(NOW), doubt.open_of(request, NOW)] {
            assert!(!open.is_settled_by(AlreadyGone), "the request may arrive after the release");
            assert!(open.is_settled_by(Freed), "it is the only one, and was undone");
        }
        let before = doubt.open(NOW);
        doubt.answered(request, true);
        assert!(!before.is_settled_by(AlreadyGone), "it may have been carried out in between");
        assert!(doubt.open(NOW).is_settled_by(AlreadyGone));
    }

    #[test]
    fn what_was_freed_need_not_be_what_is_in_doubt() {
        let mut doubt = InDoubt::default();
        let (late, answered) = (doubt.sent(NOW, END), doubt.sent(NOW, END));
        assert!(!doubt.open(NOW).is_settled_by(Freed), "there are two");
        doubt.answered(answered, true);
        assert!(!doubt.open(NOW).is_settled_by(Freed), "it may be the entry of the other one");
        assert!(doubt.open_of(late, NOW).is_settled_by(Freed));
        assert!(doubt.open_of(answered, NOW).is_settled_by(AlreadyGone));
        doubt.answered(late, false);
        assert!(doubt.open(NOW).is_settled_by(Freed));
    }

    #[test]
    fn where_nothing_was_made_nothing_is_released() {
        let mut doubt = InDoubt::default();
        assert!(doubt.open(NOW).is_nothing());
        let refused = doubt.sent(NOW, END);
        assert!(!doubt.open(NOW).is_nothing());
        doubt.answered(refused, false);
        assert!(doubt.open(NOW).is_nothing());
        let granted = doubt.sent(NOW, END);
        doubt.answered(granted, true);
        assert!(!doubt.open(NOW).is_nothing() && doubt.open(NOW).is_clear());
        assert!(!InDoubt::with_entry().open(NOW).is_nothing(), "another process has made it");
        doubt.settled();
        assert!(doubt.open(NOW).is_nothing());
        assert_eq!((doubt.until(), doubt.gone_at()), (None, None));
    }

    #[test]
    fn an_answer_to_what_was_settled_says_nothing_of_a_later_request() {
        let mut doubt = InDoubt::default();
        let early = doubt.sent(NOW, END);
        doubt.settled();
        doubt.sent(NOW, END);
        doubt.answered(early, false);
        assert!(!doubt.open(NOW).is_clear());
    }

    #[test]
    fn time_settles_everything() {
        let mut doubt = InDoubt::default();
        let sent = doubt.sent(NOW, END);
        let later = ClockInstant::from_nanos(20);
        doubt.lasts_until(later);
        assert_eq!((doubt.until(), doubt.gone_at()), (Some(END), Some(later)));
        assert!(doubt.open(END).is_clear() && doubt.open_of(sent, END).is_clear());
        doubt.sent(END, later);
        assert_eq!(doubt.open.len(), 1, "requests that are over are forgotten");
    }
}
