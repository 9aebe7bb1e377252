//! One bounded call to the store.

use std::future::Future;
use std::time::Duration;

use crate::{Clock, ClockInstant, Error, ErrorKind, Result};

/// How a call ended. Without an answer its effect is unknown (clause C8).
pub(super) enum Ended<T> {
    Answer(Result<T>),
    OutOfTime,
    Stopped,
}

impl<T> Ended<T> {
    /// The answer; a call that was dropped got none within `limit`.
    pub(super) fn or_timeout(self, limit: Duration) -> Result<T> {
        match self {
            Self::Answer(answer) => answer,
            Self::OutOfTime | Self::Stopped => Err(no_answer(limit)),
        }
    }
}

/// Makes one call, and drops it at `limit` or when `stop` is ready. The timer is armed only if the
/// call is not ready at once.
pub(super) async fn bounded<T>(
    clock: &dyn Clock,
    limit: ClockInstant,
    stop: impl Future<Output = ()>,
    call: impl Future<Output = Result<T>>,
) -> Ended<T> {
    tokio::select! {
        biased;
        answer = call => Ended::Answer(answer),
        () = stop => Ended::Stopped,
        () = clock.sleep_until(limit) => Ended::OutOfTime,
    }
}

pub(super) fn no_answer(limit: Duration) -> Error {
    Error::new(ErrorKind::NoAnswer, format!("the store did not answer within {limit:?}"))
}

/// The store broke clause C4: it is unknown how long this lock lasts.
pub(super) fn no_end(what: &str) -> Error {
    Error::new(ErrorKind::Store, format!("the store did not say how long {what} is valid"))
        .with_unknown_effect()
}
