//! Fuzzes what a server can answer: bytes of the protocol, read by the driver and then by us.

use std::time::Duration;

use lock_testkit::fuzz::{Fuzz, reason};

use super::holder::holder;
use super::renewals::{Item, Kind, read};
use crate::node::Reply;

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
    let item = Item {
        kind: Kind::RenewLock,
        lock: String::new(),
        others: Vec::new(),
        owner: String::new(),
        ttl: Duration::from_secs(1),
        limit: Duration::from_secs(1),
    };
    Fuzz::new(env!("CARGO_MANIFEST_DIR"), "server", WORDS).run(|input| {
        let Ok(value) = redis::parse_redis_value(input) else { return String::new() };
        let reply = match Reply::new("a reply", &value) {
            Ok(reply) => reply,
            Err(error) => return reason(&error),
        };
        let renewals = (0..reply.len().min(4)).map(|at| {
            let outcome = reply.number(at).and_then(|number| read(number, &item));
            outcome.map_or_else(
                |error| reason(&error),
                |outcome| {
                    format!("{outcome:?}").chars().take_while(char::is_ascii_alphabetic).collect()
                },
            )
        });
        let renewals: String = renewals.collect();
        let shown = reply.bytes(0).and_then(|mark| {
            let info = holder(mark, reply.bytes(1)?, reply.millis(2)?, reply.count(3)?);
            let known = (info.owner.is_some(), info.fence.is_some(), info.held_for.is_some());
            assert!(info.owner.is_none() || info.label.as_deref() != Some(""), "an empty label");
            Ok(format!("{known:?}"))
        });
        format!("{renewals} {}", shown.unwrap_or_else(|error| reason(&error)))
    });
}
