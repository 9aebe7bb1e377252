//! Which case decides what: for each call, each state in which it is legal, and each event that may
//! meet it. A case names the cells that it decides, and would fail if the store were wrong there;
//! every other cell has a reason. `docs/matrix.md` shows it all.

#[cfg(test)]
mod page;
mod reason;
mod store;
mod user;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use self::reason::{Reason, Why};
pub(crate) use self::store::{Call, State};
pub(crate) use self::user::{UserCall, UserState};

/// The values of one axis, and what the page calls them.
trait Axis: Copy + fmt::Debug + Eq + Ord + 'static {
    const ALL: &'static [Self];

    fn label(self) -> &'static str;
}

/// An enum whose variants are the values of an axis, each with its label.
macro_rules! axis {
    ($(#[$about:meta])* $name:ident { $($variant:ident $label:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum $name {
            $($variant,)+
        }

        impl $crate::matrix::Axis for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)+
                }
            }
        }
    };
}

use axis;

axis! {
    /// What happens since the call before, or during the call.
    Event {
        Plain "nothing else happens",
        RequestLost "the request is lost",
        ReplyLost "the reply is lost",
        // The reply, or the request itself.
        ReplyLate "the reply is late",
        Dropped "dropped at an await",
        OtherHolder "another holds the lock",
        OtherReleases "another has released it",
        // Of the claim itself, or of the holder that it waits for.
        Expiry "the lease has ended",
        QueueBehind "others wait",
        Forced "taken away by force",
        Restart "the store was restarted",
        // Cut off, frozen, or refusing connections.
        Unreachable "the store is out of reach",
        Suspended "the process was stopped",
        StandStill "the runtime stands still",
    }
}

/// A call, the state in which it is made, and what happens before or during it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell<C, S> {
    pub(crate) call: C,
    pub(crate) state: S,
    pub(crate) event: Event,
}

impl<C: Axis, S: Axis> fmt::Display for Cell<C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, state, event } = self;
        write!(f, "{call:?}/{state:?}/{event:?}")?;
        write!(f, " ({}, {}: {})", call.label(), state.label(), event.label())
    }
}

/// All cells of one side of the library.
struct Matrix<C: 'static, S: 'static> {
    /// The calls that are legal in each state.
    legal: &'static [(S, &'static [C])],
    events: &'static [Event],
    /// The first one that fits a cell without a case is its reason.
    reasons: &'static [Reason<C, S>],
}

/// The name of a case, and the cells that it decides.
type Deciding<C, S> = (&'static str, &'static [Cell<C, S>]);

/// The cases that decide each cell.
type Decided<C, S> = BTreeMap<Cell<C, S>, Vec<&'static str>>;

impl<C: Axis, S: Axis> Matrix<C, S> {
    /// All cells that exist, in the order of calls, states and events.
    fn cells(&self) -> BTreeSet<Cell<C, S>> {
        let mut cells = BTreeSet::new();
        for (state, calls) in self.legal {
            for call in *calls {
                let cell = |event: &Event| Cell { call: *call, state: *state, event: *event };
                cells.extend(self.events.iter().map(cell));
            }
        }
        cells
    }

    /// What the cases decide; an error if one names a cell that does not exist, or names one twice.
    fn decided(
        &self,
        cases: impl Iterator<Item = Deciding<C, S>>,
    ) -> Result<Decided<C, S>, String> {
        let cells = self.cells();
        let mut decided = Decided::new();
        for (case, its_cells) in cases {
            for cell in its_cells {
                if !cells.contains(cell) {
                    return Err(format!("{case} names {cell}, which is no legal cell"));
                }
                let deciding = decided.entry(*cell).or_default();
                if deciding.contains(&case) {
                    return Err(format!("{case} names {cell} twice"));
                }
                deciding.push(case);
            }
        }
        Ok(decided)
    }

    fn reason(&self, cell: &Cell<C, S>) -> Option<&'static Reason<C, S>> {
        self.reasons.iter().find(|reason| reason.fits(cell))
    }

    /// Checks that each cell has a case or a reason, and each reason has its use.
    fn verify(&self, cases: impl Iterator<Item = Deciding<C, S>>) -> Result<(), String> {
        let decided = self.decided(cases)?;
        let mut used = BTreeSet::new();
        for cell in self.cells() {
            if let Some(cases) = decided.get(&cell) {
                let contradicts = |reason: &&Reason<C, S>| {
                    matches!(reason.why, Why::Never(_)) && reason.fits(&cell)
                };
                if let Some(reason) = self.reasons.iter().find(contradicts) {
                    let why = reason.why.text();
                    return Err(format!("{cell} has the case {}, and: {why}", cases[0]));
                }
                continue;
            }
            used.extend(self.reasons.iter().position(|reason| reason.fits(&cell)));
            self.follow(cell, &decided)?;
        }
        match (0..self.reasons.len()).find(|at| !used.contains(at)) {
            Some(idle) => Err(format!(
                "a reason has no cell without a case, so take it out: {}",
                self.reasons[idle].why.text()
            )),
            None => Ok(()),
        }
    }

    /// Follows the reasons that point to another cell until one has a case, or a reason of its own.
    fn follow(&self, from: Cell<C, S>, decided: &Decided<C, S>) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        let mut cell = from;
        while !decided.contains_key(&cell) {
            if !seen.insert(cell) {
                return Err(format!("the reasons of {from} go round in circles at {cell}"));
            }
            match self.reason(&cell).map(|reason| &reason.why) {
                Some(Why::As(_, like)) => cell = like.of(&cell),
                Some(Why::Never(_) | Why::Test { .. }) => return Ok(()),
                None if cell == from => {
                    return Err(format!("{cell} has neither a case nor a reason"));
                }
                None => {
                    return Err(format!(
                        "{from} is like {cell}, which has neither a case nor a reason"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Checks both matrices: what the cases decide for a store, and for a user.
pub(crate) fn verify(
    covers: impl Iterator<Item = Deciding<Call, State>>,
    guards: impl Iterator<Item = Deciding<UserCall, UserState>>,
) -> Result<(), String> {
    store::MATRIX.verify(covers)?;
    user::MATRIX.verify(guards)
}
