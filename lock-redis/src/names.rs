//! The names of the keys in Redis.
//!
//! The lock key is [`LockKey::encode`]: the bare name without a prefix, so that any client that uses
//! `SET name value NX PX ttl` excludes us and is excluded.
//!
//! Our auxiliary keys share the lock key's slot in a Redis Cluster: `key` + U+001E + `+part` if the
//! key already has a hash tag, else `{key}` + U+001E + `part`. No name and no prefix can contain
//! U+001E, which is a control character, so no name can read as an auxiliary key of another one.
//! The plus sign keeps the auxiliary keys of the name `a` apart from those of the name `{a}`.

use lock_core::{LockKey, OwnerId};

/// Separates a lock key from the name of an auxiliary key.
const SEPARATOR: char = '\u{1e}';

/// The keys of one lock.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The lock itself.
    pub(crate) lock: String,
    stem: String,
}

impl Keys {
    pub(crate) fn new(key: &LockKey) -> Self {
        let lock = key.encode();
        let stem = if hash_tag(&lock).is_some() {
            format!("{lock}{SEPARATOR}+")
        } else {
            format!("{{{lock}}}{SEPARATOR}")
        };
        Self { lock, stem }
    }

    /// The auxiliary key with this name, of letters only.
    pub(crate) fn part(&self, part: &str) -> String {
        format!("{}{part}", self.stem)
    }

    /// The keys of a script that hands the lock over, beside the lock itself and in its order.
    pub(crate) fn parts(&self) -> [String; 2] {
        ["queue", "waiters"].map(|part| self.part(part))
    }

    /// The mark that an owner leaves when it gives up while one of its tries may still be on its
    /// way.
    pub(crate) fn gone(&self, owner: &OwnerId) -> String {
        format!("{}gone:{}", self.stem, owner.to_hex())
    }

    /// Whether this is an auxiliary key, or one of the node.
    pub(crate) fn is_part(found: &str) -> bool {
        found.contains(SEPARATOR)
    }

    /// The lock whose auxiliary key `part` is `found`; `None` if it is no such key.
    pub(crate) fn lock_of<'a>(found: &'a str, part: &str) -> Option<&'a str> {
        let (head, tail) = found.rsplit_once(SEPARATOR)?;
        match tail.strip_prefix('+') {
            Some(tail) if tail == part && hash_tag(head).is_some() => Some(head),
            None if tail == part => head.strip_prefix('{')?.strip_suffix('}'),
            _ => None,
        }
    }
}

/// The part that Redis Cluster hashes in place of the whole key, if there is one.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// Writes `text` so that a pattern of Redis matches it and nothing else.
pub(crate) fn escape_glob(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn keys(prefix: &str, name: &str) -> Keys {
        Keys::new(&LockKey::new(prefix, name).unwrap())
    }

    #[test]
    fn a_bare_name_is_the_key() {
        assert_eq!(keys("", "order:42").lock, "order:42");
        assert_eq!(keys("", "order:42").part("queue"), "{order:42}\u{1e}queue");
        assert_eq!(keys("", "{o}:42").part("queue"), "{o}:42\u{1e}+queue");
    }

    #[test]
    fn no_two_locks_share_a_key() {
        let names =
            ["a", "{a}", "{{a}}", "a}", "{a", "{}a", "{}", "}{", "{a}b", "b{a}", "{b{a}}", "a{}b"];
        let mut seen = HashSet::new();
        for prefix in ["", "p", "{p}", "{"] {
            for name in names {
                let keys = keys(prefix, name);
                assert!(seen.insert(keys.lock.clone()), "{prefix:?} {name:?}");
                assert!(seen.insert(keys.part("queue")), "{prefix:?} {name:?}");
                assert_eq!(Keys::lock_of(&keys.part("queue"), "queue"), Some(&*keys.lock));
                assert_eq!(Keys::lock_of(&keys.part("queue"), "hold"), None);
            }
        }
    }

    /// The hash tag as the cluster specification defines it.
    #[test]
    fn auxiliary_keys_have_the_slot_of_their_lock() {
        fn hashed(key: &str) -> &str {
            hash_tag(key).unwrap_or(key)
        }
        for name in ["a", "{a}", "x{a}y", "{}a", "a{}", "{a"] {
            let keys = keys("", name);
            if !keys.lock.contains('}') || hash_tag(&keys.lock).is_some() {
                assert_eq!(hashed(&keys.part("queue")), hashed(&keys.lock), "{name}");
            }
        }
    }
}
