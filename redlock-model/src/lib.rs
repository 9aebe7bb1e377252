//! A model check of the fencing token and of the admission of nodes in Redlock.
//!
//! The model is untimed, so what holds here needs no clock: a lock may expire at any node at any
//! moment (which covers a release, a short ttl and a clock that jumps), requests and replies are
//! delayed without bound, overtake each other or are lost, and proposals are arbitrary. A node may
//! lose all its data. "Wait for the longest ttl" is the only rule that speaks of time, and it is
//! modelled by what it achieves: the attempts that had begun before the loss have ended.
//!
//! Checked are **F1**, fences are distinct, and **F2**, a fence is greater than every fence that was
//! returned before its acquisition began. The rules that the product follows are [`Rules::REAL`];
//! each other variant breaks one of them, and the check must find the violation.
//!
//! States that differ only in the numbering of nodes and clients are counted once.

mod holds;
mod model;
mod rules;
mod state;

pub use model::{Action, RedlockModel};
pub use rules::{Established, Join, Rejoin, Rules};
pub use state::State;
