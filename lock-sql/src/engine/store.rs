//! Executing the statements: for how long, how often, and what their answers mean.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{
    Clock, ClockInstant, Effect, Error, FencingToken, HolderInfo, LockInfo, LockKey, Released,
    Result, SystemClock,
};

use super::driver::{Dialect, Failure, Freeing, Lease, Links, State, Turn};
use super::entry::Entry;
use super::error::{no_answer, still_locked, unanswered};
use super::limits::Limits;
use super::sweeper::Sweeper;
use super::value::{Query, Reply};

/// The limit for what has no call timeout of its own.
pub(crate) const ADMIN_LIMIT: Duration = Duration::from_secs(5);

/// What all claims of one client share.
#[derive(Debug)]
pub(crate) struct Store<D: Dialect> {
    pub(crate) dialect: D,
    pub(crate) links: D::Links,
    /// For limits only. The leases are counted by the database's clock.
    pub(super) clock: SystemClock,
    pub(crate) retention: Duration,
    pub(crate) sweeper: Sweeper,
    /// For what goes on in the background.
    pub(super) me: Weak<Self>,
}

/// How a statement is executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want<'a> {
    pub(crate) turn: Turn,
    pub(crate) limits: Limits,
    /// Whose lock the statement may take. Cut off, it is not repeated: it may be executed after the
    /// repeat and after a release, so the core must know of it.
    pub(crate) owner: Option<&'a str>,
}

