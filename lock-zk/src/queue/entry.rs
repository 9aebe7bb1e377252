//! An entry of a queue: its name, what its node holds, and where it stands among others.
//!
//! A lock is a node under the root of this client, `/locks` by default. Its name is
//! [`LockKey::encode`], with everything but printable ASCII, plus `%` and `/`, percent-encoded byte
//! by byte: a plain name is the name that a Curator or kazoo client uses.
//!
//! A contender is a child of it that ends in a ten-digit sequence number, whichever client created
//! it. Ours are named as in Curator's protected mode: `_c_`, the owner id as a UUID, `-lock-` and
//! the number.

use lock_core::{FencingToken, LockKey, OwnerId};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// What is encoded besides everything that is not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%').add(b'/');
/// The name of the node under the root that fences are counted from: no lock has it, since `%fe` is
/// not UTF-8.
pub(crate) const FENCE_BASE: &str = "%fence";
/// The start of the data of our nodes; the label follows.
const MARK: &[u8] = b"distlock\n";
/// How many digits a sequence number has.
pub(crate) const DIGITS: usize = 10;

/// The node name of `key`: injective, and never one that ZooKeeper refuses.
pub(crate) fn encode(key: &LockKey) -> String {
    let name = utf8_percent_encode(&key.encode(), ENCODED).to_string();
    match name.as_str() {
        // These are special path components.
        "." | ".." => name.replace('.', "%2E"),
        _ => name,
    }
}

/// The key whose node name is `name`; `None` if no key has it.
pub(crate) fn decode(name: &str) -> Option<LockKey> {
    let plain = percent_decode_str(name).decode_utf8().ok()?;
    LockKey::decode(&plain).ok().filter(|key| encode(key) == name)
}

/// The data of a node: it marks the node as ours, and carries the label. No decision depends on it.
pub(crate) fn node_data(label: Option<&str>) -> Vec<u8> {
    [MARK, label.unwrap_or_default().as_bytes()].concat()
}

/// The label in the data of a node of ours, which may be empty; `None` if the node is not ours.
pub(crate) fn label_in(data: &[u8]) -> Option<String> {
    data.strip_prefix(MARK).map(|label| String::from_utf8_lossy(label).into_owned())
}

