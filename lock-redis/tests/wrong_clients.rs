//! The test of the tests: mistakes around a correct store, each of which its case must catch on a real
//! server, too.

mod harness;

use std::process::ExitCode;

fn main() -> ExitCode {
    conformance_tests::proxied::wrong_clients(
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
            "change_is_forgotten",
            "doubt_forgets",
            "doubt_keeps",
            "tries_on",
            "drop_poisons",
            "long_ttl_wraps",
            "limit_not_declared",
            "owners_cut_in_a_takeover",
            "names_hashed",
            "list_cut",
            "mark_of_the_lock",
            "fence_of_the_next",
            "ttl_is_shown",
            "ended_are_listed",
            "inspect_by_prefix",
            "force_by_prefix",
            "owner_in_debug",
            "owner_is_the_label",
            "owner_in_errors",
            "password_in_debug",
            "password_in_errors",
            "register_of_each_client",
        ],
    )
}
