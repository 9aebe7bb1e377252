//! Deliberately wrong scripts, for the tests of the tests.
//!
//! Only with the feature `mutants`, and only if the variable below names one: a mutation of a script
//! that stands for a mistake which a lock on Redis is known to be made with. `tests/mutants.rs` shows
//! that the suite fails each of them.

#[cfg(not(distlock_mutants))]
pub(crate) fn apply(_script: &str, text: &'static str) -> &'static str {
    text
}

#[cfg(distlock_mutants)]
pub use wrong::{MUTANTS, VARIABLE};

#[cfg(distlock_mutants)]
pub(crate) use wrong::apply;

#[cfg(distlock_mutants)]
mod wrong {
    /// Names the mutation to apply, in the environment.
    pub const VARIABLE: &str = "LOCK_REDIS_MUTANT";

    /// The name of each mutation, the scripts that it changes, what is replaced, and by what.
    pub const MUTANTS: &[(&str, &[&str], &str, &str)] = &[
        (
            "release_without_owner",
            &["RELEASE"],
            "is_held_by(who, lock, hold) then",
            "value_of(lock) then",
        ),
        (
            "renew_without_owner",
            &["RENEW"],
            "local mine = is_held_by(who, lock, KEYS[k + 1])",
            "local mine = true",
        ),
        ("set_without_nx", &["ACQUIRE"], "'NX', 'PX', ttl", "'PX', ttl"),
        (
            "lock_without_expiry",
            &["ACQUIRE"],
            "redis.call('SET', lock, me, 'NX', 'PX', ttl)",
            "redis.call('SET', lock, me, 'NX')",
        ),
        ("new_token_on_repeat", &["ACQUIRE"], "if owner ~= me then", "if true then"),
        (
            "newcomer_passes_the_queue",
            &["ACQUIRE"],
            "redis.call('EXISTS', queue, gone) == 0",
            "redis.call('EXISTS', gone) == 0",
        ),
        (
            "try_leaves_a_place",
            &["ACQUIRE"],
            "if wait then\n  local score",
            "if true then\n  local score",
        ),
        ("release_hands_nothing_over", &["RELEASE"], "if not queued then", "if true then"),
        (
            "place_is_not_given_up",
            &["RELEASE"],
            "if redis.call('ZREM', queue, me) == 1 then",
            "if false then",
        ),
        (
            "last_in_first_out",
            &["RELEASE", "ACQUIRE", "FORCE"],
            "redis.call('ZRANGE', queue, 0, 0)[1]",
            "redis.call('ZREVRANGE', queue, 0, 0)[1]",
        ),
        (
            "fence_of_each_name",
            &["ACQUIRE", "RELEASE", "FORCE"],
            "if last >= now then now = last + 1 end",
            "now = 1",
        ),
        (
            "grace_is_the_ttl_of_nobody",
            &["RELEASE", "ACQUIRE", "FORCE"],
            "redis.call('SET', lock, owner, 'PX', w.grace)",
            "redis.call('SET', lock, owner)",
        ),
        ("confirm_keeps_the_grace", &["ACQUIRE"], "  redis.call('PEXPIRE', lock, ttl)\n", ""),
        (
            "force_forgets_the_holder",
            &["FORCE"],
            "redis.call('DEL', lock, hold)",
            "redis.call('DEL', hold)",
        ),
        (
            "attached_with_any_fence",
            &["RENEW", "RELEASE"],
            "if who == me then return true end",
            "if true then return true end",
        ),
        ("check_prolongs", &["RENEW"], "if mine and kind == 'L' then", "if mine then"),
        (
            "place_is_never_renewed",
            &["RENEW"],
            "now + ttl) .. '|' .. rest",
            "tonumber(till)) .. '|' .. rest",
        ),
    ];

    pub(crate) fn apply(script: &str, text: &'static str) -> String {
        let wanted = std::env::var(VARIABLE).unwrap_or_default();
        let Some((name, _, from, to)) =
            MUTANTS.iter().find(|(name, scripts, ..)| *name == wanted && scripts.contains(&script))
        else {
            return text.to_owned();
        };
        assert!(text.contains(from), "the mutant {name} finds nothing to change in {script}");
        text.replace(from, to)
    }
}
