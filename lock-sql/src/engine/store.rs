//! One client of a database: executing its statements within their limits, and taking, keeping and giving
//! back a lock by them; and the steps that only one dialect takes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use lock_core::{
    Attempt, Binding, Capabilities, Clock, ClockInstant, DataLoss, Effect, Error, ErrorKind,
    Fencing, FencingToken, Finding, LockInfo, LockKey, Released, Renewal, Result, Seen,
    SystemClock, Victim, Wake, async_trait,
};
use lock_kit::server::clock_finding;

use crate::engine::renewals::RenewalSender;
use crate::engine::table::lock_table::StatementName;
use crate::engine::table::row::{DueRenewal, LeaseRow, LeaseState, OwnRow, RenewalOutcome};
use crate::engine::table::settings::{MARK, SEEN};
use crate::engine::waiters::{NotifiedClaim, busy, held_by};
use crate::engine::wire::connections::{Connections, StatementClass, StatementLimits};
use crate::engine::wire::driver::SqlDriver;
use crate::engine::wire::errors::{FailureRemedy, StatementFailure, no_answer, still_locked};
use crate::engine::wire::statement::{
    Row, SqlStatement, SqlValue, StatementReply, Values, from_micros, nullable,
};

/// What a dialect does differently, with the statements that it has.
#[async_trait]
pub(crate) trait Dialect: SqlDriver + Sized {
    const NAME: &'static str;
    /// Whether a sweep may begin after the first grant. It would take the connection that the
    /// program needs next where making one is expensive; clients then also sweep at their end.
    const SWEEPS_AT_ONCE: bool = true;
    /// The pause between raising the mark and deleting.
    const SETTLE: Duration = Duration::ZERO;
    /// What the release of a running lease answers.
    const WAS_RUNNING: i64 = 1;
    /// What makes the database forget commits.
    const LOSES_DATA_ON: &'static [DataLoss] = &[DataLoss::Failover];

    /// How waiters learn of a release.
    fn wake(&self) -> Wake {
        Wake::Poll
    }
    /// For a claim for `name`; `None` where the database cannot push.
    fn listen(&self, _name: &str, _wait: bool) -> Option<NotifiedClaim> {
        None
    }
    /// The store is closed.
    fn closing(&self) {}

    /// Tries once to take the lock. `None`: other clients kept writing to its row. `polling`: the last answer to
    /// this claim was "busy", so that it is cheaper to read before writing.
    async fn acquire(
        store: &SqlStore<Self>,
        entry: &OwnRow,
        polling: bool,
    ) -> Result<Option<Attempt>> {
        let limits = store.limits(StatementClass::Try, entry.call_timeout).taking();
        if polling && let Some(busy) = store.held_by_another(limits, entry).await? {
            return Ok(Some(busy));
        }
        let (acquire, values) = (store.statement(StatementName::Acquire), entry.values(None));
        let mut reply = store.execute(limits.once(), acquire, &values).await?;
        if reply.is_none() {
            // Reading still works while another client writes.
            if let Some(busy) = store.held_by_another(limits, entry).await? {
                return Ok(Some(busy));
            }
            reply = store.execute(limits, acquire, &values).await?;
        }
        let Some(reply) = reply else { return Ok(None) };
        match reply.rows.first() {
            Some(row) => store.attempt(entry, row).map(Some),
            None => Self::acquire_without_row(store, limits, entry).await,
        }
    }
    /// Goes on with an [`acquire`](Self::acquire) that has found no row.
    async fn acquire_without_row(
        _: &SqlStore<Self>,
        _: StatementLimits,
        _: &OwnRow,
    ) -> Result<Option<Attempt>> {
        Ok(None)
    }
    /// See [`RenewalSender::renew_batch`].
    async fn renew_batch(
        store: &SqlStore<Self>,
        dues: &[DueRenewal<'_>],
        limit: Duration,
    ) -> Result<Vec<RenewalOutcome>>;
    /// After a release: the claim no longer waits. `is_free`: the lock is, and nobody was notified of it.
    async fn released(_: &SqlStore<Self>, _: StatementLimits, _: &OwnRow, _is_free: bool) {}
    /// What an operator should know about the database.
    async fn diagnose(store: &SqlStore<Self>) -> Result<Vec<Finding>>;
    /// After a sweep.
    async fn swept(_: &SqlStore<Self>) {}

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(Binding::Lease, self.wake());
        // The next fence is made from the stored one; the clock is needed only if the data are
        // lost.
        capabilities.fencing = Fencing::Durable;
        capabilities.fence_block = true;
        capabilities.detachable = true;
        capabilities.inspect = true;
        capabilities.look = true;
        capabilities.loses_data_on = Self::LOSES_DATA_ON;
        capabilities
    }
}

