//! Removing the rows of locks that nobody uses any more.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::{Clock, Result};
use sqlx::sqlite::SqliteRow;
use tokio::runtime::Handle;

use super::inner::{Inner, Turn, micros};
use crate::engine::limits::Limits;
use crate::statements::sqlite::{BATCH, MARK, PAGE};

/// The longest time that one statement of the sweep may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How many pages are looked at in a row.
const PAGES: usize = 8;

/// When to sweep, and where the last sweep stopped.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    /// On the boot-time clock in µs.
    due: AtomicI64,
    running: AtomicBool,
    after: Mutex<String>,
}

#[cfg(test)]
impl Sweeper {
    /// No sweep begins by itself any more.
    pub(super) fn stop(&self) {
        self.running.store(true, Ordering::Release);
    }
}

impl Inner {
    /// Sweeps in the background if it is time to. Called after a grant, so that a program that takes
    /// one lock and ends does its share while it works.
    pub(super) fn sweep_if_due(self: &Arc<Self>) {
        if self.time.boot_us() < self.sweeper.due.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if self.sweeper.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = Running(Arc::clone(self));
        runtime.spawn(async move {
            let inner = &running.0;
            let pause = match inner.sweep().await {
                Ok(true) => inner.retention / 4,
                Ok(false) => Duration::ZERO,
                Err(error) => {
                    tracing::debug!(target: "distlock", %error, "a sweep failed; it is repeated");
                    Duration::from_secs(60)
                }
            };
            let pause = pause.clamp(Duration::from_secs(1), Duration::from_secs(60));
            inner.sweeper.due.store(inner.time.boot_us() + micros(pause), Ordering::Relaxed);
        });
    }

    /// Looks at some pages and removes what can go. True if the end of the table was reached.
    ///
    /// Every step is a statement of its own, in an order that is safe wherever it stops, and with
    /// any number of others who sweep: the greatest fence is in the mark *before* a row is deleted,
    /// and the deletion judges each row anew.
    pub(super) async fn sweep(&self) -> Result<bool> {
        for _ in 0..PAGES {
            let after = self.sweeper.after.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let page = self.sweep_page(after).await?;
            if let Some(greatest) = page.gone.iter().map(|(_, fence)| *fence).max() {
                self.sweep_fold(greatest).await?;
                for batch in page.gone.chunks(BATCH) {
                    self.sweep_delete(batch).await?;
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
        let rows = self
            .read(LIMIT, || {
                self.query(&self.statements.sweep_page)
                    .bind(after.clone())
                    .bind(self.time.boot_id().to_owned())
                    .bind(self.cut())
                    .bind(self.time.booted_us())
            })
            .await?;
        let mut page = Page::default();
        for row in &rows {
            let name: String = self.get(row, 0)?;
            if self.get(row, 2)? && name != MARK {
                page.gone.push((name.clone(), self.get(row, 1)?));
            }
            page.next = Some(name);
        }
        if rows.len() < PAGE {
            page.next = None;
        }
        Ok(page)
    }

    pub(super) async fn sweep_fold(&self, fence: i64) -> Result<()> {
        self.sweep_write(|| self.query(&self.statements.sweep_fold).bind(fence)).await.map(drop)
    }

    pub(super) async fn sweep_delete(&self, batch: &[(String, i64)]) -> Result<()> {
        let deleted = self
            .sweep_write(|| {
                let query = self
                    .query(&self.statements.sweep_delete)
                    .bind(self.time.boot_id().to_owned())
                    .bind(self.cut())
                    .bind(self.time.booted_us());
                // The statement has a fixed number of places; NULL is equal to no name.
                (0..BATCH).fold(query, |query, n| query.bind(batch.get(n).map(|row| row.0.clone())))
            })
            .await?;
        tracing::trace!(target: "distlock", rows = deleted.len(), "swept");
        Ok(())
    }

    /// Waits behind those who want a lock. What cannot be written now is left for the next sweep.
    async fn sweep_write<'q>(
        &self,
        make: impl Fn() -> super::lane::Query<'q> + Send + Sync,
    ) -> Result<Vec<SqliteRow>> {
        match self.execute(Turn::Try, Limits::patient(self.clock.now(), LIMIT), make).await? {
            Some(rows) => Ok(rows),
            None => Err(self.still_locked(LIMIT)),
        }
    }

    /// A row whose lease ended, or that was released, before then can go.
    fn cut(&self) -> i64 {
        self.time.boot_us().saturating_sub(micros(self.retention))
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
