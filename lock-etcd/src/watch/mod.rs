//! What the claims of a client hear of: of changes in the store, and of each other.

pub(crate) mod handover;
mod sharing;
pub(crate) mod task;
