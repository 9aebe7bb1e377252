//! Releases that are owed: each is repeated until it proves that nothing is left at its node.

use std::time::Duration;

use super::debts::{Debts, Open};
use super::message::{Request, Time};
use super::rules::Terms;

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
    pub(crate) stage: Stage,
    pub(crate) pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stage {
    /// A release is under way; this was open when it was sent.
    Sent(Open),
    /// The next one is sent at this time.
    Due(Time),
}

/// In the order in which they were begun.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Undoings(pub(crate) Vec<Undoing>);

impl Undoings {
    /// A first release is sent to the node now.
    pub(crate) fn begin(
        &mut self,
        terms: &Terms,
        now: Time,
        debts: &Debts,
        (call, node, attempt): (u32, usize, Option<u32>),
    ) -> &mut Undoing {
        let stage = Stage::Sent(debts.open(node, attempt));
        let (until, pause) = (now + terms.lasts, terms.pauses.0);
        let undoing = Undoing { node, attempt, call, awaited: false, until, stage, pause };
        self.0.push(undoing);
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// A release was answered: `freed` is `None` where there is no answer. It is repeated after a pause
    /// unless nothing can be left.
    pub(crate) fn answered(
        &mut self,
        terms: &Terms,
        now: Time,
        (call, node, attempt): (u32, usize, Option<u32>),
        freed: Option<bool>,
    ) {
        let is_this = |undoing: &Undoing| {
            (undoing.call, undoing.node, undoing.attempt) == (call, node, attempt)
        };
        let Some(place) = self.0.iter().position(is_this) else { return };
        let undoing = &mut self.0[place];
        let Stage::Sent(open) = undoing.stage else { return };
        let is_settled = match freed {
            Some(freed) => (terms.rules.settles)(open, freed),
            None => open.is_nothing(),
        };
        if is_settled || !(terms.rules.gives_back)(false) {
            self.0.remove(place);
        } else {
            undoing.awaited = false;
            undoing.stage = Stage::Due(now + undoing.pause);
            undoing.pause = (undoing.pause * 2).min(terms.pauses.1);
        }
    }

    /// The node has refused the request of this try.
    pub(crate) fn refused(&mut self, node: usize, attempt: u32, debts: &Debts) {
        if debts.open(node, Some(attempt)).is_settled_by(false) {
            self.0.retain(|undoing| (undoing.node, undoing.attempt) != (node, Some(attempt)));
        }
    }

    /// The releases that are sent again now.
    pub(crate) fn due(&mut self, now: Time, debts: &Debts) -> Vec<Undoing> {
        let is_due = |undoing: &Undoing| matches!(undoing.stage, Stage::Due(at) if at <= now);
        self.0.retain(|undoing| !is_due(undoing) || now < undoing.until);
        let mut due = Vec::new();
        for undoing in self.0.iter_mut().filter(|undoing| is_due(undoing)) {
            undoing.stage = Stage::Sent(debts.open(undoing.node, undoing.attempt));
            due.push(*undoing);
        }
        due
    }

    pub(crate) fn are_awaited(&self) -> bool {
        self.0.iter().any(|undoing| undoing.awaited)
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        let at = |undoing: &Undoing| match undoing.stage {
            Stage::Due(at) => Some(at),
            Stage::Sent(_) => None,
        };
        self.0.iter().filter_map(at).min()
    }
}

impl Undoing {
    /// `fence` is what the hold must have; with `leaves`, this client waits for the lock no more.
    pub(crate) fn request(&self, fence: Option<u64>, leaves: bool) -> Request {
        Request::Release { call: self.call, attempt: self.attempt, fence, leaves }
    }
}
