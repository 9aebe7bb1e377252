//! Which case decides what: for each call, each state in which it is legal, and each event that may
//! meet it. A case names the cells that it decides, and would fail if the store were wrong there.

mod axis;
mod store;
mod user;

use std::fmt;

use self::axis::Axis;
pub(crate) use self::axis::Event;
pub(crate) use self::store::{Call, State};
pub(crate) use self::user::{UserCall, UserState};
use crate::case::Case;

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
        write!(f, "`{}`, {}, {}", call.label(), state.label(), event.label())
    }
}

/// All cells of one side of the library.
struct Matrix<C: 'static, S: 'static> {
    /// The calls that are legal in each state.
    legal: &'static [(S, &'static [C])],
    events: &'static [Event],
    /// What a case decides.
    decides: fn(&Case) -> &'static [Cell<C, S>],
}

impl<C: Axis, S: Axis> Matrix<C, S> {
    fn verify(&self, case: &Case) -> Result<(), String> {
        let cells = (self.decides)(case);
        for (at, cell) in cells.iter().enumerate() {
            if !self.has(cell) {
                return Err(format!("{} names a cell that is not legal: {cell}", case.id));
            }
            if cells[..at].contains(cell) {
                return Err(format!("{} names a cell twice: {cell}", case.id));
            }
        }
        Ok(())
    }

    fn has(&self, cell: &Cell<C, S>) -> bool {
        let may_follow =
            |(state, calls): &(S, &[C])| *state == cell.state && calls.contains(&cell.call);
        self.legal.iter().any(may_follow) && self.events.contains(&cell.event)
    }
}

/// Checks that `case` names no cell that does not exist.
pub(crate) fn verify(case: &Case) -> Result<(), String> {
    store::MATRIX.verify(case)?;
    user::MATRIX.verify(case)
}
