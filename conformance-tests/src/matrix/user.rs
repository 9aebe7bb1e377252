//! What a user of the library sees: the calls of `Locks`, `Lock`, `LockGuard` and `Held`.

use self::UserCall::*;
use self::UserState::*;
use super::Event::*;
use super::axis;
use super::reason::{Like, Reason, Why, reasons};
use super::{Axis as _, Event, Matrix};

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
    legal: &[
        (Free, &[Acquire, TryAcquire, AcquireTimeout, Run, Close, Health, Inspect, ForceRelease]),
        (Waiting, &[Acquire, AcquireTimeout, Run, Close, Inspect, ForceRelease]),
        (
            Secure,
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
        (AtRisk, &[Run, Renew, Check, Token, Signal, Detach, Release, DropGuard, Close]),
        (Lost, &[Run, Renew, Check, Token, Signal, Detach, Release, DropGuard]),
        (Detached, &[Attach, RenewToken, ReleaseToken, Token, Signal, Inspect, ForceRelease]),
        (Released, &[Token, Signal]),
        (Closed, UserCall::ALL),
    ],
    events: Event::ALL,
    reasons: REASONS,
};

const STANDSTILL: &str = "lock-core/tests/it/standstill.rs";
const KEEPER: &str = "lock-core/tests/it/keeper.rs";
const API: &str = "lock-core/tests/it/api.rs";

