//! What a claim asks of a node.

use std::fmt;
use std::time::Duration;

use lock_core::OwnerId;

use crate::names::Keys;

/// The lock that a claim is about, as the nodes know it.
pub(crate) struct Target {
    pub(crate) lock: String,
    pub(crate) vote: String,
    pub(crate) waiters: String,
    pub(crate) owner: String,
    pub(crate) label: String,
}

/// Without the owner, which is the holder's secret.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("lock", &self.lock).finish_non_exhaustive()
    }
}

impl Target {
    pub(crate) fn new(keys: Keys, owner: &OwnerId, label: Option<&str>) -> Self {
        let (vote, waiters) = (keys.part("vote"), keys.part("waiters"));
        let label = label.unwrap_or_default().to_owned();
        Self { lock: keys.lock, vote, waiters, owner: owner.to_hex(), label }
    }
}

/// What one acquire request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) attempt: u32,
    pub(crate) ttl: Duration,
    pub(crate) proposal: u64,
    /// For how long this claim has waited, if it is to be woken.
    pub(crate) waited: Option<Duration>,
    pub(crate) limit: Duration,
}

/// What one renewal asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renew {
    /// The fence that the node must show; `None` for any, which only asks.
    pub(crate) fence: Option<u64>,
    /// The counter with which a successful renewal has found the node to be this owner's: it takes part
    /// in the hold from now on.
    pub(crate) adopt: Option<u64>,
    /// Zero to ask only.
    pub(crate) ttl: Duration,
}
