//! A lock in transit between two processes.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::contract::Fences;
use crate::{ClockInstant, Error, FencingToken, Held, LockKey, OwnerId, Result};

/// A held lock that belongs to no process: made by [`LockGuard::detach`](crate::LockGuard::detach),
/// used by [`Lock::attach`](crate::Lock::attach), [`Lock::renew`](crate::Lock::renew) and
/// [`Lock::release`](crate::Lock::release).
///
/// It has one printable form, for a cookie, a header, a form field or a column:
/// [`to_text`](Self::to_text) and [`FromStr`]. serde uses the same text. **Its bearer can renew and release the lock**: treat
/// it like a password. `Debug` does not show the owner id.
///
/// The bearer can also edit the text, so none of it is trusted. The [`Lock`](crate::Lock) that uses
/// it compares the name and supplies the TTL, and the store compares owner and fence with its own
/// record. This is why the fence cannot be read here: take it from
/// [`LockGuard::token`](crate::Held::token) or from [`RenewedLease::fence`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[must_use = "if the token is dropped, the lock stays held until its TTL has passed"]
pub struct LeaseToken {
    backend: String,
    key: LockKey,
    owner: OwnerId,
    fence: FencingToken,
    /// The fences that the hold has in the store.
    fences: Fences,
    /// For how long after it was made an acquire request of this hold may still arrive. After a release that would
    /// take the lock once more, so a release is repeated for as long.
    in_doubt: Duration,
    data: Bytes,
}

impl LeaseToken {
    const SCHEME: &'static str = "distlock1.";

    pub(crate) fn new(
        backend: &str,
        key: LockKey,
        owner: OwnerId,
        fence: FencingToken,
        fences: Fences,
        data: Bytes,
    ) -> Self {
        let in_doubt = Duration::ZERO;
        Self { backend: backend.to_owned(), key, owner, fence, fences, in_doubt, data }
    }

    pub(crate) fn with_in_doubt(self, in_doubt: Duration) -> Self {
        Self { in_doubt, ..self }
    }

    /// The kind of store that holds the lock, such as `redis`, according to the text.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The lock, according to the text: to find the [`Lock`](crate::Lock) for it if the request
    /// does not name one. Then check that the bearer may use that lock.
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.owner
    }

    pub(crate) fn fence(&self) -> FencingToken {
        self.fence
    }

    pub(crate) fn fences(&self) -> Fences {
        self.fences
    }

    pub(crate) fn in_doubt(&self) -> Duration {
        self.in_doubt
    }

    /// The backend's own bytes.
    pub(crate) fn data(&self) -> &Bytes {
        &self.data
    }

    /// Checks that this is a token of the lock `key` on a store of this kind.
    pub(crate) fn check_is_of(&self, key: &LockKey, backend: &str) -> Result<()> {
        if self.backend != backend {
            return Err(Error::invalid(format!(
                "this lease token is of a lock on {:?}, not on {backend:?}: use it where it was made",
                self.backend
            )));
        }
        if self.key != *key {
            return Err(Error::invalid(format!(
                "this lease token is of the lock {}, not of {}: use it with the lock that was detached",
                named(&self.key),
                named(key)
            )));
        }
        Ok(())
    }

    /// The printable form: letters, digits, `-`, `_` and one dot.
    pub fn to_text(&self) -> String {
        let json = serde_json::to_vec(&Wire::from(self.clone()))
            .expect("BUG: a struct of strings and numbers is always JSON");
        format!("{}{}", Self::SCHEME, URL_SAFE_NO_PAD.encode(json))
    }
}

impl FromStr for LeaseToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // The text is a secret, so no error quotes it.
        let wrong = || {
            Error::invalid("this is not a lease token: pass the whole text that `to_text` returned")
        };
        let body = text.trim().strip_prefix(Self::SCHEME).ok_or_else(wrong)?;
        let json = URL_SAFE_NO_PAD.decode(body).map_err(|_| wrong())?;
        let wire: Wire = serde_json::from_slice(&json).map_err(|_| wrong())?;
        wire.token()
    }
}

impl From<LeaseToken> for String {
    fn from(token: LeaseToken) -> Self {
        token.to_text()
    }
}

impl TryFrom<String> for LeaseToken {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseToken")
            .field("backend", &self.backend)
            .field("key", &self.key)
            .field("owner", &self.owner)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

/// For people. Unlike a key's `Display`, it differs for different keys.
fn named(key: &LockKey) -> String {
    match key.prefix() {
        "" => format!("{:?}", key.name()),
        prefix => format!("{:?} with the prefix {prefix:?}", key.name()),
    }
}

/// The answer of [`Lock::renew`](crate::Lock::renew): the hold exists, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenewedLease {
    /// The fencing token, as the store has confirmed it: the one to present to a protected
    /// resource.
    pub fence: FencingToken,
    /// How long the lock counts as held, from the return of the renewal.
    pub remaining: Duration,
    /// The end of that time on the clock of the [`Locks`](crate::Locks); see
    /// [`Held::valid_until`](crate::Held::valid_until).
    pub valid_until: ClockInstant,
}

