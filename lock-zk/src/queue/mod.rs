//! The queue of a lock: ephemeral sequential nodes under the node of the lock, as in Curator.

mod claim;
pub(crate) mod confirmations;
pub(crate) mod entry;
pub(crate) mod fences;
mod look;
mod operations;
pub(crate) mod watches;

pub(crate) use claim::ZkClaim;
