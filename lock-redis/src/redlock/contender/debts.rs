//! What a claim may have left at a node: acquire requests without an answer, and the releases that are
//! repeated until nothing can be left.
//!
//! The rule is that of `keeper/in_doubt.rs` in the core, for each node and each try: a type of its own, since the
//! model check orders and hashes it, and sees nothing but the standard library here.

use std::time::Duration;

use super::rules::{self, OpenAtNode};
use super::{ContenderTerms, NodeRequest, Time};

/// What a claim has at each node, or may have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Debts {
    /// In the order of the nodes.
    pub(crate) owed: Vec<Debt>,
    /// Whether the node has ever granted the lock to this claim, or may have to an earlier process.
    pub(crate) granted: Vec<bool>,
    /// What is being released, in the order in which it was begun.
    pub(crate) undoings: Vec<Undoing>,
}

/// An acquire request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Debt {
    pub(crate) node: usize,
    pub(crate) attempt: u32,
    /// When the lock that it may take will have ended without a release.
    pub(crate) until: Time,
}

/// What is to be released at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Undoing {
    pub(crate) node: usize,
    /// The try whose vote is given back; `None` for all that the claim has.
    pub(crate) attempt: Option<u32>,
    /// The call that has begun it.
    pub(crate) call: u32,
    /// The call waits for the first answer.
    pub(crate) awaited: bool,
    /// When what is to be released has ended without a release.
    pub(crate) until: Time,
    pub(crate) stage: UndoingStage,
    pub(crate) pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum UndoingStage {
    /// A release is under way; this was open when it was sent.
    Sent(OpenAtNode),
    /// The next one is sent at this time.
    Due(Time),
}

impl Debts {
    /// `resumed` is whether the claim continues what another one has got.
    pub(crate) fn new(nodes: usize, resumed: bool) -> Self {
        Self { owed: Vec::new(), granted: vec![resumed; nodes], undoings: Vec::new() }
    }

    /// An acquire request is about to be sent.
    pub(crate) fn owe(&mut self, node: usize, attempt: u32, now: Time, until: Time) {
        self.owed.retain(|debt| debt.until > now);
        let debt = Debt { node, attempt, until };
        let place = self.owed.partition_point(|other| *other <= debt);
        self.owed.insert(place, debt);
    }

    /// A request was answered, with a grant or without, or was never sent. What one that was refused might have got
    /// need not be released any more.
    pub(crate) fn settle(&mut self, node: usize, attempt: u32, granted: bool) {
        let is_this = |debt: &Debt| debt.node == node && debt.attempt == attempt;
        if let Some(place) = self.owed.iter().position(is_this) {
            self.owed.remove(place);
        }
        self.granted[node] |= granted;
        if !granted && self.open(node, Some(attempt)).owed == 0 {
            self.undoings
                .retain(|undoing| (undoing.node, undoing.attempt) != (node, Some(attempt)));
        }
    }

    /// What is open at the node, of one try or with `None` of all: asked before a release is sent.
    pub(crate) fn open(&self, node: usize, attempt: Option<u32>) -> OpenAtNode {
        let owed = |debt: &&Debt| {
            debt.node == node && attempt.is_none_or(|attempt| debt.attempt == attempt)
        };
        let owed = self.owed.iter().filter(owed).count();
        // A try asks each node once, until it is granted: of one that is owed, nothing was granted.
        let is_other = attempt.is_some() && owed > 0;
        OpenAtNode { owed, granted: self.granted[node] && !is_other }
    }

    /// A first release is sent to the node now.
    pub(crate) fn begin_to_release(
        &mut self,
        terms: &ContenderTerms,
        now: Time,
        (call, node, attempt): (u32, usize, Option<u32>),
    ) -> &mut Undoing {
        let stage = UndoingStage::Sent(self.open(node, attempt));
        let (until, pause) = (now + terms.lasts, terms.pauses.0);
        let undoing = Undoing { node, attempt, call, awaited: false, until, stage, pause };
        self.undoings.push(undoing);
        let last = self.undoings.len() - 1;
        &mut self.undoings[last]
    }

