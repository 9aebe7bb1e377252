//! A case of the suite, what it needs, and how it ends.

use std::fmt::{self, Display};
use std::future::Future;
use std::pin::Pin;

use lock_core::Error;

use crate::Unavailable;
use crate::cx::Cx;

/// One case. Its id begins with the clause or the property that it checks.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) id: &'static str,
    /// What must hold, in one sentence.
    pub(crate) about: &'static str,
    pub(crate) needs: &'static [Need],
    pub(crate) body: fn(Cx) -> Pin<Box<dyn Future<Output = Check>>>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What a case asks of the store or of its harness. Unmet, the case is ignored with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Waiters are served in the order of their arrival.
    Fair,
    /// The store pushes to its waiters.
    Push,
    /// Another process can take over a hold.
    Detach,
    /// It cannot, and says so.
    NoDetach,
    /// Inspection is declared.
    Inspect,
    /// It is not, and is refused.
    NoInspect,
    /// A hold is a lease of its own.
    Lease,
    /// The link of a client can be disturbed.
    Faults,
    /// Other processes can open the store.
    Processes,
}

/// How a case ended, if it did not pass.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    Failed(Failure),
    NotApplicable(String),
}

/// What was seen, in words that name what is broken.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) seen: String,
    /// Two holders, a fence that falls: no slow machine is an excuse for it.
    pub(crate) exact: bool,
}

pub(crate) type Check<T = ()> = Result<T, Stop>;

impl Stop {
    pub(crate) fn failed(seen: impl Display) -> Self {
        Self::Failed(Failure { seen: seen.to_string(), exact: false })
    }

    pub(crate) fn violated(seen: impl Display) -> Self {
        Self::Failed(Failure { seen: seen.to_string(), exact: true })
    }
}

impl From<Unavailable> for Stop {
    fn from(unavailable: Unavailable) -> Self {
        if unavailable.is_broken() {
            Self::failed(unavailable)
        } else {
            Self::NotApplicable(unavailable.reason().to_owned())
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::failed(format_args!("unexpected error: {error}"))
    }
}

impl From<tokio::task::JoinError> for Stop {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::failed(format_args!("a task of the case ended early: {error}"))
    }
}

/// Adds what was being done to an error that there should not be.
pub(crate) trait Explain<T> {
    fn explain(self, doing: &str) -> Check<T>;
}

impl<T, E: Display> Explain<T> for Result<T, E> {
    fn explain(self, doing: &str) -> Check<T> {
        self.map_err(|error| Stop::failed(format_args!("{doing}: {error}")))
    }
}

/// Ends the case with a failure.
macro_rules! fail {
    ($($seen:tt)+) => {
        return Err($crate::case::Stop::failed(format_args!($($seen)+)))
    };
}

/// Ends the case with a failure unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            $crate::case::fail!($($seen)+);
        }
    };
}

/// Ends the case unless the condition holds, whatever the machine did in the meantime. For exclusion and fences.
macro_rules! ensure_exactly {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            return Err($crate::case::Stop::violated(format_args!($($seen)+)));
        }
    };
}

/// The list of a module's cases. Each is named once, by its function: a function that is not in
/// a list is dead code, which does not compile.
macro_rules! cases {
    ($($function:ident [$($need:ident),*] $about:literal;)+) => {
        pub(super) const CASES: &[$crate::case::Case] = &[$(
            $crate::case::Case {
                id: stringify!($function),
                about: $about,
                needs: &[$($crate::case::Need::$need),*],
                body: |cx| Box::pin($function(cx)),
            },
        )+];
    };
}

pub(crate) use {cases, ensure, ensure_exactly, fail};