/// The start of the names of all nodes of `owner`; the server adds the sequence number.
pub(crate) fn node_prefix(owner: &OwnerId) -> String {
    let hex = owner.to_hex();
    format!(
        "_c_{}-{}-{}-{}-{}-lock-",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// The owner of a node with a name of this form.
pub(crate) fn owner_of(name: &str) -> Option<OwnerId> {
    let uuid = name.strip_prefix("_c_")?.get(..36)?;
    let owner: OwnerId = uuid.replace('-', "").parse().ok()?;
    name.starts_with(&node_prefix(&owner)).then_some(owner)
}

/// The sequence number at the end of a contender's name; `None` if it is not a contender.
///
/// The server counts with a signed number of 32 bits and prints it with `%010d`, so numbers with a
/// minus sign follow 2³¹ − 1. None of our nodes has one of those, or of the million before them:
/// they only need to sort after ours, and by their digits they do for a million more.
pub(crate) fn sequence(name: &str) -> Option<i64> {
    let digits = name.get(name.len().checked_sub(DIGITS)?..)?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// Our entry in a queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueEntry {
    pub(crate) name: String,
    pub(crate) fence: FencingToken,
}

/// Where an entry stands in its queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QueuePosition {
    First,
    /// Behind the entry of this name.
    Behind(String),
    /// Behind others, in a long queue that was not listed.
    Deep,
    /// It does not exist.
    Gone,
}

/// Where `own` stands among `children`, of which there may be thousands: nothing is sorted.
pub(crate) fn position(children: &[String], own: &str) -> QueuePosition {
    let mine = sequence(own).filter(|_| children.iter().any(|child| child == own));
    let Some(mine) = mine else { return QueuePosition::Gone };
    let others = children.iter().filter(|child| *child != own);
    let numbered = others.filter_map(|child| Some((sequence(child)?, child)));
    match numbered.filter(|(number, _)| *number <= mine).max() {
        Some((_, in_front)) => QueuePosition::Behind(in_front.clone()),
        None => QueuePosition::First,
    }
}

pub(crate) fn has_contenders(children: &[String]) -> bool {
    children.iter().any(|child| sequence(child).is_some())
}

/// The contenders among `children`, in queue order.
pub(crate) fn contenders(children: &[String]) -> Vec<&str> {
    let mut queue: Vec<_> =
        children.iter().filter_map(|child| Some((sequence(child)?, child.as_str()))).collect();
    queue.sort_unstable();
    queue.into_iter().map(|(_, child)| child).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn names_are_those_of_curator_and_are_found_again() {
        for (name, node) in
            [("order:42", "order:42"), ("a/b", "a%2Fb"), ("a%2Fb", "a%252Fb"), ("..", "%2E%2E")]
        {
            let key = LockKey::new("", name).unwrap();
            assert_eq!((encode(&key).as_str(), decode(node)), (node, Some(key)), "{name}");
        }
        assert_eq!(decode("a%2fb"), None, "another spelling of the same name is not our lock");
        let owner: OwnerId = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let prefix = node_prefix(&owner);
        assert_eq!(prefix, "_c_01234567-89ab-cdef-0123-456789abcdef-lock-");
        assert_eq!(owner_of(&format!("{prefix}0000000007")), Some(owner));
        for other in ["abc__lock__0000000001", "_c_0123", "_c_é", "lock-0000000001"] {
            assert_eq!(owner_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_sequence_number_is_the_last_ten_digits() {
        for (name, number) in [
            ("_c_x-lock-0000000000", Some(0)),
            ("0a1b__lock__0000000012", Some(12)),
            ("lock-2147483647", Some(2_147_483_647)),
            ("lock--2147483648", Some(2_147_483_648)),
            ("0000000003", Some(3)),
            ("lock-000000001", None),
            ("lock-12345x7890", None),
            ("leases", None),
            ("é00000000", None),
        ] {
            assert_eq!(sequence(name), number, "{name}");
        }
    }

    #[test]
    fn the_one_before_is_found_in_any_order_and_whoever_it_is() {
        let own = "_c_b-lock-0000000011";
        let children = strings(&[
            "zz-lock-0000000009",
            own,
            "ff__lock__0000000010",
            "no-contender",
            "_c_a-lock-0000000012",
            "a-lock--2147483648",
        ]);
        assert_eq!(
            position(&children, own),
            QueuePosition::Behind("ff__lock__0000000010".to_owned())
        );
        assert_eq!(position(&children, "zz-lock-0000000009"), QueuePosition::First);
        assert_eq!(position(&children, "_c_b-lock-0000000013"), QueuePosition::Gone);
        assert_eq!(position(&children, "no-contender"), QueuePosition::Gone);
        assert_eq!(
            contenders(&children),
            [
                "zz-lock-0000000009",
                "ff__lock__0000000010",
                own,
                "_c_a-lock-0000000012",
                "a-lock--2147483648"
            ]
        );
    }

    #[test]
    fn the_data_of_a_node_carry_the_label() {
        for label in ["", "web-3"] {
            assert_eq!(label_in(&node_data(Some(label))).as_deref(), Some(label));
        }
        assert_eq!(label_in(&node_data(None)).as_deref(), Some(""));
        assert_eq!(label_in(b"192.0.2.7"), None, "a lock of Curator");
    }
}

/// Whoever made the nodes, and whatever is in them.
#[cfg(test)]
mod fuzz {
    use lock_testkit::fuzz::{Fuzz, Pieces};

    use super::QueuePosition;
    use crate::queue::entry;

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
            let label = entry::label_in(input).is_some();
            let mut pieces = Pieces(input);
            let mut children = Vec::new();
            while !pieces.is_over() {
                children.push(String::from_utf8_lossy(pieces.bytes()).into_owned());
            }
            let own = children.first().cloned().unwrap_or_default();
            if let Some(key) = entry::decode(&own) {
                assert_eq!(entry::encode(&key), own, "one key has one name");
            }
            let owner = entry::owner_of(&own);
            if let Some(owner) = owner {
                assert!(own.starts_with(&entry::node_prefix(&owner)));
            }
            let queue = entry::contenders(&children);
            assert_eq!(entry::has_contenders(&children), !queue.is_empty());
            let position = match entry::position(&children, &own) {
                QueuePosition::Deep => unreachable!("it was listed"),
                QueuePosition::Gone => "missing",
                QueuePosition::First => "first",
                QueuePosition::Behind(before) => {
                    assert!(
                        entry::sequence(&before) <= entry::sequence(&own),
                        "it is not before us"
                    );
                    "after"
                }
            };
            format!("{label} {} {position} {}", owner.is_some(), queue.len().min(9))
        });
    }
}
