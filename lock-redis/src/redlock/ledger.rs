//! What a claim has at each node, shared with the tasks that outlive its calls.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lock_core::ClockInstant;

/// One line for each node.
#[derive(Debug)]
pub(crate) struct Ledger(Mutex<Lines>);

#[derive(Debug)]
struct Lines {
    nodes: Vec<Line>,
    /// The claim is released or dropped: nothing is acquired for it any more.
    closed: bool,
}

#[derive(Clone, Debug, Default)]
struct Line {
    /// The counter that the node answered when it joined the hold. A node that shows another one
    /// has let go in between, and proves nothing.
    member: Option<u64>,
    /// Acquire requests that have had no answer, each by when its lock must have ended. Any of them
    /// may still take the lock.
    owed: Vec<ClockInstant>,
}

impl Ledger {
    pub(crate) fn new(nodes: usize) -> Self {
        Self(Mutex::new(Lines { nodes: vec![Line::default(); nodes], closed: false }))
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn members(&self) -> Vec<Option<u64>> {
        self.lines().nodes.iter().map(|line| line.member).collect()
    }

    pub(crate) fn set_members(&self, members: &[Option<u64>]) {
        for (line, member) in self.lines().nodes.iter_mut().zip(members) {
            line.member = *member;
        }
    }

    pub(crate) fn set_member(&self, node: usize, member: Option<u64>) {
        self.lines().nodes[node].member = member;
    }

    /// An acquire request is about to be sent.
    pub(crate) fn owe(&self, node: usize, until: ClockInstant) {
        self.lines().nodes[node].owed.push(until);
    }

    /// The request with this end was answered, or never sent.
    pub(crate) fn settle(&self, node: usize, until: ClockInstant) {
        let owed = &mut self.lines().nodes[node].owed;
        if let Some(place) = owed.iter().position(|other| *other == until) {
            owed.swap_remove(place);
        }
    }

    /// Whether no request is left that may still take the lock there.
    pub(crate) fn is_clear(&self, node: usize) -> bool {
        self.lines().nodes[node].owed.is_empty()
    }

    /// A release has freed something there: what an answered request had got, else what one
    /// without an answer had. Returns whether nothing is left that may still take the lock.
    pub(crate) fn freed(&self, node: usize) -> bool {
        let line = &mut self.lines().nodes[node];
        if line.member.take().is_none() {
            line.owed.pop();
        }
        line.owed.is_empty()
    }

    pub(crate) fn close(&self) {
        self.lines().closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lines().closed
    }
}