impl<D: Dialect> Store<D> {
    /// `clock`: that of `links`.
    pub(crate) fn new(
        dialect: D,
        links: D::Links,
        clock: SystemClock,
        retention: Duration,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            dialect,
            links,
            clock,
            retention,
            sweeper: Sweeper::default(),
            me: Weak::clone(me),
        })
    }

    pub(crate) fn now(&self) -> ClockInstant {
        self.clock.now()
    }

    /// For a statement that is repeated while somebody else writes.
    pub(crate) fn patient(&self, limit: Duration) -> Limits {
        Limits::patient(self.now(), limit)
    }

    /// Executes a statement. `None` if others were writing until patience ran out: nothing was done
    /// then.
    pub(crate) async fn execute(
        &self,
        want: Want<'_>,
        make: impl Fn() -> Query + Send + Sync,
    ) -> Result<Option<Reply>> {
        let reply = self.run(want, &make).await;
        reply.map_err(|failure| failure.into_error(&self.dialect.endpoint()))
    }

    /// For what must not fail because somebody else has the row for a moment.
    pub(crate) async fn patiently(
        &self,
        turn: Turn,
        limit: Duration,
        make: impl Fn() -> Query + Send + Sync,
    ) -> Result<Reply> {
        let want = Want { turn, limits: self.patient(limit), owner: None };
        self.execute(want, make).await?.ok_or_else(|| self.still_locked(limit))
    }

    async fn run(
        &self,
        want: Want<'_>,
        make: &(impl Fn() -> Query + Send + Sync),
    ) -> Result<Option<Reply>, Failure> {
        let limits = want.limits;
        // Neither the driver nor a disk that hangs has a limit for a statement.
        tokio::select! {
            biased;
            reply = self.repeat(want, make) => reply,
            () = self.clock.sleep_until(limits.end) => {
                // The other connections are likely to lead into the same silence.
                self.links.forget();
                Err(no_answer(&self.dialect.endpoint(), limits.whole).into())
            }
        }
    }

    async fn repeat(
        &self,
        Want { turn, limits, owner }: Want<'_>,
        make: &(impl Fn() -> Query + Send + Sync),
    ) -> Result<Option<Reply>, Failure> {
        let (mut pause, mut looked_again) = (D::PAUSES.0, false);
        // Whether it was tried again over another connection, and whether it may have been executed
        // before. What keeps a lock or gives it up may be executed twice, and late: what the first one
        // may have done is in the second one's answer, except for that of a release.
        let (mut tried_again, mut repeated) = (false, false);
        loop {
            match self.links.execute(turn, owner, limits.end, make).await {
                Ok(reply) => return Ok(Some(Reply { repeated, ..reply })),
                // A new connection creates it, or says why not.
                Err(Failure::NoTable(_)) if !looked_again => {
                    looked_again = true;
                    self.dialect.look_again();
                    self.links.forget();
                }
                // A server that was started again has ended the idle connections as well.
                Err(Failure::Cut(error)) if !tried_again && owner.is_none() => {
                    tried_again = true;
                    repeated = error.effect() == Effect::Unknown;
                    self.links.forget();
                }
                Err(Failure::Contended) if self.now() >= limits.patience => return Ok(None),
                Err(Failure::Contended) => {
                    self.clock.sleep(pause).await;
                    pause = (pause * 2).min(D::PAUSES.1);
                }
                Err(failure) => {
                    if matches!(failure, Failure::Cut(_)) {
                        self.links.forget();
                    }
                    return Err(if repeated { failure.with_unknown_effect() } else { failure });
                }
            }
        }
    }

    /// Whether this client may write, proven by a write that changes nothing.
    pub(crate) async fn probe(&self, limit: Duration) -> Result<()> {
        self.patiently(Turn::Try, limit, || self.dialect.probe()).await.map(drop)
    }

    /// How long somebody else's lease lasts; `None` if the lock can be taken, or if that cannot be seen
    /// now. An error if its clock cannot be read here.
    pub(crate) async fn held_by_another(&self, entry: &Entry) -> Result<Option<Duration>> {
        let limits = Limits::once(self.now(), entry.call_timeout);
        let want = Want { turn: Turn::Look, limits, owner: None };
        let reply = self.execute(want, || self.dialect.look(&entry.name)).await?;
        let Some(row) = reply.as_ref().and_then(|reply| reply.rows.first()) else {
            return Ok(None);
        };
        let lease = self.dialect.lease(row)?;
        let other = lease.owner.as_deref().is_some_and(|owner| owner != entry.owner.0);
        match lease.state {
            State::Runs(left) if other => Ok(Some(left)),
            State::Elsewhere(error) if other => Err(error),
            _ => Ok(None),
        }
    }

    /// What the row of a name says, read without waiting for anybody.
    pub(crate) async fn look(
        &self,
        turn: Turn,
        name: &str,
        limit: Duration,
    ) -> Result<Option<Lease>> {
        let reply = self.patiently(turn, limit, || self.dialect.look(name)).await?;
        reply.rows.first().map(|row| self.dialect.lease(row)).transpose()
    }

    /// How long the lease of a hold lasts; `None` if there is no such hold.
    pub(super) async fn left(
        &self,
        entry: &Entry,
        fence: Option<FencingToken>,
    ) -> Result<Option<Duration>> {
        let limit = entry.call_timeout;
        let lease = self.look(Turn::Check, &entry.name, limit).await?;
        if let Some(left) = lease.and_then(|lease| lease.left_of(&entry.owner.0, fence)) {
            return Ok(Some(left));
        }
        let Some(confirm) = self.dialect.confirm(entry, fence) else { return Ok(None) };
        let reply = self.patiently(Turn::Keep, limit, || confirm.clone()).await?;
        let left = reply.rows.first().map(|row| self.dialect.told(row)).transpose()?;
        Ok(match State::of(left.unwrap_or(0)) {
            State::Runs(left) => Some(left),
            _ => None,
        })
    }

    /// Gives a hold up.
    pub(super) async fn free(&self, freeing: Freeing<'_>, limit: Duration) -> Result<Released> {
        let start = self.now();
        let settled = match freeing.owner {
            // What does not end in time is left to the repeats of the release.
            Some(owner) => tokio::select! {
                biased;
                () = self.links.settled(owner) => true,
                () = self.clock.sleep_until(start + limit / 2) => false,
            },
            None => true,
        };
        let limit = limit.saturating_sub(self.now().since(start));
        let endpoint = self.dialect.endpoint();
        let release = async |freeing: Freeing<'_>| {
            let want = Want { turn: Turn::Release, limits: self.patient(limit), owner: None };
            self.run(want, &|| self.dialect.release(&freeing)).await
        };
        let (reply, repeated) = match release(freeing).await {
            Err(Failure::FullQueue(error)) => {
                tracing::warn!(target: "distlock", %error, "waiters are not told and poll");
                let quiet = Freeing { tell: false, ..freeing };
                (release(quiet).await, error.effect() == Effect::Unknown)
            }
            reply => (reply, false),
        };
        let reply = reply.map_err(|failure| failure.into_error(&endpoint))?;
        let reply = reply.ok_or_else(|| self.still_locked(limit))?;
        let Some(row) = reply.rows.first() else {
            // Ours, or somebody who took the lock away: nobody can tell. A try that is still under way
            // may yet take it.
            if repeated || reply.repeated || !settled {
                return Err(unanswered(&endpoint));
            }
            return Ok(Released::AlreadyGone);
        };
        Ok(match self.dialect.told(row)? == D::WAS_RUNNING {
            true => Released::Freed,
            false => Released::AlreadyGone,
        })
    }

    /// `None` where nobody holds the lock.
    pub(super) fn info(&self, lease: Lease) -> Option<LockInfo> {
        // A name that no lock can have was written by somebody else and blocks nobody.
        let key = LockKey::decode(&lease.name?).ok()?;
        let mut holder = HolderInfo::new(lease.owner?.parse().ok());
        match lease.state {
            State::Over => return None,
            State::Runs(left) => holder.expires_in = Some(left),
            State::Elsewhere(_) => {}
        }
        holder.held_for = lease.held;
        holder.fence = FencingToken::answered(lease.fence).ok();
        holder.label = lease.label;
        Some(LockInfo::new(key, Some(holder), None))
    }

    pub(super) fn still_locked(&self, limit: Duration) -> Error {
        still_locked(&self.dialect.endpoint(), limit * 3 / 4)
    }
}
