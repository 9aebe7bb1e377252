//! What a dialect tells the engine.

use std::fmt::Debug;
use std::time::Duration;

use lock_core::{Capabilities, ClockInstant, Error, FencingToken, Result, async_trait};

use super::entry::Entry;
use super::value::{Query, Reply, Row, Value};
use super::wake::Waiter;

/// One database: the text of its statements, what is bound to them, and what their rows say.
///
/// What a method does to a row is one statement in autocommit, so that dropping it leaves no transaction
/// open.
pub(crate) trait Dialect: Debug + Send + Sync + Sized + 'static {
    type Links: Links;

    const NAME: &'static str;
    /// The first and the longest pause between two tries while somebody else writes, beside the time
    /// for which the database itself waits. The connection is free for others in the meantime.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));
    /// Whether a sweep may begin after the first grant. It would take the connection that the program
    /// needs next where making one is expensive; then clients that live for a moment sweep at their end.
    const SWEEPS_AT_ONCE: bool = true;
    /// The pause between raising the mark and deleting.
    const SETTLE: Duration = Duration::ZERO;
    /// How many rows one statement of the sweep deletes.
    const SWEPT: usize = 64;
    /// What the release of a lease answers that was running.
    const WAS_RUNNING: i64 = 1;

    fn capabilities(&self) -> Capabilities;
    /// The database as errors name it.
    fn endpoint(&self) -> String;

    /// Writes nothing, and fails where writing would.
    fn probe(&self) -> Query;
    /// One name → a row as [`lease`](Self::lease) reads it.
    fn look(&self, name: &str) -> Query;
    /// All names with this start → rows as `look`. `bare`: of the empty prefix only.
    fn list(&self, start: &str, bare: bool) -> Query;
    /// → whether the lease was running; no row if there is no such hold.
    fn release(&self, freeing: &Freeing<'_>) -> Query;
    /// As `look` where a hold is not found, by a statement that writes or locks: what a read does not
    /// show may have been read from a standby that is behind. → the µs that are left.
    fn confirm(&self, _entry: &Entry, _fence: Option<FencingToken>) -> Option<Query> {
        None
    }
    /// The name after which to begin, and the retention → name, fence, whether it can go.
    fn sweep_page(&self, after: &Value, retention: Duration) -> Query;
    /// Raises the mark to this fence.
    fn sweep_fold(&self, fence: i64) -> Query;
    /// At most [`SWEPT`](Self::SWEPT) names, a fence that was folded before, and the retention.
    fn sweep_delete(&self, names: &[Value], folded: i64, retention: Duration) -> Query;

    /// A row of `look` or `list`.
    fn lease(&self, row: &Row) -> Result<Lease>;
    /// The number that a statement has told of the row that it has found.
    fn told(&self, row: &Row) -> Result<i64> {
        row.int(0)
    }

    /// The store is closed.
    fn closing(&self) {}
    /// The table is not there any more: the next connection looks for it again.
    fn look_again(&self) {}
    /// For a claim for `name`; `None` where the database cannot push.
    fn listen(&self, _name: &str, _wait: bool) -> Option<Waiter> {
        None
    }
}

/// What is given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freeing<'a> {
    pub(crate) name: &'a str,
    /// `None` for any.
    pub(crate) owner: Option<&'a str>,
    /// `None` for any.
    pub(crate) fence: Option<FencingToken>,
    /// By an administrator, so that the holder learns of it.
    pub(crate) by_force: bool,
    /// Whether waiters are told.
    pub(crate) tell: bool,
}

/// What a row says.
#[derive(Debug)]
pub(crate) struct Lease {
    /// The stored name; `None` for one that no lock can have.
    pub(crate) name: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) fence: i64,
    pub(crate) state: State,
    /// Since the start of the hold, where that can be told.
    pub(crate) held: Option<Duration>,
    pub(crate) label: Option<String>,
}

/// What has become of a lease.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Runs(Duration),
    Over,
    /// It counts on a clock that cannot be read here, which is an error to anybody who wants the lock.
    Elsewhere(Error),
}

impl State {
    /// `left`: in µs; not positive when it is over.
    pub(crate) fn of(left: i64) -> Self {
        match left {
            1.. => Self::Runs(super::value::from_micros(left)),
            _ => Self::Over,
        }
    }
}

impl Lease {
    /// How long the lease of this very hold lasts.
    pub(crate) fn left_of(&self, owner: &str, fence: Option<FencingToken>) -> Option<Duration> {
        let mine = self.owner.as_deref() == Some(owner)
            && fence.is_none_or(|fence| fence.as_i64() == self.fence);
        match self.state {
            State::Runs(left) if mine => Some(left),
            _ => None,
        }
    }
}

/// The connections of one client.
#[async_trait]
pub(crate) trait Links: Debug + Send + Sync + 'static {
    /// Executes one statement to its end. `make` is called when a connection is free, so that what it
    /// binds is fresh. `owner`: it may take a lock, and is waited for by [`settled`](Self::settled) if it
    /// is dropped. It goes on until `end` then.
    async fn execute(
        &self,
        turn: Turn,
        owner: Option<&str>,
        end: ClockInstant,
        make: &(dyn Fn() -> Query + Send + Sync),
    ) -> Result<Reply, Failure>;
    /// Uses none of the present connections any more.
    fn forget(&self) {}
    /// Waits until no dropped try of this owner is under way.
    async fn settled(&self, _owner: &str) {}
    async fn close(&self) -> Result<()>;
}

/// Who a statement waits for. The numbers of statements of one kind that are under way at the same time
/// are limited, each by itself: however many want a lock, or wait to give up one whose row somebody else
/// has locked, keeping does not wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Keeping locks.
    Keep,
    /// Reading whether one is kept.
    Check,
    /// Giving them up, and telling the next one.
    Release,
    /// Getting them, and cleaning up.
    Try,
    /// Reading for those who do not hold them.
    Look,
}

/// Why a statement was not executed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Somebody else was writing. Nothing was done, and the same statement may succeed at once.
    Contended,
    /// The table is not there any more. Nothing was done.
    NoTable(Error),
    /// The server takes no more notifications. Nothing was done, and the same statement without one may
    /// succeed.
    FullQueue(Error),
    /// The connection was lost, perhaps long ago, and perhaps with the statement done.
    Cut(Error),
    /// Anything else.
    Failed(Error),
}

/// What is left of the connections when a statement has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// This one is as good as new.
    Usable,
    /// This one has ended, or is about to.
    Broken,
    /// The server does not write, or is going away: the next one may be another server.
    AllBroken,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Failure {
    /// An earlier copy of the statement may have been executed, whatever has become of this one.
    pub(crate) fn with_unknown_effect(self) -> Self {
        match self {
            Self::Contended => self,
            Self::NoTable(error) => Self::NoTable(error.with_unknown_effect()),
            Self::FullQueue(error) => Self::FullQueue(error.with_unknown_effect()),
            Self::Cut(error) => Self::Cut(error.with_unknown_effect()),
            Self::Failed(error) => Self::Failed(error.with_unknown_effect()),
        }
    }

    pub(crate) fn into_error(self, endpoint: &str) -> Error {
        match self {
            Self::Contended => Error::new(
                lock_core::ErrorKind::Unavailable,
                format!("{endpoint}: others were writing to the same row all the time"),
            ),
            Self::NoTable(error)
            | Self::FullQueue(error)
            | Self::Cut(error)
            | Self::Failed(error) => error,
        }
    }
}
