//! Taking, keeping and giving back a lock, by statements.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Clock, Effect, Error, ErrorKind, FencingToken, LockInfo, LockKey, Released, Result,
    SystemClock, async_trait,
};

use super::dialect::Dialect;
use super::driver::Driver as _;
use super::entry::{Due, Entry, Lease, Outcome, State};
use super::error::{Failure, Means};
use super::executor::Executor;
use super::links::{Links, Turn, Want};
use super::renewals::{Renew, Renewals};
use super::statement::{Statement, Values};
use super::value::nullable;
use super::wake::{WHILE_CONTENDED, busy};

/// The limit for operations without a call timeout.
pub(crate) const ADMIN_LIMIT: Duration = Duration::from_secs(5);

/// What all claims of one client share.
#[derive(Debug)]
pub(crate) struct Store<D: Dialect> {
    pub(crate) dialect: D,
    pub(crate) executor: Arc<Executor<D::Driver>>,
    pub(crate) renewals: Renewals,
}

#[async_trait]
impl<D: Dialect> Renew for Store<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    async fn renew(&self, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        self.dialect.renew(&self.executor, dues, limit).await
    }
}

impl<D: Dialect> Store<D> {
    /// `clock`: that of `links`.
    pub(crate) fn new(
        dialect: D,
        driver: Arc<D::Driver>,
        links: Arc<dyn Links>,
        clock: SystemClock,
    ) -> Self {
        let executor = Arc::new(Executor { driver, links, clock });
        Self { dialect, executor, renewals: Renewals::default() }
    }

    /// Tries once to take the lock. `polling`: the last answer to this claim was "busy", so it may
    /// be cheaper to read before writing. It also reads while another client writes, since reading
    /// still works then.
    pub(crate) async fn acquire(&self, entry: &Entry, polling: bool) -> Result<Attempt> {
        let look = entry.waiter.as_ref().map(|waiter| (waiter, waiter.look()));
        let statement = &self.executor.statements().acquire;
        let (start, values) = (self.executor.now(), self.dialect.wanted(entry));
        let want = Want::patient(Turn::Try, start, entry.call_timeout).by(entry);
        let mut reply = None;
        if D::LOOKS_FIRST {
            if polling && let Some(busy) = self.executor.held_by_another(entry).await? {
                return Ok(busy);
            }
            reply = self.executor.execute(want.once(), statement, &values).await?;
            if reply.is_none()
                && let Some(busy) = self.executor.held_by_another(entry).await?
            {
                return Ok(busy);
            }
        }
        if reply.is_none() && self.dialect.tries(entry) {
            reply = self.executor.execute(want, statement, &values).await?;
            if reply.is_none() {
                return Ok(busy(Some(WHILE_CONTENDED)));
            }
        }
        let attempt = match reply.as_ref().and_then(|reply| reply.rows.first()) {
            Some(row) => Some(self.executor.attempt(entry, row)?),
            None => self.dialect.missing(&self.executor, entry, start).await?,
        };
        let Some(attempt) = attempt else { return Ok(busy(Some(WHILE_CONTENDED))) };
        if let Some((waiter, look)) = look {
            waiter.answered(look, matches!(attempt, Attempt::Granted { .. }));
        }
        Ok(attempt)
    }

    /// What the row of a name says, read without waiting for a lock.
    pub(crate) async fn look(
        &self,
        turn: Turn,
        name: &str,
        limit: Duration,
    ) -> Result<Option<Lease>> {
        let values = Values::default().with("name", name);
        let reply =
            self.executor.patiently(turn, limit, &self.executor.statements().look, &values).await?;
        reply.rows.first().map(Lease::read).transpose()
    }

