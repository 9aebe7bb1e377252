//! Deliberate mistakes, for the mutation tests.
//!
//! Only with `--cfg distlock_mutants`, and only if [`Mutant::VARIABLE`] names one: mistakes that locks on ZooKeeper
//! are known to be made with. `wire.rs` replaces the module of that name, and alters a request before it is sent or a
//! reply before it is trusted. `tests/mutants.rs` shows that each mistake is found.

use lock_core::testing::Mutant;

macro_rules! mutants {
    ($($name:ident: $wrong:literal => $killed_by:ident,)*) => {
        /// All of them.
        pub const MUTANTS: &[Mutant] = &[$(Mutant {
            name: stringify!($name),
            what: $wrong,
            killed_by: stringify!($killed_by),
        }),*];
    };
}

mutants! {
    fence_is_the_sequence: "the fence is the number in the node's name, which begins again with a new queue"
        => fences_rise_over_a_new_queue,
    keep_the_base: "fences are counted from the base of an ensemble that is no more"
        => fences_rise_over_an_ensemble_without_its_data,
    base_by_read: "the base is read without asking the leader first"
        => a_server_that_is_behind_shows_no_base,
    trust_any_session: "a node of an earlier session is taken for one of this session"
        => a_node_of_an_old_session_is_not_trusted,
    create_again: "a node's name does not tell its owner, so one whose reply was lost is made again"
        => a_check_after_a_lost_reply_asks,
    check_what_is_known: "a node whose reply was lost is not recognised by the session that made it"
        => a_check_after_a_lost_reply_asks,
    watch_one_connection: "a watch is not set again when its connection is lost"
        => a_hand_over_during_a_cut_is_not_missed,
    watch_the_parent: "a waiter watches the whole queue in place of the node before its own"
        => a_hand_over_wakes_one_waiter,
    read_based_renewal: "renewals and checks read the nodes, which any server answers"
        => a_renewal_needs_the_leader,
    read_based_check: "a check reads the node, which a server that is behind answers"
        => a_server_that_is_behind_confirms_nothing,
    beat_by_reads: "the session is kept by reads, of which the leader hears nothing"
        => a_read_prolongs_nothing,
    grant_by_read: "the queue is listed without asking the leader first"
        => a_server_that_is_behind_grants_nothing,
    hands_on_a_place: "who gives up a place hands the lock to the next, as if it had held it"
        => a_release_hands_the_lock_to_the_next,
    hands_to_nobody: "a release hands the lock to the next without a look whether its node is there"
        => a_release_proves_no_place_that_is_gone,
    believe_a_shorter_session: "a server is believed to grant what it was asked for"
        => a_session_that_was_shortened_is_not_believed,
    close_what_is_given_up: "a connection that is given up is closed, and the session with it"
        => a_session_that_is_given_up_is_not_closed,
    keep_the_probe: "resuming a session takes two connections at a time"
        => a_full_address_costs_no_session,
    one_ttl_for_all: "a session lasts for 30 s at least, whatever the ttl of its locks"
        => a_lock_of_a_silent_holder_is_free_after_its_own_ttl,
    one_session_for_all: "the paths of a session's nodes are not counted"
        => a_full_session_is_followed_by_another,
    look_by_read: "a look asks a server without asking the leader first"
        => a_server_that_is_behind_shows_no_free_lock,
    look_by_sync: "a look asks the leader only by a sync, which a deposed one answers"
        => a_leader_that_was_deposed_shows_no_free_lock,
    look_again_in_packs: "a server that reads one node at a time is asked for many by every look"
        => a_look_at_an_old_server_reads_node_by_node,
    look_for_our_nodes: "a look sees only nodes that are named as ours"
        => a_look_shows_the_first_in_the_queue,
    look_at_the_last: "a look takes the last one in the queue for the holder"
        => a_look_shows_the_first_in_the_queue,
    floor_of_the_node: "a floor is the transaction that created the node of the lock"
        => a_floor_lies_between_the_fences,
    look_above_before: "the node above is looked at only before the nodes of the locks"
        => a_floor_stands_on_what_did_not_change,
    look_above_afterwards: "the node above is looked at only after the nodes of the locks"
        => a_floor_stands_on_what_did_not_change,
}
