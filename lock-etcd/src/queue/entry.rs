//! An entry of a queue: its key, and the text that the key holds.
//!
//! The key of the entry of a claim is `<folder><name>/<lease id in hex>`, the layout of the `Mutex` of
//! etcd's own `concurrency` package and of `etcdctl lock`, so that all share one queue. The name is
//! [`LockKey::encode`] with `%` and `/` written as `%25` and `%2F`: so no name contains a slash,
//! and the queue `a/` of one name never holds the entries of another name `a/b`.
//!
//! The text is `owner[+base][ label]`. So the record of an entry is complete: readers know its owner and
//! its fence, base + create revision, even if the base of the cluster has changed since.

use lock_core::{FencingToken, LockKey, OwnerId};

use crate::error::{EtcdFailure, FailureClass};
use crate::wire::protobuf::KeyValue;

/// The keys of the queue of one lock.
#[derive(Clone, Debug)]
pub(crate) struct QueueKeys {
    /// `<folder><name>/`
    start: String,
}

impl QueueKeys {
    pub(crate) fn new(folder: &str, key: &LockKey) -> Self {
        Self { start: format!("{folder}{}/", escape(&key.encode())) }
    }

    /// The common start of all entry keys.
    pub(crate) fn start(&self) -> &str {
        &self.start
    }

    /// The key of the entry bound to `lease`.
    pub(crate) fn entry(&self, lease: i64) -> String {
        format!("{}{lease:x}", self.start)
    }

    /// Whether `key`, which begins with [`start`](Self::start), is an entry of this queue. A client
    /// that does not escape names may have put the queue of another lock below it.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        key.get(self.start.len()..).is_some_and(|rest| !rest.is_empty() && !rest.contains(&b'/'))
    }
}

/// The lock that `key` is an entry of, bound to `lease`; `None` if it is not an entry.
pub(crate) fn lock_of(folder: &str, key: &[u8], lease: i64) -> Option<LockKey> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(folder)?;
    let (name, entry) = rest.rsplit_once('/')?;
    if lease == 0 || entry != format!("{lease:x}") {
        return None;
    }
    unescape(name)
}

/// The key of the base of the fences in `folder`. The queue keys of all clients, including Go's,
/// have a slash, and this one has none: it is in no queue, and is no lock's name.
pub(crate) fn base(folder: &str) -> String {
    format!("distlock-fence:{}", escape(folder.trim_end_matches('/')))
}

/// The start of the keys of all locks with this `prefix` whose name begins with `start`.
pub(crate) fn listing(folder: &str, prefix: &str, start: &str) -> String {
    if prefix.is_empty() {
        format!("{folder}{}", escape(start))
    } else {
        format!("{folder}{}", escape(&format!("{prefix}\u{1f}{start}")))
    }
}

/// The first key after all that begin with `start`.
pub(crate) fn after(start: &[u8]) -> Vec<u8> {
    let mut end = start.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

fn escape(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

/// A name that is not escaped as we escape it is not ours to list.
fn unescape(name: &str) -> Option<LockKey> {
    let plain = name.replace("%2F", "/").replace("%25", "%");
    if escape(&plain) != name {
        return None;
    }
    LockKey::decode(&plain).ok()
}

/// Our key in a queue, as the store returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    pub(crate) key: String,
    /// The revision at which it was created.
    pub(crate) rev: i64,
    /// Another process may have written it, with its own label.
    pub(crate) value: Vec<u8>,
    pub(crate) fence: FencingToken,
}

/// The entry directly in front of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryInFront {
    pub(crate) key: Vec<u8>,
    /// The revision at which it was created.
    pub(crate) rev: i64,
}

impl EntryInFront {
    pub(crate) fn found(found: &KeyValue) -> Self {
        Self { key: found.key.clone(), rev: found.create_revision }
    }
}

/// Where an entry stands in its queue.
#[derive(Debug)]
pub(crate) enum QueuePosition {
    First,
    Behind(EntryInFront),
    /// Behind others, in a long queue that was not read.
    Deep,
    /// The key does not exist, or is not as we created it.
    Gone,
}

/// The parsed value of a key.
#[derive(Debug)]
pub(crate) struct EntryValue<'a> {
    /// `None` for a client other than distlock.
    pub(crate) owner: Option<OwnerId>,
    base: i64,
    pub(crate) label: &'a str,
}

/// The value of the key of `owner`, whose fence counts from `base`; from 0 without one.
pub(crate) fn write(owner: &OwnerId, base: Option<i64>, label: &str) -> String {
    let mut value = owner.to_hex();
    if let Some(base) = base {
        value.push_str(&format!("+{base}"));
    }
    if !label.is_empty() {
        value.push_str(&format!(" {label}"));
    }
    value
}

impl<'a> EntryValue<'a> {
    pub(crate) fn read(value: &'a [u8]) -> Self {
        let text = std::str::from_utf8(value).unwrap_or_default();
        let (head, label) = text.split_once(' ').unwrap_or((text, ""));
        let (owner, base) = match head.split_once('+') {
            Some((owner, base)) => (owner, base.parse().ok()),
            None => (head, Some(0)),
        };
        let owner = owner.parse().ok().filter(|_| base.is_some());
        Self { owner, base: base.unwrap_or(0), label }
    }

