//! Fuzzes what a cluster can answer: keys and values, whoever wrote them, and versions.

use lock_core::LockKey;
use lock_testkit::fuzz::{Fuzz, Pieces};

use crate::entry::Value;
use crate::names::{QueueKeys, lock_of};
use crate::version;

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
        let value = Value::read(bytes);
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
        let defects = version::judge(&String::from_utf8_lossy(bytes), "a").map(|known| known.len());
        (fence, value.owner.is_some(), value.label.is_empty(), lock.is_some(), defects.ok())
    });
}