const REASONS: &[Reason<UserCall, UserState>] = reasons![
    // A client that was closed.
    [Health, Inspect, ForceRelease] [Closed] [] => Why::Never(
        "what a store answers once its client was closed is left to the store",
    );
    [Signal] [Closed] [Plain] => Why::Test {
        file: KEEPER, name: "a_guard_is_lost_before_its_store_is_closed",
    };
    [Run, Renew, Check, Token, Detach, Release] [Closed] [Plain] => Why::As(
        "a guard that is left when its client is closed is a lost one",
        Like::state(Lost),
    );
    [] [Closed] [] => Why::As(
        "a client that was closed asks nobody",
        Like::event(Plain),
    );

    // What asks the store, but concerns no hold of this client.
    [Inspect, ForceRelease] [Waiting, Secure, Detached] [] => Why::As(
        "it asks the store, whatever this client has",
        Like::state(Free),
    );
    [Health, Inspect] [Free] [Dropped] => Why::Never("it writes nothing, and no later call depends on it");
    [Health] [Free] [OtherHolder, OtherReleases, Expiry, QueueBehind, Forced] => Why::Never(
        "it concerns no lock",
    );
    [Inspect, ForceRelease] [Free] [Forced] => Why::As(
        "the hold that was shown has ended, in whichever way",
        Like::event(OtherReleases),
    );
    [ForceRelease] [Free] [Expiry] => Why::As(
        "there is no holder to take it from",
        Like::event(Plain),
    );
    [ForceRelease] [Free] [QueueBehind] => Why::As(
        "the store decides who is next, and the core does not know of others",
        Like::event(OtherHolder),
    );
    [Health, Inspect, ForceRelease] [Free] [] => Why::As(
        "it is one request with a limit, and without an answer it is an error",
        Like::event(Unreachable),
    );

    // Acquisitions.
    [TryAcquire, AcquireTimeout] [Free, Waiting] [StandStill] => Why::Test {
        file: STANDSTILL, name: "an_acquisition_with_a_limit_ends_at_it",
    };
    [Acquire] [Free, Waiting] [StandStill] => Why::Never(
        "without a limit it waits for as long as its runtime stands still",
    );
    [Run] [Free, Waiting] [] => Why::As("it begins as an acquisition", Like::call(Acquire));
    [AcquireTimeout] [Free, Waiting] [] => Why::As(
        "but for its deadline it is an acquisition like any other",
        Like::call(Acquire),
    );
    [Acquire] [Free] [] => Why::As("its first try is like any other", Like::call(TryAcquire));
    [TryAcquire] [Free] [QueueBehind] => Why::As(
        "a lock for which others wait is never free",
        Like::event(OtherHolder),
    );
    [TryAcquire] [Free] [Restart] => Why::As(
        "a restart is a time without answers, and after it the store says what it still knows",
        Like::event(Unreachable),
    );
    [TryAcquire] [Free] [Suspended] => Why::As(
        "one that was stopped gets its answer late",
        Like::event(ReplyLate),
    );
    [Acquire] [Waiting] [OtherHolder] => Why::As(
        "it waits since another holds the lock",
        Like::event(Plain),
    );
    [Acquire] [Waiting] [Suspended] => Why::As(
        "one that was stopped has missed pushes, and its place may be gone",
        Like::event(Unreachable),
    );

    // Lease tokens.
    [Attach, RenewToken, ReleaseToken] [Detached] [StandStill] => Why::Test {
        file: STANDSTILL, name: "what_is_done_with_a_lease_token_ends",
    };
    [Attach, RenewToken, ReleaseToken] [Detached] [ReplyLate] => Why::As(
        "after the call limit a late reply is none",
        Like::event(ReplyLost),
    );
    [Attach, RenewToken, ReleaseToken] [Detached] [QueueBehind] => Why::As(
        "others wait behind a detached hold as behind any",
        Like::event(Plain),
    );
    [Attach, RenewToken, ReleaseToken] [Detached] [Restart] => Why::As(
        "a restart is a time without answers, and after it the store says what it still knows",
        Like::event(Unreachable),
    );
    [Attach, RenewToken, ReleaseToken] [Detached] [] => Why::As(
        "the hold of the token has ended, and another may have the lock",
        Like::event(OtherHolder),
    );

    // What is known without asking.
    [Token, Signal] [] [Dropped] => Why::Never(
        "reading the state has no await, and a wait for the signal is nobody else's",
    );
    [Signal] [Detached, Released] [Plain] => Why::As(
        "the state of what was given up says no more than its token",
        Like::call(Token),
    );
    [Token, Signal] [Detached, Released] [] => Why::As(
        "the state of what was given up never changes",
        Like::event(Plain),
    );
    [Run, Renew, Check, Token, Signal, Detach] [Lost] [] => Why::As(
        "a lost guard stays lost and asks nobody",
        Like::event(Plain),
    );
    [Release, DropGuard] [Lost] [] => Why::As(
        "what is left of the hold is released as any other",
        Like::state(Secure),
    );

    // A guard at risk is held.
    [Renew, Check] [AtRisk] [Plain] => Why::Test {
        file: KEEPER, name: "a_check_does_not_hide_a_failed_renewal",
    };
    [] [AtRisk] [] => Why::As(
        "a guard at risk is held, and each call does what it does on a secure one",
        Like::state(Secure),
    );

    // A secure guard.
    [Renew, Check, Detach, Release] [Secure] [StandStill] => Why::Test {
        file: STANDSTILL, name: "what_a_guard_asks_of_its_keeper_has_a_limit",
    };
    [Release] [Secure] [Expiry] => Why::Test {
        file: KEEPER, name: "a_release_that_the_lease_has_overtaken_is_no_theft",
    };
    [Detach] [Secure] [RequestLost, ReplyLost, ReplyLate] => Why::Test {
        file: API, name: "a_detach_that_fails_gives_the_guard_back_and_the_lock_stays",
    };
    [Detach] [Secure] [OtherHolder, OtherReleases, Expiry, Forced, Restart] => Why::As(
        "a detach promises nothing about the hold: who attaches finds out",
        Like { call: Some(Attach), state: Some(Detached), event: None },
    );
    [Renew, Check, Release, Signal] [Secure] [OtherHolder, OtherReleases] => Why::As(
        "the store says that the lock is no longer ours, whoever has it now",
        Like::event(Forced),
    );
    [Renew, Check] [Secure] [Expiry] => Why::As(
        "its own clock has ended the guard",
        Like { call: None, state: Some(Lost), event: Some(Plain) },
    );
    [Renew, Check, Detach] [Secure] [Suspended] => Why::As(
        "its own clock has gone on, and is asked first",
        Like::call(Token),
    );
    [Release] [Secure] [Suspended] => Why::As(
        "its own clock has gone on, and may have ended the guard",
        Like::state(Lost),
    );
    [Check] [Secure] [ReplyLate, Dropped] => Why::As(
        "it asks for what a renewal would prolong",
        Like::call(Renew),
    );
    [Release] [Secure] [ReplyLate] => Why::As(
        "after the call limit a late reply is none",
        Like::event(ReplyLost),
    );
    [Signal] [Secure] [ReplyLate] => Why::As(
        "it is what the renewals make of it",
        Like::call(Renew),
    );
    [Signal, Detach] [Secure] [QueueBehind] => Why::As(
        "the core does not know of those who wait for its lock",
        Like::event(Plain),
    );
    [Token] [Secure] [] => Why::As(
        "it is given for as long as the state is not lost",
        Like::call(Signal),
    );
    [Run] [Secure] [] => Why::As(
        "its work goes on until the signal of the guard fires",
        Like::call(Signal),
    );
    [DropGuard] [] [Dropped] => Why::Never("a drop has no await");
    [DropGuard] [Secure] [] => Why::As("it releases in the background", Like::call(Release));

    // Closing.
    [Close] [] [OtherHolder, OtherReleases, Expiry, QueueBehind, Forced] => Why::As(
        "it gives up what this client has, whoever else wants it",
        Like::event(Plain),
    );
    [Close] [] [] => Why::As(
        "it ends by its limit, whatever is in the way",
        Like::event(Unreachable),
    );
];