    /// The fence of a key created at `rev` with this value.
    pub(crate) fn fence(&self, rev: i64) -> Result<FencingToken, EtcdFailure> {
        FencingToken::answered(self.base.saturating_add(rev))
            .map_err(|error| EtcdFailure { why: FailureClass::Refused, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::OsRng;
    use lock_testkit::fuzz::{Fuzz, Pieces};
    use std::collections::HashSet;

    fn queue(prefix: &str, name: &str) -> QueueKeys {
        QueueKeys::new("", &LockKey::new(prefix, name).unwrap())
    }

    #[test]
    fn a_bare_name_is_the_key_of_a_go_client() {
        assert_eq!(queue("", "order:42").entry(0x694d_8a2b), "order:42/694d8a2b");
        let key = LockKey::new("", "a").unwrap();
        assert_eq!(QueueKeys::new("jobs/", &key).start(), "jobs/a/");
        assert_eq!(base("a/b%/"), "distlock-fence:a%2Fb%25");
    }

    #[test]
    fn no_queue_holds_the_entries_of_another_name() {
        let names =
            ["a", "a/b", "a%2Fb", "a%", "%", "%25", "%2F", "/", "//", "a/", "/a", "%2", "2F"];
        let mut starts = HashSet::new();
        for prefix in ["", "p", "p/", "a"] {
            for name in names {
                let start = queue(prefix, name).start().to_owned();
                let at = start.find('/').unwrap();
                assert_eq!(at, start.len() - 1, "{prefix:?} {name:?}");
                assert!(starts.insert(start), "{prefix:?} {name:?}");
            }
        }
    }

    #[test]
    fn a_key_leads_back_to_its_lock() {
        for (prefix, name) in [("", "a"), ("p", "a/b%2F"), ("", "%"), ("x/y", "%2F%25")] {
            let key = LockKey::new(prefix, name).unwrap();
            for folder in ["", "jobs/"] {
                let entry = QueueKeys::new(folder, &key).entry(77);
                assert_eq!(lock_of(folder, entry.as_bytes(), 77), Some(key.clone()));
                assert_eq!(lock_of(folder, entry.as_bytes(), 78), None, "bound to another lease");
                assert!(entry.starts_with(&listing(folder, prefix, &name[..1])));
            }
        }
        assert_eq!(lock_of("", b"a/b/4d", 77), None, "an unescaped name is not ours");
    }

    #[test]
    fn the_end_of_a_range_comes_after_all_of_it() {
        assert_eq!(after(b"ab"), b"ac");
        assert_eq!(after(&[b'a', 0xff]), b"b");
        assert_eq!(after(b""), [0]);
    }

    #[test]
    fn an_entry_of_a_queue_lies_right_below_it() {
        let queue = queue("", "a");
        let has = |key: &str| queue.has(key.as_bytes());
        assert!(has(&queue.entry(77)));
        assert!(!has(queue.start()) && !has("a") && !has("a/b/4d"));
    }

    #[test]
    fn what_others_have_written_has_no_owner() {
        let owner = OwnerId::generate(&OsRng).unwrap().to_hex();
        for value in ["", "somebody else", &format!("{owner}+x"), &format!("{owner}x"), "\u{0}"] {
            let value = EntryValue::read(value.as_bytes());
            assert_eq!(value.owner, None);
            assert_eq!(value.fence(7).unwrap().get(), 7, "a Go client presents its revision");
        }
        assert_eq!(EntryValue::read(b"\xff\xfe").owner, None);
        let greatest = format!("{owner}+{}", i64::MAX);
        assert_eq!(EntryValue::read(greatest.as_bytes()).fence(7).unwrap(), FencingToken::MAX);
    }

    /// What a cluster can answer: keys and values, whoever wrote them, and versions.
    const WORDS: &[&str] = &[
        "0123456789abcdef0123456789abcdef",
        "+",
        " ",
        "+9223372036854775807",
        "-9223372036854775808",
        "jobs/",
        "/",
        "%2F",
        "%25",
        "%",
        "694d8a2b",
        "ffffffffffffffff",
        "\u{1f}",
        "\u{e9}",
        "\0",
        "3.4.38",
        "3.5.",
        ".",
    ];

    #[test]
    fn fuzz_keys_and_values() {
        Fuzz::new(env!("CARGO_MANIFEST_DIR"), "keys", WORDS).run(|input| {
            let mut pieces = Pieces(input);
            let (lease, rev) = (pieces.number(), pieces.number());
            let (key, bytes) = (pieces.bytes(), pieces.bytes());
            let value = EntryValue::read(bytes);
            let fence = value.fence(rev).is_ok();
            let lock = lock_of("jobs/", key, lease);
            if let Some(lock) = &lock {
                let keys = QueueKeys::new("jobs/", lock);
                assert_eq!(keys.entry(lease).as_bytes(), key, "one entry has one key");
                assert!(keys.has(key));
            }
            let name = String::from_utf8_lossy(key);
            if let Ok(lock) = LockKey::new("", &*name) {
                let entry = QueueKeys::new("jobs/", &lock).entry(7);
                assert_eq!(lock_of("jobs/", entry.as_bytes(), 7), Some(lock));
            }
            let defects =
                crate::doctor::judge(&String::from_utf8_lossy(bytes), "a").map(|known| known.len());
            (fence, value.owner.is_some(), value.label.is_empty(), lock.is_some(), defects.ok())
        });
    }
}
