//! Removing the rows of locks that nobody uses any more.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::{Clock, Result};
use tokio::runtime::Handle;

use super::inner::{Inner, Want, micros};
use super::pool::Turn;
use super::value::Value;
use crate::statements::postgres::{MARK, PAGE, Sql};

/// The longest time that one statement of the sweep may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How many pages are looked at in a row.
const PAGES: usize = 8;
/// How many rows one statement deletes.
const BATCH: usize = 64;
/// So many versions of rows that nobody needs are worth a warning.
const MANY: i64 = 10_000;
/// The pause between raising the mark and deleting. A statement that inserts a row reads the mark as it
/// was when the statement began, so one that began before the mark was raised must have ended.
const SETTLE: Duration = Duration::from_secs(2);

/// When to sweep, and where the last sweep stopped.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    /// On the store's clock in ns.
    due: AtomicU64,
    running: AtomicBool,
    after: Mutex<String>,
    /// For how many row versions that nobody needs there was a warning.
    warned: AtomicI64,
}

impl Inner {
    /// Sweeps in the background if it is time to. Called after a grant, so that a program that takes
    /// one lock and ends does its share while it works.
    pub(super) fn sweep_if_due(self: &Arc<Self>) {
        if self.clock.now().as_nanos() < self.sweeper.due.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if self.sweeper.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = Running(Arc::clone(self));
        runtime.spawn(async move {
            let inner = &running.0;
            let pause = match inner.sweep(SETTLE).await {
                Ok(true) => inner.retention / 4,
                Ok(false) => Duration::ZERO,
                Err(error) => {
                    tracing::debug!(target: "distlock", %error, "a sweep failed; it is repeated");
                    Duration::from_secs(60)
                }
            };
            let pause = pause.clamp(Duration::from_secs(1), Duration::from_secs(60));
            inner.warn_of_dead_rows().await;
            let due = inner.clock.now() + pause;
            inner.sweeper.due.store(due.as_nanos(), Ordering::Relaxed);
        });
    }

    /// Each statement on a lock looks at all versions of its row that the server has not removed yet.
    async fn warn_of_dead_rows(&self) {
        let table = Value::from(&*self.site.place.table.quoted());
        let Ok(rows) = self.read(LIMIT, &self.statements.dead_rows, &[table]).await else { return };
        let number = rows.first().and_then(|row| self.get(row, 0).ok()).unwrap_or(0_i64);
        // Not again before it is twice as bad, or was well in between.
        let warned = self.sweeper.warned.load(Ordering::Relaxed);
        if number < MANY {
            self.sweeper.warned.store(0, Ordering::Relaxed);
        } else if number / 2 >= warned {
            self.sweeper.warned.store(number, Ordering::Relaxed);
            tracing::warn!(target: "distlock", at = %self.site.place.endpoint, number, "the lock table has many dead row versions, and locks that change hands often become slow: look for an old snapshot (a long transaction, a prepared one, a replication slot), and whether autovacuum is on");
        }
    }

    /// Looks at some pages and removes what can go. True if the end of the table was reached.
    ///
    /// Every step is a statement of its own, in an order that is safe wherever it stops, and with
    /// any number of others who sweep: the greatest fence is in the mark *before* a row is deleted,
    /// and the deletion judges each row anew.
    pub(super) async fn sweep(&self, settle: Duration) -> Result<bool> {
        for _ in 0..PAGES {
            let after = self.sweeper.after.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let page = self.sweep_page(after).await?;
            if let Some(greatest) = page.gone.iter().map(|(_, fence)| *fence).max() {
                self.sweep_write(&self.statements.sweep_fold, &[Value::from(greatest)]).await?;
                self.clock.sleep(settle).await;
                for batch in page.gone.chunks(BATCH) {
                    let names = batch.iter().map(|(name, _)| name.clone()).collect();
                    let values = [Value::Texts(names), Value::from(micros(self.retention))];
                    let rows = self.sweep_write(&self.statements.sweep_delete, &values).await?;
                    tracing::trace!(target: "distlock", rows, "swept");
                }
            }
            let at_end = page.next.is_none();
            *self.sweeper.after.lock().unwrap_or_else(PoisonError::into_inner) =
                page.next.unwrap_or_default();
            if at_end {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) async fn sweep_page(&self, after: String) -> Result<Page> {
        let values = [Value::from(&*after), Value::from(micros(self.retention))];
        let rows = self.read(LIMIT, &self.statements.sweep_page, &values).await?;
        let mut page = Page::default();
        for row in &rows {
            let name: String = self.get(row, 0)?;
            if self.get(row, 2)? && name != MARK {
                page.gone.push((name.clone(), self.get(row, 1)?));
            }
            page.next = Some(name);
        }
        if i64::try_from(rows.len()).unwrap_or(i64::MAX) < PAGE {
            page.next = None;
        }
        Ok(page)
    }

    /// Waits behind those who want a lock. What cannot be written now is left for the next sweep.
    async fn sweep_write(&self, sql: &Sql, values: &[Value]) -> Result<usize> {
        match self.execute(Want::new(Turn::Try, LIMIT), sql, values).await? {
            Some(answer) => Ok(answer.rows.len()),
            None => Err(self.still_locked(LIMIT)),
        }
    }
}

/// A sweep under way. Its end is noted also if its runtime ends before it.
struct Running(Arc<Inner>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.sweeper.running.store(false, Ordering::Release);
    }
}

#[derive(Debug, Default)]
pub(super) struct Page {
    /// Name and fence of the rows that can go.
    pub(super) gone: Vec<(String, i64)>,
    /// The last name, if there may be more.
    next: Option<String>,
}
