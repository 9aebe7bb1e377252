//! The test of the tests: mistakes that locks on ZooKeeper are made with, and what finds each.
//!
//! `cargo test -p lock-zk --features mutants --test mutants`

mod common;

use std::process::ExitCode;

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
    ("watch_everything", Scene("a_reconnect_keeps_a_session_that_watches_much")),
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
            "a_reconnect_keeps_a_session_that_watches_much" => {
                scenarios::a_reconnect_keeps_a_session_that_watches_much().await
            }
            other => panic!("there is no scene {other}"),
        }
    })
}
