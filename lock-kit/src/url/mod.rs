//! The parameters of a store URL, for backends: all read them by the same rules and refuse them in
//! the same words.
//!
//! ```
//! # use lock_kit::url::Params;
//! # use std::time::Duration;
//! let (base, mut params) = Params::split("demo://host/path?lock_grace=2s")?;
//! assert_eq!(base, "demo://host/path");
//! assert_eq!(params.duration("lock_grace")?, Some(Duration::from_secs(2)));
//! // What is left by now is unknown.
//! params.finish("demo", &["lock_grace"])?;
//! # Ok::<(), lock_core::Error>(())
//! ```
//!
//! No error shows a value that may be a secret. If a password contains a `?` or a `&` that is not
//! percent-encoded, the rest of it looks like parameters, so a name is shown only where it cannot
//! be part of a password: see [`Params::secret`].

pub mod endpoint;
pub mod settings;

use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use lock_core::{Error, Result};

/// The parameters that `distlock::connect` understands for every store, and removes before the
/// store sees its URL.
pub const COMMON: &[&str] = &[
    "lock_prefix",
    "lock_ttl",
    "lock_delay",
    "lock_min_hold",
    "lock_call_timeout",
    "lock_unavailable_after",
    "lock_cohort",
    "lock_label",
];

/// The parameters after the `?` of a URL, taken out one by one.
pub struct Params {
    left: Vec<(String, String)>,
    /// What is left may be the rest of a password: there is an `@` after the `?`, or one of the parameters is one.
    may_be_secret: bool,
}

impl Params {
    /// Splits a URL into the part before the `?` and its parameters.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if the part after the `?` is not a list of parameters,
    /// names one twice, or cannot be percent-decoded.
    pub fn split(url: &str) -> Result<(&str, Self)> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let may_be_secret = query.contains('@');
        let mut left: Vec<(String, String)> = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if !is_name(name) {
                return Err(unreadable());
            }
            if left.iter().any(|(known, _)| known == name) {
                // Which parameter is a password is for the store to say, later.
                let follows_one = left.iter().any(|(known, _)| known.contains("pass"));
                return Err(if may_be_secret || follows_one {
                    unreadable()
                } else {
                    Error::config(format!("the parameter {name} is given twice: keep one"))
                });
            }
            left.push((name.to_owned(), value.to_owned()));
        }
        Ok((base, Self { left, may_be_secret }))
    }

    /// The parameter `name`, which is still to be taken out, is a password. If the URL has it, no name is shown from now
    /// on: it may be the rest of a password in which a `&` is not encoded.
    pub fn secret(&mut self, name: &str) {
        self.may_be_secret |= self.left.iter().any(|(known, _)| known == name);
    }

    /// The value as written in the URL, for a driver that decodes it itself.
    pub fn raw(&mut self, name: &str) -> Option<String> {
        let at = self.left.iter().position(|(known, _)| known == name)?;
        Some(self.left.remove(at).1)
    }

    /// The value, percent-decoded.
    ///
    /// # Errors
    ///
    /// As [`decode`].
    pub fn text(&mut self, name: &str) -> Result<Option<String>> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        decode(&format!("the parameter {name}"), &raw).map(Some)
    }

    /// A duration of more than zero, such as `500ms`, `30s` or `1m 30s`.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) for anything else, including a number without a unit.
    pub fn duration(&mut self, name: &str) -> Result<Option<Duration>> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        match humantime::parse_duration(&value) {
            Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
            _ => Err(Error::config(format!(
                "{name}={value:?} is not a duration: write a number with a unit, such as 500ms, 30s or 1m30s"
            ))),
        }
    }

    /// A whole number.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) for anything else, including a number beyond 2³² − 1.
    pub fn number(&mut self, name: &str) -> Result<Option<u32>> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        let number = value.parse();
        number.map(Some).map_err(|_| {
            Error::config(format!("{name}={value:?} is not a number: write digits, such as 32"))
        })
    }

    /// One of the words that `known` lists.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) for any other word.
    pub fn choice<T: Copy>(&mut self, name: &str, known: &[(&str, T)]) -> Result<Option<T>> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        match known.iter().find(|(word, _)| *word == value) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => {
                let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
                Err(Error::config(format!("{name}={value:?} is none of {}", words.join(", "))))
            }
        }
    }

    /// Appends the remaining parameters to `base`, for another reader.
    pub fn rejoin(self, base: &str) -> String {
        let left: Vec<_> =
            self.left.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if left.is_empty() { base.to_owned() } else { format!("{base}?{}", left.join("&")) }
    }

    /// Refuses any parameter that was not taken out; `known` are the store's own names, which the
    /// error lists along with [`COMMON`].
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if anything is left. Only its name is shown.
    pub fn finish(self, scheme: &str, known: &[&str]) -> Result<()> {
        match self.left.first() {
            None => Ok(()),
            Some(_) if self.may_be_secret => Err(unreadable()),
            Some((name, _)) => Err(Error::config(format!(
                "{scheme} has no parameter {name:?}; {}in a URL for distlock::connect every store has {}",
                own(known),
                COMMON.join(", ")
            ))),
        }
    }
}

