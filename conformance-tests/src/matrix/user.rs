//! What a user of the library sees: the calls of `Locks`, `Lock`, `LockGuard` and `Held`.

use super::Matrix;
use super::axis::{Event, axis};

axis! {
    /// A user's call.
    UserCall {
        Acquire "acquire",
        TryAcquire "try_acquire",
        AcquireTimeout "acquire_timeout",
        Run "run",
        Attach "attach",
        RenewToken "renew by token",
        ReleaseToken "release by token",
        Renew "renew",
        Check "check",
        Token "token",
        // `lost()`, `state()`, `remaining()` and `valid_until()`.
        Signal "lost signal and state",
        Detach "detach",
        Release "release",
        DropGuard "drop of the guard",
        Close "close",
        Health "health",
        // `inspect` and `list`.
        Inspect "inspect",
        ForceRelease "force_release",
    }
}

axis! {
    /// What the user has when the call begins.
    UserState {
        Free "no hold",
        // An acquisition is under way.
        Waiting "waiting",
        Secure "secure",
        AtRisk "at risk",
        Lost "lost",
        // The hold is in a lease token.
        Detached "detached",
        Released "released",
        Closed "closed",
    }
}

pub(super) const MATRIX: Matrix<UserCall, UserState> = Matrix {
    legal: &{
        use UserCall::*;
        [
            (
                UserState::Free,
                &[Acquire, TryAcquire, AcquireTimeout, Run, Close, Health, Inspect, ForceRelease],
            ),
            (UserState::Waiting, &[Acquire, AcquireTimeout, Run, Close, Inspect, ForceRelease]),
            (
                UserState::Secure,
                &[
                    Run,
                    Renew,
                    Check,
                    Token,
                    Signal,
                    Detach,
                    Release,
                    DropGuard,
                    Close,
                    Inspect,
                    ForceRelease,
                ],
            ),
            (
                UserState::AtRisk,
                &[Run, Renew, Check, Token, Signal, Detach, Release, DropGuard, Close],
            ),
            (UserState::Lost, &[Run, Renew, Check, Token, Signal, Detach, Release, DropGuard]),
            (
                UserState::Detached,
                &[Attach, RenewToken, ReleaseToken, Token, Signal, Inspect, ForceRelease],
            ),
            (UserState::Released, &[Token, Signal]),
            (
                UserState::Closed,
                &[
                    Acquire,
                    TryAcquire,
                    AcquireTimeout,
                    Run,
                    Attach,
                    RenewToken,
                    ReleaseToken,
                    Renew,
                    Check,
                    Token,
                    Signal,
                    Detach,
                    Release,
                    DropGuard,
                    Close,
                    Health,
                    Inspect,
                    ForceRelease,
                ],
            ),
        ]
    },
    events: &{
        use Event::*;
        [
            Plain,
            RequestLost,
            ReplyLost,
            ReplyLate,
            Dropped,
            OtherHolder,
            OtherReleases,
            Expiry,
            QueueBehind,
            Forced,
            Restart,
            Unreachable,
            Suspended,
            StandStill,
        ]
    },
    decides: |case| case.guards,
};
