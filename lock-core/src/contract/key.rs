//! A lock's name, and who wants it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::{Error, Result, Rng};

/// The name of one lock: an application's prefix, which may be empty, and the name itself.
///
/// Equal keys always block each other, different keys never do (clause C11). Nothing is normalised:
/// `a`, `A` and `a ` are three locks.
///
/// ```
/// # use lock_core as distlock;
/// use distlock::LockKey;
///
/// let key = LockKey::new("shop", "order:42")?;
/// assert_eq!((key.prefix(), key.name()), ("shop", "order:42"));
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey {
    prefix: Arc<str>,
    name: Arc<str>,
}

impl LockKey {
    /// The longest name and the longest prefix, in bytes.
    pub const MAX_LEN: usize = 512;

    /// A key from a prefix (0 to 512 bytes) and a name (1 to 512 bytes).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the name is empty, or if either is too
    /// long or contains a control character.
    pub fn new(prefix: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Result<Self> {
        let (prefix, name) = (prefix.into(), name.into());
        if name.is_empty() {
            return Err(Error::invalid("a lock name is empty: give it at least one character"));
        }
        check_part("lock name", &name)?;
        check_part("lock prefix", &prefix)?;
        Ok(Self { prefix, name })
    }

    /// The same prefix with another name.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn sibling(&self, name: impl Into<Arc<str>>) -> Result<Self> {
        Self::new(Arc::clone(&self.prefix), name)
    }

    /// The application's prefix; empty if there is none.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name as the caller gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key as one string that no other key shares: the name alone without a prefix, else prefix,
    /// U+001F and name. Neither part can contain U+001F, which is a control character, so
    /// ("a", "bc") and ("ab", "c") stay apart.
    pub fn encode(&self) -> String {
        Self::encoded_start(&self.prefix, &self.name)
    }

    /// The start of what [`encode`](Self::encode) returns for every key with this prefix whose name
    /// begins with `name_start`. Without a prefix, other keys may begin with it too.
    pub fn encoded_start(prefix: &str, name_start: &str) -> String {
        if prefix.is_empty() {
            name_start.to_owned()
        } else {
            format!("{prefix}\u{1f}{name_start}")
        }
    }

    /// The key that [`encode`](Self::encode) made this string from.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if no key has this encoding.
    pub fn decode(encoded: &str) -> Result<Self> {
        match encoded.split_once('\u{1f}') {
            Some(("", _)) => Err(Error::invalid(
                "this is not an encoded lock name: it begins with the separator, and has no prefix",
            )),
            Some((prefix, name)) => Self::new(prefix, name),
            None => Self::new("", encoded),
        }
    }
}

/// For people: the prefix, a slash and the name. Not injective; stores use [`LockKey::encode`].
impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.prefix.is_empty() {
            write!(f, "{}/", self.prefix)?;
        }
        f.write_str(&self.name)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockKey").field(&self.prefix).field(&self.name).finish()
    }
}

impl Error {
    /// Names the lock, unless a closer layer has named it already.
    #[must_use]
    pub fn for_key(mut self, key: &LockKey) -> Self {
        self.name_lock(key);
        self
    }
}

/// Checks that `part` may be (a part of) a lock name; an empty part passes.
pub(crate) fn check_part(what: &str, part: &str) -> Result<()> {
    if part.len() > LockKey::MAX_LEN {
        return Err(Error::invalid(format!(
            "{what} {:?}… has {} bytes, the limit is {}: shorten it, or use a hash of it",
            part.chars().take(24).collect::<String>(),
            part.len(),
            LockKey::MAX_LEN
        )));
    }
    if let Some((at, bad)) = part.char_indices().find(|(_, c)| c.is_control()) {
        return Err(Error::invalid(format!(
            "{what} {part:?} contains the control character {bad:?} at byte {at}: remove or escape it"
        )));
    }
    Ok(())
}

/// 128 random bits that mark everything one claim writes (clause C1).
///
/// It is created before the first byte is sent, so an acquire whose answer never came can be looked
/// up and undone. Anyone who knows it can renew and release the lock, so it is the holder's secret:
/// `Debug` shows only the first four bytes, and there is no `Display`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId([u8; 16]);

impl OwnerId {
    /// A new id from `rng`.
    ///
    /// # Errors
    ///
    /// If the random source fails.
    pub fn generate(rng: &dyn Rng) -> Result<Self> {
        let mut bytes = [0; 16];
        rng.fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The id with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes of the id.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// 32 lower-case hexadecimal digits: the form in which stores keep it.
    pub fn to_hex(&self) -> String {
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])).collect()
    }

    /// The first eight digits: enough to tell two holders apart, too little to act as one.
    pub fn short(&self) -> String {
        let mut hex = self.to_hex();
        hex.truncate(8);
        hex
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId({}…)", self.short())
    }
}

impl FromStr for OwnerId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("an owner id is not 32 lower-case hexadecimal digits");
        if text.len() != 32 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(wrong());
        }
        u128::from_str_radix(text, 16).map(|id| Self(id.to_be_bytes())).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsRng;

    #[test]
    fn limits_are_exact() {
        assert!(LockKey::new("", "x".repeat(512)).is_ok());
        assert!(LockKey::new("", "x".repeat(513)).is_err());
        assert!(LockKey::new("p".repeat(512), "x").is_ok());
        assert!(LockKey::new("p".repeat(513), "x").is_err());
        assert!(LockKey::new("", "").is_err());
        for bad in ["\0", "a\nb", "\u{7f}", "\u{85}"] {
            assert!(LockKey::new("", bad).is_err(), "{bad:?}");
            assert!(LockKey::new(bad, "x").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_encoding_is_injective_and_reversible() {
        let keys = [("", "a/b"), ("a", "b"), ("a", "bc"), ("ab", "c"), ("", "abc"), ("é", "ü ")];
        let encoded: std::collections::HashSet<_> =
            keys.iter().map(|(p, n)| LockKey::new(*p, *n).unwrap().encode()).collect();
        assert_eq!(encoded.len(), keys.len());
        for (prefix, name) in keys {
            let key = LockKey::new(prefix, name).unwrap();
            assert_eq!(LockKey::decode(&key.encode()).unwrap(), key);
        }
        assert!(LockKey::decode("\u{1f}a").is_err(), "it would be the key of \"a\"");
    }

    #[test]
    fn hex_round_trip() {
        let id = OwnerId::generate(&OsRng).unwrap();
        assert_eq!(id.to_hex().parse::<OwnerId>().unwrap(), id);
        assert_ne!(id, OwnerId::generate(&OsRng).unwrap());
    }

    #[test]
    fn debug_keeps_the_secret() {
        let id = OwnerId::from_bytes([0xab; 16]);
        assert_eq!(format!("{id:?}"), "OwnerId(abababab…)");
    }

    #[test]
    fn other_spellings_are_refused() {
        for bad in [
            "",
            "AB",
            &"g".repeat(32),
            &"A".repeat(32),
            &"a".repeat(33),
            "+123456789012345678901234567890a",
        ] {
            assert!(bad.parse::<OwnerId>().is_err(), "{bad}");
        }
    }
}
