//! Renewals that are due together go out as one statement. The same for every dialect.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::batch::{self, Batches};
use lock_core::{Error, ErrorKind, FencingToken, Renewal, Result, async_trait};

use super::entry::{Due, Entry, Outcome};
use super::error::no_answer;

/// The most rows in one statement: this keeps it short, and a deadlock undoes no more than these.
pub(crate) const BATCH: usize = 500;
/// The pause before a row that another client had locked is retried.
const AGAIN: Duration = Duration::from_millis(20);

/// What a batch of renewals is sent to.
#[async_trait]
pub(crate) trait Renew: Debug + Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// Renews all of `dues` in one statement, or as few as the database needs: one answer for each,
    /// in their order. There are 1 to [`BATCH`] of them, sorted by name, and no
    /// name comes twice. A row that another client has locked must not delay the others.
    async fn renew(&self, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>>;
}

/// The renewals of one store.
#[derive(Debug)]
pub(crate) struct Renewals(Batches<Item, Result<Outcome>>);

/// One lease to renew, and its token where it is known.
type Item = (Arc<Entry>, Option<FencingToken>);
type Batch = Vec<batch::Entry<Item, Result<Outcome>>>;

impl Default for Renewals {
    fn default() -> Self {
        Self(Batches::of_at_most(BATCH))
    }
}

impl Renewals {
    /// Renews one lease, together with all others due at this moment. The statement is always sent
    /// after this call, so the lease runs from this call at the earliest (clause C4).
    ///
    /// A dropped call may still be executed.
    pub(crate) async fn renew(
        &self,
        store: &Arc<impl Renew>,
        entry: &Arc<Entry>,
        fence: Option<FencingToken>,
    ) -> Result<Renewal> {
        let renewal = async {
            loop {
                let store = Arc::clone(store);
                let send = move |batch| send(Arc::clone(&store), batch);
                match self.0.ask((Arc::clone(entry), fence), send).await?? {
                    Outcome::Renewed => return Ok(Renewal::Alive { valid_for: Some(entry.ttl) }),
                    Outcome::Gone => return Ok(Renewal::Lost),
                    // Retried as long as the caller waits, without holding up other renewals.
                    Outcome::Locked => tokio::time::sleep(AGAIN).await,
                }
            }
        };
        let limit = entry.call_timeout;
        tokio::time::timeout(limit, renewal)
            .await
            .unwrap_or_else(|_| Err(no_answer(store.name(), limit)))
    }
}

async fn send(store: Arc<impl Renew>, mut batch: Batch) {
    // Locking the rows of all batches in one order avoids deadlocks between them.
    batch.sort_by(|a, b| a.request.0.name.cmp(&b.request.0.name));
    while !batch.is_empty() {
        // Two holds of one name, of which at most one is alive, or one hold that is known twice: a
        // statement changes a row once.
        let mut names = HashSet::new();
        let (once, twice): (Batch, Batch) =
            batch.into_iter().partition(|one| names.insert(one.request.0.name.clone()));
        send_once(&*store, once).await;
        batch = twice;
    }
}

async fn send_once(store: &impl Renew, batch: Batch) {
    let limit = batch.iter().map(|one| one.request.0.call_timeout).max().unwrap_or_default();
    let dues: Vec<_> =
        batch.iter().map(|one| Due { entry: &one.request.0, fence: one.request.1 }).collect();
    let answer = match store.renew(&dues, limit).await {
        Ok(found) if found.len() != batch.len() => Err(wrong_answer()),
        answer => answer,
    };
    for (at, one) in batch.into_iter().enumerate() {
        one.answer(match &answer {
            Ok(found) => Ok(found[at]),
            Err(error) => Err(error.clone()),
        });
    }
}

fn wrong_answer() -> Error {
    Error::new(ErrorKind::Internal, "BUG: the answer to a batch of renewals has the wrong length")
        .with_unknown_effect()
}

#[cfg(test)]
mod tests;
