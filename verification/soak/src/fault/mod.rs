//! The faults: which there are, what is expected of each, when they strike, and how.

mod act;
mod inject;
mod rows;
mod schedule;

pub(crate) use act::Class;
pub(crate) use inject::{Injector, Strike};
pub(crate) use rows::{LEFT_OUT, ROWS, Row};
pub(crate) use schedule::{Phase, Planned, deck};
