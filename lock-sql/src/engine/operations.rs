//! What differs between the databases.

use std::fmt::Debug;
use std::time::Duration;

use lock_core::{
    Attempt, Capabilities, FencingToken, LockInfo, LockKey, OwnerId, Released, Renewal, Result,
    async_trait,
};

use crate::engine::wake::Waiter;

/// One database with its lock table. The backend and its claims are the same for all of them.
///
/// What a method does to a row is one statement in autocommit, so that dropping it leaves no
/// transaction open. Errors carry neither key nor operation: the core adds them.
#[async_trait]
pub(crate) trait Operations: Debug + Send + Sync + 'static {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;

    /// `polling`: the last answer to this claim was "busy", so that it is cheaper to look before
    /// writing.
    async fn acquire(&self, entry: &Entry, polling: bool) -> Result<Attempt>;
    /// Renews all of `dues` in one statement, or as few as the database needs: one answer for each, in
    /// their order. There are 1 to [`BATCH`](crate::engine::renewals::BATCH) of them, sorted by name, and no
    /// name comes twice. A row that somebody else has locked must not delay the others.
    async fn renew(&self, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>>;
    /// `fence`: the token of the hold, where it is known.
    async fn check(&self, entry: &Entry, fence: Option<FencingToken>) -> Result<Renewal>;
    /// By owner alone, since the fence is not known after a lost answer; a claim that has taken over a
    /// hold gives up [that one](Entry::taken_over) and no other.
    async fn release(&self, entry: &Entry) -> Result<Released>;
    /// The waiter of a claim for `name`; `None` where the database cannot push.
    fn listen(&self, _name: &str, _wait: bool) -> Option<Waiter> {
        None
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>>;
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>>;
    async fn force_release(&self, key: &LockKey, expected: Option<&OwnerId>) -> Result<Released>;
    async fn ping(&self) -> Result<()>;
    async fn close(&self) -> Result<()>;
}

/// A lease to renew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due<'a> {
    pub(crate) entry: &'a Entry,
    /// The token of the hold, where it is known.
    pub(crate) fence: Option<FencingToken>,
}

/// What a renewal has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Our hold, which lasts for a whole ttl again.
    Renewed,
    /// No such hold.
    Gone,
    /// A row that somebody else has locked at this moment. It is asked for again.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "mysql", test)),
        allow(dead_code, reason = "SQLite has one writer at a time, and locks no rows")
    )]
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
    /// Hears pushes for this claim; see [`Operations::listen`].
    pub(crate) waiter: Option<Waiter>,
}

/// The owner id in hexadecimal. Whoever knows it can release the lock, so it is never printed.
pub(crate) struct Secret(pub(crate) String);

impl Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}
