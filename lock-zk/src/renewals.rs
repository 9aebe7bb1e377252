//! Renewals that fall together travel as one transaction.
//!
//! A transaction of checks is committed by the leader, so it proves what a read does not: that the
//! session exists at the leader. It writes nothing and wakes nobody. A write to the node would wake
//! the next one in the queue at every renewal.

use std::sync::Arc;

use lock_core::Collector;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::session::Session;
use crate::transport::{Checked, Failure};

/// The most checks of one transaction, and the most bytes of their paths: far below the server's limit
/// for one request (`jute.maxbuffer`, 1 MB).
const BATCH: (usize, usize) = (1000, 256 * 1024);
/// How often a transaction is made again without the nodes that it found missing.
const ROUNDS: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Renewals(Arc<Collector<Waiting>>);

#[derive(Debug)]
struct Waiting {
    path: String,
    reply: oneshot::Sender<Result<Found, Failure>>,
}

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
        let (reply, answer) = oneshot::channel();
        let session = Arc::clone(self);
        self.renewals.0.add(Waiting { path, reply }, move |waiting| flush(&session, waiting));
        answer.await.unwrap_or_else(|_| {
            Err(Failure::Unknown("the runtime of the renewals has ended".into()))
        })
    }
}

fn flush(session: &Arc<Session>, mut waiting: Vec<Waiting>) {
    // Whoever has given up asks nothing.
    waiting.retain(|waiting| !waiting.reply.is_closed());
    let mut batch = Vec::new();
    let mut bytes = 0;
    for one in waiting {
        bytes += one.path.len();
        batch.push(one);
        if batch.len() >= BATCH.0 || bytes >= BATCH.1 {
            tokio::spawn(send(Arc::clone(session), std::mem::take(&mut batch)));
            bytes = 0;
        }
    }
    if !batch.is_empty() {
        tokio::spawn(send(Arc::clone(session), batch));
    }
}

/// One node that is missing fails the whole transaction, so it is made again without those that are.
async fn send(session: Arc<Session>, mut batch: Vec<Waiting>) {
    for _ in 0..ROUNDS {
        if batch.is_empty() {
            return;
        }
        let paths: Vec<_> = batch.iter().map(|waiting| waiting.path.as_str()).collect();
        match check(&session, &paths).await {
            Ok(Checked::All) => return answer(batch, &Ok(Found::There)),
            Ok(Checked::Missing(at)) => {
                if at < batch.len() {
                    let gone = batch.swap_remove(at);
                    let _ = gone.reply.send(Ok(Found::Gone));
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
    #[cfg(feature = "mutants")]
    if crate::mutants::is("read_based_renewal") {
        return crate::mutants::read_instead_of_checking(session, paths).await;
    }
    session.check(paths).await
}

fn answer(batch: Vec<Waiting>, found: &Result<Found, Failure>) {
    for waiting in batch {
        let _ = waiting.reply.send(found.clone());
    }
}

/// Answers those of `batch` whose nodes are gone. A node of one's own session that cannot be read has
/// gone: the server has seen everything that this session has done. It is brought up to date first, so
/// that it does not show nodes that the leader misses.
async fn without_missing(session: &Arc<Session>, batch: Vec<Waiting>) -> Vec<Waiting> {
    let Some(any) = batch.first() else { return batch };
    // Without an answer the looks below fail, or show what the next transaction refuses.
    let _ = session.sync(&any.path).await;
    let mut looks = JoinSet::new();
    for waiting in batch {
        let session = Arc::clone(session);
        looks.spawn(async move {
            let found = session.get(&waiting.path).await;
            (waiting, found)
        });
    }
    let mut left = Vec::new();
    for (waiting, found) in looks.join_all().await {
        match found {
            Ok(None) => {
                let _ = waiting.reply.send(Ok(Found::Gone));
            }
            Ok(Some(_)) | Err(_) => left.push(waiting),
        }
    }
    left
}
