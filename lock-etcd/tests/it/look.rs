//! What a look shows.

crate::common::run! {
    a_look_shows_the_first_in_the_queue
    a_look_at_many_names_has_an_answer_for_each
    a_floor_lies_between_the_fences
    a_lease_that_ends_frees_the_lock_for_a_look
    a_look_shows_others_in_the_queue
    a_floor_of_bare_revisions_is_one
    a_restored_snapshot_lowers_no_floor
    a_look_does_not_believe_a_member_that_is_cut_off
    a_look_through_another_member_sees_each_grant
}
