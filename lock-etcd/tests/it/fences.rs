//! Fences that outlive the loss of the store's data, and a move to another store.

crate::common::run! {
    fences_are_above_those_of_other_stores
    fences_rise_over_clients
    a_base_in_use_is_not_raised_again
    a_claim_that_stands_still_stops_no_other
    a_hold_keeps_its_fence_when_the_base_is_lifted
    a_wiped_cluster_gives_no_lower_fence
    a_restored_snapshot_gives_no_lower_fence
    who_missed_the_last_fences_gives_no_lower_one
    a_fence_that_was_found_is_not_below_earlier_ones
    a_spare_lease_keeps_no_lock_of_the_past
    a_base_that_was_tampered_with_lowers_no_fence
    bare_revisions_are_to_be_had
    the_base_is_seen_by_nobody
}
