//! Requests that may still take effect in the store, and until when.
//!
//! A request that makes an entry and got no answer may be carried out at any time, even after the
//! release that was meant to undo it. What the answer to a release proves therefore
//! depends on what was in doubt when it was sent.
//!
//! A request counts as over once the store must have ended what the request made, had it arrived at
//! once. A request that spends longer in the network is outside this model; what it makes ends with
//! its lease, and its fence is never used.

use crate::{ClockInstant, Released};

/// The requests of one owner that make an entry: a place or a lock.
#[derive(Debug, Default)]
pub(super) struct InDoubt {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request(u64);

/// What was in doubt when a release was sent. Only this determines what its answer proves: a
/// request that is answered during the release may have been carried out after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    requests: usize,
    has_entry: bool,
}

impl InDoubt {
    /// For an owner that already has an entry, as after taking over a hold.
    pub(super) fn with_entry() -> Self {
        Self { has_entry: true, ..Self::default() }
    }

    /// Records, before it is sent, a request that may make an entry, which the store ends by
    /// `until`.
    pub(super) fn sent(&mut self, now: ClockInstant, until: ClockInstant) -> Request {
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
    pub(super) fn answered(&mut self, request: Request, has_entry: bool) {
        self.open.retain(|sent| sent.request != request);
        self.has_entry |= has_entry;
    }

    /// Records that the entry in the store may last until then, because of a request that prolongs
    /// it.
    pub(super) fn lasts_until(&mut self, until: ClockInstant) {
        self.gone_at = self.gone_at.max(Some(until));
    }

    /// What is in doubt now: call this before a release is sent.
    pub(super) fn open(&self, now: ClockInstant) -> Open {
        let requests = self.open.iter().filter(|sent| sent.until > now).count();
        Open { requests, has_entry: self.has_entry }
    }

    /// When the last of the requests in doubt is over; `None` if none is in doubt.
    pub(super) fn until(&self) -> Option<ClockInstant> {
        self.open.iter().map(|sent| sent.until).max()
    }

    /// When the store will have ended everything this owner ever made or prolonged; `None` if
    /// nothing was sent.
    pub(super) fn gone_at(&self) -> Option<ClockInstant> {
        self.gone_at
    }
}

impl Open {
    /// Whether no request is in doubt. There may still be an entry.
    pub(super) fn is_clear(self) -> bool {
        self.requests == 0
    }

    /// Whether the answer to the release proves that nothing is in the store, now or later. Either
    /// no request was in doubt, or the freed entry is that of the only one.
    pub(super) fn is_settled_by(self, released: Released) -> bool {
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
    const LATER: ClockInstant = ClockInstant::from_nanos(20);

    #[test]
    fn a_request_is_in_doubt_until_it_is_answered() {
        let mut doubt = InDoubt::default();
        assert_eq!((doubt.until(), doubt.gone_at()), (None, None));
        assert!(doubt.open(NOW).is_clear());
        for has_entry in [false, true] {
            let request = doubt.sent(NOW, END);
            assert!(!doubt.open(NOW).is_clear());
            doubt.answered(request, has_entry);
            assert!(doubt.open(NOW).is_clear());
        }
        assert_eq!((doubt.until(), doubt.gone_at()), (None, Some(END)));
    }

    #[test]
    fn an_answer_after_the_release_was_sent_proves_nothing() {
        let mut doubt = InDoubt::default();
        let request = doubt.sent(NOW, END);
        let before = doubt.open(NOW);
        assert!(!before.is_settled_by(AlreadyGone), "the request may arrive after the release");
        assert!(before.is_settled_by(Freed), "it is the only one, and was undone");
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
        doubt.answered(late, false);
        assert!(doubt.open(NOW).is_settled_by(Freed));
    }

    #[test]
    fn what_was_refused_is_not_what_was_freed() {
        let mut doubt = InDoubt::default();
        let refused = doubt.sent(NOW, END);
        doubt.answered(refused, false);
        doubt.sent(NOW, END);
        assert!(doubt.open(NOW).is_settled_by(Freed), "it is that of the request in doubt");
    }

    #[test]
    fn an_entry_that_was_taken_over_may_be_what_was_freed() {
        let mut doubt = InDoubt::with_entry();
        assert!(doubt.open(NOW).is_clear());
        doubt.sent(NOW, END);
        assert!(!doubt.open(NOW).is_settled_by(Freed), "another process has made it");
    }

    #[test]
    fn an_answer_to_what_is_over_says_nothing_of_a_later_request() {
        let mut doubt = InDoubt::default();
        let early = doubt.sent(NOW, END);
        doubt.sent(END, LATER);
        doubt.answered(early, false);
        assert!(!doubt.open(END).is_clear());
    }

    #[test]
    fn time_settles_everything() {
        let mut doubt = InDoubt::default();
        doubt.sent(NOW, END);
        doubt.lasts_until(LATER);
        assert_eq!((doubt.until(), doubt.gone_at()), (Some(END), Some(LATER)));
        assert!(doubt.open(END).is_clear(), "what the request made has ended");
        doubt.sent(END, LATER);
        assert_eq!(doubt.open.len(), 1, "requests that are over are forgotten");
    }
}
