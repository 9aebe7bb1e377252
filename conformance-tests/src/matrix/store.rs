//! What a store's author must get right: the calls of `LockBackend`, `Claim` and `LockAdmin`.

use super::Matrix;
use super::axis::{Event, axis};

axis! {
    /// A call of a store.
    Call {
        Claim "claim",
        TryAcquire "try_acquire",
        Changed "changed",
        Renew "renew",
        Check "check",
        Detach "detach",
        Release "release",
        Ping "ping",
        Inspect "inspect",
        List "list",
        ForceRelease "force_release",
        Close "close",
    }
}

axis! {
    /// A state of the table of legal call sequences; `Open` for a client's calls that concern no
    /// claim.
    State {
        New "new",
        Resumed "new, with `resume`",
        Waiting "waiting",
        Refused "refused",
        Held "held",
        PlaceLost "place lost",
        Lost "lost",
        Unknown "unknown",
        Done "done",
        Detached "detached",
        Open "no claim",
    }
}

pub(super) const MATRIX: Matrix<Call, State> = Matrix {
    legal: &{
        use Call::*;
        [
            (State::New, &[Claim, TryAcquire, Release]),
            (State::Resumed, &[Claim, Renew, Check, Release]),
            (State::Waiting, &[TryAcquire, Changed, Renew, Check, Release]),
            (State::Refused, &[TryAcquire, Release]),
            (State::Held, &[TryAcquire, Changed, Renew, Check, Detach, Release]),
            (State::PlaceLost, &[TryAcquire, Release]),
            (State::Lost, &[Release]),
            (State::Unknown, &[TryAcquire, Changed, Renew, Check, Detach, Release]),
            (State::Done, &[Release]),
            (State::Detached, &[Release]),
            (State::Open, &[Ping, Inspect, List, ForceRelease, Close]),
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
        ]
    },
    decides: |case| case.covers,
};
