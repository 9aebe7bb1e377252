//! An entry of a queue, and the text that its key holds: `owner[+base][ label]`.
//!
//! So the record of an entry is complete: readers know its owner and its fence, base + create
//! revision, even if the base of the cluster has changed since.

use lock_core::{FencingToken, OwnerId};

use crate::error::{Failed, Why};

/// Our key in a queue, as the store returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    /// The revision at which it was created.
    pub(crate) rev: i64,
    /// Another process may have written it, with its own label.
    pub(crate) value: Vec<u8>,
    pub(crate) fence: FencingToken,
}

/// The parsed value of a key.
#[derive(Debug)]
pub(crate) struct Value<'a> {
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

impl<'a> Value<'a> {
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
    pub(crate) fn fence(&self, rev: i64) -> Result<FencingToken, Failed> {
        FencingToken::answered(self.base.saturating_add(rev))
            .map_err(|error| Failed { why: Why::Refused, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::OsRng;

    #[test]
    fn what_others_have_written_has_no_owner() {
        let owner = OwnerId::generate(&OsRng).unwrap().to_hex();
        for value in ["", "somebody else", &format!("{owner}+x"), &format!("{owner}x"), "\u{0}"] {
            let value = Value::read(value.as_bytes());
            assert_eq!(value.owner, None);
            assert_eq!(value.fence(7).unwrap().get(), 7, "a Go client presents its revision");
        }
        assert_eq!(Value::read(b"\xff\xfe").owner, None);
        let greatest = format!("{owner}+{}", i64::MAX);
        assert_eq!(Value::read(greatest.as_bytes()).fence(7).unwrap(), FencingToken::MAX);
    }
}
