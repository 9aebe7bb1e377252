//! What a claim has at each node, shared with the tasks that outlive its calls.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lock_core::ClockInstant;

/// One line for each node.
#[derive(Debug)]
pub(crate) struct Ledger(Mutex<Lines>);

#[derive(Debug)]
struct Lines {
    nodes: Vec<Line>,
    /// The claim is released: nothing is acquired for it any more.
    closed: bool,
    /// The number of the next request.
    next: u64,
}

#[derive(Clone, Debug, Default)]
struct Line {
    /// Acquire requests that have had no answer. Any of them may still take the lock.
    owed: Vec<Debt>,
    /// How many acquire requests there have been.
    asked: u32,
    /// One of them was granted, or may have been by an earlier process.
    granted: bool,
}

/// An acquire request without an answer.
#[derive(Clone, Copy, Debug)]
struct Debt {
    number: u64,
    attempt: u32,
    /// When what it may take has ended by itself.
    until: ClockInstant,
}

/// What was open at a node when a release was sent there. Only that tells what its answer proves:
/// a request whose answer comes in the meantime may have been carried out after the release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    owed: usize,
    /// Whether what is owed is all that was ever asked for, so that it alone can have been freed.
    only: bool,
    granted: bool,
}

impl Open {
    /// Whether the claim has never got anything at the node, and cannot any more: there is nothing to
    /// release, so that a node that is down need not be asked again for each lock.
    pub(crate) fn is_nothing(self) -> bool {
        self.owed == 0 && !self.granted
    }

    /// Whether the answer to the release, `freed`, proves that nothing is left at the node, and that
    /// nothing can arrive there any more.
    pub(crate) fn is_settled_by(self, freed: bool) -> bool {
        self.owed == 0 || (freed && self.only && self.owed == 1)
    }
}

impl Ledger {
    /// `resumed` is whether the claim goes on with what another one has got.
    pub(crate) fn new(nodes: usize, resumed: bool) -> Self {
        let nodes = vec![Line { granted: resumed, ..Line::default() }; nodes];
        Self(Mutex::new(Lines { nodes, closed: false, next: 0 }))
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An acquire request is about to be sent; its number is for [`settle`](Self::settle). `None`
    /// once the claim is released: the request must not be sent, since no release follows it.
    pub(crate) fn owe(
        &self,
        node: usize,
        attempt: u32,
        now: ClockInstant,
        until: ClockInstant,
    ) -> Option<u64> {
        let mut lines = self.lines();
        if lines.closed {
            return None;
        }
        let number = lines.next;
        lines.next += 1;
        let line = &mut lines.nodes[node];
        line.owed.retain(|debt| debt.until > now);
        line.owed.push(Debt { number, attempt, until });
        line.asked = line.asked.saturating_add(1);
        Some(number)
    }

    /// The request was answered, with a grant or without, or was never sent.
    pub(crate) fn settle(&self, node: usize, number: u64, granted: bool) {
        let mut lines = self.lines();
        let line = &mut lines.nodes[node];
        line.owed.retain(|debt| debt.number != number);
        line.granted |= granted;
    }

    /// What is open at the node, of one try or with `None` of all: asked before a release is sent.
    pub(crate) fn open(&self, node: usize, attempt: Option<u32>) -> Open {
        let lines = self.lines();
        let line = &lines.nodes[node];
        let granted = line.granted;
        match attempt {
            // A try asks each node once, until it is granted.
            Some(attempt) => {
                let owed = line.owed.iter().filter(|debt| debt.attempt == attempt).count();
                Open { owed, only: true, granted }
            }
            None => Open { owed: line.owed.len(), only: line.asked == 1, granted },
        }
    }

    pub(crate) fn close(&self) {
        self.lines().closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: ClockInstant = ClockInstant::from_nanos(1);
    const END: ClockInstant = ClockInstant::from_nanos(9);

    #[test]
    fn an_answer_after_the_release_was_sent_proves_nothing() {
        let ledger = Ledger::new(1, false);
        let request = ledger.owe(0, 1, NOW, END).unwrap();
        for attempt in [None, Some(1)] {
            let open = ledger.open(0, attempt);
            assert!(!open.is_settled_by(false), "the request may come behind the release");
            assert!(open.is_settled_by(true), "it is the only one, and was taken back");
        }
        let sent_before = ledger.open(0, None);
        ledger.settle(0, request, true);
        assert!(!sent_before.is_settled_by(false), "it may have been carried out in between");
        assert!(ledger.open(0, None).is_settled_by(false));
    }

    #[test]
    fn what_was_freed_need_not_be_what_is_owed() {
        let ledger = Ledger::new(1, false);
        let late = ledger.owe(0, 1, NOW, END).unwrap();
        let answered = ledger.owe(0, 2, NOW, END).unwrap();
        ledger.settle(0, answered, true);
        // The second try's vote was freed; the first one's request is still on its way.
        assert!(!ledger.open(0, None).is_settled_by(true));
        assert!(ledger.open(0, Some(1)).is_settled_by(true));
        assert!(ledger.open(0, Some(2)).is_settled_by(false));
        ledger.settle(0, late, false);
        assert!(ledger.open(0, None).is_settled_by(true));
    }

    #[test]
    fn where_nothing_was_got_nothing_is_released() {
        let ledger = Ledger::new(1, false);
        assert!(ledger.open(0, None).is_nothing(), "the node was left out");
        let refused = ledger.owe(0, 1, NOW, END).unwrap();
        assert!(!ledger.open(0, None).is_nothing());
        ledger.settle(0, refused, false);
        assert!(ledger.open(0, None).is_nothing());
        let granted = ledger.owe(0, 2, NOW, END).unwrap();
        ledger.settle(0, granted, true);
        assert!(!ledger.open(0, None).is_nothing());
        assert!(!Ledger::new(1, true).open(0, None).is_nothing(), "it was got by somebody else");
    }

    #[test]
    fn nothing_is_sent_behind_a_release_and_old_debts_are_forgotten() {
        let ledger = Ledger::new(1, false);
        ledger.owe(0, 1, NOW, END).unwrap();
        let later = ClockInstant::from_nanos(10);
        ledger.owe(0, 1, later, ClockInstant::from_nanos(20)).unwrap();
        assert_eq!(ledger.open(0, None).owed, 1);
        ledger.close();
        assert_eq!(ledger.owe(0, 1, later, ClockInstant::from_nanos(20)), None);
    }
}
