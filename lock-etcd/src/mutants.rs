//! Deliberately wrong steps, for the tests of the tests.
//!
//! Only with the feature `mutants`, and only if the variable below names one: each stands for a
//! mistake that locks on etcd are known to be made with. `tests/mutants.rs` shows which case of the
//! suite fails each of them.

/// Whether the step `name` is to be made wrongly.
#[cfg(not(distlock_mutants))]
pub(crate) const fn on(_name: &str) -> bool {
    false
}

#[cfg(distlock_mutants)]
pub use wrong::{MUTANTS, VARIABLE};

#[cfg(distlock_mutants)]
pub(crate) use wrong::on;

#[cfg(distlock_mutants)]
mod wrong {
    use std::sync::LazyLock;

    /// Names the step to make wrongly, in the environment.
    pub const VARIABLE: &str = "LOCK_ETCD_MUTANT";

    /// The name of each step, and what is wrong with it.
    pub const MUTANTS: &[(&str, &str)] = &[
        ("no_look_after_waiting", "the place before ours has gone, so the lock must be ours"),
        ("swallows_ttl_0", "any answer to a keep-alive counts as a renewal"),
        ("release_by_name", "the release deletes its key by name, whose ever it is by now"),
        (
            "resumes_after_compaction",
            "a watch that was compacted away is silently begun again later",
        ),
        (
            "skips_what_was_not_told",
            "a watch that was created goes on from the revision of that answer",
        ),
        ("ignores_a_refused_watch", "nothing happens when the server refuses a watch"),
        ("trusts_its_watch", "the own key is not looked at while its watch stands"),
        (
            "believes_in_the_lease",
            "a lease that lives shows that the lock is held, if the key cannot be read",
        ),
        (
            "two_keep_alives_in_flight",
            "a lease may have two keep-alives under way, and an answer counts for the second",
        ),
        ("sees_nested_names", "the places of `a/b` stand in the queue of `a`"),
        ("own_place_unwatched", "nobody watches the own place"),
        ("shares_a_lease", "all claims of a client use one lease"),
        (
            "keeps_unknown_leases",
            "a release after an unknown try deletes the key and keeps the lease",
        ),
        ("valid_from_the_reply", "validity counts from the answer, not from the request"),
        ("fence_is_the_lease", "the fencing token is the lease id"),
        ("try_leaves_a_place", "a try that does not wait leaves its place in the queue"),
        ("ignores_the_queue", "the own place alone is the lock"),
        ("release_keeps_the_key", "a release deletes nothing"),
        ("believes_the_owner", "a token is good for whatever stands at its key"),
        ("believes_the_fence", "a token is good whatever its fence is"),
        ("takes_a_place_for_a_hold", "a token may name a place that waits"),
        ("takes_any_ttl", "a lease is taken over whatever its ttl is"),
        ("revokes_what_it_was_told_of", "the lease that a refused token names is given up"),
        ("checks_what_it_has_heard_of", "a check knows nothing of a try that had no answer"),
        ("stays_with_a_learner", "a member that is a learner is taken for a good one"),
        ("keeps_its_pool", "one lease of the pool was gone, and the others are tried all the same"),
        ("dies_with_its_runtime", "who waits is not told when nobody serves the watches any more"),
        ("counts_from_any_base", "a place is taken whatever the base of the fences is by now"),
        ("base_is_never_lifted", "fences count from the first base for ever"),
        ("trusts_a_store_that_went_back", "a fence may be below one that was seen before"),
        ("force_needs_no_owner", "a forced release ignores whom it should meet"),
    ];

    static WANTED: LazyLock<String> = LazyLock::new(|| std::env::var(VARIABLE).unwrap_or_default());

    pub(crate) fn on(name: &str) -> bool {
        debug_assert!(MUTANTS.iter().any(|(known, _)| *known == name), "no mutant {name}");
        *WANTED == name
    }
}
