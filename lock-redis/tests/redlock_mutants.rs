//! The tests of the tests: each known mistake in Redlock is noticed by the scenarios that its row names.

#[cfg(distlock_mutants)]
mod redlock_common;

#[cfg(not(distlock_mutants))]
#[test]
#[ignore = "built without --cfg distlock_mutants"]
fn mutants() {}

#[cfg(distlock_mutants)]
mod with_mutants {
    use std::future::Future;

    use lock_redis::RedlockConfig;
    use lock_redis::redlock::mutants::{MUTANTS, Mutant};

    use super::redlock_common::scenarios::{self, Seen};

    fn mutant(name: &str) -> &'static Mutant {
        MUTANTS.iter().find(|mutant| mutant.name == name).expect("a row of the table")
    }

    async fn is_noticed<F: Future<Output = Seen>>(name: &str, scenario: impl FnOnce() -> F) {
        match scenario().await {
            Err(seen) => println!("{name}: noticed: {seen}"),
            Ok(()) => panic!("{name}: nobody noticed that {}", mutant(name).what),
        }
    }

    macro_rules! mutants {
        ($($test:ident: $name:literal, $scenario:ident;)+) => {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    let tweak = |config: RedlockConfig| config.mutant(mutant($name));
                    is_noticed($name, || scenarios::$scenario(tweak)).await;
                }
            )+

            #[test]
            fn every_row_is_tested() {
                let tested = [$(($name, stringify!($scenario))),+];
                let rows = MUTANTS.iter();
                let rows = rows.flat_map(|row| row.killed_by.iter().map(|killer| (row.name, *killer)));
                assert_eq!(rows.collect::<Vec<_>>(), tested);
            }
        };
    }

    mutants! {
        a_quorum_of_the_reachable: "quorum_of_the_reachable", a_minority_grants_nothing;
        a_maximum_without_agreement: "maximum_without_agreement", a_fence_stands_on_a_quorum;
        partial_votes_that_are_kept: "keeps_partial_votes", partial_votes_are_given_back;
        a_late_vote_that_is_forgotten: "forgets_the_unanswered", a_late_vote_is_given_back;
        an_unanswered_node_that_is_not_released: "forgets_the_unanswered", an_unanswered_node_is_released;
        a_grant_that_is_over: "validity_from_the_reply", a_grant_that_is_over_is_given_back;
        a_renewal_from_its_answer: "validity_from_the_reply", a_renewal_is_believed_from_its_own_request;
        a_renewal_of_any_fence: "renews_any_fence", a_hold_that_was_interrupted_is_not_renewed;
        an_error_for_a_loss: "takes_an_error_for_a_loss", nodes_that_fail_lose_nothing;
        a_restarted_node_that_rejoins_at_once: "rejoins_at_once", a_restarted_node_gives_no_vote;
        a_flushed_node_that_rejoins_at_once: "rejoins_at_once", a_flushed_node_gives_no_vote;
    }
}
