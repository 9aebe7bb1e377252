//! Fuzzes what an ensemble can answer: the names and the data of nodes, whoever made them.

use lock_testkit::fuzz::{Fuzz, Pieces};

use crate::names::{self, Position};

const WORDS: &[&str] = &[
    "_c_",
    "-lock-",
    "01234567-89ab-cdef-0123-456789abcdef",
    "0000000007",
    "-2147483648",
    "2147483647",
    "lock-",
    "__lock__",
    "%2F",
    "%fe",
    "%25",
    "%",
    "..",
    "distlock\n",
    "\u{e9}",
    "\0",
    "write-",
    "read-",
];

#[test]
fn fuzz_nodes() {
    Fuzz::new(env!("CARGO_MANIFEST_DIR"), "nodes", WORDS).run(|input| {
        let label = names::label_in(input).is_some();
        let mut pieces = Pieces(input);
        let mut children = Vec::new();
        while !pieces.is_over() {
            children.push(String::from_utf8_lossy(pieces.bytes()).into_owned());
        }
        let own = children.first().cloned().unwrap_or_default();
        if let Some(key) = names::decode(&own) {
            assert_eq!(names::encode(&key), own, "one key has one name");
        }
        let owner = names::owner_of(&own);
        if let Some(owner) = owner {
            assert!(own.starts_with(&names::node_prefix(&owner)));
        }
        let queue = names::contenders(&children);
        assert_eq!(names::has_contenders(&children), !queue.is_empty());
        let position = match names::position(&children, &own) {
            Position::Missing => "missing",
            Position::First => "first",
            Position::After(before) => {
                assert!(names::sequence(before) <= names::sequence(&own), "it is not before us");
                "after"
            }
        };
        format!("{label} {} {position} {}", owner.is_some(), queue.len().min(9))
    });
}
