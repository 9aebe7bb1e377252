//! Servers that may evict locks.

use lock_core::kit::url::Params;
use lock_core::{Error, Result};

/// What to do about a server that may evict locks when its memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// Refuse it: an evicted lock has two holders.
    #[default]
    Refuse,
    /// Use it anyway, and log a warning at every connect. Only for servers whose memory cannot
    /// fill up.
    Warn,
}

impl Eviction {
    /// The parameter that [`read`](Self::read) takes out of a URL.
    pub(crate) const PARAMETER: &str = "lock_eviction";

    pub(crate) fn read(params: &mut Params) -> Result<Option<Self>> {
        params.choice(Self::PARAMETER, &[("refuse", Self::Refuse), ("warn", Self::Warn)])
    }

    /// Refuses or warns about a server with this `maxmemory-policy`.
    pub(crate) fn check(self, endpoint: &str, policy: &str) -> Result<()> {
        if policy == "noeviction" {
            return Ok(());
        }
        if self == Self::Warn {
            tracing::warn!(target: "distlock", endpoint, policy, "this server may evict locks while they are held: set maxmemory-policy to noeviction");
            return Ok(());
        }
        Err(Error::config(format!(
            "the Redis server at {endpoint} has maxmemory-policy {policy}: it may evict a held lock, which a second holder then gets. Set it to noeviction, or use another server; lock_eviction=warn accepts the risk"
        )))
    }
}
