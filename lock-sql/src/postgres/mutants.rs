//! Deliberately wrong statements, for the tests of the tests.
//!
//! Only with the feature `mutants`, and only if the variable below names one: a mutation of the
//! statements that stands for a mistake which locks in a PostgreSQL table are known to be made with.
//! `tests/postgres_mutants.rs` shows that the suite fails each of them.

#[cfg(not(distlock_mutants))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mutation;

#[cfg(not(distlock_mutants))]
impl Mutation {
    pub(crate) fn of_environment() -> Self {
        Self
    }

    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn apply(self, text: String) -> String {
        text
    }
}

#[cfg(distlock_mutants)]
pub(crate) use wrong::Mutation;
#[cfg(distlock_mutants)]
pub use wrong::{MUTANTS, VARIABLE};

#[cfg(distlock_mutants)]
mod wrong {
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Names the mutation to apply, in the environment.
    pub const VARIABLE: &str = "LOCK_POSTGRES_MUTANT";

    /// The name of each mutation, and what is replaced by what in all statements. `{skew}` is another
    /// number of microseconds for each client.
    pub const MUTANTS: &[(&str, &[(&str, &str)])] = &[
        (
            // The lease is judged by the clock of whoever asks.
            "client_clock",
            &[("clock_timestamp()", "(clock_timestamp() + {skew} * interval '1 microsecond')")],
        ),
        (
            // "A row was written, so it is mine": true for who has only put himself on the list, too.
            "affected_rows_trusted",
            &[("RETURNING l.owner = $2::text AS mine", "RETURNING true AS mine")],
        ),
        (
            "fence_reset_by_delete",
            &[
                ("greatest(coalesce((SELECT fence", "least(1, coalesce((SELECT fence"),
                (
                    "UPDATE \"distlock\" AS l SET owner = NULL, label = NULL, expires = least(l.expires, present.now), \
                     woken = l.waiters[1], waiters = l.waiters[2:] FROM (",
                    "DELETE FROM \"distlock\" AS l USING (",
                ),
                ("RETURNING l.expires = present.now", "RETURNING l.expires > present.now"),
            ],
        ),
        (
            // As under a collation that ignores case.
            "case_folding_names",
            &[
                ("SELECT $1::text,", "SELECT lower($1::text),"),
                ("l.name = $1::text", "l.name = lower($1::text)"),
            ],
        ),
        (
            // A lock of the session in place of the lease: it stays with the pooled connection that has
            // taken it for as long as that lives.
            "advisory_lock_left_in_the_pool",
            &[
                (
                    "AS present WHERE NOT EXISTS (",
                    "AS present WHERE pg_try_advisory_lock(hashtext($1::text)) AND NOT EXISTS (",
                ),
                (
                    "(l.owner IS NULL OR l.owner = excluded.owner OR l.expires <= excluded.acquired)",
                    "true",
                ),
                (
                    "l.owner = $2::text AND $4::bigint IN (0, l.fence) RETURNING l.expires = present.now",
                    "l.owner = $2::text AND $4::bigint IN (0, l.fence) AND pg_advisory_unlock(hashtext(l.name)) RETURNING l.expires = present.now",
                ),
            ],
        ),
        ("a_plain_read_is_proof", &[(" FOR KEY SHARE", "")]),
        (
            "every_look_locks_the_row",
            &[("AND h.expires > present.now AND", "AND h.expires > present.now AND false AND")],
        ),
        (
            // Held for as long as the transaction, which is one statement: not at all.
            "expiry_is_not_asked",
            &[
                ("OR l.expires <= excluded.acquired", "OR l.expires > excluded.acquired"),
                ("AND h.expires > present.now", "AND h.expires <= present.now"),
            ],
        ),
        (
            "release_without_owner",
            &[(
                "WHERE l.name = $1::text AND l.owner = $2::text AND $4::bigint IN (0, l.fence) RETURNING",
                "WHERE l.name = $1::text AND $2::text <> '' AND $4::bigint >= 0 RETURNING",
            )],
        ),
        (
            // What a lease says of itself is believed.
            "release_of_another_hold",
            &[(
                "l.owner = $2::text AND $4::bigint IN (0, l.fence)",
                "l.owner = $2::text AND $4::bigint >= 0",
            )],
        ),
        ("renewal_without_fence", &[("due.fence IN (0, l.fence)", "due.fence >= 0")]),
        (
            "renewal_without_owner",
            // The token would tell the holds apart, too.
            &[
                ("l.owner = due.owner AND ", ""),
                ("AND l.owner = due.owner", ""),
                ("due.fence IN (0, l.fence)", "due.fence >= 0"),
            ],
        ),
        (
            "renewal_of_what_has_ended",
            &[("AND l.expires > clock_timestamp() ORDER BY", "ORDER BY")],
        ),
        (
            // Where a transaction may last, the present is that of its start.
            "a_lease_that_is_never_longer",
            &[(
                "SET expires = clock_timestamp() + due.ttl * interval '1 microsecond' FROM",
                "SET expires = least(l.expires, clock_timestamp() + due.ttl * interval '1 microsecond') FROM",
            )],
        ),
        ("new_token_on_repeat", &[("WHEN l.owner = excluded.owner OR NOT", "WHEN NOT")]),
        ("the_fence_stays", &[("ELSE greatest(l.fence + 1,", "ELSE least(l.fence,")]),
        (
            "a_waiter_is_not_on_the_list",
            &[("OR ($5::text IS NOT NULL AND", "OR ($5::text IS NULL AND")],
        ),
        (
            "a_release_tells_nobody",
            &[("l.woken IS NOT NULL AND $3::bool", "l.woken IS NULL AND $3::bool")],
        ),
        (
            "force_by_owner_frees_any",
            &[("($2::text IS NULL OR l.owner = $2::text)", "($2::text IS NULL OR $2::text <> '')")],
        ),
    ];

    /// A mutation that changes nothing would survive for the wrong reason.
    #[cfg(test)]
    mod tests {
        use crate::statements::TableName;
        use crate::statements::postgres::Statements;

        #[test]
        fn every_mutation_finds_what_it_changes() {
            let statements = format!("{:?}", Statements::new(&TableName::default()));
            let statements = statements.replace("\\\"", "\"");
            for (name, replacements) in super::MUTANTS {
                for (from, _) in *replacements {
                    assert!(statements.contains(from), "{name} finds no {from}");
                }
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Mutation {
        replacements: &'static [(&'static str, &'static str)],
        skew: u64,
    }

    impl Mutation {
        pub(crate) fn of_environment() -> Self {
            static CLIENTS: AtomicU64 = AtomicU64::new(0);
            let wanted = std::env::var(VARIABLE).unwrap_or_default();
            let replacements =
                MUTANTS.iter().find(|(name, _)| *name == wanted).map_or(&[][..], |found| found.1);
            let skew = CLIENTS.fetch_add(1, Ordering::Relaxed) % 4 * 40_000_000;
            Self { replacements, skew }
        }

        pub(crate) fn apply(self, mut text: String) -> String {
            for (from, to) in self.replacements {
                text = text.replace(from, &to.replace("{skew}", &self.skew.to_string()));
            }
            text
        }
    }
}
