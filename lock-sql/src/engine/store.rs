//! Executing the statements: time limits, retries, and what the replies mean.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{
    Attempt, Clock, ClockInstant, Effect, Error, ErrorKind, FencingToken, LockInfo, LockKey,
    Released, Result, SystemClock,
};

use super::dialect::{Dialect, Links, Turn};
use super::entry::{Entry, Lease, State};
use super::error::{Failure, Means, no_answer, still_locked};
use super::renewals::Renewals;
use super::statement::{Statement, Values};
use super::sweep::Sweeper;
use super::value::{Reply, Row, from_micros, nullable};
use super::wake::{WHILE_CONTENDED, Waiter, busy, held_by};

/// The limit for operations without a call timeout.
pub(crate) const ADMIN_LIMIT: Duration = Duration::from_secs(5);

/// What all claims of one client share.
#[derive(Debug)]
pub(crate) struct Store<D: Dialect> {
    pub(crate) dialect: D,
    pub(crate) links: D::Links,
    pub(crate) renewals: Renewals,
    /// For limits only. Leases run on the database's clock.
    pub(super) clock: SystemClock,
    pub(crate) retention: Duration,
    pub(crate) sweeper: Sweeper,
    /// For claims and background work.
    pub(super) me: Weak<Self>,
}

/// How a statement is executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want<'a> {
    pub(crate) turn: Turn,
    /// Whose lock the statement may take. If its connection is lost, it is not retried: the first
    /// copy may run after the retry and after a release, so the core must know of it.
    pub(crate) owner: Option<&'a str>,
    whole: Duration,
    pub(crate) end: ClockInstant,
    /// Until when it is retried while another client writes.
    patience: ClockInstant,
}

impl<'a> Want<'a> {
    /// Retries for three quarters of the time, which leaves some time to report a failure.
    pub(crate) fn patient(turn: Turn, start: ClockInstant, whole: Duration) -> Self {
        Self { turn, owner: None, whole, end: start + whole, patience: start + whole * 3 / 4 }
    }

    /// Does not retry.
    pub(crate) fn once(self) -> Self {
        Self { patience: ClockInstant::from_nanos(0), ..self }
    }