impl RenewedLease {
    /// For a hold that was renewed just now.
    ///
    /// # Errors
    ///
    /// If it has ended since.
    pub(crate) fn of(held: &Held) -> Result<Self> {
        let (remaining, valid_until) = (held.remaining(), held.valid_until());
        Ok(Self { fence: held.token()?, remaining, valid_until })
    }
}

/// The serialised form: short names, since it travels in cookies.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    b: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    p: String,
    n: String,
    o: String,
    f: FencingToken,
    /// The block of fences: the first, and how many, where it is more than that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    s: Option<(FencingToken, u32)>,
    /// How long something is in doubt, in milliseconds, where something is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    u: Option<NonZeroU64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    d: String,
}

impl From<LeaseToken> for Wire {
    fn from(token: LeaseToken) -> Self {
        Self {
            b: token.backend,
            p: token.key.prefix().to_owned(),
            n: token.key.name().to_owned(),
            o: token.owner.to_hex(),
            f: token.fence,
            s: (token.fences.count > 1).then_some((token.fences.first, token.fences.count)),
            u: NonZeroU64::new(token.in_doubt.as_millis().try_into().unwrap_or(u64::MAX)),
            d: URL_SAFE_NO_PAD.encode(&token.data),
        }
    }
}

impl Wire {
    fn token(self) -> Result<LeaseToken> {
        let data = URL_SAFE_NO_PAD
            .decode(&self.d)
            .map_err(|_| Error::invalid("the data of this lease token is damaged"))?;
        let fences = match self.s {
            Some((first, count)) => Fences { first, count },
            None => Fences::of_one(self.f),
        };
        if !(1..=Fences::LONGEST).contains(&fences.count) || !fences.contains(self.f) {
            return Err(Error::invalid(
                "this lease token was edited: its fence is not one of those that its hold has",
            ));
        }
        Ok(LeaseToken {
            backend: self.b,
            key: LockKey::new(self.p, self.n)?,
            owner: self.o.parse()?,
            fence: self.f,
            fences,
            in_doubt: Duration::from_millis(self.u.map_or(0, NonZeroU64::get)),
            data: data.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> LeaseToken {
        LeaseToken::new(
            "memory",
            LockKey::new("shop", "order:42 ü").unwrap(),
            OwnerId::from_bytes([0xcd; 16]),
            FencingToken::new(7).unwrap(),
            Fences { first: FencingToken::new(5).unwrap(), count: 4 },
            Bytes::from_static(b"lease"),
        )
        .with_in_doubt(Duration::from_millis(300))
    }

    #[test]
    fn there_is_one_form_for_people_and_machines() {
        let text = token().to_text();
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)), "{text}");
        assert_eq!(text.parse::<LeaseToken>().unwrap(), token());
        let json = serde_json::to_string(&token()).unwrap();
        assert_eq!(json, format!("{text:?}"));
        assert_eq!(serde_json::from_str::<LeaseToken>(&json).unwrap(), token());
    }

    /// A token is kept in cookies and columns for longer than a program runs.
    #[test]
    fn the_form_is_what_it_was() {
        let text = token().to_text();
        let json = URL_SAFE_NO_PAD.decode(text.strip_prefix("distlock1.").unwrap()).unwrap();
        let owner = "cd".repeat(16);
        let form = format!(
            r#"{{"b":"memory","p":"shop","n":"order:42 ü","o":"{owner}","f":7,"s":[5,4],"u":300,"d":"bGVhc2U"}}"#
        );
        assert_eq!(String::from_utf8(json).unwrap(), form);
    }

    #[test]
    fn a_fence_outside_of_its_block_is_refused() {
        let wire = |fence, block| {
            let fence = FencingToken::new(fence).unwrap();
            let s = Some((FencingToken::new(5).unwrap(), block));
            Wire { f: fence, s, ..Wire::from(token()) }.token()
        };
        for (fence, fences) in [(5, 1), (5, 4), (8, 4), (1028, 1024)] {
            assert!(wire(fence, fences).is_ok(), "{fence} {fences}");
        }
        for (fence, fences) in [(4, 4), (9, 4), (5, 0), (1028, 1025), (FencingToken::MAX.get(), 4)]
        {
            let error = wire(fence, fences).unwrap_err().to_string();
            assert!(error.contains("edited"), "{error}");
        }
    }

    #[test]
    fn a_ttl_in_the_text_is_not_read() {
        let mut fields = serde_json::to_value(Wire::from(token())).unwrap();
        fields["t_us"] = 1_000_000.into();
        let text = format!("distlock1.{}", URL_SAFE_NO_PAD.encode(fields.to_string()));
        assert!(text.parse::<LeaseToken>().is_err());
    }

    #[test]
    fn damaged_text_is_an_error_that_does_not_quote_it() {
        let text = token().to_text();
        for bad in ["", "distlock1.", "distlock1.AAAA", &text[..text.len() - 4], &text[3..]] {
            let error = bad.parse::<LeaseToken>().unwrap_err().to_string();
            assert!(bad.is_empty() || !error.contains(bad), "{error}");
        }
    }

    #[test]
    fn debug_keeps_the_owner() {
        assert!(!format!("{:?}", token()).contains(&"cd".repeat(16)));
    }
}
