//! Which entries still exist, for all renewals that are due at the same time, in one transaction.
//!
//! A transaction of checks is committed by the leader, so it proves what a read does not: that the
//! session exists at the leader. It writes nothing and wakes no waiter. A write to the node would
//! wake the next one in the queue at every renewal.

use std::sync::Arc;

use lock_kit::batch::{Batches, Entry};
use zookeeper_client as zk;

use crate::error::{Reply, RequestFailure};
use crate::wire::Session;

/// The most checks of one transaction, and the most bytes of their paths: far below the server's
/// limit for one request (`jute.maxbuffer`, 1 MB).
const BATCH: (usize, usize) = (1000, 256 * 1024);

/// The confirmations of one session.
#[derive(Debug)]
pub(crate) struct Confirmations {
    session: Arc<Session>,
    batches: Batches<String, Reply<bool>>,
}

impl Confirmations {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session, batches: Batches::weighing(BATCH.0, BATCH.1, String::len) }
    }

    /// Asks the leader whether a node of this session exists, together with all other pending
    /// renewals.
    pub(crate) async fn confirm(&self, path: String) -> Reply<bool> {
        let session = Arc::clone(&self.session);
        let send = move |batch| {
            let (limit, sent) = (session.timeout, send(Arc::clone(&session), batch));
            // Without a connection nothing is sent, and by then nobody waits for it any more.
            async move { drop(tokio::time::timeout(limit, sent).await) }
        };
        self.batches.ask(path, send).await?
    }
}

/// One node that is missing, or closed to us, fails the whole transaction, which then proves that those
/// before it exist. Those after it are asked again in two halves, since many may fail.
async fn send(session: Arc<Session>, batch: Vec<Entry<String, Reply<bool>>>) {
    let mut parts = vec![batch];
    while let Some(mut part) = parts.pop() {
        let paths: Vec<_> = part.iter().map(|entry| entry.request.as_str()).collect();
        let reply = match session.first_failing(&paths).await {
            Ok(None) => Ok(true),
            Ok(Some((at, answer))) if at < part.len() => {
                let mut behind = part.split_off(at + 1);
                let half = behind.split_off(behind.len() / 2);
                parts.extend([half, behind].into_iter().filter(|part| !part.is_empty()));
                part.pop().into_iter().for_each(|failing| failing.answer(answer.clone()));
                Ok(true)
            }
            Ok(Some((at, _))) => {
                let why = format!("node {at} fails");
                Err(RequestFailure::Unknown(zk::Error::UnexpectedError(why)))
            }
            // The rest would fail in the same way.
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