/// The limit for operations without a call timeout.
pub(crate) const ADMIN_LIMIT: Duration = Duration::from_secs(5);

/// What all claims of one client share.
#[derive(Debug)]
pub(crate) struct SqlStore<D> {
    pub(crate) dialect: Arc<D>,
    pub(crate) connections: Arc<dyn Connections>,
    /// For limits only, and that of `connections`. Leases run on the database's clock.
    pub(crate) clock: SystemClock,
}

/// Executing statements.
impl<D: Dialect> SqlStore<D> {
    pub(crate) fn now(&self) -> ClockInstant {
        self.clock.now()
    }

    pub(crate) fn statement(&self, name: StatementName) -> &SqlStatement {
        self.dialect.table().statement(name)
    }

    pub(crate) fn at(&self) -> &str {
        &self.dialect.table().names.at
    }

    /// A statement that is retried while another client writes.
    pub(crate) fn limits(&self, class: StatementClass, limit: Duration) -> StatementLimits {
        StatementLimits::patient(class, self.now(), limit)
    }

    /// Executes a statement. `None` if other clients were writing until patience ran out; nothing
    /// was done then, or what a renewal that is sent again does. It is an error for a release that was sent twice: the
    /// first copy may have been executed.
    pub(crate) async fn execute(
        &self,
        limits: StatementLimits,
        statement: &SqlStatement,
        values: &Values<'_>,
    ) -> Result<Option<StatementReply>, StatementFailure> {
        let (begun, mut pause, mut looked_again) = (self.now(), D::PAUSES.0, false);
        // Whether it was retried over another connection, and whether it may already have been
        // executed. Renewals and releases may run twice, and late: the second reply shows what the
        // first one did, except for a release.
        let (mut tried_again, mut repeated) = (false, false);
        loop {
            if self.now() >= limits.end {
                // What was sent before has used up the time of the call (clause C12).
                return Err(no_answer(self.at(), limits.whole).into());
            }
            // Neither the driver nor a hung disk limits how long a statement takes.
            let answer = tokio::select! {
                biased;
                answer = self.connections.execute(limits, statement, values) => answer,
                () = self.clock.sleep_until(limits.end) => {
                    self.connections.gave_up(begun);
                    return Err(no_answer(self.at(), limits.whole).into());
                }
            };
            let mut failure = match answer {
                Ok(reply) => return Ok(Some(StatementReply { repeated, ..reply })),
                Err(failure) => failure,
            };
            if repeated {
                failure.error = failure.error.with_unknown_effect();
            }
            if failure.remedy == FailureRemedy::Cut {
                // A restarted server has ended the idle connections as well.
                self.connections.forget();
            }
            match failure.remedy {
                FailureRemedy::Contended if self.now() >= limits.patience => {
                    return match repeated && limits.class == StatementClass::Release {
                        true => Err(failure),
                        false => Ok(None),
                    };
                }
                FailureRemedy::Contended => {
                    self.clock.sleep(pause).await;
                    pause = (pause * 2).min(D::PAUSES.1);
                }
                // A new connection creates it, or says why not.
                FailureRemedy::NoTable if !looked_again => {
                    looked_again = true;
                    self.dialect.table().checked.store(false, Ordering::Release);
                    self.connections.forget();
                }
                FailureRemedy::Cut if !tried_again && !limits.takes => {
                    tried_again = true;
                    repeated = failure.error.effect() == Effect::Unknown;
                }
                _ => return Err(failure),
            }
        }
    }

