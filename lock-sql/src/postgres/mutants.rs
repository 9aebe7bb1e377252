//! Deliberately wrong statements of the PostgreSQL dialect, and what the suite fails each by.

use crate::engine::mutants::Preparation;
use crate::engine::table::TableName;

#[cfg(not(distlock_mutants))]
pub(super) fn preparation(_table: &TableName) -> Preparation {
    Preparation::RIGHT
}

#[cfg(distlock_mutants)]
pub(super) fn preparation(table: &TableName) -> Preparation {
    Preparation::new(wrong::VARIABLE, wrong::MUTANTS, &wrong::terms(table))
}

#[cfg(distlock_mutants)]
pub(super) mod wrong {
    use crate::engine::mutants::Mutant;
    use crate::engine::table::TableName;

    /// Names the mutant, in the environment.
    pub const VARIABLE: &str = "LOCK_POSTGRES_MUTANT";

    /// What stands in their texts for the table.
    pub(super) fn terms(table: &TableName) -> [(&'static str, &str); 1] {
        [("{table}", table.as_str())]
    }

    /// What the tests of the tests try.
    pub const MUTANTS: &[Mutant] = &[
        Mutant {
            name: "client_clock",
            what_is_wrong: "the lease is judged by the clock of whoever asks",
            killed_by: "c03_two_releases_make_one_grant",
            replacements: &[(
                "clock_timestamp()",
                "(clock_timestamp() + {skew} * interval '1 microsecond')",
            )],
        },
        Mutant {
            name: "affected_rows_trusted",
            what_is_wrong: "a row that was written is taken for ours, also by those who have only put themselves on the list",
            killed_by: "c13_a_waiter_that_declines_passes_it_on",
            replacements: &[("RETURNING l.owner = $2::text AS mine", "RETURNING true AS mine")],
        },
        Mutant {
            name: "fence_reset_by_delete",
            what_is_wrong: "a release deletes the row, and its fence with it",
            killed_by: "c09_fences_rise_over_releases",
            replacements: &[
                ("greatest(coalesce((SELECT fence", "least(1, coalesce((SELECT fence"),
                (
                    "UPDATE \"distlock\" AS l SET owner = NULL, label = NULL, expires = least(l.expires, present.now), \
                     woken = l.waiters[1], waiters = l.waiters[2:] FROM (",
                    "DELETE FROM \"distlock\" AS l USING (",
                ),
                ("RETURNING l.expires = present.now", "RETURNING l.expires > present.now"),
            ],
        },
        Mutant {
            name: "case_folding_names",
            what_is_wrong: "names are compared as under a collation that ignores case",
            killed_by: "c11_distinct_names_never_block_each_other",
            replacements: &[
                ("SELECT $1::text,", "SELECT lower($1::text),"),
                ("l.name = $1::text", "l.name = lower($1::text)"),
            ],
        },
        Mutant {
            name: "advisory_lock_left_in_the_pool",
            what_is_wrong: "a lock of the session in place of the lease: it stays with the pooled connection that has taken it for as long as that lives",
            killed_by: "l01_an_abandoned_lock_is_free_after_its_ttl",
            replacements: &[
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
        },
        Mutant {
            name: "a_plain_read_is_proof",
            what_is_wrong: "a read without a lock says that a hold is gone, and may be a standby's",
            killed_by: "reads_that_are_behind",
            replacements: &[(" FOR KEY SHARE", "")],
        },
        Mutant {
            name: "every_look_locks_the_row",
            what_is_wrong: "a waiter goes to the row of a lock that is held",
            killed_by: "looks_write_nothing",
            replacements: &[(
                "AND h.expires > present.now AND",
                "AND h.expires > present.now AND false AND",
            )],
        },
        Mutant {
            name: "expiry_is_not_asked",
            what_is_wrong: "a lock is held for as long as the transaction, which is one statement: not at all",
            killed_by: "s01_a_lock_is_not_reentrant",
            replacements: &[
                ("OR l.expires <= excluded.acquired", "OR l.expires > excluded.acquired"),
                ("AND h.expires > present.now", "AND h.expires <= present.now"),
            ],
        },
        Mutant {
            name: "release_without_owner",
            what_is_wrong: "a release frees the hold of anybody",
            killed_by: "c07_a_release_after_busy_does_nothing",
            replacements: &[(
                "WHERE l.name = $1::text AND l.owner = $2::text AND $4::bigint IN (0, l.fence) RETURNING",
                "WHERE l.name = $1::text AND $2::text <> '' AND $4::bigint >= 0 RETURNING",
            )],
        },
        Mutant {
            name: "release_of_another_hold",
            what_is_wrong: "what a lease says of itself is believed",
            killed_by: "c14_a_greater_fence_is_not_believed",
            replacements: &[(
                "l.owner = $2::text AND $4::bigint IN (0, l.fence)",
                "l.owner = $2::text AND $4::bigint >= 0",
            )],
        },
        Mutant {
            name: "renewal_without_fence",
            what_is_wrong: "a renewal prolongs a hold of another token",
            killed_by: "c14_a_greater_fence_is_not_believed",
            replacements: &[("due.fence IN (0, l.fence)", "due.fence >= 0")],
        },
        Mutant {
            name: "renewal_without_owner",
            what_is_wrong: "a renewal prolongs the hold of anybody, whatever its token",
            killed_by: "s03_a_late_renewal_does_not_touch_the_next_holder",
            replacements: &[
                ("l.owner = due.owner AND ", ""),
                ("AND l.owner = due.owner", ""),
                ("due.fence IN (0, l.fence)", "due.fence >= 0"),
            ],
        },
        Mutant {
            name: "renewal_of_what_has_ended",
            what_is_wrong: "a renewal prolongs a lease that has ended",
            killed_by: "c06_a_renewal_after_the_end_is_lost",
            replacements: &[("AND l.expires > clock_timestamp() ORDER BY", "ORDER BY")],
        },
        Mutant {
            name: "a_lease_that_is_never_longer",
            what_is_wrong: "where a transaction may last, the present is that of its start",
            killed_by: "c04_renewals_keep_the_lock",
            replacements: &[(
                "SET expires = clock_timestamp() + due.ttl * interval '1 microsecond' FROM",
                "SET expires = least(l.expires, clock_timestamp() + due.ttl * interval '1 microsecond') FROM",
            )],
        },
        Mutant {
            name: "new_token_on_repeat",
            what_is_wrong: "a repeated try gets another token",
            killed_by: "c02_a_repeated_try_returns_the_same_token",
            replacements: &[("WHEN l.owner = excluded.owner OR NOT", "WHEN NOT")],
        },
        Mutant {
            name: "the_fence_stays",
            what_is_wrong: "the next holder gets the token of the last one",
            killed_by: "c09_fences_rise_over_releases",
            replacements: &[("ELSE greatest(l.fence + 1,", "ELSE least(l.fence,")],
        },
        Mutant {
            name: "a_waiter_is_not_on_the_list",
            what_is_wrong: "a waiter is not put on the list",
            killed_by: "c05_a_release_is_pushed",
            replacements: &[("OR ($5::text IS NOT NULL AND", "OR ($5::text IS NULL AND")],
        },
        Mutant {
            name: "a_release_tells_nobody",
            what_is_wrong: "a release notifies nobody",
            killed_by: "c05_a_release_is_pushed",
            replacements: &[("l.woken IS NOT NULL AND $3::bool", "l.woken IS NULL AND $3::bool")],
        },
        Mutant {
            name: "force_by_owner_frees_any",
            what_is_wrong: "a release by force frees another owner's hold",
            killed_by: "s03_a_forced_release_of_another_hold_does_nothing",
            replacements: &[(
                "($2::text IS NULL OR l.owner = $2::text)",
                "($2::text IS NULL OR $2::text <> '')",
            )],
        },
    ];

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn every_replacement_finds_what_it_changes() {
            let table = TableName::default();
            let statements =
                format!("{:?}", super::super::super::statements::Statements::new(&table));
            let statements = statements.replace("\\\"", "\"");
            crate::engine::mutants::find_what_they_change(MUTANTS, &terms(&table), &statements);
        }
    }
}
