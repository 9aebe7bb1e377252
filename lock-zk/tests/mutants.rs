//! The test of the tests: mistakes that locks on ZooKeeper are made with, and what finds each.
//!
//! `cargo test -p lock-zk --features mutants --test mutants`

mod common;

use std::process::ExitCode;

use common::more;
use common::scenarios::{self, Seen};
use conformance_tests::mutation::Killer::{self, Scene};
use conformance_tests::mutation::Mutation;
use lock_zk::mutants::{MUTANTS, VARIABLE};

/// The scene that must fail for each mutant.
const KILLERS: &[(&str, Killer)] = &[
    ("fence_is_the_sequence", Scene("fences_rise_over_a_new_queue")),
    ("trust_any_session", Scene("a_node_of_an_old_session_is_not_trusted")),
    ("create_again", Scene("a_lost_reply_leaves_one_node")),
    ("watch_the_parent", Scene("a_hand_over_wakes_one_waiter")),
    ("read_based_renewal", Scene("a_renewal_needs_the_leader")),
    ("read_based_check", Scene("a_server_that_is_behind_confirms_nothing")),
    ("beat_by_reads", Scene("a_read_prolongs_nothing")),
    ("grant_by_read", Scene("a_server_that_is_behind_grants_nothing")),
    ("believe_a_shorter_session", Scene("a_session_that_was_shortened_is_not_believed")),
    ("one_session_for_all", Scene("a_full_session_is_followed_by_another")),
    ("keep_the_base", Scene("fences_rise_over_an_ensemble_without_its_data")),
    ("check_what_is_known", Scene("a_check_after_a_lost_reply_asks")),
];

fn main() -> ExitCode {
    let mutation = Mutation { variable: VARIABLE, mutants: MUTANTS.to_vec(), killers: KILLERS };
    mutation.main(|| panic!("no case of the suite is a killer"), play)
}

fn play(scene: &str) -> Seen {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        match scene {
            "fences_rise_over_a_new_queue" => scenarios::fences_rise_over_a_new_queue().await,
            "a_node_of_an_old_session_is_not_trusted" => {
                scenarios::a_node_of_an_old_session_is_not_trusted().await
            }
            "a_lost_reply_leaves_one_node" => scenarios::a_lost_reply_leaves_one_node().await,
            "a_hand_over_wakes_one_waiter" => scenarios::a_hand_over_wakes_one_waiter(60).await,
            "a_renewal_needs_the_leader" => scenarios::a_renewal_needs_the_leader().await,
            "a_server_that_is_behind_confirms_nothing" => {
                scenarios::a_server_that_is_behind_confirms_nothing().await
            }
            "a_read_prolongs_nothing" => scenarios::a_read_prolongs_nothing().await,
            "a_server_that_is_behind_grants_nothing" => {
                scenarios::a_server_that_is_behind_grants_nothing().await
            }
            "a_session_that_was_shortened_is_not_believed" => {
                scenarios::a_session_that_was_shortened_is_not_believed().await
            }
            "a_full_session_is_followed_by_another" => {
                more::a_full_session_is_followed_by_another().await
            }
            "fences_rise_over_an_ensemble_without_its_data" => {
                more::fences_rise_over_an_ensemble_without_its_data().await
            }
            "a_check_after_a_lost_reply_asks" => more::a_check_after_a_lost_reply_asks().await,
            other => panic!("there is no scene {other}"),
        }
    })
}