    /// For operations that must not fail because another client briefly has the row locked.
    pub(crate) async fn patiently(
        &self,
        limits: StatementLimits,
        statement: &SqlStatement,
        values: &Values<'_>,
    ) -> Result<StatementReply> {
        let reply = self.execute(limits, statement, values).await?;
        reply.ok_or_else(|| self.still_locked(limits))
    }

    fn still_locked(&self, limits: StatementLimits) -> Error {
        still_locked(self.at(), limits.whole * 3 / 4)
    }

    /// Whether this client may write, proven by a write that changes nothing.
    pub(crate) async fn probe(&self, limit: Duration) -> Result<()> {
        let limits = self.limits(StatementClass::Try, limit);
        let probe = self.statement(StatementName::Probe);
        self.patiently(limits, probe, &Values::default()).await.map(drop)
    }

    /// The one row of a statement that only reads.
    pub(crate) async fn ask(&self, statement: &SqlStatement, values: &Values<'_>) -> Result<Row> {
        let limits = self.limits(StatementClass::Look, ADMIN_LIMIT);
        let reply = self.patiently(limits, statement, values).await?;
        reply.rows.into_iter().next().ok_or_else(|| {
            Error::new(ErrorKind::Store, format!("{} says nothing about itself", self.at()))
        })
    }

    /// Like [`ask`](Self::ask), for a row whose first column is the server's clock, in µs since 1970.
    pub(crate) async fn ask_with_clock(
        &self,
        statement: &SqlStatement,
        values: &Values<'_>,
    ) -> Result<(Row, Option<Finding>)> {
        let sent = SystemTime::now();
        let row = self.ask(statement, values).await?;
        let answered = SystemTime::now();
        let since = u64::try_from(row.int(0)?).unwrap_or(0);
        let theirs = SystemTime::UNIX_EPOCH + Duration::from_micros(since);
        let apart = clock_finding(self.at(), theirs, (sent, answered));
        Ok((row, apart))
    }
}

/// What a lock's row says, and freeing it.
impl<D: Dialect> SqlStore<D> {
    /// What the row of an acquire says.
    pub(crate) fn attempt(&self, entry: &OwnRow, row: &Row) -> Result<Attempt> {
        let left = match self.dialect.outcome_number(row)? {
            last @ 1.. => {
                let token = entry.first(last)?;
                return Ok(Attempt::Granted { token, valid_for: Some(entry.ttl) });
            }
            left => from_micros(left.saturating_neg()),
        };
        // A row that was read before others wrote it may be free, or our own.
        let other =
            LeaseRow::after_number(row)?.filter(|lease| lease.is_of_another(&entry.owner.0));
        Ok(other.and_then(LeaseRow::holder).map_or_else(|| busy(Some(left)), held_by))
    }

    /// The answer if another client holds the lock; `None` if it can be taken, or if this cannot be
    /// read now. An error if the lease's clock cannot be read here.
    pub(crate) async fn held_by_another(
        &self,
        limits: StatementLimits,
        entry: &OwnRow,
    ) -> Result<Option<Attempt>> {
        let limits = limits.then(StatementClass::Look).once();
        let look = self.statement(StatementName::Look);
        let reply = self.execute(limits, look, &entry.values(None)).await?;
        let Some(row) = reply.as_ref().and_then(|reply| reply.rows.first()) else {
            return Ok(None);
        };
        let lease = LeaseRow::read(row)?;
        match &lease.state {
            _ if !lease.is_of_another(&entry.owner.0) => Ok(None),
            LeaseState::Elsewhere(clock) => Err(self.dialect.elsewhere(clock)),
            _ => Ok(lease.holder().map(held_by)),
        }
    }

