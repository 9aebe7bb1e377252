//! Mistakes in the scripts of the nodes of a quorum.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "the_seed_is_for_new_locks",
        wrong: "A node of a quorum that comes back counts on from what it had counted itself.",
        killed_by: "a_seed_counts_for_every_lock",
        scripts: &["ACQUIRE_VOTE"],
        right: "counter = math.max(counter, tonumber(node[5] or '0'))",
        replaced_by: "",
    },
    Mutant {
        name: "answers_of_a_batch_in_the_wrong_order",
        wrong: "A hold on a quorum hears what became of another one.",
        killed_by: "each_hold_of_a_batch_hears_its_own_answer",
        scripts: &["RENEW_VOTE"],
        right: "table.insert(out, #out + 1, answer)",
        replaced_by: "table.insert(out, 1, answer)",
    },
    Mutant {
        name: "a_batch_renews_any_owner",
        wrong: "A renewal prolongs the lock of another client on a node of a quorum.",
        killed_by: "each_hold_of_a_batch_hears_its_own_answer",
        scripts: &["RENEW_VOTE"],
        right: "if not vote[1] or not is_mine(value_of(lock), owner) then",
        replaced_by: "if not vote[1] then",
    },
    Mutant {
        name: "a_foreign_key_ends_the_batch",
        wrong: "Where something else has written to one lock, no other one is renewed.",
        killed_by: "a_key_of_another_type_concerns_its_lock_alone",
        scripts: &["RENEW_VOTE"],
        right: "if string.find(vote.err, 'WRONGTYPE', 1, true) then return {-4} end",
        replaced_by: "",
    },
    Mutant {
        name: "a_foreign_key_is_a_loss",
        wrong: "A hold whose key cannot be read is taken for lost.",
        killed_by: "a_key_of_another_type_concerns_its_lock_alone",
        scripts: &["RENEW_VOTE"],
        right: "return {-4}",
        replaced_by: "return {0, -1, '', 0}",
    },
    Mutant {
        name: "late_try_ends_the_vote_sooner",
        wrong: "On a node of a quorum, a repeated try cuts the lease to its own ttl.",
        killed_by: "a_late_request_ends_no_vote_sooner",
        scripts: &["ACQUIRE_VOTE"],
        right: "math.max(tonumber(ttl), redis.call('PTTL', key))",
        replaced_by: "tonumber(ttl)",
    },
    Mutant {
        name: "late_renewal_ends_the_vote_sooner",
        wrong: "On a node of a quorum, a renewal cuts the lease to its own ttl.",
        killed_by: "a_late_request_ends_no_vote_sooner",
        scripts: &["RENEW_VOTE"],
        right: "math.max(tonumber(ttl), redis.call('PTTL', key))",
        replaced_by: "tonumber(ttl)",
    },
    Mutant {
        name: "a_vote_counts_one_of_a_block",
        wrong: "A node of a quorum counts one, whatever block of fences was asked for.",
        killed_by: "no_fence_of_a_block_is_given_again",
        scripts: &["ACQUIRE_VOTE"],
        right: " + fences - 1",
        replaced_by: "",
    },
    Mutant {
        name: "the_length_of_a_block_is_not_compared",
        wrong: "On a quorum, a lock is taken over with a longer block than it has.",
        killed_by: "only_its_own_block_is_taken_over",
        scripts: &["RENEW_VOTE", "RELEASE_VOTE"],
        right: " and (vote[3] or '1') == fences",
        replaced_by: "",
    },
];
