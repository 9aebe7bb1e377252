//! What an error shows.

use super::*;
use crate::LockKey;

#[test]
fn the_innermost_layer_names_the_place() {
    let key = LockKey::new("app", "order:42").unwrap();
    let error = Error::new(ErrorKind::Unavailable, "connection refused")
        .in_operation(Operation::Acquire)
        .in_operation(Operation::Ping)
        .for_key(&key)
        .on_backend("redis");
    assert_eq!(error.to_string(), "acquire \"app/order:42\" on redis: connection refused");
    assert!(error.is_retryable());
    assert_eq!(error.effect(), Effect::None);
}

#[test]
fn a_cause_is_kept_apart_from_a_statement() {
    let cause = || std::io::Error::other("denied");
    let said = |message: &'static str| Error::config(message).with_source(cause()).to_string();
    assert_eq!(said("no table"), "no table: denied");
    assert_eq!(said("execute\nCREATE x;"), "execute\nCREATE x;\ndenied");
}

/// What a program prints whose `main` returns the error.
#[test]
fn the_debug_text_is_for_people_and_the_alternate_one_shows_the_fields() {
    let io = std::io::Error::new(std::io::ErrorKind::TimedOut, "no route");
    let cause = Error::config("the proxy is down").with_source(io);
    let error = Error::new(ErrorKind::Store, "execute\nCREATE x;")
        .with_source(std::io::Error::other(cause))
        .in_operation(Operation::Connect);
    assert_eq!(format!("{error:?}"), "connect: execute\nCREATE x;\nthe proxy is down: no route");
    let fields = format!("{error:#?}");
    for part in ["kind: Store", "effect: None", "retryable: false", "CREATE x;\\n"] {
        assert!(fields.contains(part), "{fields}");
    }
    #[derive(Debug)]
    struct Deep;
    impl fmt::Display for Deep {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the request failed")
        }
    }
    impl StdError for Deep {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&fmt::Error)
        }
    }
    let deep = Error::new(ErrorKind::Unavailable, "no answer").with_source(Deep);
    let shown = format!("{:?}", Some(deep));
    let last = format!("caused by: {})", fmt::Error);
    assert_eq!(shown, format!("Some(no answer: the request failed\n{last}"));
}

#[test]
fn a_cause_is_one_line_of_a_bounded_length() {
    let said = |text: String| {
        Error::config("no table").with_source(std::io::Error::other(text)).to_string()
    };
    assert_eq!(said("a\x1b[2J\r\nb".to_owned()), "no table: a [2J  b");
    let long = said("é".repeat(5_000));
    assert_eq!(long, format!("no table: {}…", "é".repeat(LONGEST_CAUSE)));
}

#[test]
fn a_timeout_is_unknown_until_somebody_knows_better() {
    assert_eq!(Error::new(ErrorKind::NoAnswer, "no answer").effect(), Effect::Unknown);
}
