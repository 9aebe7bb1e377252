//! The test of the tests: mistakes around a correct store, each of which its case must catch on a real
//! server, too.

mod harness;

use std::process::ExitCode;

fn main() -> ExitCode {
    lock_testkit::wrong_clients::main(
        harness::OneNode,
        &[
            "try_in_steps",
            "renewal_in_steps",
            "release_in_steps",
            "fence_drawn_first",
            "token_remembered",
            "token_remembered_over_a_loss",
            "force_clears_queue",
            "force_lets_past",
            "force_keeps_fence",
            "force_pushes_nobody",
            "force_believes_waiters",
            "decline_pushes_nobody",
            "error_is_alive",
            "refused_is_gone",
            "hint_of_zero",
            "hint_of_zero_to_a_waiter",
            "hint_of_an_hour",
            "waits_by_asking",
            "renews_by_asking",
        ],
    )
}
