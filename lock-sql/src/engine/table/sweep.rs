//! Removing the rows of locks that are no longer used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use lock_core::{Clock, ClockInstant, ErrorKind, OsRng, Result, jitter};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::engine::store::{Dialect, SqlStore};
use crate::engine::table::lock_table::StatementName;
use crate::engine::table::settings::{MARK, PAGE, SWEPT};
use crate::engine::wire::connections::StatementClass;
use crate::engine::wire::statement::{SqlValue, StatementReply, Values};

/// The longest time that one statement of the sweep may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
/// The time between two sweeps.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// How many pages are read in one sweep.
const PAGES: usize = 8;

/// Sweeps for one client. Knows when, and where the last sweep stopped.
#[derive(Debug)]
pub(crate) struct Sweeper<D: Dialect> {
    pub(crate) store: Arc<SqlStore<D>>,
    retention: Duration,
    due: Mutex<Option<ClockInstant>>,
    /// Whether the last sweep has failed.
    fails: AtomicBool,
    /// Locked by the sweep under way.
    after: Arc<tokio::sync::Mutex<SqlValue<'static>>>,
}

/// What one step of the sweep has found.
#[derive(Debug, Default)]
pub(crate) struct SweepPage {
    /// The names of the rows that can be removed.
    pub(crate) gone: Vec<SqlValue<'static>>,
    /// The greatest of their fences.
    pub(crate) greatest: i64,
    /// The last name, if there may be more.
    next: Option<SqlValue<'static>>,
}

impl<D: Dialect> Sweeper<D> {
    pub(crate) fn new(store: Arc<SqlStore<D>>, retention: Duration) -> Self {
        let after = Arc::new(tokio::sync::Mutex::new(SqlValue::from("")));
        Self { store, retention, due: Mutex::default(), fails: AtomicBool::new(false), after }
    }

    /// Sweeps in the background if it is time to. Called after a grant, so that a program that
    /// takes one lock and ends does its share while it works, or [when it
    /// ends](Self::sweep_at_end).
    pub(crate) fn sweep_if_due(self: &Arc<Self>) {
        {
            let (mut due, now) = (self.due.lock(), self.store.now());
            let due = due.get_or_insert_with(|| match D::SWEEPS_AT_ONCE {
                true => now,
                // At different times for clients that start together.
                false => now + jitter(&OsRng, self.pause()),
            });
            if now < *due {
                return;
            }
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let Ok(mut after) = Arc::clone(&self.after).try_lock_owned() else { return };
        let sweeper = Arc::clone(self);
        runtime.spawn(async move {
            let swept = sweeper.sweep_from(&mut after, D::SETTLE).await;
            sweeper.ended(&swept);
            let pause = match swept {
                Ok(true) => sweeper.pause(),
                Ok(false) => SHORTEST,
                Err(_) => LONGEST,
            };
            D::swept(&sweeper.store).await;
            *sweeper.due.lock() = Some(sweeper.store.now() + pause);
        });
    }

    /// The final sweep of a client that has taken locks. A sweep that began before does not take its
    /// place: it leaves the rows that were in use then, and may not come to its end.
    pub(crate) async fn sweep_at_end(&self) {
        if D::SWEEPS_AT_ONCE || self.due.lock().is_none() {
            return;
        }
        self.ended(&self.sweep(D::SETTLE).await);
    }

    /// Reports a failure, for people if the sweep before has not failed: while it goes on, the table grows.
    pub(crate) fn ended(&self, swept: &Result<bool>) {
        // The client was closed: what it has left is for the sweeps of others.
        if let Err(error) = swept
            && error.kind() == ErrorKind::Closed
        {
            tracing::debug!(target: "distlock", %error, "a sweep did not come to its end");
            return;
        }
        let again = self.fails.swap(swept.is_err(), Relaxed);
        match swept {
            Err(error) if again => {
                tracing::debug!(target: "distlock", %error, "a sweep failed again");
            }
            Err(error) => {
                tracing::warn!(target: "distlock", at = %self.store.at(), %error, "unused rows of the lock table were not removed by this sweep; if each one fails, the table grows");
            }
            Ok(_) => {}
        }
    }

    fn pause(&self) -> Duration {
        (self.retention / 4).clamp(SHORTEST, LONGEST)
    }

    /// Reads some pages and removes rows that can go. True if the end of the table was reached.
    ///
    /// Each step is a separate statement, in an order that is safe wherever it stops, and with any
    /// number of concurrent sweeps: the greatest fence is in the mark *before* a row is deleted,
    /// and the deletion checks each row again.
    pub(crate) async fn sweep(&self, settle: Duration) -> Result<bool> {
        self.sweep_from(&mut *self.after.lock().await, settle).await
    }

    async fn sweep_from(&self, after: &mut SqlValue<'static>, settle: Duration) -> Result<bool> {
        for _ in 0..PAGES {
            let page = self.sweep_page(after.clone()).await?;
            if !page.gone.is_empty() {
                self.sweep_fold(page.greatest).await?;
                self.store.clock.sleep(settle).await;
                self.sweep_delete(&page).await?;
            }
            let at_end = page.next.is_none();
            *after = page.next.unwrap_or_else(|| SqlValue::from(""));
            if at_end {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) async fn sweep_page(&self, after: SqlValue<'_>) -> Result<SweepPage> {
        let values = Values::default().with("after", after).with("retention", self.retention);
        let reply = self.send(StatementClass::Look, StatementName::SweepPage, &values).await?;
        let mut page = SweepPage::default();
        for row in &reply.rows {
            let name = row.value(0);
            if row.flag(2)? && name.as_bytes() != MARK.as_bytes() {
                page.gone.push(name.clone());
                page.greatest = page.greatest.max(row.int(1)?);
            }
            page.next = Some(name.clone());
        }
        if reply.rows.len() < PAGE {
            page.next = None;
        }
        Ok(page)
    }

    pub(crate) async fn sweep_fold(&self, fence: i64) -> Result<()> {
        let values = Values::default().with("fence", fence);
        // Waits behind attempts to acquire. What cannot be written now is left to the next sweep.
        self.send(StatementClass::Try, StatementName::SweepFold, &values).await.map(drop)
    }

    /// The fences of the page were folded before.
    pub(crate) async fn sweep_delete(&self, page: &SweepPage) -> Result<()> {
        for names in page.gone.chunks(SWEPT) {
            let values = Values::default()
                .with("names", names.to_vec())
                .with("folded", page.greatest)
                .with("retention", self.retention);
            let reply = self.send(StatementClass::Try, StatementName::SweepDelete, &values).await?;
            tracing::trace!(target: "distlock", rows = reply.affected, "swept");
        }
        Ok(())
    }

    async fn send(
        &self,
        class: StatementClass,
        name: StatementName,
        values: &Values<'_>,
    ) -> Result<StatementReply> {
        let limits = self.store.limits(class, LIMIT);
        self.store.patiently(limits, self.store.statement(name), values).await
    }
}
