//! What takes a database more than one statement, or one like no other's.

use std::time::Duration;

use lock_core::{Attempt, Result, async_trait};

use super::driver::{Dialect, Turn};
use super::entry::{Due, Entry, Outcome};
use super::limits::Limits;
use super::store::{Store, Want};
use super::value::{Query, Reply};

/// The steps of the operations that differ between the dialects.
#[async_trait]
pub(crate) trait Steps: Dialect {
    /// Looks once, and takes the lock if it is free. `polling`: the last answer to this claim was "busy",
    /// so that it is cheaper to look before writing.
    async fn acquire(store: &Store<Self>, entry: &Entry, polling: bool) -> Result<Attempt>;
    /// See [`Renew::renew`](super::renewals::Renew::renew).
    async fn renew(store: &Store<Self>, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>>;
    /// After a release: the claim waits no more.
    async fn released(_store: &Store<Self>, _entry: &Entry) {}
    /// After a sweep.
    async fn swept(_store: &Store<Self>) {}
}

/// What has become of a try.
pub(crate) enum Taken {
    Answered(Reply),
    /// Somebody else has the lock for so long.
    Held(Duration),
    /// Others were writing all the time.
    Contended,
}

impl<D: Dialect> Store<D> {
    /// Tries to take the lock. Where looking is cheaper, it looks first; and while somebody else writes
    /// it looks as well, since that can be seen all the same.
    pub(crate) async fn take_or_look(
        &self,
        entry: &Entry,
        polling: bool,
        take: impl Fn() -> Query + Send + Sync,
    ) -> Result<Taken> {
        if polling && let Some(left) = self.held_by_another(entry).await? {
            return Ok(Taken::Held(left));
        }
        let start = self.now();
        if let Some(reply) =
            self.take(entry, Limits::once(start, entry.call_timeout), &take).await?
        {
            return Ok(Taken::Answered(reply));
        }
        if let Some(left) = self.held_by_another(entry).await? {
            return Ok(Taken::Held(left));
        }
        let patient = Limits::patient(start, entry.call_timeout);
        let reply = self.take(entry, patient, &take).await?;
        Ok(reply.map_or(Taken::Contended, Taken::Answered))
    }

    /// Executes a statement that may take the lock. Dropped, it is waited for by the owner's release.
    pub(crate) async fn take(
        &self,
        entry: &Entry,
        limits: Limits,
        make: impl Fn() -> Query + Send + Sync,
    ) -> Result<Option<Reply>> {
        let want = Want { turn: Turn::Try, limits, owner: Some(&entry.owner.0) };
        self.execute(want, make).await
    }
}
