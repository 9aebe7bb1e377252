//! The names of the exclusive locks that a lock of another kind is made of.

use std::fmt;

use super::{Semaphore, rules};
use crate::{Error, LockKey, Result};

/// An exclusive lock that is a part of a lock of another kind. Its name is that of the whole, and a suffix
/// that no lock of a user has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockPart {
    /// A permit of a semaphore.
    Permit(u32),
    /// What the first waiter for a permit has.
    Turnstile,
    /// Where a process is marked as a reader.
    Slot(u32),
    /// What a writer has.
    Gate,
}

/// What begins the suffix.
const MARK: &str = "~~";

/// The longest suffix: that of a part with a number of three digits.
const LONGEST_SUFFIX: usize = 6;

impl fmt::Display for LockPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MARK)?;
        match self {
            Self::Permit(number) => write!(f, "p{number}"),
            Self::Turnstile => f.write_str("pt"),
            Self::Slot(number) => write!(f, "r{number}"),
            Self::Gate => f.write_str("g"),
        }
    }
}

impl LockPart {
    /// The name of this part of the lock `whole`.
    pub(crate) fn key(self, whole: &LockKey) -> Result<LockKey> {
        whole.sibling(format!("{}{self}", whole.name()))
    }

    /// The name of the whole and its part, if `name` is that of a part.
    pub(crate) fn parse(name: &str) -> Option<(&str, Self)> {
        let (whole, suffix) = name.rsplit_once(MARK)?;
        let number = |digits: &str| digits.parse().ok();
        let part = match suffix.split_at_checked(1)? {
            ("g", "") => Self::Gate,
            ("p", "t") => Self::Turnstile,
            ("p", digits) => Self::Permit(number(digits)?),
            ("r", digits) => Self::Slot(number(digits)?),
            _ => return None,
        };
        (!whole.is_empty() && part.to_string()[MARK.len()..] == *suffix).then_some((whole, part))
    }

    /// The names of all parts that a lock of another kind with this name may have.
    pub(crate) fn all_of(whole: &LockKey) -> Vec<LockKey> {
        if Self::check_whole(whole).is_err() {
            return Vec::new();
        }
        let permits = (0..Semaphore::MOST_PERMITS).map(Self::Permit);
        let readers = rules::read_slots().map(Self::Slot);
        let parts = permits.chain(readers).chain([Self::Turnstile, Self::Gate]);
        parts.filter_map(|part| part.key(whole).ok()).collect()
    }

    /// What the names of all parts of this lock begin with.
    pub(crate) fn start_of_all(whole: &LockKey) -> String {
        format!("{}{MARK}", whole.name())
    }

    /// Refuses the name of a part where a user names a lock.
    pub(crate) fn refuse(name: &str) -> Result<()> {
        match Self::parse(name) {
            Some((whole, part)) => Err(Error::invalid(format!(
                "the lock name {name:?} ends in {:?}, by which this library names a part of another kind of lock of {whole:?}: choose another ending",
                part.to_string()
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a name that is too long for its parts, or that is a part itself.
    pub(crate) fn check_whole(whole: &LockKey) -> Result<()> {
        Self::refuse(whole.name())?;
        let longest = LockKey::MAX_LEN - LONGEST_SUFFIX;
        if whole.name().len() > longest {
            return Err(Error::invalid(format!(
                "the name of this kind of lock has {} bytes, the limit is {longest}: shorten it, or use a hash of it",
                whole.name().len()
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_parts_are_theirs_alone() {
        let whole = LockKey::new("shop", "gpu").unwrap();
        let parts = [
            LockPart::Permit(0),
            LockPart::Permit(255),
            LockPart::Turnstile,
            LockPart::Slot(63),
            LockPart::Gate,
        ];
        for part in parts {
            let key = part.key(&whole).unwrap();
            assert_eq!(LockPart::parse(key.name()), Some(("gpu", part)));
            assert!(part.to_string().len() <= LONGEST_SUFFIX);
            assert!(LockPart::refuse(key.name()).unwrap_err().to_string().contains(key.name()));
        }
        for other in [
            "gpu", "gpu~~", "gpu~~x", "gpu~~p", "gpu~~p01", "gpu~~p+1", "gpu~~g1", "~~g", "gpu~~é",
            "gpu~p1",
        ] {
            assert_eq!(LockPart::parse(other), None, "{other}");
            assert!(LockPart::refuse(other).is_ok());
        }
    }

    #[test]
    fn all_parts_are_known_by_their_whole() {
        let whole = LockKey::new("shop", "gpu").unwrap();
        let parts = LockPart::all_of(&whole);
        assert_eq!(parts.len(), 256 + 64 + 2);
        for part in &parts {
            assert!(part.name().starts_with(&LockPart::start_of_all(&whole)), "{part}");
            assert_eq!(LockPart::parse(part.name()).map(|(name, _)| name), Some("gpu"));
        }
        assert!(LockPart::all_of(&parts[0]).is_empty(), "a part has none");
    }

    #[test]
    fn the_whole_leaves_room_for_its_parts() {
        let of = |length| LockKey::new("", "x".repeat(length)).unwrap();
        assert!(LockPart::check_whole(&of(506)).is_ok());
        assert!(LockPart::Permit(255).key(&of(506)).is_ok());
        assert!(LockPart::check_whole(&of(507)).unwrap_err().to_string().contains("506"));
    }
}
