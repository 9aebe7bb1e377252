//! Why a cell has no case of the suite.

use super::Axis;
use super::{Cell, Event};

/// A reason, and the cells that it is for: all combinations of these. An empty list is all of them.
pub(super) struct Reason<C: 'static, S: 'static> {
    pub(super) calls: &'static [C],
    pub(super) states: &'static [S],
    pub(super) events: &'static [Event],
    pub(super) why: Why<C, S>,
}

pub(super) enum Why<C, S> {
    /// There is nothing to decide, so no case may name these cells.
    Never(&'static str),
    /// Another cell decides it, for this reason.
    As(&'static str, Like<C, S>),
    /// A test of the core decides it.
    Test { file: &'static str, name: &'static str },
}

/// In what the other cell differs.
pub(super) struct Like<C, S> {
    pub(super) call: Option<C>,
    pub(super) state: Option<S>,
    pub(super) event: Option<Event>,
}

impl<C: Axis, S: Axis> Reason<C, S> {
    pub(super) fn fits(&self, cell: &Cell<C, S>) -> bool {
        is_among(self.calls, cell.call)
            && is_among(self.states, cell.state)
            && is_among(self.events, cell.event)
    }
}

fn is_among<T: PartialEq>(list: &[T], value: T) -> bool {
    list.is_empty() || list.contains(&value)
}

impl<C, S> Why<C, S> {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Never(text) | Self::As(text, _) => (*text).to_owned(),
            Self::Test { file, name } => format!("`{name}` in [{file}](../{file})"),
        }
    }
}

impl<C: Copy, S: Copy> Like<C, S> {
    pub(super) const fn call(call: C) -> Self {
        Self { call: Some(call), state: None, event: None }
    }

    pub(super) const fn state(state: S) -> Self {
        Self { call: None, state: Some(state), event: None }
    }

    pub(super) const fn event(event: Event) -> Self {
        Self { call: None, state: None, event: Some(event) }
    }

    /// The other cell.
    pub(super) fn of(&self, cell: &Cell<C, S>) -> Cell<C, S> {
        Cell {
            call: self.call.unwrap_or(cell.call),
            state: self.state.unwrap_or(cell.state),
            event: self.event.unwrap_or(cell.event),
        }
    }
}

/// A table of reasons: `calls; states; events => why`, where a missing list is all.
macro_rules! reasons {
    ($([$($call:ident),*] [$($state:ident),*] [$($event:ident),*] => $why:expr;)+) => {
        &[$($crate::matrix::reason::Reason {
            calls: &[$($call),*],
            states: &[$($state),*],
            events: &[$($event),*],
            why: $why,
        },)+]
    };
}

pub(super) use reasons;