/// Shows only how many there are, since a value may be a secret, and a name may be part of one.
impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Params").field("left", &self.left.len()).finish_non_exhaustive()
    }
}

fn own(known: &[&str]) -> String {
    if known.is_empty() { String::new() } else { format!("it has {}, and ", known.join(", ")) }
}

/// Percent-decodes a part of a URL; `what` names it in the errors, which do not show the part itself.
///
/// # Errors
///
/// [`Config`](lock_core::ErrorKind::Config) if a `%` is not followed by two hexadecimal digits, or if
/// the result is not UTF-8 or contains a zero byte.
pub fn decode(what: &str, raw: &str) -> Result<String> {
    let bytes = raw.as_bytes();
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%') {
        if !bytes.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
            return Err(Error::config(format!(
                "{what} of the store URL has a `%` that is not followed by two hexadecimal digits: write %25 for a `%`"
            )));
        }
    }
    let text = percent_decode_str(raw).decode_utf8().map_err(|_| {
        Error::config(format!("{what} of the store URL is not UTF-8 when percent-decoded"))
    })?;
    if text.contains('\0') {
        return Err(Error::config(format!(
            "{what} of the store URL contains a zero byte: remove it"
        )));
    }
    Ok(text.into_owned())
}

/// Reads the PEM file at `path`, the value of the parameter `name`. `label` is what one of its blocks
/// must have in its first line at least: `CERTIFICATE` or `PRIVATE KEY`.
///
/// # Errors
///
/// [`Config`](lock_core::ErrorKind::Config) if the file cannot be read, or has no such block.
pub fn pem_file(name: &str, path: &str, label: &str) -> Result<Vec<u8>> {
    let pem = std::fs::read(path).map_err(|error| {
        Error::config(format!("{name}={path:?} cannot be read: give the path of a PEM file"))
            .with_source(error)
    })?;
    let end = format!("{label}-----");
    let text = String::from_utf8_lossy(&pem);
    let mut lines = text.lines().map(str::trim);
    if lines.any(|line| line.starts_with("-----BEGIN ") && line.ends_with(&end)) {
        return Ok(pem);
    }
    Err(Error::config(format!(
        "{name}={path:?} has no {} that can be read: give the path of a PEM file",
        label.to_lowercase()
    )))
}

fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn unreadable() -> Error {
    Error::config(
        "the part after the `?` of the store URL cannot be read as parameters: write them as name=value&name=value, and percent-encode special characters of a user, a password or a value: %3F for `?`, %40 for `@`, %3A for `:`, %2F for `/`, %26 for `&`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_taken_out_and_the_rest_is_refused() {
        let (base, mut params) =
            Params::split("demo://h/x?a=1%20b&&wait=1m%2030s&word=two&flag&raw=%41").unwrap();
        assert_eq!(base, "demo://h/x");
        assert_eq!(params.text("a").unwrap().as_deref(), Some("1 b"));
        assert_eq!(params.text("a").unwrap(), None, "it was taken out");
        assert_eq!(params.duration("wait").unwrap(), Some(Duration::from_secs(90)));
        assert_eq!(params.choice("word", &[("one", 1), ("two", 2)]).unwrap(), Some(2));
        assert_eq!(params.text("flag").unwrap().as_deref(), Some(""));
        assert_eq!(params.raw("raw").as_deref(), Some("%41"));
        params.finish("demo", &[]).unwrap();
        let (_, params) = Params::split("demo://h?grce=1s").unwrap();
        let error = params.finish("demo", &["grace", "pause"]).unwrap_err().to_string();
        for part in ["demo", "\"grce\"", "grace, pause", "lock_ttl"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_is_left_can_be_read_by_somebody_else() {
        let (base, mut params) = Params::split("h/x?a=1%20b&mine=1&&c&b=2").unwrap();
        assert_eq!(params.raw("mine").as_deref(), Some("1"));
        assert_eq!(params.rejoin(base), "h/x?a=1%20b&c=&b=2");
        let (base, params) = Params::split("h?").unwrap();
        assert_eq!(params.rejoin(base), "h");
    }

    #[test]
    fn no_value_is_shown() {
        let (_, params) = Params::split("demo://h?password=hunter2&hunter2").unwrap();
        assert!(!format!("{params:?}").contains("hunter2"), "{params:?}");
    }

    #[test]
    fn values_that_break_their_rule_are_named() {
        let value = |value: &str| Params::split(&format!("demo://h?p={value}")).unwrap().1;
        for bad in ["", "30", "0", "0s", "-1s", "30x", "s"] {
            let error = value(bad).duration("p").unwrap_err().to_string();
            assert!(error.contains(&format!("p={bad:?}")) && error.contains("30s"), "{error}");
        }
        for bad in ["", "-1", "x", "1.5", "4294967296"] {
            let error = value(bad).number("p").unwrap_err().to_string();
            assert!(error.contains(&format!("p={bad:?}")) && error.contains("32"), "{error}");
        }
        assert_eq!(value("32").number("p").unwrap(), Some(32));
        let error = value("three").choice("p", &[("one", 1), ("two", 2)]).unwrap_err().to_string();
        assert!(error.contains("\"three\"") && error.contains("one, two"), "{error}");
        for bad in ["%", "%4", "%zz", "%ff", "%00"] {
            let error = value(bad).text("p").unwrap_err().to_string();
            assert!(error.contains("the parameter p"), "{error}");
        }
        let error = Params::split("demo://h?a=1&a=2").unwrap_err().to_string();
        assert!(error.contains("the parameter a is given twice"), "{error}");
    }

    #[test]
    fn a_file_is_named_with_its_parameter() {
        let file = std::env::temp_dir().join(format!("distlock-pem-{}", std::process::id()));
        let path = file.to_str().unwrap();
        let said = |label: &str| pem_file("lock_ca", path, label).unwrap_err().to_string();
        let named = format!("lock_ca={path:?}");
        assert!(said("CERTIFICATE").starts_with(&format!("{named} cannot be read")));
        std::fs::write(path, "# ours\r\n-----BEGIN EC PRIVATE KEY-----\r\nAAAA").unwrap();
        assert!(said("CERTIFICATE").starts_with(&format!("{named} has no certificate")));
        assert!(pem_file("lock_key", path, "PRIVATE KEY").unwrap().ends_with(b"AAAA"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_rest_of_a_password_is_not_taken_for_a_parameter() {
        for url in [
            "demo://u:12?hunter2@h",
            "demo://u:?hunter2@h/d",
            "demo://u:x?hunter2=y@h",
            "demo://u:x?hunter2&hunter2@h",
            "demo://u:p@ss?hunter2@h/d?lock_grace=1s",
            "demo://h?hunter2:x",
            "demo://h?password=x&hunter2",
            "demo://h?password=x&hunter2&hunter2",
        ] {
            let error = match Params::split(url) {
                Ok((_, mut params)) => {
                    params.secret("password");
                    params.raw("password");
                    params.finish("demo", &["lock_grace"]).unwrap_err()
                }
                Err(error) => error,
            };
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error}");
            assert!(error.to_string().contains("%3F"), "{url}: {error}");
        }
    }
}
