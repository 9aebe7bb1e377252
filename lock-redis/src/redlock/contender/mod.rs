//! One contender for a lock on a quorum, as a state machine: told of calls, answers and the time, it says
//! what to ask of which node. It does no I/O and reads no clock.
//!
//! The crate `redlock-model` compiles these files too, and runs this machine for all interleavings of a
//! small quorum. So they use only the standard library.

mod ballot;
mod debts;
pub(crate) mod machine;
mod message;
pub(crate) mod rule;
mod rules;
mod trying;
mod undoing;

pub(crate) use machine::{Contender, Sent};
pub(crate) use message::{Outcome, Reply, Request, Time};
pub(crate) use rules::{Rules, Terms};
