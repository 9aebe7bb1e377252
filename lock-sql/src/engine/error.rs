//! Errors that are the same for every dialect. What a database's own error codes mean is beside the
//! dialect's statements.

use std::time::Duration;

use lock_core::{Error, ErrorKind};

/// No answer in time: the statement may be executed later.
pub(crate) fn no_answer(endpoint: &str, limit: Duration) -> Error {
    Error::new(ErrorKind::NoAnswer, format!("{endpoint} did not answer within {limit:.1?}"))
}

/// Somebody else was writing all the time. Nothing was written.
pub(crate) fn still_locked(endpoint: &str, limit: Duration) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "{endpoint} stayed locked by another writer for {limit:.1?}: look for a transaction that was left open"
        ),
    )
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this connection to the store was closed")
}

/// A statement may have been executed, and its answer was lost.
pub(crate) fn unanswered(endpoint: &str) -> Error {
    let what = format!("a connection to {endpoint} has ended without an answer");
    Error::new(ErrorKind::Unavailable, what).with_unknown_effect()
}
