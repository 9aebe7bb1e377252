//! A case of the suite, its requirements, and how a module lists its cases.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::context::Cx;
use crate::matrix::{Call, Cell, State, UserCall, UserState};
use crate::runner::check::Check;

/// One case. Its id begins with the clause or the property that it checks.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) id: &'static str,
    /// What must hold, in one sentence.
    pub(crate) about: &'static str,
    pub(crate) needs: &'static [Need],
    /// What it decides for a store.
    pub(crate) covers: &'static [Cell<Call, State>],
    /// What it decides for a user.
    pub(crate) guards: &'static [Cell<UserCall, UserState>],
    pub(crate) body: fn(Cx) -> Pin<Box<dyn Future<Output = Check>>>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What a case requires of the store or its harness. If it is not met, the case is ignored with the
/// reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Waiters are served in the order of their arrival.
    Fair,
    /// The store pushes to its waiters.
    Push,
    /// Grants come with blocks of fencing tokens.
    Blocks,
    /// They do not, and cohorts are refused.
    NoBlocks,
    /// Another process can take over a hold.
    Detach,
    /// It cannot, and says so.
    NoDetach,
    /// Inspection is declared.
    Inspect,
    /// It is not declared, and is refused.
    NoInspect,
    /// A look is declared.
    Look,
    /// It is not declared, and is refused.
    NoLook,
    /// Each hold has its own lease.
    Lease,
    /// The link of a client can be disturbed.
    Faults,
    /// Other processes can open the store.
    Processes,
    /// No other case is on its servers, since it freezes or restarts them.
    Alone,
}

/// The list of a module's cases. Each is named once, by its function: a function that is not in
/// a list is dead code, which does not compile.
///
/// `name [Need, ...] "about" covers [Call/State/Event, ...] guards [UserCall/UserState/Event, ...];`
/// where both tails may be missing.
macro_rules! cases {
    ($($function:ident [$($need:ident),*] $about:literal
        $(covers [$($call:ident/$state:ident/$event:ident),+ $(,)?])?
        $(guards [$($user:ident/$hold:ident/$during:ident),+ $(,)?])?;)+) => {
        pub(in $crate::cases) const CASES: &[$crate::runner::case::Case] = &[$(
            $crate::runner::case::Case {
                id: stringify!($function),
                about: $about,
                needs: &[$($crate::runner::case::Need::$need),*],
                covers: &[$($($crate::matrix::Cell {
                    call: $crate::matrix::Call::$call,
                    state: $crate::matrix::State::$state,
                    event: $crate::matrix::Event::$event,
                },)+)?],
                guards: &[$($($crate::matrix::Cell {
                    call: $crate::matrix::UserCall::$user,
                    state: $crate::matrix::UserState::$hold,
                    event: $crate::matrix::Event::$during,
                },)+)?],
                body: |cx| Box::pin($function(cx)),
            },
        )+];
    };
}

pub(crate) use cases;
