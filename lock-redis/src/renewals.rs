//! Renewals that fall together travel as one request.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Collector, Error, ErrorKind, Result};
use tokio::sync::oneshot;

use crate::node::Node;
use crate::reply::Reply;
use crate::scripts::{HANDED, PLACE, RENEW};

/// The most entries of one request: about half a millisecond of the server's time.
const BATCH: usize = 256;

/// One entry to renew, or to look at.
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
pub(crate) enum Found {
    Gone,
    /// The lock is ours for so long.
    Lock(Duration),
    /// The place is ours for so long.
    Place(Duration),
    /// The lock was handed to us, for so long.
    Handed(Duration),
}

#[derive(Debug, Default)]
pub(crate) struct Renewals(Arc<Collector<Waiting>>);

#[derive(Debug)]
struct Waiting {
    item: Item,
    reply: oneshot::Sender<Result<Found>>,
}

impl Renewals {
    /// Asks the server about one entry, together with whoever else asks at this moment. The request
    /// is always sent after this call, so what it promises counts from this call at least.
    pub(crate) async fn ask(&self, node: &Node, client: &Arc<str>, item: Item) -> Result<Found> {
        let (reply, answer) = oneshot::channel();
        let (node, client) = (node.clone(), Arc::clone(client));
        self.0.add(Waiting { item, reply }, move |waiting| flush(&node, &client, waiting));
        answer.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the runtime of the renewals has ended")
                .with_unknown_effect())
        })
    }
}

fn flush(node: &Node, client: &Arc<str>, mut waiting: Vec<Waiting>) {
    // Whoever has given up writes nothing.
    waiting.retain(|waiting| !waiting.reply.is_closed());
    while !waiting.is_empty() {
        let rest = waiting.split_off(waiting.len().min(BATCH));
        let batch = std::mem::replace(&mut waiting, rest);
        tokio::spawn(send(node.clone(), Arc::clone(client), batch));
    }
}

async fn send(node: Node, client: Arc<str>, batch: Vec<Waiting>) {
    let limit = batch.iter().map(|waiting| waiting.item.limit).max().unwrap_or_default();
    let ttls: Vec<_> =
        batch.iter().map(|waiting| waiting.item.ttl.as_millis().to_string()).collect();
    let mut call = RENEW.call();
    for (waiting, ttl) in batch.iter().zip(&ttls) {
        let item = &waiting.item;
        call = call.key(&item.lock).keys(&item.others);
        call = call.arg(item.kind.letter()).arg(&item.owner).arg(ttl).arg(&*client);
    }
    let answer = node.run(call, limit).await;
    let answer = answer.and_then(|value| read(&value, batch.len()));
    for (at, waiting) in batch.into_iter().enumerate() {
        let found = match &answer {
            Ok(found) => Ok(found[at]),
            Err(error) => Err(error.clone()),
        };
        let _ = waiting.reply.send(found);
    }
}

fn read(value: &redis::Value, expected: usize) -> Result<Vec<Found>> {
    let reply = Reply::new("a renewal", value)?;
    if reply.len() != expected {
        return Err(reply.wrong());
    }
    let ms = |number: i64| u64::try_from(number).map(Duration::from_millis).unwrap_or_default();
    (0..expected)
        .map(|at| {
            Ok(match reply.number(at)? {
                number if number >= HANDED => Found::Handed(ms(number - HANDED)),
                number if number >= PLACE => Found::Place(ms(number - PLACE)),
                number if number >= 0 => Found::Lock(ms(number)),
                _ => Found::Gone,
            })
        })
        .collect()
}
