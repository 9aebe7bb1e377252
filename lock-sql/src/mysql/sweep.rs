//! Removing the rows of locks that nobody uses any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{ClockInstant, OsRng, Result, jitter};
use tokio::runtime::Handle;

use super::inner::{Inner, micros};
use super::pool::{Answer, Query, Turn, Want};
use crate::engine::error::still_locked;
use crate::engine::limits::Limits;
use crate::statements::mysql::{MARK_NAME, PAGE, SWEEP};

/// The longest time that one statement of the sweep may take.
const LIMIT: Duration = Duration::from_secs(5);
/// The time between two sweeps.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// How many pages are looked at in a row.
const PAGES: usize = 8;

/// When to sweep, and where the last sweep stopped.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    due: Mutex<Option<ClockInstant>>,
    running: AtomicBool,
    swept: AtomicBool,
    after: Mutex<Vec<u8>>,
}

impl Sweeper {
    fn due(&self) -> MutexGuard<'_, Option<ClockInstant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Sweeper {
    /// No sweep begins by itself any more.
    pub(super) fn stop(&self) {
        self.swept.store(true, Ordering::Release);
        self.running.store(true, Ordering::Release);
    }
}

impl Inner {
    /// Sweeps in the background if it is time to. Called after a grant.
    ///
    /// Not after the first one: it would take the connection that the program needs next. So clients
    /// that live for a moment only sweep when they end, in [`sweep_at_end`](Self::sweep_at_end).
    pub(super) fn sweep_if_due(self: &Arc<Self>) {
        let now = self.now();
        {
            let mut due = self.sweeper.due();
            // At different times for clients that begin together.
            let due = due.get_or_insert_with(|| now + jitter(&OsRng, self.pause()));
            if now < *due {
                return;
            }
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if self.sweeper.running.swap(true, Ordering::AcqRel) {
            return;
        }
        self.sweeper.swept.store(true, Ordering::Relaxed);
        let running = Running(Arc::clone(self));
        runtime.spawn(async move {
            let inner = &running.0;
            let pause = match inner.sweep().await {
                Ok(true) => inner.pause(),
                Ok(false) => SHORTEST,
                Err(error) => {
                    tracing::debug!(target: "distlock", %error, "a sweep failed; it is repeated");
                    LONGEST
                }
            };
            *inner.sweeper.due() = Some(inner.now() + pause);
        });
    }

    /// The share of a client that has taken locks and never swept, at its end.
    pub(super) async fn sweep_at_end(&self) {
        if self.sweeper.due().is_none() || self.sweeper.swept.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.sweep().await {
            tracing::debug!(target: "distlock", %error, "the sweep at the end failed");
        }
    }

    fn pause(&self) -> Duration {
        (self.retention / 4).clamp(SHORTEST, LONGEST)
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
            for batch in page.gone.chunks(SWEEP) {
                let greatest = batch.iter().map(|(_, fence)| *fence).max().unwrap_or(0);
                self.sweep_fold(greatest).await?;
                self.sweep_delete(batch, greatest).await?;
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

    pub(super) async fn sweep_page(&self, after: Vec<u8>) -> Result<Page> {
        let answer = self
            .sweep_step(Want::Rows, || {
                self.query(&self.site.statements.sweep_page)
                    .bind(micros(self.retention))
                    .bind(after.clone())
            })
            .await?;
        let mut page = Page::default();
        for row in &answer.rows {
            let name: Vec<u8> = self.get(row, 0)?;
            if self.get::<i64>(row, 2)? != 0 && name != MARK_NAME {
                page.gone.push((name.clone(), self.get(row, 1)?));
            }
            page.next = Some(name);
        }
        if answer.rows.len() < PAGE {
            page.next = None;
        }
        Ok(page)
    }

    pub(super) async fn sweep_fold(&self, fence: i64) -> Result<()> {
        let fold = || self.query(&self.site.statements.sweep_fold).bind(fence);
        self.sweep_step(Want::Number, fold).await.map(drop)
    }

    /// `folded`: a fence that was folded before, not below any of these rows'.
    pub(super) async fn sweep_delete(&self, batch: &[(Vec<u8>, i64)], folded: i64) -> Result<()> {
        let answer = self
            .sweep_step(Want::Number, || {
                let query = self
                    .query(&self.site.statements.sweep_delete)
                    .bind(folded)
                    .bind(micros(self.retention));
                // The statement has a fixed number of places; NULL is equal to no name.
                (0..SWEEP).fold(query, |query, n| query.bind(batch.get(n).map(|row| row.0.clone())))
            })
            .await?;
        tracing::trace!(target: "distlock", rows = answer.affected, "swept");
        Ok(())
    }

    /// Waits behind those who want a lock. What cannot be written now is left for the next sweep.
    async fn sweep_step(
        &self,
        want: Want,
        make: impl Fn() -> Query + Send + Sync,
    ) -> Result<Answer> {
        let limits = Limits::patient(self.now(), LIMIT);
        let answer = self.execute(Turn::Try, want, limits, make).await?;
        answer.ok_or_else(|| still_locked(&self.site.place.table(), LIMIT * 3 / 4))
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
    pub(super) gone: Vec<(Vec<u8>, i64)>,
    /// The last name, if there may be more.
    next: Option<Vec<u8>>,
}
