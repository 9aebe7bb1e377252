//! The lock that a claim is about.

use std::fmt;

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
