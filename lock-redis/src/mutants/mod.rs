//! Known mistakes, for the tests of the tests.
//!
//! Only in a build with `--cfg distlock_mutants`, where this takes the place of the module `seams`, and only if
//! [`Mutant::VARIABLE`] names one: a mistake which a lock on Redis is known to be made with. `tests/mutants.rs` and
//! `tests/redlock_mutants.rs` show that the suite, or a scene of this store, fails each of them.

pub(crate) mod rules;

use lock_core::testing::Mutant;

pub use rules::MUTANTS as REDLOCK_MUTANTS;

/// A text in scripts that another one takes the place of, for the mutant of the same number.
struct Replacement {
    scripts: &'static [&'static str],
    right: &'static str,
    wrong: &'static str,
}

macro_rules! mutants {
    ($($name:literal: $what:literal, killed by $killer:literal, in $scripts:expr, $right:literal => $wrong:literal;)+) => {
        /// All mistakes in scripts.
        pub const SCRIPT_MUTANTS: &[Mutant] =
            &[$(Mutant { name: $name, what: $what, killed_by: $killer }),+];

        const REPLACEMENTS: &[Replacement] =
            &[$(Replacement { scripts: &$scripts, right: $right, wrong: $wrong }),+];
    };
}

/// The text of this script, with the mistake that this process is to make.
pub(crate) fn text_of(script: &str, text: &str) -> String {
    let mut rows = SCRIPT_MUTANTS.iter().zip(REPLACEMENTS);
    let row =
        rows.find(|(mutant, row)| row.scripts.contains(&script) && Mutant::is_wanted(mutant.name));
    let Some((mutant, Replacement { right, wrong, .. })) = row else { return text.to_owned() };
    if !text.contains(right) {
        // A panic would fail the case that is to see the mistake, which would then count as seen.
        eprintln!("the mutant {} finds nothing to change in {script}", mutant.name);
        std::process::exit(1);
    }
    text.replace(right, wrong)
}