    /// A release was answered: `freed` is `None` where there is no answer. It is repeated after a pause
    /// unless nothing can be left.
    pub(crate) fn released(
        &mut self,
        terms: &ContenderTerms,
        now: Time,
        (call, node, attempt): (u32, usize, Option<u32>),
        freed: Option<bool>,
    ) {
        let is_this = |undoing: &Undoing| {
            (undoing.call, undoing.node, undoing.attempt) == (call, node, attempt)
        };
        let Some(place) = self.undoings.iter().position(is_this) else { return };
        let undoing = &mut self.undoings[place];
        let UndoingStage::Sent(open) = undoing.stage else { return };
        if rules::is_settled(open, freed) {
            self.undoings.remove(place);
        } else {
            undoing.awaited = false;
            undoing.stage = UndoingStage::Due(now + undoing.pause);
            undoing.pause = (undoing.pause * 2).min(terms.pauses.1);
        }
    }

    /// The releases that are sent again now.
    pub(crate) fn due(&mut self, now: Time) -> Vec<Undoing> {
        let is_due =
            |undoing: &Undoing| matches!(undoing.stage, UndoingStage::Due(at) if at <= now);
        self.undoings.retain(|undoing| !is_due(undoing) || now < undoing.until);
        let mut due = Vec::new();
        for at in 0..self.undoings.len() {
            let undoing = self.undoings[at];
            if is_due(&undoing) {
                let stage = UndoingStage::Sent(self.open(undoing.node, undoing.attempt));
                self.undoings[at].stage = stage;
                due.push(undoing);
            }
        }
        due
    }

    /// Whether a call waits for a release.
    pub(crate) fn are_awaited(&self) -> bool {
        self.undoings.iter().any(|undoing| undoing.awaited)
    }

    /// When the next release is sent again.
    pub(crate) fn next_at(&self) -> Option<Time> {
        let at = |undoing: &Undoing| match undoing.stage {
            UndoingStage::Due(at) => Some(at),
            UndoingStage::Sent(_) => None,
        };
        self.undoings.iter().filter_map(at).min()
    }
}

impl Undoing {
    /// `fence` is what the hold must have; with `leaves`, this client waits for the lock no more.
    pub(crate) fn request(&self, fence: Option<u64>, leaves: bool) -> NodeRequest {
        NodeRequest::Release { call: self.call, attempt: self.attempt, fence, leaves }
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
        assert!(rules::is_settled(debts.open(0, None), None), "the node was never asked");
        debts.owe(0, 1, NOW, END);
        assert!(!rules::is_settled(debts.open(0, None), None));
        debts.settle(0, 1, false);
        assert!(rules::is_settled(debts.open(0, None), None));
        debts.owe(0, 2, NOW, END);
        debts.settle(0, 2, true);
        assert!(!rules::is_settled(debts.open(0, None), None));
        assert!(
            !rules::is_settled(Debts::new(1, true).open(0, None), None),
            "another client got it"
        );
    }

    #[test]
    fn what_was_freed_need_not_be_what_is_owed() {
        let mut debts = Debts::new(1, false);
        debts.owe(0, 1, NOW, END);
        debts.settle(0, 1, false);
        debts.owe(0, 2, NOW, END);
        assert!(rules::is_settled(debts.open(0, None), Some(true)), "the first one was refused");
        debts.owe(0, 3, NOW, END);
        assert!(!rules::is_settled(debts.open(0, None), Some(true)), "there are two");
        debts.settle(0, 3, true);
        assert!(
            !rules::is_settled(debts.open(0, None), Some(true)),
            "it may be what the last try got"
        );
        assert!(rules::is_settled(debts.open(0, Some(2)), Some(true)));
        assert!(!rules::is_settled(debts.open(0, Some(2)), Some(false)), "it may still arrive");
    }

    #[test]
    fn old_debts_are_forgotten() {
        let mut debts = Debts::new(1, false);
        debts.owe(0, 1, NOW, END);
        debts.owe(0, 2, END, END + END);
        assert!(rules::is_settled(debts.open(0, Some(1)), Some(false)), "its lock has ended");
        assert!(!rules::is_settled(debts.open(0, Some(2)), Some(false)));
    }

    #[test]
    fn a_node_that_has_granted_the_lock_twice_has_granted_it() {
        let mut debts = Debts::new(1, false);
        for attempt in [1, 2] {
            debts.owe(0, attempt, NOW, END);
            debts.settle(0, attempt, true);
            assert!(!rules::is_settled(debts.open(0, None), None));
            assert!(!rules::is_settled(debts.open(0, Some(attempt)), None), "this try got it");
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
