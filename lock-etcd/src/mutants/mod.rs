//! Known mistakes of locks on etcd, and the test that catches each.
//!
//! A build with `--cfg distlock_mutants` takes `rules.rs` and `exchange.rs` of this folder in place of
//! the right ones: they pass everything on to those, unless their mistake is wanted.

use lock_core::testing::Mutant;

macro_rules! mutants {
    ($($name:ident: $what:literal, $killed_by:ident;)+) => {
        /// All mistakes.
        pub const MUTANTS: &[Mutant] = &[$(
            Mutant { name: stringify!($name), what: $what, killed_by: stringify!($killed_by) },
        )+];
    };
}

mutants! {
    no_look_after_waiting: "a second read sees no entry before ours, so the lock must be ours",
        a_waiter_looks_before_it_believes;
    ignores_the_queue: "the own entry alone is the lock", s01_a_lock_is_not_reentrant;
    swallows_ttl_0: "any answer to a keep-alive counts as a renewal",
        a_lease_that_has_ended_is_enough_to_know;
    credits_an_answer_to_a_later_request: "a keep-alive counts from its answer, as with two in flight",
        an_answer_counts_from_its_own_request;
    release_by_name: "a release deletes its key by name, in whatever state it is by now",
        a_release_leaves_what_others_have_written;
    release_keeps_the_key: "a release deletes nothing", c07_a_released_lock_is_free_at_once;
    force_needs_no_owner: "a forced release ignores whom it should meet",
        s03_a_forced_release_of_another_hold_does_nothing;
    try_leaves_a_place: "a try that does not wait leaves its entry in the queue",
        c13_a_refused_try_leaves_no_place;
    counts_from_any_base: "an entry is made whatever the base of the fences is by now",
        fences_rise_over_clients;
    believes_in_the_lease: "a lease that lives shows that the lock is held, if the key cannot be read",
        a_renewal_needs_to_see_the_key;
    confirms_from_a_copy: "a check only compares, so that a member answers from its own copy",
        a_check_does_not_believe_a_member_that_is_cut_off;
    checks_what_it_has_heard_of: "a check knows nothing of a try that had no answer",
        a_check_after_an_unknown_try_asks_the_store;
    takes_a_place_for_a_hold: "a token may name an entry that waits", a_place_that_waits_is_no_hold;
    sees_nested_names: "the entries of `a/b` stand in the queue of `a`",
        a_foreign_queue_below_ours_blocks_nobody;
    shares_a_lease: "all claims of a client use one lease", every_claim_has_a_lease_of_its_own;
    believes_in_twice_the_ttl: "a lease is counted on for twice as long as it lasts",
        c04_a_repeat_is_kept_as_long_as_promised;
    keeps_unknown_leases: "a release after an unknown try keeps the lease",
        c07_a_release_after_a_failed_try_frees_the_lock;
    keeps_its_pool: "one lease was gone, and the other spare leases are still tried",
        leases_that_a_restore_has_taken_are_not_tried_one_by_one;
    revokes_what_it_was_told_of: "the lease that a token names is given up where it is to be looked at",
        an_altered_token_touches_no_lease;
    stays_with_a_learner: "a member that is a learner is taken for a good one", a_learner_is_left;
    own_place_unwatched: "its own entry is not watched", a_waiter_sees_that_its_own_place_has_gone;
    resumes_after_compaction: "a watch that was compacted away is taken for one that stands",
        a_waiter_looks_after_a_compaction;
    skips_what_was_not_told: "a watch that was created goes on from the revision of that answer",
        a_stream_that_breaks_twice_hides_nothing;
    ignores_a_refused_watch: "nothing happens when the server refuses a watch",
        a_watch_is_not_refused_unnoticed;
    trusts_its_watch: "a watch is trusted on another stream, too",
        a_holder_looks_although_its_watch_stands;
    dies_with_its_runtime: "waiters are not told when the watches are no longer served",
        a_waiter_outlives_the_runtime_that_served_it;
    serves_all_on_one_runtime: "the watches of all runtimes are served by one of them",
        a_waiter_outlives_the_runtime_that_served_it;
    shares_a_watch_that_has_passed: "a watch is shared although it has passed what is to be heard of",
        a_shared_watch_hides_nothing;
    hears_of_what_was_before: "a change of the key from before an entry is one of that entry",
        a_place_is_not_lost_with_the_one_before;
    hands_on_a_place: "who gives up a place hands the lock to the next, as if it had held it",
        a_release_hands_the_lock_to_the_next;
    believes_in_whom_it_stood_behind: "who stood behind an entry that was deleted has the lock",
        a_waiter_looks_before_it_believes;
    stays_behind_whom_it_saw: "who looks again is where it was, if its entry is there",
        c06_a_check_of_a_waiter_says_whether_it_has_a_place;
    proves_over_a_restore: "what was seen before the store went back proves who is the first now",
        a_restored_snapshot_is_no_proof;
    keeps_watches_of_the_past: "a watch is kept although the store went back to before its beginning",
        a_restored_snapshot_hides_no_loss;
    hands_to_a_key: "a release hands the lock to whom a key belonged, whatever is there by now",
        a_release_proves_no_place_that_others_have_written;
    believes_an_old_proof: "what a neighbour has proven is believed for ever",
        a_proof_that_nobody_took_is_not_believed_later;
    waits_for_any_answer: "a waiter waits for the answer to the release before it, however long",
        a_release_that_stands_still_keeps_nobody_waiting;
    believes_the_owner: "a token is good for whatever stands at its key",
        an_altered_token_touches_no_lease;
    believes_the_fence: "a token is good whatever its fence is", an_altered_token_touches_no_lease;
    takes_any_ttl: "a lease is taken over whatever its ttl is", c14_a_longer_ttl_is_the_requests;
    fence_is_the_lease: "the fencing token is the lease id", c09_fences_rise_over_releases;
    base_is_never_lifted: "fences count from the first base for ever",
        a_restored_snapshot_gives_no_lower_fence;
    raises_what_is_in_use: "a base is raised whenever it is seen to be behind the clock",
        a_base_in_use_is_not_raised_again;
    trusts_a_store_that_went_back: "a revision may be below one that was seen before",
        a_restored_snapshot_gives_no_lower_fence;
    hears_only_of_revisions: "an election of which a client has not heard changes nothing",
        who_missed_the_last_fences_gives_no_lower_one;
    keeps_leases_of_the_past: "a spare lease is used whatever the store was when it was granted",
        a_spare_lease_keeps_no_lock_of_the_past;
    looks_at_a_copy: "a look is answered by a member from its own copy",
        a_look_does_not_believe_a_member_that_is_cut_off;
    looks_at_the_last_place: "a look takes the last one in the queue for the holder",
        a_look_shows_the_first_in_the_queue;
    floor_is_the_next_fence: "the floor of a free lock is the fence that comes next",
        a_floor_lies_between_the_fences;
    floor_is_the_revision: "the floor of a free lock is the revision, whatever fences count from",
        a_floor_lies_between_the_fences;
    floor_is_what_is_stored: "a floor knows of no fence that the store has lost",
        a_restored_snapshot_lowers_no_floor;
}
