//! Acquire requests without an answer: which may still take the lock, and until when.
//!
//! The rule is that of `lock_core::kit::in_doubt`, for each node and each try: a type of its own, since the
//! model check orders and hashes it, and sees nothing but the standard library here.

use super::message::Time;

/// What a claim has at each node, or may have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Debts {
    /// In the order of the nodes.
    pub(crate) owed: Vec<Debt>,
    /// Whether the node has ever granted the lock to this claim, or may have to an earlier process.
    pub(crate) granted: Vec<bool>,
}

/// An acquire request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Debt {
    pub(crate) node: usize,
    pub(crate) attempt: u32,
    /// When the lock that it may take will have ended without a release.
    pub(crate) until: Time,
}

/// What was open at a node when a release was sent there. Only this shows what its answer proves: a
/// request that is answered before it may have been carried out after the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Open {
    owed: usize,
    granted: bool,
}

impl Open {
    /// Whether the claim has never got anything at the node, and no longer can: there is nothing to
    /// release, and a node that is down need not be asked again for each lock.
    pub(crate) fn is_nothing(self) -> bool {
        self.owed == 0 && !self.granted
    }

    /// Whether the answer to the release, `freed`, proves that nothing is left at the node, and that
    /// nothing can arrive there any more: nothing was owed, or what was freed is all that was.
    pub(crate) fn is_settled_by(self, freed: bool) -> bool {
        self.owed == 0 || (freed && self.owed == 1 && !self.granted)
    }
}

impl Debts {
    /// `resumed` is whether the claim continues what another one has got.
    pub(crate) fn new(nodes: usize, resumed: bool) -> Self {
        Self { owed: Vec::new(), granted: vec![resumed; nodes] }
    }

    /// An acquire request is about to be sent.
    pub(crate) fn owe(&mut self, node: usize, attempt: u32, now: Time, until: Time) {
        self.owed.retain(|debt| debt.until > now);
        let debt = Debt { node, attempt, until };
        let place = self.owed.partition_point(|other| *other <= debt);
        self.owed.insert(place, debt);
    }

    /// A request was answered, with a grant or without, or was never sent.
    pub(crate) fn settle(&mut self, node: usize, attempt: u32, granted: bool) {
        let is_this = |debt: &Debt| debt.node == node && debt.attempt == attempt;
        if let Some(place) = self.owed.iter().position(is_this) {
            self.owed.remove(place);
        }
        self.granted[node] |= granted;
    }

    /// What is open at the node, of one try or with `None` of all: asked before a release is sent.
    pub(crate) fn open(&self, node: usize, attempt: Option<u32>) -> Open {
        let owed = |debt: &&Debt| {
            debt.node == node && attempt.is_none_or(|attempt| debt.attempt == attempt)
        };
        let owed = self.owed.iter().filter(owed).count();
        // A try asks each node once, until it is granted: of one that is owed, nothing was granted.
        let is_other = attempt.is_some() && owed > 0;
        Open { owed, granted: self.granted[node] && !is_other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(1);
    const END: Time = Time::from_nanos(9);

    #[test]
    fn where_nothing_was_got_nothing_is_released() {
        let mut debts = Debts::new(1, false);
        assert!(debts.open(0, None).is_nothing(), "the node was never asked");
        debts.owe(0, 1, NOW, END);
        assert!(!debts.open(0, None).is_nothing());
        debts.settle(0, 1, false);
        assert!(debts.open(0, None).is_nothing());
        debts.owe(0, 2, NOW, END);
        debts.settle(0, 2, true);
        assert!(!debts.open(0, None).is_nothing());
        assert!(!Debts::new(1, true).open(0, None).is_nothing(), "another client got it");
    }

    #[test]
    fn what_was_freed_need_not_be_what_is_owed() {
        let mut debts = Debts::new(1, false);
        debts.owe(0, 1, NOW, END);
        debts.settle(0, 1, false);
        debts.owe(0, 2, NOW, END);
        assert!(debts.open(0, None).is_settled_by(true), "the first one was refused");
        debts.owe(0, 3, NOW, END);
        assert!(!debts.open(0, None).is_settled_by(true), "there are two");
        debts.settle(0, 3, true);
        assert!(!debts.open(0, None).is_settled_by(true), "it may be what the last try got");
        assert!(debts.open(0, Some(2)).is_settled_by(true));
        assert!(!debts.open(0, Some(2)).is_settled_by(false), "it may still arrive");
    }

    #[test]
    fn old_debts_are_forgotten() {
        let mut debts = Debts::new(1, false);
        debts.owe(0, 1, NOW, END);
        debts.owe(0, 2, END, END + END);
        assert!(debts.open(0, Some(1)).is_settled_by(false), "its lock has ended");
        assert!(!debts.open(0, Some(2)).is_settled_by(false));
    }

    #[test]
    fn a_node_that_has_granted_the_lock_twice_has_granted_it() {
        let mut debts = Debts::new(1, false);
        for attempt in [1, 2] {
            debts.owe(0, attempt, NOW, END);
            debts.settle(0, attempt, true);
            assert!(!debts.open(0, None).is_nothing());
            assert!(!debts.open(0, Some(attempt)).is_nothing(), "this try got it");
        }
    }

    #[test]
    fn the_order_of_the_requests_makes_no_difference() {
        let owing = |nodes: [usize; 3]| {
            let mut debts = Debts::new(3, false);
            nodes.iter().for_each(|node| debts.owe(*node, 1, NOW, END));
            debts
        };
        assert_eq!(owing([2, 0, 1]), owing([0, 1, 2]));
    }
}
