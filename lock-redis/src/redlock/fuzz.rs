//! Fuzzes what a node can answer: bytes of the protocol, read by the driver and then by us.

use lock_testkit::fuzz::{Fuzz, reason};

use super::reply::NodeReply;
use super::{admin, admission};
use crate::node::info_field;

const WORDS: &[&str] = &[
    "*4\r\n",
    "*12\r\n",
    ":1\r\n",
    ":0\r\n",
    ":-1\r\n",
    ":-3\r\n",
    "$3\r\nabc\r\n",
    "$0\r\n\r\n",
    "$-1\r\n",
    "$1\r\n7\r\n",
    ":9223372036854775807\r\n",
    "_\r\n",
    "#t\r\n",
    "-ERR x\r\n",
    "=7\r\ntxt:a:1\r\n",
    "+OK\r\n",
    "*0\r\n",
    "%1\r\n",
];

#[test]
fn fuzz_replies_of_nodes() {
    Fuzz::new(env!("CARGO_MANIFEST_DIR"), "nodes", WORDS).run(|input| {
        let Ok(value) = redis::parse_redis_value(input) else { return String::new() };
        let (vote, mark) = NodeReply::from_script(Ok(value.clone()));
        let vote = match vote {
            NodeReply::Failed(error) => reason(&error),
            NodeReply::Mine { counter, left } => {
                assert!(mark >= counter, "the mark is never below a counter");
                format!("mine {}", left.is_some())
            }
            // A short word for its kind.
            other => format!("{:?}", other.brief()).chars().take(9).collect(),
        };
        let freed = matches!(NodeReply::from_release(Ok(value.clone())), NodeReply::Freed(_));
        let report = admission::report(&value).map_or_else(|error| reason(&error), |_| "ok".into());
        let seen = admin::seen(&value)
            .map_or_else(|error| reason(&error), |seen| format!("{}", seen.is_some()));
        format!("{vote} {freed} {report} {seen} {}", info_field(&value, "a").is_some())
    });
}