    /// How long the lease of a hold lasts; `None` if there is no such hold.
    pub(crate) async fn left(
        &self,
        entry: &Entry,
        fence: Option<FencingToken>,
    ) -> Result<Option<Duration>> {
        let limit = entry.call_timeout;
        let lease = self.look(Turn::Check, &entry.name, limit).await?;
        if let Some(left) = lease.and_then(|lease| lease.left_of(&entry.owner.0, fence)) {
            return Ok(Some(left));
        }
        let Some(confirm) = &self.executor.statements().confirm else { return Ok(None) };
        let reply =
            self.executor.patiently(Turn::Keep, limit, confirm, &entry.values(fence)).await?;
        let left = reply.rows.first().map(|row| self.executor.driver.told(row)).transpose()?;
        Ok(match State::of(left.unwrap_or(0)) {
            State::Runs(left) => Some(left),
            _ => None,
        })
    }

    /// Releases a hold of this owner: by owner alone, since the fence is not known after a lost
    /// reply. A claim that has taken over a hold releases [that one](Entry::taken_over) and no
    /// other.
    pub(crate) async fn release(&self, entry: &Entry) -> Result<Released> {
        let (start, limit) = (self.executor.now(), entry.call_timeout);
        // A try that does not end in time is left to retries of the release.
        let settled = tokio::select! {
            biased;
            () = entry.settled() => true,
            () = self.executor.clock.sleep_until(start + limit / 2) => false,
        };
        let limit = limit.saturating_sub(self.executor.now().since(start));
        let statement = &self.executor.statements().release;
        let freed = self.free(statement, entry.values(entry.taken_over), limit).await;
        let is_free = matches!(freed, Ok(Released::Freed));
        self.dialect.released(&self.executor, entry, is_free).await;
        match freed? {
            // A try that is still under way may still take it.
            Released::AlreadyGone if !settled => Err(self.unanswered()),
            released => Ok(released),
        }
    }

    /// `owner`: `None` for any.
    pub(crate) async fn free_by_force(
        &self,
        name: &str,
        owner: Option<String>,
    ) -> Result<Released> {
        let statements = self.executor.statements();
        let values = Values::default()
            .with("name", name)
            .with("owner", nullable(owner))
            .with("fence", None::<FencingToken>);
        let statement = statements.force.as_ref().unwrap_or(&statements.release);
        self.free(statement, values, ADMIN_LIMIT).await
    }

    /// Releases a hold, and notifies a waiter if possible.
    async fn free(
        &self,
        statement: &Statement,
        values: Values,
        limit: Duration,
    ) -> Result<Released> {
        let want = self.executor.want(Turn::Release, limit);
        let mut repeated = false;
        let loud = values.clone().with("tell", true);
        let reply = match self.executor.execute(want, statement, &loud).await {
            Err(Failure { means: Means::FullQueue, error, .. }) => {
                tracing::warn!(target: "distlock", %error, "waiters cannot be notified, and poll");
                repeated = error.effect() == Effect::Unknown;
                self.executor.execute(want, statement, &values.with("tell", false)).await
            }
            reply => reply,
        };
        let reply = reply?.ok_or_else(|| self.executor.still_locked(limit))?;
        let Some(row) = reply.rows.first() else {
            // Our first release, or another client's forced release: there is no way to tell.
            if repeated || reply.repeated {
                return Err(self.unanswered());
            }
            return Ok(Released::AlreadyGone);
        };
        Ok(match self.executor.driver.told(row)? == D::WAS_RUNNING {
            true => Released::Freed,
            false => Released::AlreadyGone,
        })
    }

    /// `None` if the lock is free.
    pub(crate) fn info(&self, lease: Lease) -> Option<LockInfo> {
        // A name that no lock can have was written by another program and blocks no client.
        let key = LockKey::decode(lease.name.as_deref()?).ok()?;
        Some(LockInfo::new(key, Some(lease.holder()?), None))
    }

    /// The release may have been executed, but its reply was lost.
    fn unanswered(&self) -> Error {
        let what = format!("a connection to {} ended without a reply", self.executor.at());
        Error::new(ErrorKind::Unavailable, what).with_unknown_effect()
    }
}