    /// What the row of a name says, read without waiting for a lock.
    pub(crate) async fn look(
        &self,
        limits: StatementLimits,
        name: &str,
    ) -> Result<Option<LeaseRow>> {
        let values = Values::default().with("name", name);
        let reply = self.patiently(limits, self.statement(StatementName::Look), &values).await?;
        reply.rows.first().map(LeaseRow::read).transpose()
    }

    /// Whether somebody has these locks (clause C18).
    pub(crate) async fn look_now(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        let limits = self.limits(StatementClass::Look, ADMIN_LIMIT);
        let mut seen = Vec::with_capacity(keys.len());
        for keys in keys.chunks(SEEN) {
            let names: Vec<_> = keys.iter().map(LockKey::encode).collect();
            let all: Vec<_> =
                names.iter().map(|name| SqlValue::from(&**name)).chain([MARK.into()]).collect();
            let look = self.dialect.table().sized(StatementName::LookNow, all.len());
            let values = Values::default().with("names", all);
            let reply = self.patiently(limits, look, &values).await?;
            let rows: HashMap<_, _> =
                reply.rows.iter().map(|row| (row.value(0).as_bytes(), row)).collect();
            for name in &names {
                // The mark is the row of a lock that nobody has.
                let row = rows.get(name.as_bytes()).or_else(|| rows.get(MARK.as_bytes()));
                let shown = row.map(|row| self.seen(row)).transpose()?;
                seen.push(shown.unwrap_or(Seen::Free { floor: None }));
            }
        }
        Ok(seen)
    }

    /// An error if there is a lease whose clock cannot be read here, as for who tries to take the lock.
    fn seen(&self, row: &Row) -> Result<Seen> {
        let lease = LeaseRow::read(row)?;
        match &lease.state {
            LeaseState::Elsewhere(clock) if lease.owner.is_some() => {
                Err(self.dialect.elsewhere(clock))
            }
            _ => Ok(lease.seen()),
        }
    }

    /// A plain read may be answered by a standby that lags behind, by its own clock: so it promises nothing,
    /// and what it does not show is asked for again.
    pub(crate) async fn check(
        &self,
        limits: StatementLimits,
        entry: &OwnRow,
        fence: Option<FencingToken>,
    ) -> Result<Renewal> {
        let lease = self.look(limits, &entry.name).await?;
        if lease.and_then(|lease| lease.left_of(&entry.owner.0, fence)).is_some() {
            return Ok(Renewal::Alive { valid_for: None });
        }
        let left = self.confirmed(limits, entry, fence).await?;
        Ok(left.map_or(Renewal::Lost, |left| Renewal::Alive { valid_for: Some(left) }))
    }

    /// How long the lease of a hold lasts that has all fences of the entry; `None` if there is no such hold.
    pub(crate) async fn confirmed(
        &self,
        limits: StatementLimits,
        entry: &OwnRow,
        fence: Option<FencingToken>,
    ) -> Result<Option<Duration>> {
        let Some(confirm) = self.dialect.table().find(StatementName::Confirm) else {
            let lease = self.look(limits.then(StatementClass::Check), &entry.name).await?;
            let lease = lease.filter(|lease| lease.more >= entry.more);
            return Ok(lease.and_then(|lease| lease.left_of(&entry.owner.0, fence)));
        };
        let limits = limits.then(StatementClass::Keep);
        let reply = self.patiently(limits, confirm, &entry.values(fence)).await?;
        let left = reply.rows.first().map(|row| self.dialect.outcome_number(row)).transpose()?;
        Ok(left.filter(|left| *left > 0).map(from_micros))
    }

