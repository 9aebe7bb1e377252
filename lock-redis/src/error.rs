//! From the driver's errors to ours.

use lock_core::{Error, ErrorKind};
use redis::{RedisError, ServerErrorKind};

/// How far the request had got when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing of it was sent.
    Connecting,
    /// It was handed to the connection: the server may have acted, or may act later.
    Sent,
}

/// Describes `error` of the server at `endpoint`. The driver's own text names neither user nor
/// password; the server's text does not either.
pub(crate) fn from_redis(error: RedisError, stage: Stage, endpoint: &str) -> Error {
    let code = error.code().unwrap_or_default();
    let kind = match error.kind() {
        redis::ErrorKind::AuthenticationFailed => ErrorKind::Denied,
        redis::ErrorKind::RESP3NotSupported => {
            return Error::config(format!(
                "the Redis server at {endpoint} is too old: version 6.0 or newer is needed"
            ));
        }
        redis::ErrorKind::InvalidClientConfig => ErrorKind::Config,
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => ErrorKind::Store,
        redis::ErrorKind::Server(ServerErrorKind::NoPerm) => ErrorKind::Denied,
        redis::ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly,
        ) => ErrorKind::Unavailable,
        _ => match code {
            "NOAUTH" | "WRONGPASS" | "NOPERM" => ErrorKind::Denied,
            "BUSY" | "OOM" | "MISCONF" | "NOREPLICAS" => ErrorKind::Unavailable,
            "" if stage == Stage::Connecting && error.is_timeout() => ErrorKind::Timeout,
            "" => ErrorKind::Unavailable,
            _ => ErrorKind::Store,
        },
    };
    // A refusal before the first write of a script leaves nothing behind. `OOM` and `MISCONF` are
    // met at the first write, since a script that has written once may go on.
    let refused = matches!(
        code,
        "NOAUTH"
            | "WRONGPASS"
            | "LOADING"
            | "BUSY"
            | "OOM"
            | "MISCONF"
            | "READONLY"
            | "MASTERDOWN"
            | "NOREPLICAS"
    );
    let what = match (stage, kind) {
        (Stage::Connecting, ErrorKind::Denied) => "refused the credentials",
        (Stage::Connecting, _) => "cannot be reached",
        (Stage::Sent, ErrorKind::Denied) => "denied a right that locks need",
        (Stage::Sent, ErrorKind::Unavailable) => "did not serve the request",
        (Stage::Sent, _) => "answered with an error",
    };
    let described =
        Error::new(kind, format!("the Redis server at {endpoint} {what}")).with_source(error);
    match stage {
        Stage::Connecting => without_effect(described),
        Stage::Sent if refused => described,
        Stage::Sent => described.with_unknown_effect(),
    }
}

/// A timeout begins as "unknown"; while connecting nothing has been sent.
fn without_effect(error: Error) -> Error {
    if error.kind() != ErrorKind::Timeout {
        return error;
    }
    Error::new(ErrorKind::Unavailable, error.to_string())
}

/// An answer that no server of ours gives.
pub(crate) fn unexpected(what: &str, value: &redis::Value) -> Error {
    let mut shown = format!("{value:?}");
    if let Some((cut, _)) = shown.char_indices().nth(200) {
        shown.truncate(cut);
    }
    Error::new(ErrorKind::Store, format!("the Redis server answered {what} with {shown}"))
        .with_unknown_effect()
}
