//! Removing the rows of locks that nobody uses any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lock_core::{Clock, OsRng, Result, jitter};
use tokio::runtime::Handle;

use super::driver::Turn;
use super::steps::Steps;
use super::store::{Store, Want};
use super::sweeper::Page;
use super::value::{Query, Reply, Value};

/// The name of the row that has the greatest fence of all rows that were deleted. No lock can be called
/// so: U+0001 is a control character, and not the one that parts prefix and name.
pub(crate) const MARK: &str = "\u{1}fence";
/// How many rows are looked at in one step.
pub(crate) const PAGE: usize = 512;

/// The longest time that one statement of the sweep may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
/// The time between two sweeps.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// How many pages are looked at in a row.
const PAGES: usize = 8;

impl<D: Steps> Store<D> {
    /// Sweeps in the background if it is time to. Called after a grant, so that a program that takes one
    /// lock and ends does its share while it works, or [when it ends](Self::sweep_at_end).
    pub(super) fn sweep_if_due(&self) {
        {
            let (mut due, now) = (self.sweeper.due(), self.now());
            let due = due.get_or_insert_with(|| match D::SWEEPS_AT_ONCE {
                true => now,
                // At different times for clients that begin together.
                false => now + jitter(&OsRng, self.pause()),
            });
            if now < *due {
                return;
            }
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let Some(store) = self.me.upgrade() else { return };
        if self.sweeper.running.swap(true, Ordering::AcqRel) {
            return;
        }
        self.sweeper.swept.store(true, Ordering::Relaxed);
        let running = Running(store);
        runtime.spawn(async move {
            let store = &running.0;
            let pause = match store.sweep(D::SETTLE).await {
                Ok(true) => store.pause(),
                Ok(false) => SHORTEST,
                Err(error) => {
                    tracing::debug!(target: "distlock", %error, "a sweep failed; it is repeated");
                    LONGEST
                }
            };
            D::swept(store).await;
            *store.sweeper.due() = Some(store.now() + pause);
        });
    }

    /// The share of a client that has taken locks and never swept, at its end.
    pub(super) async fn sweep_at_end(&self) {
        if D::SWEEPS_AT_ONCE
            || self.sweeper.due().is_none()
            || self.sweeper.swept.swap(true, Ordering::Relaxed)
        {
            return;
        }
        if let Err(error) = self.sweep(D::SETTLE).await {
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
    pub(crate) async fn sweep(&self, settle: Duration) -> Result<bool> {
        for _ in 0..PAGES {
            let after = self.sweeper.after().clone();
            let page = self.sweep_page(after).await?;
            if let Some(greatest) = page.greatest() {
                self.sweep_fold(greatest).await?;
                self.clock.sleep(settle).await;
                self.sweep_delete(&page, greatest).await?;
            }
            let at_end = page.next.is_none();
            *self.sweeper.after() = page.next.unwrap_or_else(|| Value::from(""));
            if at_end {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) async fn sweep_page(&self, after: Value) -> Result<Page> {
        let make = || self.dialect.sweep_page(&after, self.retention);
        let reply = self.patiently(Turn::Look, LIMIT, make).await?;
        let mut page = Page::default();
        for row in &reply.rows {
            let name = row.value(0);
            if row.flag(2)? && name.as_bytes() != MARK.as_bytes() {
                page.gone.push((name.clone(), row.int(1)?));
            }
            page.next = Some(name);
        }
        if reply.rows.len() < PAGE {
            page.next = None;
        }
        Ok(page)
    }

    pub(crate) async fn sweep_fold(&self, fence: i64) -> Result<()> {
        self.sweep_write(|| self.dialect.sweep_fold(fence)).await.map(drop)
    }

    /// `folded`: a fence that was folded before, not below any of these rows'.
    pub(crate) async fn sweep_delete(&self, page: &Page, folded: i64) -> Result<()> {
        for batch in page.gone.chunks(D::SWEPT) {
            let names: Vec<_> = batch.iter().map(|(name, _)| name.clone()).collect();
            let make = || self.dialect.sweep_delete(&names, folded, self.retention);
            let reply = self.sweep_write(make).await?;
            let rows = reply.affected;
            tracing::trace!(target: "distlock", rows, "swept");
        }
        Ok(())
    }

    /// Waits behind those who want a lock. What cannot be written now is left for the next sweep.
    async fn sweep_write(&self, make: impl Fn() -> Query + Send + Sync) -> Result<Reply> {
        let want = Want { turn: Turn::Try, limits: self.patient(LIMIT), owner: None };
        self.execute(want, make).await?.ok_or_else(|| self.still_locked(LIMIT))
    }
}

/// A sweep under way. Its end is noted also if its runtime ends before it.
struct Running<D: Steps>(Arc<Store<D>>);

impl<D: Steps> Drop for Running<D> {
    fn drop(&mut self) {
        self.0.sweeper.running.store(false, Ordering::Release);
    }
}
