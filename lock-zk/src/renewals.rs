//! Renewals that fall together travel as one transaction.
//!
//! A transaction of checks is committed by the leader, so it proves what a read does not: that the
//! session exists at the leader. It writes nothing and wakes nobody. A write to the node would wake
//! the next one in the queue at every renewal.

use std::sync::Arc;

use lock_core::kit::batch::{Batches, Entry};

use crate::connection::reply::{Failure, Reply};
use crate::wire::Session;

/// The most checks of one transaction, and the most bytes of their paths: far below the server's limit
/// for one request (`jute.maxbuffer`, 1 MB).
const BATCH: (usize, usize) = (1000, 256 * 1024);

/// The renewals of one session.
#[derive(Debug)]
pub(crate) struct Renewals {
    session: Arc<Session>,
    batches: Batches<String, Reply<bool>>,
}

impl Renewals {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session, batches: Batches::weighing(BATCH.0, BATCH.1, String::len) }
    }

    /// Asks the leader whether a node of this session is there, together with whatever else is asked at
    /// this moment.
    pub(crate) async fn confirm(&self, path: String) -> Reply<bool> {
        let session = Arc::clone(&self.session);
        self.batches.ask(path, move |batch| send(Arc::clone(&session), batch)).await?
    }
}

/// One node that is missing fails the whole transaction, which says then that those before it are there.
/// Those behind it are asked again in two halves, since many may be missing.
async fn send(session: Arc<Session>, batch: Vec<Entry<String, Reply<bool>>>) {
    let mut parts = vec![batch];
    while let Some(mut part) = parts.pop() {
        let paths: Vec<_> = part.iter().map(|entry| entry.request.as_str()).collect();
        let reply = match session.first_missing(&paths).await {
            Ok(None) => Ok(true),
            Ok(Some(at)) if at < part.len() => {
                let mut behind = part.split_off(at + 1);
                let half = behind.split_off(behind.len() / 2);
                parts.extend([half, behind].into_iter().filter(|part| !part.is_empty()));
                part.pop().into_iter().for_each(|missing| missing.answer(Ok(false)));
                Ok(true)
            }
            Ok(Some(at)) => Err(Failure::Unknown(format!("node {at} is missing"))),
            // Those that are left would fail likewise.
            Err(failure) => {
                part.extend(parts.drain(..).flatten());
                Err(failure)
            }
        };
        for entry in part {
            entry.answer(reply.clone());
        }
    }
}