    pub(crate) fn by(self, entry: &'a Entry) -> Self {
        Self { owner: Some(&entry.owner.0), ..self }
    }
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
            renewals: Renewals::default(),
            clock,
            retention,
            sweeper: Sweeper::default(),
            me: Weak::clone(me),
        })
    }

    pub(crate) fn now(&self) -> ClockInstant {
        self.clock.now()
    }

    /// A statement that is retried while another client writes.
    pub(crate) fn want(&self, turn: Turn, limit: Duration) -> Want<'static> {
        Want::patient(turn, self.now(), limit)
    }

    /// Executes a statement. `None` if other clients were writing until patience ran out; nothing
    /// was done then.
    pub(crate) async fn execute(
        &self,
        want: Want<'_>,
        statement: &Statement,
        values: &Values,
    ) -> Result<Option<Reply>, Failure> {
        let make = || self.dialect.query(statement, values);
        let (mut pause, mut looked_again) = (D::PAUSES.0, false);
        // Whether it was retried over another connection, and whether it may already have been
        // executed. Renewals and releases may run twice, and late: the second reply shows what the
        // first one did, except for a release.
        let (mut tried_again, mut repeated) = (false, false);
        let repeating = async {
            loop {
                let mut failure = match self.links.execute(want, &make).await {
                    Ok(reply) => return Ok(Some(Reply { repeated, ..reply })),
                    Err(failure) => failure,
                };
                match failure.means {
                    Means::Contended if self.now() >= want.patience => return Ok(None),
                    Means::Contended => {
                        self.clock.sleep(pause).await;
                        pause = (pause * 2).min(D::PAUSES.1);
                        continue;
                    }
                    // A new connection creates it, or says why not.
                    Means::NoTable if !looked_again => {
                        looked_again = true;
                        self.dialect.look_again();
                        self.links.forget();
                        continue;
                    }
                    Means::Cut => self.links.forget(),
                    _ => {}
                }
                // A restarted server has ended the idle connections as well.
                if failure.means == Means::Cut && !tried_again && want.owner.is_none() {
                    tried_again = true;
                    repeated = failure.error.effect() == Effect::Unknown;
                    continue;
                }
                if repeated {
                    failure.error = failure.error.with_unknown_effect();
                }
                return Err(failure);
            }
        };
        // Neither the driver nor a hung disk limits how long a statement takes.
        tokio::select! {
            biased;
            reply = repeating => reply,
            () = self.clock.sleep_until(want.end) => {
                // The other connections are probably just as silent.
                self.links.forget();
                Err(no_answer(self.at(), want.whole).into())
            }
        }
    }

    /// For operations that must not fail because another client briefly has the row locked.
    pub(crate) async fn patiently(
        &self,
        turn: Turn,
        limit: Duration,
        statement: &Statement,
        values: &Values,
    ) -> Result<Reply> {
        let reply = self.execute(self.want(turn, limit), statement, values).await?;
        reply.ok_or_else(|| self.still_locked(limit))
    }

    /// Whether this client may write, proven by a write that changes nothing.
    pub(crate) async fn probe(&self, limit: Duration) -> Result<()> {
        let probe = &self.dialect.statements().probe;
        self.patiently(Turn::Try, limit, probe, &Values::default()).await.map(drop)
    }

    /// Tries once to take the lock. `polling`: the last answer to this claim was "busy", so it may
    /// be cheaper to read before writing. It also reads while another client writes, since reading
    /// still works then.
    pub(crate) async fn acquire(&self, entry: &Entry, polling: bool) -> Result<Attempt> {
        let look = entry.waiter.as_ref().map(Waiter::look);
        let statement = &self.dialect.statements().acquire;
        let (start, values) = (self.now(), self.dialect.wanted(entry));
        let want = Want::patient(Turn::Try, start, entry.call_timeout).by(entry);
        let mut reply = None;
        if D::LOOKS_FIRST {
            if polling && let Some(busy) = self.held_by_another(entry).await? {
                return Ok(busy);
            }
            reply = self.execute(want.once(), statement, &values).await?;
            if reply.is_none()
                && let Some(busy) = self.held_by_another(entry).await?
            {
                return Ok(busy);
            }
        }
        if reply.is_none() {
            reply = self.execute(want, statement, &values).await?;
        }
        let Some(reply) = reply else { return Ok(busy(Some(WHILE_CONTENDED))) };
        let Some(row) = reply.rows.first() else { return D::missing(self, entry, start).await };
        let attempt = self.attempt(entry, row)?;
        if let Some(look) = look {
            look.answered(matches!(attempt, Attempt::Granted { .. }));
        }
        Ok(attempt)
    }

    /// What the row of an acquire says.
    pub(crate) fn attempt(&self, entry: &Entry, row: &Row) -> Result<Attempt> {
        let left = match self.dialect.told(row)? {
            fence @ 1.. => {
                let token = FencingToken::answered(fence)?;
                return Ok(Attempt::Granted { token, valid_for: Some(entry.ttl) });
            }
            left => from_micros(left.saturating_neg()),
        };
        // A row that was read before others wrote it may be free, or our own.
        let other = Lease::told(row)?.filter(|lease| lease.is_of_another(&entry.owner.0));
        Ok(other.and_then(Lease::holder).map_or_else(|| busy(Some(left)), held_by))
    }

    /// The answer if another client holds the lock; `None` if it can be taken, or if this cannot be
    /// read now. An error if the lease's clock cannot be read here.
    pub(crate) async fn held_by_another(&self, entry: &Entry) -> Result<Option<Attempt>> {
        let want = self.want(Turn::Look, entry.call_timeout).once();
        let look = &self.dialect.statements().look;
        let reply = self.execute(want, look, &entry.values(None)).await?;
        let Some(row) = reply.as_ref().and_then(|reply| reply.rows.first()) else {
            return Ok(None);
        };
        let lease = Lease::read(row)?;
        match &lease.state {
            _ if !lease.is_of_another(&entry.owner.0) => Ok(None),
            State::Elsewhere(clock) => Err(self.dialect.elsewhere(clock)),
            _ => Ok(lease.holder().map(held_by)),
        }
    }

    /// What the row of a name says, read without waiting for a lock.
    pub(crate) async fn look(
        &self,
        turn: Turn,
        name: &str,
        limit: Duration,
    ) -> Result<Option<Lease>> {
        let values = Values::default().with("name", name);
        let reply = self.patiently(turn, limit, &self.dialect.statements().look, &values).await?;
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
        let Some(confirm) = &self.dialect.statements().confirm else { return Ok(None) };
        let reply = self.patiently(Turn::Keep, limit, confirm, &entry.values(fence)).await?;
        let left = reply.rows.first().map(|row| self.dialect.told(row)).transpose()?;
        Ok(match State::of(left.unwrap_or(0)) {
            State::Runs(left) => Some(left),
            _ => None,
        })
    }

    /// Releases a hold of this owner: by owner alone, since the fence is not known after a lost
    /// reply. A claim that has taken over a hold releases [that one](Entry::taken_over) and no
    /// other.
    pub(crate) async fn release(&self, entry: &Entry) -> Result<Released> {
        let (start, limit) = (self.now(), entry.call_timeout);
        // A try that does not end in time is left to retries of the release.
        let settled = tokio::select! {
            biased;
            () = self.links.settled(&entry.owner.0) => true,
            () = self.clock.sleep_until(start + limit / 2) => false,
        };
        let limit = limit.saturating_sub(self.now().since(start));
        let statement = &self.dialect.statements().release;
        let freed = self.free(statement, entry.values(entry.taken_over), limit).await;
        D::released(self, entry).await;
        match freed? {
            // A try that is still under way may still take it.
            Released::AlreadyGone if !settled => Err(self.unanswered()),
            released => Ok(released),
        }
    }

    /// `owner`: `None` for any.
    pub(super) async fn free_by_force(
        &self,
        name: &str,
        owner: Option<String>,
    ) -> Result<Released> {
        let statements = self.dialect.statements();
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
        let want = self.want(Turn::Release, limit);
        let mut repeated = false;
        let loud = values.clone().with("tell", true);
        let reply = match self.execute(want, statement, &loud).await {
            Err(Failure { means: Means::FullQueue, error, .. }) => {
                tracing::warn!(target: "distlock", %error, "waiters cannot be notified, and poll");
                repeated = error.effect() == Effect::Unknown;
                self.execute(want, statement, &values.with("tell", false)).await
            }
            reply => reply,
        };
        let reply = reply?.ok_or_else(|| self.still_locked(limit))?;
        let Some(row) = reply.rows.first() else {
            // Our first release, or another client's forced release: there is no way to tell.
            if repeated || reply.repeated {
                return Err(self.unanswered());
            }
            return Ok(Released::AlreadyGone);
        };
        Ok(match self.dialect.told(row)? == D::WAS_RUNNING {
            true => Released::Freed,
            false => Released::AlreadyGone,
        })
    }

    /// `None` if the lock is free.
    pub(super) fn info(&self, lease: Lease) -> Option<LockInfo> {
        // A name that no lock can have was written by another program and blocks no client.
        let key = LockKey::decode(lease.name.as_deref()?).ok()?;
        Some(LockInfo::new(key, Some(lease.holder()?), None))
    }

    fn at(&self) -> &str {
        &self.dialect.names().at
    }

    pub(super) fn still_locked(&self, limit: Duration) -> Error {
        still_locked(self.at(), limit * 3 / 4)
    }

    /// The release may have been executed, but its reply was lost.
    fn unanswered(&self) -> Error {
        let what = format!("a connection to {} ended without a reply", self.at());
        Error::new(ErrorKind::Unavailable, what).with_unknown_effect()
    }
}
