//! Executing the statements: time limits, retries, and what the replies mean.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lock_core::{Attempt, Clock, ClockInstant, Effect, Error, Result, SystemClock};

use super::driver::Driver;
use super::entry::{Entry, Lease, State};
use super::error::{Failure, Means, no_answer, still_locked};
use super::links::{Links, Turn, Want};
use super::statement::{Statement, Statements, Values};
use super::value::{Reply, Row, from_micros};
use super::wake::{busy, held_by};

/// One client's way to its database.
#[derive(Debug)]
pub(crate) struct Executor<V: Driver> {
    pub(crate) driver: Arc<V>,
    pub(crate) links: Arc<dyn Links>,
    /// For limits only. Leases run on the database's clock.
    pub(crate) clock: SystemClock,
}

impl<V: Driver> Executor<V> {
    pub(crate) fn now(&self) -> ClockInstant {
        self.clock.now()
    }

    pub(crate) fn statements(&self) -> &Statements {
        &self.driver.table().statements
    }

    pub(crate) fn own(&self) -> &V::Own {
        &self.driver.table().own
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
        let begun = self.now();
        // Neither the driver nor a hung disk limits how long a statement takes.
        tokio::select! {
            biased;
            reply = self.repeat(want, statement, values) => reply,
            () = self.clock.sleep_until(want.end) => {
                self.links.gave_up(begun);
                Err(no_answer(self.at(), want.whole).into())
            }
        }
    }

    async fn repeat(
        &self,
        want: Want<'_>,
        statement: &Statement,
        values: &Values,
    ) -> Result<Option<Reply>, Failure> {
        let make = || self.driver.query(statement, values);
        let (mut pause, mut looked_again) = (V::PAUSES.0, false);
        // Whether it was retried over another connection, and whether it may already have been
        // executed. Renewals and releases may run twice, and late: the second reply shows what the
        // first one did, except for a release.
        let (mut tried_again, mut repeated) = (false, false);
        loop {
            let mut failure = match self.links.execute(want, &make).await {
                Ok(reply) => return Ok(Some(Reply { repeated, ..reply })),
                Err(failure) => failure,
            };
            match failure.means {
                Means::Contended if self.now() >= want.patience => return Ok(None),
                Means::Contended => {
                    self.clock.sleep(pause).await;
                    pause = (pause * 2).min(V::PAUSES.1);
                    continue;
                }
                // A new connection creates it, or says why not.
                Means::NoTable if !looked_again => {
                    looked_again = true;
                    self.driver.table().checked.store(false, Ordering::Release);
                    self.links.forget();
                    continue;
                }
                Means::Cut => self.links.forget(),
                _ => {}
            }
            // A restarted server has ended the idle connections as well.
            if failure.means == Means::Cut && !tried_again && want.taker.is_none() {
                tried_again = true;
                repeated = failure.error.effect() == Effect::Unknown;
                continue;
            }
            if repeated {
                failure.error = failure.error.with_unknown_effect();
            }
            return Err(failure);
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
        let probe = &self.statements().probe;
        self.patiently(Turn::Try, limit, probe, &Values::default()).await.map(drop)
    }

    /// What the row of an acquire says.
    pub(crate) fn attempt(&self, entry: &Entry, row: &Row) -> Result<Attempt> {
        let left = match self.driver.told(row)? {
            last @ 1.. => {
                let token = entry.first(last)?;
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
        let reply = self.execute(want, &self.statements().look, &entry.values(None)).await?;
        let Some(row) = reply.as_ref().and_then(|reply| reply.rows.first()) else {
            return Ok(None);
        };
        let lease = Lease::read(row)?;
        match &lease.state {
            _ if !lease.is_of_another(&entry.owner.0) => Ok(None),
            State::Elsewhere(clock) => Err(self.driver.elsewhere(clock)),
            _ => Ok(lease.holder().map(held_by)),
        }
    }

    pub(crate) fn at(&self) -> &str {
        &self.driver.table().names.at
    }

    pub(crate) fn still_locked(&self, limit: Duration) -> Error {
        still_locked(self.at(), limit * 3 / 4)
    }
}
