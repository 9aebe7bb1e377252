//! The lock that a claim is about.

use std::fmt;

use lock_core::ClaimRequest;

use crate::names::Keys;

/// The lock that a claim is about, as the nodes know it.
pub(crate) struct Target {
    pub(crate) lock: String,
    pub(crate) vote: String,
    pub(crate) waiters: String,
    pub(crate) owner: String,
    /// How many fences the hold has, or is to have.
    pub(crate) fences: u32,
    pub(crate) label: String,
}

/// Without the owner, which is the holder's secret.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("lock", &self.lock).finish_non_exhaustive()
    }
}

impl Target {
    pub(crate) fn new(request: &ClaimRequest) -> Self {
        let keys = Keys::new(&request.key);
        let (vote, waiters) = (keys.part("vote"), keys.part("waiters"));
        let label = request.label.clone().unwrap_or_default();
        let (owner, fences) = (request.owner.to_hex(), request.fences);
        Self { lock: keys.lock, vote, waiters, owner, fences, label }
    }
}
