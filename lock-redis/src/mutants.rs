//! Deliberately wrong scripts, for the tests of the tests.
//!
//! Only in a build with `--cfg distlock_mutants`, and only if the variable below names one: a mistake
//! which a lock on Redis is known to be made with. The seam is the text of a script, before its digest is
//! computed. `tests/mutants.rs` shows that the suite fails each of them.

#[cfg(not(distlock_mutants))]
pub(crate) fn apply(_script: &str, text: &str) -> String {
    text.to_owned()
}

#[cfg(distlock_mutants)]
pub use table::{MUTANTS, Mutant, VARIABLE};

#[cfg(distlock_mutants)]
pub(crate) use table::apply;

#[cfg(distlock_mutants)]
mod table {
    /// Names the mistake to make, in the environment.
    pub const VARIABLE: &str = "LOCK_REDIS_MUTANT";

    /// One mistake: a text in scripts that another one takes the place of.
    #[derive(Debug)]
    pub struct Mutant {
        /// As the variable names it.
        pub name: &'static str,
        /// What is wrong with a store that makes it.
        pub wrong: &'static str,
        /// The case of the suite that must fail, or the scene of this store.
        pub killed_by: &'static str,
        scripts: &'static [&'static str],
        right: &'static str,
        replaced_by: &'static str,
    }

    /// All mistakes.
    pub const MUTANTS: &[Mutant] = &[
        Mutant {
            name: "release_without_owner",
            wrong: "A release frees the lock of another owner.",
            killed_by: "c07_a_release_after_busy_does_nothing",
            scripts: &["RELEASE"],
            right: "is_held_by(who, lock, hold) then",
            replaced_by: "value_of(lock) then",
        },
        Mutant {
            name: "renew_without_owner",
            wrong: "A renewal prolongs the lock of another owner.",
            killed_by: "c06_a_renewal_after_a_loss_is_lost",
            scripts: &["RENEW"],
            right: "local mine = is_held_by(who, lock, KEYS[k + 1])",
            replaced_by: "local mine = true",
        },
        Mutant {
            name: "set_without_nx",
            wrong: "A newcomer overwrites the holder.",
            killed_by: "s01_a_lock_is_not_reentrant",
            scripts: &["ACQUIRE"],
            right: "'NX', 'PX', ttl",
            replaced_by: "'PX', ttl",
        },
        Mutant {
            name: "lock_without_expiry",
            wrong: "A lock never ends by itself.",
            killed_by: "l01_an_abandoned_lock_is_free_after_its_ttl",
            scripts: &["ACQUIRE"],
            right: "redis.call('SET', lock, me, 'NX', 'PX', ttl)",
            replaced_by: "redis.call('SET', lock, me, 'NX')",
        },
        Mutant {
            name: "new_token_on_repeat",
            wrong: "A repeated try gets another token.",
            killed_by: "c02_a_repeated_try_returns_the_same_token",
            scripts: &["ACQUIRE"],
            right: "if owner ~= me then",
            replaced_by: "if true then",
        },
        Mutant {
            name: "newcomer_passes_the_queue",
            wrong: "A free lock goes to a newcomer before those that wait.",
            killed_by: "l03_a_newcomer_does_not_pass_after_an_expiry",
            scripts: &["ACQUIRE"],
            right: "redis.call('EXISTS', queue, gone) == 0",
            replaced_by: "redis.call('EXISTS', gone) == 0",
        },
        Mutant {
            name: "try_leaves_a_place",
            wrong: "A try that does not wait leaves a place in the queue.",
            killed_by: "c13_a_refused_try_leaves_no_place",
            scripts: &["ACQUIRE"],
            right: "if wait then\n  local score",
            replaced_by: "if true then\n  local score",
        },
        Mutant {
            name: "release_hands_nothing_over",
            wrong: "A release leaves the waiters to themselves.",
            killed_by: "l03_users_are_served_in_order",
            scripts: &["RELEASE"],
            right: "if not queued then",
            replaced_by: "if true then",
        },
        Mutant {
            name: "place_is_not_given_up",
            wrong: "A waiter that gives up stays in the queue.",
            killed_by: "c13_a_waiter_that_gives_up_leaves_no_place",
            scripts: &["RELEASE"],
            right: "if redis.call('ZREM', queue, me) == 1 then",
            replaced_by: "if false then",
        },
        Mutant {
            name: "last_in_first_out",
            wrong: "The last waiter is served first.",
            killed_by: "l03_waiters_are_served_in_order",
            scripts: &["RELEASE", "ACQUIRE", "FORCE"],
            right: "redis.call('ZRANGE', queue, 0, 0)[1]",
            replaced_by: "redis.call('ZREVRANGE', queue, 0, 0)[1]",
        },
        Mutant {
            name: "fence_of_each_name",
            wrong: "Fences begin at one for every name.",
            killed_by: "c09_fences_rise_over_releases",
            scripts: &["ACQUIRE", "RELEASE", "FORCE"],
            right: "if last >= now then now = last + 1 end",
            replaced_by: "now = 1",
        },
        Mutant {
            name: "block_of_one",
            wrong: "The mark moves by one, whatever block of fences was asked for.",
            killed_by: "c16_blocks_rise_over_releases",
            scripts: &["ACQUIRE", "RELEASE", "FORCE"],
            right: "now + count - 1",
            replaced_by: "now",
        },
        Mutant {
            name: "block_is_not_compared",
            wrong: "A lock is taken over with a longer block than it has.",
            killed_by: "c16_only_its_own_block_attaches",
            scripts: &["RENEW", "RELEASE"],
            right: "return type(record) == 'string' and string.sub(record, 1, #who + 1) == who .. '|'",
            replaced_by: "return type(record) == 'string' and string.match(record, '^%d+') == string.match(who, '^%d+')",
        },
        Mutant {
            name: "grace_is_the_ttl_of_nobody",
            wrong: "A lock that was handed over never ends by itself.",
            killed_by: "l05_a_dead_waiter_delays_by_one_ttl",
            scripts: &["RELEASE", "ACQUIRE", "FORCE"],
            right: "redis.call('SET', lock, owner, 'PX', w.grace)",
            replaced_by: "redis.call('SET', lock, owner)",
        },
        Mutant {
            name: "confirm_keeps_the_grace",
            wrong: "A waiter that takes its turn has the lock for the grace only.",
            killed_by: "c04_a_hand_over_has_its_full_ttl",
            scripts: &["ACQUIRE"],
            right: "  redis.call('PEXPIRE', lock, ttl)\n",
            replaced_by: "",
        },
        Mutant {
            name: "force_forgets_the_holder",
            wrong: "A forced release leaves the lock where it is.",
            killed_by: "s05_a_lock_that_was_taken_is_seen_by_check",
            scripts: &["FORCE"],
            right: "redis.call('DEL', lock, hold)",
            replaced_by: "redis.call('DEL', hold)",
        },
        Mutant {
            name: "force_clears_the_queue",
            wrong: "A forced release forgets those that wait.",
            killed_by: "l03_a_forced_release_keeps_the_queue",
            scripts: &["FORCE"],
            right: "redis.call('DEL', lock, hold)",
            replaced_by: "redis.call('DEL', lock, hold, queue, waiters)",
        },
        Mutant {
            name: "force_hands_nothing_over",
            wrong: "A forced release leaves the waiters to themselves.",
            killed_by: "c05_a_forced_release_is_pushed",
            scripts: &["FORCE"],
            right: "local _, again = pass_on(now, nil, may_pause)",
            replaced_by: "local again = -1",
        },
        Mutant {
            name: "force_in_the_name_of_a_waiter",
            wrong: "A forced release that names a waiter takes the lock from its holder.",
            killed_by: "s03_a_forced_release_of_a_waiter_does_nothing",
            scripts: &["FORCE"],
            right: "expected ~= '=' .. value then",
            replaced_by: "expected ~= '=' .. value\n  and not redis.call('ZSCORE', queue, string.sub(expected, 2)) then",
        },
        Mutant {
            name: "attached_with_any_fence",
            wrong: "A lock is taken over with a fence that it never had.",
            killed_by: "c14_a_greater_fence_is_not_believed",
            scripts: &["RENEW", "RELEASE"],
            right: "if who == me then return true end",
            replaced_by: "if true then return true end",
        },
        Mutant {
            name: "check_prolongs",
            wrong: "A check prolongs the lock.",
            killed_by: "c04_a_check_prolongs_nothing",
            scripts: &["RENEW"],
            right: "if mine and kind == 'L' then",
            replaced_by: "if mine then",
        },
        Mutant {
            name: "no_mark_of_who_has_gone",
            wrong: "A try that arrives behind its release takes the lock.",
            killed_by: "a_try_that_arrives_after_the_release_takes_nothing",
            scripts: &["RELEASE"],
            right: "if keep ~= '0' then",
            replaced_by: "if false then",
        },
        Mutant {
            name: "a_grace_for_each_dead_waiter",
            wrong: "A client that has missed its turn is waited for again with each of its waiters.",
            killed_by: "a_process_that_died_with_lock_and_waiters_costs_one_grace",
            scripts: &["RELEASE", "ACQUIRE", "FORCE"],
            right: "elseif redis.call('HEXISTS', waiters, 's:' .. w.client) == 1 then",
            replaced_by: "elseif false then",
        },
        Mutant {
            name: "nobody_looks_after_a_hand_over",
            wrong: "Who hands a lock over does not look whether it is taken up.",
            killed_by: "many_stopped_processes_cost_one_grace_each",
            scripts: &["RELEASE"],
            right: "return {freed, again}",
            replaced_by: "return {freed, -1}",
        },
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
            name: "a_mark_of_the_beginning_alone",
            wrong: "A forced release takes the lock from another holder whose value begins alike.",
            killed_by: "a_long_value_names_one_hold",
            scripts: &["INSPECT", "ACQUIRE", "FORCE"],
            right: "return '#' .. redis.sha1hex(value)",
            replaced_by: "return string.sub(value, 1, 41)",
        },
        Mutant {
            name: "the_asker_is_named",
            wrong: "A try in vain names whoever asks as the holder.",
            killed_by: "c15_a_busy_answer_names_the_true_holder",
            scripts: &["ACQUIRE"],
            right: "shown = {value, record,",
            replaced_by: "shown = {me, string.gsub(record, value, me),",
        },
        Mutant {
            name: "place_is_never_renewed",
            wrong: "The renewal of a place does not prolong it.",
            killed_by: "l03_a_renewed_place_is_kept",
            scripts: &["RENEW"],
            right: "now + ttl) .. '|' .. rest",
            replaced_by: "tonumber(till)) .. '|' .. rest",
        },
        Mutant {
            name: "place_for_half_its_ttl",
            wrong: "A place in the queue is kept for half of its ttl.",
            killed_by: "c04_a_place_is_kept_as_long_as_promised",
            scripts: &["ACQUIRE"],
            right: "till = math.floor(now / 1000) + tonumber(ttl), ttl",
            replaced_by: "till = math.floor(now / 1000) + math.floor(tonumber(ttl) / 2), ttl",
        },
        Mutant {
            name: "a_check_sees_no_place",
            wrong: "A check of a waiter looks for the lock only.",
            killed_by: "c06_a_check_of_a_waiter_says_whether_it_has_a_place",
            scripts: &["RENEW"],
            right: "answer = PLACE + tonumber(till) - now",
            replaced_by: "answer = -1",
        },
        Mutant {
            name: "a_check_sees_dead_places",
            wrong: "A check of a waiter finds a place that has ended.",
            killed_by: "c06_a_check_of_a_place_that_has_ended_is_lost",
            scripts: &["RENEW"],
            right: "elseif tonumber(till) > now then",
            replaced_by: "else\n          till = math.max(tonumber(till), now + 1)",
        },
        Mutant {
            name: "owner_in_part",
            wrong: "Owners are compared without their last letter.",
            killed_by: "c01_owners_that_differ_in_one_bit_are_two",
            scripts: &["ACQUIRE"],
            right: "if holder == me then",
            replaced_by: "if type(holder) == 'string' and string.sub(holder, 1, 31) == string.sub(me, 1, 31) then",
        },
        Mutant {
            name: "ttl_of_whole_seconds",
            wrong: "A ttl is cut to whole seconds.",
            killed_by: "c04_a_ttl_with_a_fraction_is_kept",
            scripts: &["ACQUIRE"],
            right: "'NX', 'PX', ttl)",
            replaced_by: "'NX', 'PX', ttl - ttl % 1000)",
        },
        Mutant {
            name: "dead_waiters_are_counted",
            wrong: "An inspection counts places that have ended.",
            killed_by: "c13_inspection_counts_no_place_that_has_ended",
            scripts: &["INSPECT"],
            right: "tonumber(till) * 1000 > now and owner",
            replaced_by: "owner",
        },
        Mutant {
            name: "held_since_the_last_try",
            wrong: "A repeated try begins the hold anew.",
            killed_by: "c01_inspection_follows_the_hold",
            scripts: &["ACQUIRE"],
            right: "    since = began\n",
            replaced_by: "",
        },
        Mutant {
            name: "label_is_lost",
            wrong: "The label of a holder is not kept.",
            killed_by: "c01_inspection_shows_what_was_asked_for",
            scripts: &["ACQUIRE"],
            right: "now), client, label, ttl)",
            replaced_by: "now), client, '', ttl)",
        },
        Mutant {
            name: "one_fence_for_all",
            wrong: "All holders have one fence, so a guarded register lets an earlier one write.",
            killed_by: "s07_a_guarded_register_loses_no_update",
            scripts: &["ACQUIRE", "RELEASE", "FORCE"],
            right: "if last >= now then now = last + 1 end",
            replaced_by: "now = 1",
        },
        Mutant {
            name: "error_names_the_owner",
            wrong: "The error of a renewal names the owner in full.",
            killed_by: "s08_errors_of_calls_show_no_secret",
            scripts: &["RENEW"],
            right: "local answer = -1",
            replaced_by: "local answer = -1\n  if value_of(KEYS[k]) ~= who then error('DISTLOCK the lock is not held by ' .. who) end",
        },
    ];

    pub(crate) fn apply(script: &str, text: &str) -> String {
        let wanted = std::env::var(VARIABLE).unwrap_or_default();
        let mut mutants = MUTANTS.iter().filter(|mutant| mutant.scripts.contains(&script));
        let Some(mutant) = mutants.find(|mutant| mutant.name == wanted) else {
            return text.to_owned();
        };
        assert!(text.contains(mutant.right), "{wanted} finds nothing to change in {script}");
        text.replace(mutant.right, mutant.replaced_by)
    }
}
