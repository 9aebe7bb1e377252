//! Renewals that fall together travel as one transaction.
//!
//! A transaction of checks is committed by the leader, so it proves what a read does not: that the
//! session exists at the leader. It writes nothing and wakes nobody. A write to the node would wake
//! the next one in the queue at every renewal.

use std::sync::Arc;

use lock_core::kit::batch::{Batches, Entry};
use tokio::task::JoinSet;

use crate::session::Session;
use crate::transport::{Checked, Failure};

/// The most checks of one transaction, and the most bytes of their paths: far below the server's limit
/// for one request (`jute.maxbuffer`, 1 MB).
const BATCH: (usize, usize) = (1000, 256 * 1024);
/// How often a transaction is made again without the nodes that it found missing.
const ROUNDS: usize = 4;

/// The renewals of one session.
#[derive(Debug)]
pub(crate) struct Renewals(Batches<String, Result<Found, Failure>>);

impl Default for Renewals {
    fn default() -> Self {
        Self(Batches::weighing(BATCH.0, BATCH.1, String::len))
    }
}

type Batch = Vec<Entry<String, Result<Found, Failure>>>;

/// What the leader says of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    There,
    Gone,
}

impl Session {
    /// Asks the leader whether a node of this session is there, together with whoever else asks at this
    /// moment.
    pub(crate) async fn confirm(self: &Arc<Self>, path: String) -> Result<Found, Failure> {
        let session = Arc::clone(self);
        let answer =
            self.renewals.0.ask(path, move |batch| send(Arc::clone(&session), batch)).await;
        answer.unwrap_or_else(|error| Err(Failure::Unknown(error.to_string())))
    }
}

/// One node that is missing fails the whole transaction, so it is made again without those that are.
async fn send(session: Arc<Session>, mut batch: Batch) {
    for _ in 0..ROUNDS {
        if batch.is_empty() {
            return;
        }
        let paths: Vec<_> = batch.iter().map(|entry| entry.request.as_str()).collect();
        match check(&session, &paths).await {
            Ok(Checked::All) => return answer(batch, &Ok(Found::There)),
            Ok(Checked::Missing(at)) => {
                if at < batch.len() {
                    batch.swap_remove(at).answer(Ok(Found::Gone));
                }
                batch = without_missing(&session, batch).await;
            }
            Err(failure) => return answer(batch, &Err(failure)),
        }
    }
    answer(
        batch,
        &Err(Failure::Unknown("nodes went missing faster than they were checked".into())),
    );
}

/// Asks the leader whether all these nodes exist.
pub(crate) async fn check(session: &Session, paths: &[&str]) -> Result<Checked, Failure> {
    #[cfg(distlock_mutants)]
    if crate::mutants::is("read_based_renewal") {
        return crate::mutants::read_instead_of_checking(session, paths).await;
    }
    session.check(paths).await
}

fn answer(batch: Batch, found: &Result<Found, Failure>) {
    for entry in batch {
        entry.answer(found.clone());
    }
}

/// Answers those of `batch` whose nodes are gone. A node of one's own session that cannot be read has
/// gone: the server has seen everything that this session has done. It is brought up to date first, so
/// that it does not show nodes that the leader misses.
async fn without_missing(session: &Arc<Session>, batch: Batch) -> Batch {
    let Some(any) = batch.first() else { return batch };
    // Without an answer the looks below fail, or show what the next transaction refuses.
    let _ = session.sync(&any.request).await;
    let mut looks = JoinSet::new();
    for entry in batch {
        let session = Arc::clone(session);
        looks.spawn(async move {
            let found = session.get(&entry.request).await;
            (entry, found)
        });
    }
    let mut left = Vec::new();
    for (entry, found) in looks.join_all().await {
        match found {
            Ok(None) => entry.answer(Ok(Found::Gone)),
            Ok(Some(_)) | Err(_) => left.push(entry),
        }
    }
    left
}
