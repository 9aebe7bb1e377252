//! Renewals that are due together travel as one request.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use lock_kit::batch::Entry;
use redis::Value;

use super::scripts::RENEW;
use crate::node::{Node, ReplyReader};

/// The most entries of one request: about half a millisecond of the server's time.
pub(super) const BATCH: usize = 256;

/// Added to what a renewal answers for a place in a queue.
const PLACE: i64 = 1 << 40;
/// Added to what a renewal answers for a lock that was handed over and not yet taken up.
const HANDED: i64 = 1 << 41;
/// Added to what a renewal answers for a place of a client that was taken for dead until then.
const DOUBTED: i64 = 1 << 42;
/// What a renewal answers for a place in a queue whose keys are of another type.
const BROKEN: i64 = -2;

/// One entry to renew, or to check.
#[derive(Clone, Debug)]
pub(super) struct RenewalItem {
    pub(super) kind: RenewalKind,
    pub(super) lock: String,
    /// What else the kind needs, in the order of the script.
    pub(super) others: Vec<String>,
    pub(super) who: String,
    pub(super) ttl: Duration,
    pub(super) limit: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalKind {
    RenewLock,
    CheckLock,
    RenewPlace,
    CheckPlace,
}

impl RenewalKind {
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
pub(super) enum RenewalAnswer {
    Gone,
    /// The lock is ours for so long.
    Lock(Duration),
    /// The place is ours for so long.
    Place(Duration),
    /// As a place; but until now our whole client was taken for dead.
    Doubted(Duration),
    /// The lock was handed to us, for so long.
    Handed(Duration),
}

/// Sends what was asked for at one moment as one request.
pub(super) async fn send(
    node: Arc<Node>,
    client: Arc<str>,
    batch: Vec<Entry<RenewalItem, Result<RenewalAnswer>>>,
) {
    let items: Vec<_> = batch.iter().map(|entry| &entry.request).collect();
    let answers = answers(&node, &client, &items).await;
    for (at, entry) in batch.into_iter().enumerate() {
        entry.answer(match &answers {
            Ok(answers) => answers[at].clone(),
            Err(error) => Err(error.clone()),
        });
    }
}

/// One request about all `items`, which are at most [`BATCH`]: an outcome for each.
pub(super) async fn answers(
    node: &Node,
    client: &str,
    items: &[&RenewalItem],
) -> Result<Vec<Result<RenewalAnswer>>> {
    let limit = items.iter().map(|item| item.limit).max().unwrap_or_default();
    let ttls: Vec<_> = items.iter().map(|item| item.ttl.as_millis().to_string()).collect();
    let mut call = RENEW.call();
    for (item, ttl) in items.iter().zip(&ttls) {
        call = call.key(&item.lock).keys(&item.others);
        call = call.arg(item.kind.letter()).arg(&item.who).arg(ttl).arg(client);
    }
    let numbers = |value: Value| ReplyReader::numbers("a renewal", &value, items.len());
    let numbers = node.ask(call, limit, numbers).await?;
    Ok(numbers.into_iter().zip(items).map(|(number, item)| read(number, item)).collect())
}

fn read(number: i64, item: &RenewalItem) -> Result<RenewalAnswer> {
    let ms = |number: i64| u64::try_from(number).map(Duration::from_millis).unwrap_or_default();
    Ok(match number {
        number if number >= DOUBTED => RenewalAnswer::Doubted(ms(number - DOUBTED)),
        number if number >= HANDED => RenewalAnswer::Handed(ms(number - HANDED)),
        number if number >= PLACE => RenewalAnswer::Place(ms(number - PLACE)),
        number if number >= 0 => RenewalAnswer::Lock(ms(number)),
        BROKEN => return Err(broken(&item.others)),
        _ => RenewalAnswer::Gone,
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

/// Fuzzes what a server can answer: bytes of the protocol, read by the driver and then by us.
#[cfg(test)]
mod fuzz {
    use lock_testkit::fuzz::{Fuzz, reason};

    use super::*;
    use crate::single::{holder, seen};

    const WORDS: &[&str] = &[
        "*6\r\n",
        "*1\r\n",
        ":1\r\n",
        ":0\r\n",
        ":-1\r\n",
        ":-2\r\n",
        "$3\r\na|b\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "|",
        "$2\r\n",
        ":9223372036854775807\r\n",
        ":4611686018427387904\r\n",
        "_\r\n",
        "+OK\r\n",
        "7|",
    ];

    #[test]
    fn fuzz_replies_of_a_server() {
        let item = RenewalItem {
            kind: RenewalKind::RenewLock,
            lock: String::new(),
            others: Vec::new(),
            who: String::new(),
            ttl: Duration::from_secs(1),
            limit: Duration::from_secs(1),
        };
        Fuzz::new(env!("CARGO_MANIFEST_DIR"), "server", WORDS).run(|input| {
            let Ok(value) = redis::parse_redis_value(input) else { return String::new() };
            let reply = match ReplyReader::new("a reply", &value) {
                Ok(reply) => reply,
                Err(error) => return reason(&error),
            };
            let renewals = (0..reply.len().min(4)).map(|at| {
                let answer = reply.number(at).and_then(|number| read(number, &item));
                answer.map_or_else(
                    |error| reason(&error),
                    |answer| {
                        format!("{answer:?}")
                            .chars()
                            .take_while(char::is_ascii_alphabetic)
                            .collect()
                    },
                )
            });
            let renewals: String = renewals.collect();
            let shown = reply.bytes(0).and_then(|mark| {
                let info = holder(mark, reply.bytes(1)?, reply.millis(2)?, reply.count(3)?);
                let known = (info.owner.is_some(), info.fence.is_some(), info.held_for.is_some());
                assert!(
                    info.owner.is_none() || info.label.as_deref() != Some(""),
                    "an empty label"
                );
                Ok(format!("{known:?}"))
            });
            let seen = seen(reply).map_or_else(
                |error| reason(&error),
                |seen| format!("{seen:?}").chars().take_while(char::is_ascii_alphabetic).collect(),
            );
            format!("{renewals} {} {seen}", shown.unwrap_or_else(|error| reason(&error)))
        });
    }
}