    /// Releases a hold of this owner: by owner alone, since the fence is not known after a lost
    /// reply. A claim that has taken over a hold releases [that one](OwnRow::taken_over) and no
    /// other.
    pub(crate) async fn release(
        &self,
        limits: StatementLimits,
        entry: &OwnRow,
    ) -> Result<Released> {
        let release = self.statement(StatementName::Release);
        let freed = self.free(limits, release, entry.values(entry.taken_over)).await;
        let is_free = matches!(freed, Ok((Released::Freed, false)));
        D::released(self, limits, entry, is_free).await;
        freed.map(|(released, _)| released)
    }

    pub(crate) async fn free_by_force(&self, name: &str, victim: &Victim) -> Result<Released> {
        let (owner, fence) = match victim {
            Victim::Anybody => (None, 0),
            Victim::Shown(mark) => match LeaseRow::marked(mark) {
                Some((owner, fence)) => (Some(owner), fence),
                None => return Ok(Released::AlreadyGone),
            },
        };
        let values = Values::default()
            .with("name", name)
            .with("owner", nullable(owner))
            .with("fence", fence);
        let by_force = self.dialect.table().find(StatementName::ReleaseByForce);
        let statement = by_force.unwrap_or_else(|| self.statement(StatementName::Release));
        let limits = self.limits(StatementClass::Release, ADMIN_LIMIT);
        self.free(limits, statement, values).await.map(|(released, _)| released)
    }

    /// Releases a hold, and notifies a waiter if possible. Returns also whether one was.
    async fn free(
        &self,
        limits: StatementLimits,
        statement: &SqlStatement,
        values: Values<'_>,
    ) -> Result<(Released, bool)> {
        let mut repeated = false;
        let loud = values.with("tell", true);
        let reply = match self.execute(limits, statement, &loud).await {
            Err(StatementFailure { remedy: FailureRemedy::FullQueue, error, .. }) => {
                tracing::warn!(target: "distlock", %error, "waiters cannot be notified, and poll");
                repeated = error.effect() == Effect::Unknown;
                self.execute(limits, statement, &loud.with("tell", false)).await
            }
            reply => reply,
        };
        let as_known = |error: Error| if repeated { error.with_unknown_effect() } else { error };
        let reply = reply.map_err(|failure| as_known(failure.error))?;
        let reply = reply.ok_or_else(|| as_known(self.still_locked(limits)))?;
        let Some(row) = reply.rows.first() else {
            // Our first release, or another client's forced release: there is no way to tell.
            if repeated || reply.repeated {
                let what = format!("a connection to {} ended without a reply", self.at());
                return Err(Error::new(ErrorKind::Unavailable, what).with_unknown_effect());
            }
            return Ok((Released::AlreadyGone, false));
        };
        let released = match self.dialect.outcome_number(row)? == D::WAS_RUNNING {
            true => Released::Freed,
            false => Released::AlreadyGone,
        };
        // Where clients are notified, this column tells.
        Ok((released, *row.value(1) != SqlValue::Null))
    }

    /// `None` if the lock is free.
    pub(crate) fn info(&self, lease: LeaseRow) -> Option<LockInfo> {
        // A name that no lock can have was written by another program and blocks no client.
        let key = LockKey::decode(lease.name.as_deref()?).ok()?;
        Some(LockInfo::new(key, Some(lease.holder()?), None))
    }
}

#[async_trait]
impl<D: Dialect> RenewalSender for SqlStore<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    async fn renew_batch(
        &self,
        dues: &[DueRenewal<'_>],
        limit: Duration,
    ) -> Result<Vec<RenewalOutcome>> {
        D::renew_batch(self, dues, limit).await
    }

    async fn renew_alone(&self, due: DueRenewal<'_>, limit: Duration) -> Result<RenewalOutcome> {
        let renew = self.statement(StatementName::RenewAlone);
        let limits = self.limits(StatementClass::Keep, limit).once();
        Ok(match self.execute(limits, renew, &due.entry.values(due.fence)).await? {
            Some(reply) if reply.rows.is_empty() => RenewalOutcome::Gone,
            Some(_) => RenewalOutcome::Renewed,
            None => RenewalOutcome::Locked,
        })
    }
}
