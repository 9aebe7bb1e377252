//! What a store's author must get right: the calls of `LockBackend`, `Claim` and `LockAdmin`.

use self::Call::*;
use self::State::*;
use super::Event::*;
use super::Matrix;
use super::axis;
use super::reason::{Like, Reason, Why, reasons};

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
        Look "look",
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
    legal: &[
        (New, &[Claim, TryAcquire, Release]),
        (Resumed, &[Claim, Renew, Check, Release]),
        (Waiting, &[TryAcquire, Changed, Renew, Check, Release]),
        (Refused, &[TryAcquire, Release]),
        (Held, &[TryAcquire, Changed, Renew, Check, Detach, Release]),
        (PlaceLost, &[TryAcquire, Release]),
        (Lost, &[Release]),
        (Unknown, &[TryAcquire, Changed, Check, Release]),
        (Done, &[Release]),
        (Detached, &[Release]),
        (Open, &[Ping, Look, Inspect, List, ForceRelease, Close]),
    ],
    events: &[
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
    ],
    reasons: REASONS,
};

const REASONS: &[Reason<Call, State>] = reasons![
    // Making a claim.
    [Claim] []
        [
            RequestLost, ReplyLost, ReplyLate, OtherHolder, OtherReleases, Expiry, QueueBehind, Forced,
            Restart, Unreachable
        ] => Why::Never("`claim` makes no request, so only its arguments matter");

    // Claims of which the store has nothing.
    [TryAcquire] [Refused] [] => Why::As(
        "the store keeps nothing of a claim that it has refused, so this is a first try",
        Like::state(New),
    );
    [TryAcquire] [PlaceLost] [] => Why::As(
        "the store has nothing left of the place, so this is a first try",
        Like::state(New),
    );
    [Release] [New, Refused, PlaceLost, Lost, Done]
        [RequestLost, ReplyLost, ReplyLate, Dropped, Unreachable] => Why::As(
        "the request is a holder's, and finds nothing",
        Like::state(Held),
    );
    [Release] [New, Refused, PlaceLost, Lost, Done] [] => Why::As(
        "it finds nothing of its own, whatever others have done, and a holder is the most that it could harm",
        Like::event(OtherHolder),
    );
    [Renew, Check] [Resumed] [] => Why::As(
        "the request is that of the claim that was detached, with the fence to prove",
        Like::state(Held),
    );
    [Release] [Resumed, Detached] [] => Why::As(
        "the request is that of the claim that was detached",
        Like::state(Held),
    );

    // `changed` writes nothing, and any answer of it leads to a look.
    [Changed] [Unknown] [] => Why::As(
        "it writes nothing, so the call of unknown outcome before it makes no difference",
        Like::state(Waiting),
    );
    [Changed] [Held] [] => Why::As(
        "a holder's `changed` may be spurious, and the core answers it by a check",
        Like::event(Plain),
    );
    [Changed] [Waiting] [RequestLost, ReplyLost, ReplyLate, Restart] => Why::As(
        "what can be lost is a push",
        Like::event(Unreachable),
    );
    [Changed] [Waiting] [Expiry, Forced] => Why::As(
        "a store need not push this: the core looks when the answer to the last look says, or from time to time",
        Like::call(TryAcquire),
    );
    [Changed] [Waiting] [OtherHolder] => Why::Never(
        "who holds the lock is no news to a waiter: it may be told or not",
    );

    // Claims that have, or may have, an entry.
    [TryAcquire] [Held] [RequestLost, ReplyLost, ReplyLate, Dropped] => Why::As(
        "the entry exists, as it may after a try of unknown outcome",
        Like::state(Unknown),
    );
    [TryAcquire] [Held] [] => Why::As(
        "its entry has gone, or cannot be asked for, as that of a waiter",
        Like::state(Waiting),
    );
    [TryAcquire] [Unknown] [OtherHolder, OtherReleases, Expiry, QueueBehind, Forced] => Why::As(
        "the store either has its entry, as after a grant, or nothing of it",
        Like::state(Held),
    );
    [TryAcquire] [Unknown] [] => Why::As(
        "the request is that of a first try, and the store's answer does not depend on what the claim remembers",
        Like::state(New),
    );
    [Check, Release] [Unknown] [] => Why::As(
        "the request is a holder's: what the claim does not know, the store does",
        Like::state(Held),
    );
    [Renew, Check, Release] [Waiting] [OtherHolder] => Why::As(
        "another holds the lock whenever a claim waits",
        Like::event(Plain),
    );
    [Renew, Check, Release] [Waiting] [Forced] => Why::As(
        "a lock that is taken away goes to the waiters as a released one does",
        Like::event(OtherReleases),
    );
    [Renew, Check, Release] [Waiting] [] => Why::As(
        "a place is an entry as a hold is, under the same owner",
        Like::state(Held),
    );
    [Check] [Held] [OtherReleases] => Why::As(
        "its entry has gone, whoever came after it",
        Like::event(OtherHolder),
    );
    [Check] [Held] [QueueBehind, Restart] => Why::As(
        "it asks for what a renewal would prolong",
        Like::call(Renew),
    );
    [Release] [Held] [OtherReleases] => Why::As(
        "its entry has gone, and there is less to harm",
        Like::event(OtherHolder),
    );
    [Detach] [Held] [OtherHolder, OtherReleases, Expiry, Forced, Restart] => Why::As(
        "a detach promises nothing about the hold: the first renewal by its token finds out",
        Like { call: Some(Renew), state: Some(Resumed), event: None },
    );
    [Detach] [Held] [QueueBehind] => Why::As(
        "a hold that is handed to another process stays a hold, and its waiters wait",
        Like::event(Plain),
    );

    // A client's calls that concern no claim.
    [Ping] [] [RequestLost, ReplyLost, ReplyLate, Restart] => Why::As(
        "a ping succeeds only by an answer",
        Like::event(Unreachable),
    );
    [Ping] [] [Dropped, OtherHolder, OtherReleases, Expiry, QueueBehind, Forced] => Why::Never(
        "`ping` concerns no lock, and leaves nothing behind");
    [Inspect, List] [] [RequestLost, ReplyLost, ReplyLate] => Why::As(
        "without an answer there is nothing to show",
        Like::event(Unreachable),
    );
    [Inspect, List] [] [Dropped] => Why::Never("it writes nothing, and no later call depends on it");
    [Inspect, List] [] [Forced, Restart] => Why::As(
        "it shows what the store has, however that came about",
        Like::event(OtherReleases),
    );
    [List] [] [QueueBehind] => Why::As(
        "it shows of each lock what `inspect` shows",
        Like::call(Inspect),
    );
    [ForceRelease] [] [Expiry, Restart] => Why::As(
        "there is no holder to take it from",
        Like::event(Plain),
    );
    [ForceRelease] [] [Forced] => Why::As(
        "the hold that was shown has ended, in whichever way",
        Like::event(OtherReleases),
    );
    [Close] [] [RequestLost, ReplyLost, ReplyLate, Dropped, Restart, Unreachable] => Why::As(
        "what a close without an answer leaves behind ends by itself, as the lock of a client that has vanished",
        Like { call: Some(TryAcquire), state: Some(New), event: Some(Expiry) },
    );
    [Close] [] [OtherReleases, Expiry, QueueBehind, Forced] => Why::Never(
        "`close` ends a client, whoever has a lock");
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::Axis as _;
    use super::*;

    const CONTRACT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lock-core/src/contract/mod.rs");

    /// The words of a text that are marked as code.
    fn code(text: &str) -> impl Iterator<Item = &str> {
        text.split('`').skip(1).step_by(2)
    }

    #[test]
    fn the_legal_calls_are_those_of_the_contract() {
        let contract = std::fs::read_to_string(CONTRACT).unwrap();
        let mut found = 0;
        for row in contract.lines().filter_map(|line| line.strip_prefix("//! | ")) {
            let columns: Vec<_> = row.split(" | ").collect();
            let name = columns[0].split(':').next().unwrap();
            let is_named = |(state, _): &&(State, &[Call])| state.label() == name;
            let Some((state, calls)) = MATRIX.legal.iter().find(is_named) else { continue };
            let mut demanded = BTreeSet::new();
            for call in columns[1].split(", ") {
                if call == "the same call again" {
                    demanded.extend(code(columns[0]));
                } else if call.starts_with('`') {
                    demanded.extend(code(call).next());
                }
            }
            let calls = calls.iter().filter(|call| **call != Claim).map(|call| call.label());
            assert_eq!(calls.collect::<BTreeSet<_>>(), demanded, "in the state {state:?}");
            found += 1;
        }
        assert_eq!(found, State::ALL.len() - 1, "all but `Open` are states of the table");
    }
}
