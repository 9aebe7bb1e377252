//! Renewals that are due together travel as one request.

use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::batch::{Batches, Entry};
use lock_core::{Error, ErrorKind, Result};

use super::scripts::{BROKEN, HANDED, PLACE, RENEW};
use crate::node::Node;
use crate::node::Reply;

/// The most entries of one request: about half a millisecond of the server's time.
const BATCH: usize = 256;

/// One entry to renew, or to check.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) kind: Kind,
    pub(crate) lock: String,
    /// What else the kind needs, in the order of the script.
    pub(crate) others: Vec<String>,
    pub(crate) owner: String,
    pub(crate) ttl: Duration,
    pub(crate) limit: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    RenewLock,
    CheckLock,
    RenewPlace,
    CheckPlace,
}

impl Kind {
    fn letter(self) -> &'static str {
        match self {
            Self::RenewLock => "L",
            Self::CheckLock => "l",
            Self::RenewPlace => "P",
            Self::CheckPlace => "p",
        }
    }
}

/// What the server says of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Gone,
    /// The lock is ours for so long.
    Lock(Duration),
    /// The place is ours for so long.
    Place(Duration),
    /// The lock was handed to us, for so long.
    Handed(Duration),
}

/// The renewals of one server.
#[derive(Debug)]
pub(crate) struct Renewals(Batches<Item, Result<Outcome>>);

impl Default for Renewals {
    fn default() -> Self {
        Self(Batches::of_at_most(BATCH))
    }
}

impl Renewals {
    /// Asks the server about one entry, together with all that is asked at this moment. The request
    /// is always sent after this call, so what it promises counts from this call at least.
    pub(crate) async fn ask(&self, node: &Node, client: &Arc<str>, item: Item) -> Result<Outcome> {
        let (node, client) = (node.clone(), Arc::clone(client));
        self.0.ask(item, move |batch| send(node.clone(), Arc::clone(&client), batch)).await?
    }
}

async fn send(node: Node, client: Arc<str>, batch: Vec<Entry<Item, Result<Outcome>>>) {
    let limit = batch.iter().map(|entry| entry.request.limit).max().unwrap_or_default();
    let ttls: Vec<_> =
        batch.iter().map(|entry| entry.request.ttl.as_millis().to_string()).collect();
    let mut call = RENEW.call();
    for (entry, ttl) in batch.iter().zip(&ttls) {
        let item = &entry.request;
        call = call.key(&item.lock).keys(&item.others);
        call = call.arg(item.kind.letter()).arg(&item.owner).arg(ttl).arg(&*client);
    }
    let answer = node.run(call, limit).await;
    let reply = answer.as_ref().map_err(Error::clone).and_then(|value| {
        let reply = Reply::new("a renewal", value)?;
        if reply.len() == batch.len() { Ok(reply) } else { Err(reply.wrong()) }
    });
    for (at, entry) in batch.into_iter().enumerate() {
        let outcome = match &reply {
            Ok(reply) => reply.number(at).and_then(|number| read(number, &entry.request)),
            Err(error) => Err(error.clone()),
        };
        entry.answer(outcome);
    }
}

pub(super) fn read(number: i64, item: &Item) -> Result<Outcome> {
    let ms = |number: i64| u64::try_from(number).map(Duration::from_millis).unwrap_or_default();
    Ok(match number {
        number if number >= HANDED => Outcome::Handed(ms(number - HANDED)),
        number if number >= PLACE => Outcome::Place(ms(number - PLACE)),
        number if number >= 0 => Outcome::Lock(ms(number)),
        BROKEN => return Err(broken(&item.others)),
        _ => Outcome::Gone,
    })
}

fn broken(keys: &[String]) -> Error {
    Error::new(
        ErrorKind::Store,
        format!(
            "something else has written to the queue of this lock: delete the keys {keys:?} in Redis"
        ),
    )
}
