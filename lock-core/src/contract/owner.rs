//! The identity of one claim.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result, Rng};

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
        use fmt::Write;
        self.0.iter().fold(String::with_capacity(32), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
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
