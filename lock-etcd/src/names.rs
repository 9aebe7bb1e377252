//! The key names in etcd.
//!
//! The entry of a claim is `<folder><name>/<lease id in hex>`, the layout of the `Mutex` of etcd's
//! own `concurrency` package and of `etcdctl lock`, so that all share one queue. The name is
//! [`LockKey::encode`] with `%` and `/` written as `%25` and `%2F`: so no name contains a slash,
//! and the queue `a/` of one name never holds the entries of another name `a/b`.

use lock_core::LockKey;

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

#[cfg(test)]
mod tests {
    use super::*;
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
}