mutants! {
    // One server.
    "release_without_owner": "A release frees the lock of another owner.",
        killed by "c07_a_release_after_busy_does_nothing", in ["RELEASE"],
        "who ~= '' and letter_of(value, who)" =>
            "who ~= '' and value and 'n'";
    "renew_without_owner": "A renewal prolongs the lock of another owner.",
        killed by "c06_a_renewal_after_a_loss_is_lost", in ["RENEW"],
        "local letter = letter_of(value, who)" =>
            "local letter = 'n'";
    "free_though_held": "A newcomer overwrites the holder.",
        killed by "s01_a_lock_is_not_reentrant", in ["ACQUIRE"],
        "redis.call('EXISTS', lock, queue, gone) == 0" =>
            "redis.call('EXISTS', queue, gone) == 0";
    "lock_without_expiry": "A lock never ends by itself.",
        killed by "l01_an_abandoned_lock_is_free_after_its_ttl", in ["ACQUIRE"],
        ".. '|' .. label, 'PX', ttl)" =>
            ".. '|' .. label)";
    "new_token_on_repeat": "A repeated try gets another token.",
        killed by "c02_a_repeated_try_returns_the_same_token", in ["ACQUIRE"],
        "    missed = speak(waiters, client)\n" =>
            "    fences = next_fences(count)\n";
    "newcomer_passes_the_queue": "A free lock goes to a newcomer before those that wait.",
        killed by "l03_a_newcomer_does_not_pass_after_an_expiry", in ["ACQUIRE"],
        "redis.call('EXISTS', lock, queue, gone) == 0" =>
            "redis.call('EXISTS', lock, gone) == 0";
    "try_leaves_a_place": "A try that does not wait leaves a place in the queue.",
        killed by "c13_a_refused_try_leaves_no_place", in ["ACQUIRE"],
        "local missed = 0\nif wait then" =>
            "local missed = 0\nif true then";
    "release_hands_nothing_over": "A release leaves the waiters to themselves.",
        killed by "c05_a_release_is_pushed", in ["RELEASE"],
        "if letter == 'n' or (not" =>
            "if letter then redis.call('DEL', lock) end\nif letter or (not";
    "place_is_not_given_up": "A waiter that gives up stays in the queue.",
        killed by "c13_a_waiter_that_gives_up_leaves_no_place", in ["RELEASE"],
        "local record = not letter and" =>
            "local record = false and";
    "last_in_first_out": "The last waiter is served first.",
        killed by "l03_waiters_are_served_in_order", in ["RELEASE", "ACQUIRE", "FORCE"],
        "redis.call('ZPOPMIN', queue)" =>
            "redis.call('ZPOPMAX', queue)";
    "fence_of_each_name": "Fences begin at one for every name.",
        killed by "c09_fences_rise_over_releases", in ["ACQUIRE", "RELEASE", "FORCE"],
        "if number >= now then" =>
            "text = '1'\n  if false then";
    "block_of_one": "The mark moves by one, whatever block of fences was asked for.",
        killed by "c16_blocks_rise_over_releases", in ["ACQUIRE", "RELEASE", "FORCE"],
        "digits_of(now + count - 1)" =>
            "digits";
    "block_is_not_compared": "A lock is taken over with a longer block than it has.",
        killed by "c16_only_its_own_block_attaches", in ["RENEW", "RELEASE"],
        "if type(value) == 'string' and" =>
            "who = string.gsub(who, '%+%d+|$', '')\n  if type(value) == 'string' and";
    "grace_is_the_ttl_of_nobody": "A lock that was handed over never ends by itself.",
        killed by "a_process_that_died_with_lock_and_waiters_costs_one_grace", in ["RELEASE", "ACQUIRE", "FORCE"],
        "digits, client, '', grace)" =>
            "digits, client, '', 3600000)";
    "confirm_keeps_the_grace": "A waiter that takes its turn has the lock for the grace only.",
        killed by "c04_a_hand_over_has_its_full_ttl", in ["ACQUIRE"],
        "write_lock('q', me, fences, since, client, label, ttl)" =>
            "write_lock('q', me, fences, since, client, label, grace)";
    "force_forgets_the_holder": "A forced release leaves the lock where it is.",
        killed by "s05_a_lock_that_was_taken_is_seen_by_check", in ["FORCE"],
        "redis.call('DEL', lock)" =>
            "";
    "force_clears_the_queue": "A forced release forgets those that wait.",
        killed by "l03_a_forced_release_keeps_the_queue", in ["FORCE"],
        "redis.call('DEL', lock)" =>
            "redis.call('DEL', lock, queue, waiters)";
    "force_hands_nothing_over": "A forced release leaves the waiters to themselves.",
        killed by "c05_a_forced_release_is_pushed", in ["FORCE"],
        "local _, again = pass_on(nil, may_pause)" =>
            "local again = -1";
    "force_in_the_name_of_a_waiter": "A forced release that names a waiter takes the lock from its holder.",
        killed by "s03_a_forced_release_of_a_waiter_does_nothing", in ["FORCE"],
        "expected ~= '=' .. shown then" =>
            "expected ~= '=' .. shown\n  and redis.call('HEXISTS', waiters, string.sub(expected, 2)) == 0 then";
    "attached_with_any_fence": "A lock is taken over with a fence that it never had.",
        killed by "c14_a_greater_fence_is_not_believed", in ["RENEW", "RELEASE"],
        "if type(value) == 'string' and" =>
            "who = string.sub(who, 1, 33)\n  if type(value) == 'string' and";
    "check_prolongs": "A check prolongs the lock.",
        killed by "c04_a_check_prolongs_nothing", in ["RENEW"],
        "if letter and kind == 'L' then" =>
            "if letter then";
    "no_mark_of_who_has_gone": "A try that arrives behind its release takes the lock.",
        killed by "a_try_that_arrives_after_the_release_takes_nothing", in ["RELEASE"],
        "if keep ~= '0' then" =>
            "if false then";
    "a_grace_for_each_dead_waiter": "A client that has missed its turn is waited for again with each of its waiters.",
        killed by "a_process_that_died_with_lock_and_waiters_costs_one_grace", in ["RELEASE", "ACQUIRE", "FORCE"],
        "tonumber(till) * 1000 <= now or is_doubted then" =>
            "tonumber(till) * 1000 <= now then";
    "nobody_looks_after_a_hand_over": "Who hands a lock over does not look whether it is taken up.",
        killed by "many_stopped_processes_cost_one_grace_each", in ["RELEASE"],
        "return {freed, again}" =>
            "return {freed, -1}";
    "every_waiter_looks_who_is_ahead": "Each waiter reads the queue before it, although another one of its client looks for all.",
        killed by "waiters_behind_the_block_of_another_client_read_no_queue", in ["ACQUIRE"],
        "if not looks then" =>
            "if false then";
    "a_renewal_hides_lost_places": "The renewal of a place ends the suspicion of its client, and tells nobody.",
        killed by "whoever_speaks_first_tells_all_of_lost_places", in ["RENEW"],
        "(doubted and DOUBTED or PLACE)" =>
            "PLACE";
    "pauses_are_known_for_a_minute": "When a lock is to be left free for plain clients is forgotten while it is held for long.",
        killed by "long_holds_leave_a_turn_to_plain_clients", in ["RELEASE", "ACQUIRE", "FORCE"],
        "  if not due then return false end" =>
            "  redis.call('HDEL', waiters, 'next')\n  if not due then return false end";
    "a_full_memory_takes_newcomers": "A newcomer to a queue begins with a write that needs no memory, after which it may write more.",
        killed by "a_full_memory_refuses_newcomers_to_a_queue", in ["ACQUIRE"],
        "  local score = redis.call('ZSCORE', queue, place)\n" =>
            "  local score = redis.call('ZSCORE', queue, place)\n  speak(waiters, client)\n";
    "a_lock_that_was_taken_up_is_declined": "A client that declines a lock frees it although it was taken up.",
        killed by "a_lock_that_is_handed_to_nobody_is_declined", in ["DECLINE"],
        "~= 'h' then return {0, -1} end\nleave_turn(value)" =>
            "== nil then return {0, -1} end";
    "late_try_ends_the_hold_sooner": "A repeated try that was long on its way cuts the lease to its own ttl.",
        killed by "a_late_request_ends_no_hold_sooner", in ["ACQUIRE"],
        "math.max(tonumber(ttl), redis.call('PTTL', key))" =>
            "tonumber(ttl)";
    "late_renewal_ends_the_hold_sooner": "A renewal that was long on its way cuts the lease to its own ttl.",
        killed by "a_late_request_ends_no_hold_sooner", in ["RENEW"],
        "math.max(tonumber(ttl), redis.call('PTTL', key))" =>
            "tonumber(ttl)";
    "a_mark_of_the_beginning_alone": "A forced release takes the lock from another holder whose value begins alike.",
        killed by "a_long_value_names_one_hold", in ["INSPECT", "ACQUIRE", "FORCE"],
        "return '#' .. redis.sha1hex(value)" =>
            "return string.sub(value, 1, 41)";
    "the_asker_is_named": "A try in vain names whoever asks as the holder.",
        killed by "c15_a_busy_answer_names_the_true_holder", in ["ACQUIRE"],
        "shown = {value, record," =>
            "shown = {me, string.gsub(record, value, me),";
    "place_is_never_renewed": "The renewal of a place does not prolong it.",
        killed by "l03_a_renewed_place_is_kept", in ["RENEW"],
        "now + ttl) .. rest" =>
            "tonumber(till)) .. rest";
    "place_for_half_its_ttl": "A place in the queue is kept for half of its ttl.",
        killed by "c04_a_place_is_kept_as_long_as_promised", in ["ACQUIRE"],
        "math.floor(now / 1000) + tonumber(ttl)" =>
            "math.floor(now / 1000) + math.floor(tonumber(ttl) / 2)";
    "a_renewal_revives_a_place": "The renewal of a place that has ended makes it last again.",
        killed by "c06_a_place_that_has_ended_can_be_taken_again", in ["RENEW"],
        "if tonumber(till) <= now then" =>
            "if kind == 'p' and tonumber(till) <= now then";
    "a_waiter_tells_nobody": "Who begins to wait does not mark the lock, so its holder leaves it to nobody.",
        killed by "c05_a_release_is_pushed", in ["ACQUIRE"],
        "redis.call('SETRANGE', lock, 9, 'q')" =>
            "";
    "a_check_sees_no_place": "A check of a waiter looks for the lock only.",
        killed by "c06_a_check_of_a_waiter_says_whether_it_has_a_place", in ["RENEW"],
        "answer = PLACE + tonumber(till) - now" =>
            "answer = -1";
    "a_check_sees_dead_places": "A check of a waiter finds a place that has ended.",
        killed by "c06_a_check_of_a_place_that_has_ended_is_lost", in ["RENEW"],
        "if tonumber(till) <= now then" =>
            "till = math.max(tonumber(till), now + 1)\n        if false then";
    "owner_in_part": "Owners are compared without their last letter.",
        killed by "c01_owners_that_differ_in_one_bit_are_two", in ["ACQUIRE"],
        "letter_of(holder, me .. '|')" =>
            "letter_of(holder, string.sub(me, 1, 31))";
    "ttl_of_whole_seconds": "A ttl is cut to whole seconds.",
        killed by "c04_a_ttl_with_a_fraction_is_kept", in ["ACQUIRE"],
        ".. '|' .. label, 'PX', ttl)" =>
            ".. '|' .. label, 'PX', ttl - ttl % 1000)";
    "dead_waiters_are_counted": "An inspection counts places that have ended.",
        killed by "c13_inspection_counts_no_place_that_has_ended", in ["INSPECT"],
        "tonumber(till) * 1000 > now then" =>
            "true then";
    "held_since_the_last_try": "A repeated try begins the hold anew.",
        killed by "c01_inspection_follows_the_hold", in ["ACQUIRE"],
        "redis.call('PEXPIRE', lock, lasting(lock, ttl))" =>
            "read_clock()\n    write_lock('q', me, fences, digits, client, label, lasting(lock, ttl))";
    "label_is_lost": "The label of a holder is not kept.",
        killed by "c01_inspection_shows_what_was_asked_for", in ["ACQUIRE"],
        "digits, client, label, ttl)" =>
            "digits, client, '', ttl)";
    "one_fence_for_all": "All holders have one fence, so a guarded register lets an earlier one write.",
        killed by "s07_a_guarded_register_loses_no_update", in ["ACQUIRE", "RELEASE", "FORCE"],
        "if number >= now then" =>
            "text = '1'\n  if false then";
    "error_names_the_owner": "The error of a renewal names the owner in full.",
        killed by "s08_errors_of_calls_show_no_secret", in ["RENEW"],
        "local answer = -1" =>
            "local answer = -1\n  if not letter_of(value_of(KEYS[k]), who) then error('DISTLOCK the lock is not held by ' .. who) end";
    "a_hand_over_is_not_seen": "A look shows a lock free that was handed to a waiter.",
        killed by "a_look_shows_whoever_has_a_lock", in ["LOOK"],
        "  if value then" =>
            "  if value and not (type(value) == 'string' and string.find(value, '^distlock1h')) then";
    "a_key_of_another_type_is_free": "A look shows a lock free whose key has another type.",
        killed by "a_look_shows_whoever_has_a_lock", in ["LOOK"],
        "  if value then" =>
            "  if type(value) == 'string' then";
    "a_floor_one_too_few": "The floor of a free lock is one below the last fence.",
        killed by "a_floor_parts_earlier_fences_from_later_ones", in ["LOOK"],
        "string.format('%.0f', number)" =>
            "string.format('%.0f', number - 1)";
    "no_floor_without_a_mark": "A server that has lost its data has no floor.",
        killed by "a_floor_parts_earlier_fences_from_later_ones", in ["LOOK"],
        "string.format('%.0f', t[1] * 1000000 + t[2] - 1)" =>
            "'0'";
    "a_floor_ahead_of_the_clock": "Where no fence is known, the floor is above the next one.",
        killed by "a_floor_parts_earlier_fences_from_later_ones", in ["LOOK"],
        "t[2] - 1)" =>
            "t[2] + 1000000)";
    "a_replica_is_looked_at": "A replica shows who has a lock.",
        killed by "a_replica_shows_nothing", in ["LOOK"],
        "redis.call('DEL', KEYS[2])" =>
            "";

    // The nodes of a quorum.
    "the_seed_is_for_new_nodes": "A node of a quorum that comes back counts on from what it had counted itself.",
        killed by "a_seed_counts_for_every_lock", in ["ADMIT"],
        "math.max(tonumber(node[5] or '0'), tonumber(ARGV[2]))" =>
            "tonumber(node[5] or ARGV[2])";
    "a_node_follows_a_clock_for_longer_than_it_waits": "A client whose clock is ahead takes the fences of a quorum a minute ahead.",
        killed by "fences_rise_over_a_loss_after_a_client_that_is_ahead", in ["ACQUIRE_VOTE"],
        "now + tonumber(ARGV[10])" =>
            "now + 60000000";
    "answers_of_a_batch_in_the_wrong_order": "A hold on a quorum hears what became of another one.",
        killed by "each_hold_of_a_batch_hears_its_own_answer", in ["RENEW_VOTE"],
        "table.insert(out, #out + 1, answer)" =>
            "table.insert(out, 1, answer)";
    "a_batch_renews_any_owner": "A renewal prolongs the lock of another client on a node of a quorum.",
        killed by "each_hold_of_a_batch_hears_its_own_answer", in ["RENEW_VOTE"],
        "vote_of(value_of(lock), owner)" =>
            "{'1', fence, '0', fences, '', channel, ''}";
    "a_foreign_key_ends_the_batch": "Where something else has written to one lock, no other one is renewed.",
        killed by "a_key_of_another_type_concerns_its_lock_alone", in ["RENEW_VOTE"],
        "return read('GET', key)" =>
            "return redis.call('GET', key)";
    "late_try_ends_the_vote_sooner": "On a node of a quorum, a repeated try cuts the lease to its own ttl.",
        killed by "a_late_request_ends_no_vote_sooner", in ["ACQUIRE_VOTE"],
        "math.max(tonumber(ttl), redis.call('PTTL', key))" =>
            "tonumber(ttl)";
    "late_renewal_ends_the_vote_sooner": "On a node of a quorum, a renewal cuts the lease to its own ttl.",
        killed by "a_late_request_ends_no_vote_sooner", in ["RENEW_VOTE"],
        "math.max(tonumber(ttl), redis.call('PTTL', key))" =>
            "tonumber(ttl)";
    "a_vote_counts_one_of_a_block": "A node of a quorum counts one, whatever block of fences was asked for.",
        killed by "no_fence_of_a_block_is_given_again", in ["ACQUIRE_VOTE"],
        " + fences - 1" =>
            "";
    "the_length_of_a_block_is_not_compared": "On a quorum, a lock is taken over with a longer block than it has.",
        killed by "only_its_own_block_is_taken_over", in ["RENEW_VOTE", "RELEASE_VOTE"],
        " and vote[FENCES] == fences" =>
            "";
}
