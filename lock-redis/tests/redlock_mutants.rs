//! The tests of the tests: each known wrong variant of Redlock is noticed by a named scenario.
//!
//! `cargo test -p lock-redis --features mutants --test redlock_mutants`

mod redlock_common;

use std::future::Future;

use lock_redis::redlock::wrong::Wrong;
use redlock_common::scenarios::{self, Seen, Tweak};

async fn is_noticed<F: Future<Output = Seen>>(name: &str, scenario: fn(Tweak) -> F, tweak: Tweak) {
    match scenario(tweak).await {
        Err(seen) => println!("{name}: noticed: {seen}"),
        Ok(()) => panic!("{name}: nobody noticed"),
    }
}

macro_rules! mutants {
    ($($test:ident: $wrong:ident, $scenario:ident;)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let tweak: Tweak = |config| config.wrong(Wrong::$wrong);
            is_noticed(stringify!($wrong), scenarios::$scenario, tweak).await;
        }
    )+};
}

mutants! {
    a_quorum_of_the_reachable: QuorumOfTheReachable, a_minority_grants_nothing;
    a_maximum_without_agreement: MaximumWithoutAgreement, a_fence_stands_on_a_quorum;
    partial_votes_that_are_kept: KeepsPartialVotes, partial_votes_are_given_back;
    a_late_vote_that_is_forgotten: ForgetsTheUnanswered, a_late_vote_is_given_back;
    an_unanswered_node_that_is_not_released: ForgetsTheUnanswered, an_unanswered_node_is_released;
    validity_from_the_reply: ValidityFromTheReply, validity_counts_from_the_request;
    a_grant_that_is_over: ValidityFromTheReply, a_grant_that_is_over_is_given_back;
    a_renewal_of_any_fence: RenewsAnyFence, a_hold_that_was_interrupted_is_not_renewed;
    a_restarted_node_that_rejoins_at_once: RejoinsAtOnce, a_restarted_node_gives_no_vote;
    a_flushed_node_that_rejoins_at_once: RejoinsAtOnce, a_flushed_node_gives_no_vote;
}
