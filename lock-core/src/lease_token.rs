//! A lock in transit between two processes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Error, FencingToken, LockKey, OwnerId, Result};

/// A held lock that belongs to no process: made by [`LockGuard::detach`](crate::LockGuard::detach),
/// used by [`Locks::attach`](crate::Locks::attach).
///
/// It is serialisable, and has a printable form for a cookie, a header or a form field:
/// [`to_text`](Self::to_text) and [`FromStr`]. **Whoever has it can renew and release the lock**:
/// treat it as a password. `Debug` does not show the owner id.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct LeaseToken {
    backend: String,
    key: LockKey,
    owner: OwnerId,
    fence: FencingToken,
    ttl: Duration,
    data: Bytes,
}

impl LeaseToken {
    const SCHEME: &'static str = "distlock1.";

    pub(crate) fn new(
        backend: &str,
        key: LockKey,
        owner: OwnerId,
        fence: FencingToken,
        ttl: Duration,
        data: Bytes,
    ) -> Self {
        Self { backend: backend.to_owned(), key, owner, fence, ttl, data }
    }

    /// The kind of store that holds the lock, such as `redis`.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The lock.
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// The identity of the hold.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The fencing token of the hold.
    pub fn fence(&self) -> FencingToken {
        self.fence
    }

    /// How long the store keeps the lock after each renewal.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The backend's own bytes.
    pub fn data(&self) -> &Bytes {
        &self.data
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
            Error::invalid(
                "this is not a lease token: pass the text that `to_text` returned, whole",
            )
        };
        let body = text.trim().strip_prefix(Self::SCHEME).ok_or_else(wrong)?;
        let json = URL_SAFE_NO_PAD.decode(body).map_err(|_| wrong())?;
        let wire: Wire = serde_json::from_slice(&json).map_err(|_| wrong())?;
        wire.try_into()
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseToken")
            .field("backend", &self.backend)
            .field("key", &self.key)
            .field("owner", &self.owner)
            .field("fence", &self.fence)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
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
    t_us: u64,
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
            t_us: u64::try_from(token.ttl.as_micros()).unwrap_or(u64::MAX),
            d: URL_SAFE_NO_PAD.encode(&token.data),
        }
    }
}

impl TryFrom<Wire> for LeaseToken {
    type Error = Error;

    fn try_from(wire: Wire) -> Result<Self> {
        let data = URL_SAFE_NO_PAD
            .decode(&wire.d)
            .map_err(|_| Error::invalid("the data of this lease token is damaged"))?;
        if wire.t_us == 0 {
            return Err(Error::invalid("this lease token has a ttl of zero"));
        }
        Ok(Self {
            backend: wire.b,
            key: LockKey::new(wire.p, wire.n)?,
            owner: wire.o.parse()?,
            fence: wire.f,
            ttl: Duration::from_micros(wire.t_us),
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
            Duration::from_secs(30),
            Bytes::from_static(b"lease"),
        )
    }

    #[test]
    fn both_forms_round_trip() {
        let text = token().to_text();
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)), "{text}");
        assert_eq!(text.parse::<LeaseToken>().unwrap(), token());
        let json = serde_json::to_string(&token()).unwrap();
        assert_eq!(serde_json::from_str::<LeaseToken>(&json).unwrap(), token());
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
