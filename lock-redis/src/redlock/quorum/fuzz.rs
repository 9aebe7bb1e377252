//! Fuzzes what a node can answer: bytes of the protocol, read by the driver and then by us.

use lock_testkit::fuzz::{Fuzz, reason};

use super::answers::NodeAnswer;
use super::look;
use crate::node::{ReplyReader, info_field};
use crate::redlock::{admin, admission};

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
        let vote = match NodeAnswer::of_a_lock(value.clone()) {
            Err(error) | Ok((NodeAnswer::Failed(error), _)) => reason(&error),
            Ok((NodeAnswer::Mine { counter, left }, mark)) => {
                assert!(mark >= counter, "the mark is never below a counter");
                format!("mine {}", left.is_some())
            }
            // A short word for its kind.
            Ok((other, _)) => format!("{:?}", other.brief()).chars().take(9).collect(),
        };
        let freed = NodeAnswer::of_a_release(value.clone()).is_ok();
        let report = admission::report(&value).map_or_else(|error| reason(&error), |_| "ok".into());
        let seen = ReplyReader::new("an inspection", &value).and_then(|reply| admin::seen(reply));
        let seen = seen.map_or_else(|error| reason(&error), |seen| format!("{}", seen.is_some()));
        let look = match look::read(&value, 2) {
            Ok(Ok(look)) => {
                format!("{:?}", look.votes.iter().map(Option::is_some).collect::<Vec<_>>())
            }
            Ok(Err(_)) => "refused".to_owned(),
            Err(error) => reason(&error),
        };
        format!("{vote} {freed} {report} {seen} {look} {}", info_field(&value, "a").is_some())
    });
}
