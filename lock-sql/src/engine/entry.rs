//! A row of ours in the table, as a claim knows it.

use std::fmt::Debug;
use std::time::Duration;

use lock_core::FencingToken;

use super::wake::Waiter;

/// A lease to renew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due<'a> {
    pub(crate) entry: &'a Entry,
    /// The token of the hold, where it is known.
    pub(crate) fence: Option<FencingToken>,
}

/// What has become of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Our hold, which lasts for a whole ttl again.
    Renewed,
    /// No such hold.
    Gone,
    /// A row that somebody else has locked at this moment. It is asked for again.
    Locked,
}

/// What a claim writes into its row, in the form that is bound to the statements.
#[derive(Debug)]
pub(crate) struct Entry {
    /// [`LockKey::encode`], which is injective (clause C11).
    pub(crate) name: String,
    pub(crate) owner: Secret,
    pub(crate) ttl: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) label: Option<String>,
    /// The hold that this claim says it takes over. It is believed only as far as the row shows it: a
    /// statement that renews, checks or releases compares it there (clause C14).
    pub(crate) taken_over: Option<FencingToken>,
    /// Gets the pushes for this claim; see `Dialect::listen`.
    pub(crate) waiter: Option<Waiter>,
}

/// The owner id in hexadecimal. Whoever knows it can release the lock, so it is never printed.
pub(crate) struct Secret(pub(crate) String);

impl Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}
