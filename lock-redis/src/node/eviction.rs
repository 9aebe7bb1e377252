//! Servers that may evict locks.

/// What to do about a server that may evict locks when its memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// Refuse it: an evicted lock has two holders.
    #[default]
    Refuse,
    /// Use it all the same, and log a warning at every connect. Only for servers whose memory cannot
    /// get full.
    Warn,
}
