//! Fencing tokens, and the check that a protected resource makes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result};

/// A number that strictly rises from one holder of a name to the next, forever (clause C9).
///
/// No lease can stop a paused process from acting too late. The resource can: it remembers the
/// greatest token it has seen and refuses a smaller one (see [`FenceCheck`]; the rule is from M.
/// Kleppmann, *How to do distributed locking*, 2016, and Chubby's sequencer, OSDI 2006). A token is
/// not a secret and grants no rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct FencingToken(u64);

impl FencingToken {
    /// The greatest token, 2⁶³ − 1: it fits a signed 64-bit column.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// The token with this value, 1 to 2⁶³ − 1, for a token that was passed on as a number.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for any other value.
    pub fn new(value: u64) -> Result<Self> {
        Self::in_range(value).ok_or_else(|| {
            Error::invalid(format!(
                "{value} is not a fencing token: it must be between 1 and 2^63-1, as `FencingToken::get` returned it"
            ))
        })
    }

    /// The token in a store's answer, for store authors.
    ///
    /// # Errors
    ///
    /// [`Store`](ErrorKind::Store) for a value that is not a token: the store's data is corrupt.
    pub fn answered(value: impl TryInto<u64> + fmt::Display + Copy) -> Result<Self> {
        value.try_into().ok().and_then(Self::in_range).ok_or_else(|| {
            Error::new(
                ErrorKind::Store,
                format!(
                    "the store returned the fencing token {value}, which is outside 1..=2^63-1"
                ),
            )
        })
    }

    fn in_range(value: u64) -> Option<Self> {
        (1..=Self::MAX.0).contains(&value).then_some(Self(value))
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number as a signed integer, for an SQL column.
    pub const fn as_i64(self) -> i64 {
        self.0.cast_signed()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl TryFrom<u64> for FencingToken {
    type Error = Error;

    fn try_from(value: u64) -> Result<Self> {
        Self::new(value)
    }
}

/// Fencing tokens in a row, which all belong to one hold in the store (clause C16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fences {
    pub(crate) first: FencingToken,
    pub(crate) count: u32,
}

impl Fences {
    /// More holders than this one after the other are no cohort any more.
    pub(crate) const LONGEST: u32 = 1024;

    /// That of a hold without a cohort.
    pub(crate) fn of_one(fence: FencingToken) -> Self {
        Self { first: fence, count: 1 }
    }

    pub(crate) fn contains(self, fence: FencingToken) -> bool {
        (self.first.0..self.first.0 + u64::from(self.count)).contains(&fence.0)
    }
}

/// The greatest fencing token that a guarded resource has seen, and the check against it.
///
/// Present the token on the *first* access, reads included. A resource that checks only writes
/// still loses an update: the old holder reads, the new one reads, the old one writes (its token is
/// still the greatest presented), and the new one overwrites it.
///
/// ```
/// # use lock_core as distlock;
/// use distlock::{FenceCheck, FencingToken};
///
/// let mut resource = FenceCheck::default();
/// resource.admit(FencingToken::new(33)?)?;           // the first holder reads
/// resource.admit(FencingToken::new(34)?)?;           // its successor reads
/// assert!(resource.admit(FencingToken::new(33)?).is_err()); // a late write of the first one
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceCheck {
    highest: Option<FencingToken>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    highest_reader: Option<FencingToken>,
}

impl FenceCheck {
    /// Lets `token` pass and remembers it, unless a greater one has been seen, or one of a
    /// [reader](Self::admit_reader) that is not below it.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if a later holder has already been here.
    pub fn admit(&mut self, token: FencingToken) -> Result<()> {
        match self.highest {
            Some(highest) if token < highest => return Err(stale(token, "holder", highest)),
            _ => {}
        }
        match self.highest_reader {
            Some(highest) if token <= highest => return Err(stale(token, "reader", highest)),
            _ => {}
        }
        self.highest = Some(token);
        Ok(())
    }

    /// Lets the token of a [reader](crate::kinds::ReadGuard) pass and remembers it, unless a greater one of a
    /// writer has been seen. Readers do not stop each other.
    ///
    /// ```
    /// # use lock_core as distlock;
    /// use distlock::{FenceCheck, FencingToken};
    ///
    /// let token = |number| FencingToken::new(number);
    /// let mut resource = FenceCheck::default();
    /// resource.admit(token(33)?)?;                        // a writer
    /// resource.admit_reader(token(33)?)?;                 // readers after it
    /// resource.admit_reader(token(33)?)?;
    /// assert!(resource.admit(token(33)?).is_err());       // the writer again, too late
    /// resource.admit(token(34)?)?;                        // the next writer
    /// assert!(resource.admit_reader(token(33)?).is_err()); // a reader before it
    /// # Ok::<(), lock_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if a later writer has already been here.
    pub fn admit_reader(&mut self, token: FencingToken) -> Result<()> {
        match self.highest {
            Some(highest) if token < highest => Err(stale(token, "holder", highest)),
            _ => {
                self.highest_reader = self.highest_reader.max(Some(token));
                Ok(())
            }
        }
    }

    /// The greatest token seen so far, but for those of readers.
    pub fn highest(&self) -> Option<FencingToken> {
        self.highest
    }
}

fn stale(token: FencingToken, later: &str, highest: FencingToken) -> Error {
    Error::new(
        ErrorKind::Lost(crate::LostReason::Taken),
        format!("fencing token {token} is stale: a {later} with {highest} has already been here"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positive_signed_values_are_tokens() {
        assert!(FencingToken::new(0).is_err());
        assert!(FencingToken::new(1 << 63).is_err());
        assert_eq!(FencingToken::new(i64::MAX as u64).unwrap(), FencingToken::MAX);
        assert!(serde_json::from_str::<FencingToken>("0").is_err());
        assert_eq!(FencingToken(7).to_string(), "7");
        assert_eq!(FencingToken(7).as_i64(), 7);
    }

    #[test]
    fn a_bad_number_is_blamed_on_who_gave_it() {
        assert_eq!(FencingToken::new(0).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(FencingToken::answered(0_u64).unwrap_err().kind(), ErrorKind::Store);
        let error = FencingToken::answered(-7_i64).unwrap_err();
        assert!(error.to_string().contains("-7"), "{error}");
        assert_eq!(FencingToken::answered(7_i64).unwrap(), FencingToken(7));
    }

    #[test]
    fn the_same_holder_passes_again_and_a_stale_one_does_not() {
        let token = |n| FencingToken::new(n).unwrap();
        let mut check = FenceCheck::default();
        check.admit(token(5)).unwrap();
        check.admit(token(5)).unwrap();
        check.admit(token(6)).unwrap();
        assert_eq!(
            check.admit(token(5)).unwrap_err().kind(),
            ErrorKind::Lost(crate::LostReason::Taken)
        );
        assert_eq!(check.highest(), Some(token(6)));
    }
}
