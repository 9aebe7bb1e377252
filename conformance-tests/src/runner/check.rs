//! The checks of a case, and how it ends if one fails.

use std::fmt::Display;

use lock_core::{DetachError, Error};

use crate::{Fault, Unavailable};

/// How a case ended, if it did not pass.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    Failed(Failure),
    NotApplicable(String),
}

/// What was seen, naming what is broken.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) seen: String,
    pub(crate) verdict: Verdict,
    /// What the store was asked before that, in which state, and what it answered.
    pub(crate) calls: Vec<String>,
    /// What had passed between the clients and the store by then.
    pub(crate) wire: Vec<String>,
}

impl Failure {
    pub(crate) fn new(seen: impl Display, verdict: Verdict) -> Self {
        Self { seen: seen.to_string(), verdict, calls: Vec::new(), wire: Vec::new() }
    }
}

/// What a failure means for the case's demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It did not hold.
    Broken,
    /// It did not hold, and a slow machine is no excuse: two holders, a falling fence.
    Violated,
    /// Nothing, since a call of the store, or a task that nobody waits for, ended by a panic. That is no better.
    Panicked,
    /// Nothing: the set-up, a connection or the harness failed first, or the case did not end.
    Hindered,
    /// Nothing: the machine was too slow for the case, or the store was too slow to answer it.
    Late,
    /// Nothing: a fault did not come upon the call that it was meant for.
    Missed,
    /// Nothing: the store could not be started.
    Unavailable,
}

pub(crate) type Check<T = ()> = Result<T, Stop>;

impl Stop {
    pub(crate) fn failed(seen: impl Display) -> Self {
        Self::Failed(Failure::new(seen, Verdict::Broken))
    }

    pub(crate) fn violated(seen: impl Display) -> Self {
        Self::Failed(Failure::new(seen, Verdict::Violated))
    }

    pub(crate) fn missed(fault: Fault) -> Self {
        let seen = format!("the fault {fault:?} did not come upon the call that it was meant for");
        Self::Failed(Failure::new(seen, Verdict::Missed))
    }

    pub(crate) fn hindered(seen: impl Display) -> Self {
        Self::Failed(Failure::new(seen, Verdict::Hindered))
    }

    pub(crate) fn late(seen: impl Display) -> Self {
        Self::Failed(Failure::new(seen, Verdict::Late))
    }
}

impl From<Unavailable> for Stop {
    fn from(unavailable: Unavailable) -> Self {
        if unavailable.is_broken() {
            Self::hindered(unavailable)
        } else {
            Self::NotApplicable(unavailable.reason().to_owned())
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        let seen = format!("an error instead of an answer: {error}");
        if error.is_retryable() { Self::late(seen) } else { Self::hindered(seen) }
    }
}

impl From<DetachError> for Stop {
    fn from(failed: DetachError) -> Self {
        Error::from(failed).into()
    }
}

impl From<tokio::task::JoinError> for Stop {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::hindered(format_args!("a task of the case ended early: {error}"))
    }
}

/// Adds what was being done to an unexpected error.
pub(crate) trait Explain<T> {
    fn explain(self, doing: &str) -> Check<T>;

    /// The same for actions of the case itself, rather than the store.
    fn or_hindered(self, doing: &str) -> Check<T>;
}

impl<T, E: Display> Explain<T> for Result<T, E> {
    fn explain(self, doing: &str) -> Check<T> {
        self.map_err(|error| Stop::failed(format_args!("{doing}: {error}")))
    }

    fn or_hindered(self, doing: &str) -> Check<T> {
        self.map_err(|error| Stop::hindered(format_args!("{doing}: {error}")))
    }
}

/// For a call that has to succeed where a server answers at all.
pub(crate) trait Demanded<T> {
    /// An error that is worth a repetition says nothing about the store; any other is a refusal.
    fn demanded(self, doing: &str) -> Check<T>;
}

impl<T> Demanded<T> for Result<T, Error> {
    fn demanded(self, doing: &str) -> Check<T> {
        self.map_err(|error| match error.is_retryable() {
            true => error.into(),
            false => Stop::failed(format_args!("{doing}: {error}")),
        })
    }
}

/// Ends the case with a failure.
macro_rules! fail {
    ($($seen:tt)+) => {
        return Err($crate::runner::check::Stop::failed(format_args!($($seen)+)))
    };
}

/// Ends the case with a failure unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            $crate::runner::check::fail!($($seen)+);
        }
    };
}

/// Ends the case unless the condition holds, with no excuse for a slow machine. For exclusion and
/// fences.
macro_rules! ensure_exactly {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            return Err($crate::runner::check::Stop::violated(format_args!($($seen)+)));
        }
    };
}

pub(crate) use {ensure, ensure_exactly, fail};
