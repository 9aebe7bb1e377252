//! Fuzzes what users and other processes hand in: URLs, lease tokens, names.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD;
use distlock::admin::OwnerId;
use distlock::{LeaseToken, LockKey};
use lock_testkit::fuzz::{Fuzz, reason};

fn target(name: &str, words: &'static [&'static str]) -> Fuzz {
    Fuzz::new(env!("CARGO_MANIFEST_DIR"), name, words)
}

/// In every URL of the corpus this is the password.
const SECRET: &str = "s3ntinel";

/// Whether what follows the scheme, in a URL without its parameters, is the path of a file, in which a colon
/// and an `@` mean nothing. A whole URL in its place may have a password all the same.
fn is_path(place: &str) -> bool {
    let (scheme, location) = place.split_once(':').unwrap_or_default();
    scheme.eq_ignore_ascii_case("sqlite") && !location.contains("://")
}

#[test]
fn fuzz_urls() {
    const WORDS: &[&str] = &[
        "redis://",
        "rediss://",
        "redis+unix://",
        "redis+sentinel://",
        "redlock://",
        "redlocks://",
        "etcd://",
        "etcds://",
        "zookeeper://",
        "zk://",
        "postgres://",
        "mysql://",
        "mariadb://",
        "sqlite:",
        "memory://",
        "u:s3ntinel@",
        ":s3ntinel@",
        "localhost",
        ":6379",
        ",",
        "/",
        "?",
        "&",
        "#",
        "%2F",
        "%00",
        "%zz",
        "[::1]",
        "@",
        ":",
        "=",
        "lock_ttl=10s",
        "lock_delay=",
        "lock_min_hold=",
        "lock_prefix=",
        "lock_max_ttl=",
        "lock_table=",
        "lock_label=",
        "lock_call_timeout=",
        "lock_connect_timeout=1m 30s",
        "lock_bootstrap=now",
        "lock_recover=manual",
        "sslmode=",
        "ssl-ca=",
        "99999999999999999999",
        "\u{e9}",
    ];
    target("urls", WORDS).run(|input| {
        let Ok(url) = std::str::from_utf8(input) else { return String::new() };
        // Without the parameters.
        let place = url.split('?').next().unwrap_or_default();
        match distlock::builder(url).connect_lazy() {
            Ok(locks) => {
                let shows = format!("{locks:?}").contains(SECRET);
                assert!(!shows || is_path(place), "a password is shown");
                url.split(':').next().unwrap_or_default().to_owned()
            }
            Err(error) => {
                let shown = format!("{error} {error:?}");
                // It is one only before the parameters, and where it stands nowhere else, encoded or not, as in
                // the scheme, which is shown in small letters.
                let is_password = place.contains(":s3ntinel@")
                    && !is_path(place)
                    && url.to_ascii_lowercase().matches(SECRET).count() == 1
                    && !url.contains('%');
                assert!(!(is_password && shown.contains(SECRET)), "a password is shown: {shown}");
                reason(&error)
            }
        }
    });
}

#[test]
fn fuzz_lease_tokens() {
    const WORDS: &[&str] = &[
        "distlock1.",
        "\"b\":",
        "\"p\":",
        "\"n\":",
        "\"o\":",
        "\"f\":",
        "\"d\":",
        "memory",
        "null",
        "-1",
        "9223372036854775808",
        "1e9",
        "{",
        "}",
        "[",
        "\\u001f",
        "\\ud800",
        ",",
    ];
    target("lease_tokens", WORDS).run(|input| {
        // The text, or what is inside it.
        let text = match input.strip_prefix(b"{") {
            Some(_) => format!("distlock1.{}", URL_SAFE_NO_PAD.encode(input)),
            None => String::from_utf8_lossy(input).into_owned(),
        };
        match text.parse::<LeaseToken>() {
            Ok(token) => {
                assert_eq!(token.to_text().parse::<LeaseToken>().unwrap(), token);
                format!("{} {}", token.backend().len(), token.key().name().len())
            }
            Err(error) => {
                assert!(text.len() < 9 || !error.to_string().contains(&text), "a secret is quoted");
                reason(&error)
            }
        }
    });
}

#[test]
fn fuzz_names() {
    const WORDS: &[&str] = &["\u{1f}", "%", "/", "%2F", ".", "..", "\u{7f}", "\u{e9}", "{a}", " "];
    target("names", WORDS).run(|input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(owner) = text.parse::<OwnerId>() {
            assert_eq!(owner.to_hex().parse::<OwnerId>().unwrap(), owner);
        }
        if let Ok(key) = LockKey::decode(&text) {
            assert_eq!(key.encode(), text, "one key has one encoding");
        }
        let (prefix, name) = text.split_once('\n').unwrap_or(("", &text));
        match LockKey::new(prefix, name) {
            Ok(key) => {
                assert_eq!(LockKey::decode(&key.encode()).unwrap(), key);
                format!("{}{}", prefix.is_empty(), name.len() / 64)
            }
            Err(error) => reason(&error),
        }
    });
}
