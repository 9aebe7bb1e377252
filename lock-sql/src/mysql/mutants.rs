//! Deliberately wrong statements of the MySQL dialect, and what the suite fails each by.

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
    pub const VARIABLE: &str = "LOCK_MYSQL_MUTANT";

    /// What stands in their texts for the table and the clock.
    pub(super) fn terms(table: &TableName) -> [(&'static str, &str); 2] {
        [("{table}", table.as_str()), ("{now}", super::super::statements::NOW)]
    }

    /// What the tests of the tests try.
    pub const MUTANTS: &[Mutant] = &[
        Mutant {
            name: "client_clock",
            what_is_wrong: "the lease is judged by the clock of whoever asks",
            killed_by: "c03_two_releases_make_one_grant",
            replacements: &[(
                "UTC_TIMESTAMP(6)",
                "(UTC_TIMESTAMP(6) + INTERVAL {skew} MICROSECOND)",
            )],
        },
        Mutant {
            name: "affected_rows_trusted",
            what_is_wrong: "a row that was affected is taken for ours, also if it was found and left alone",
            killed_by: "s01_a_lock_is_not_reentrant",
            replacements: &[
                ("fence + 0 * LAST_INSERT_ID(VALUES(acquired) - expires)", "LAST_INSERT_ID(fence)"),
                ("fence + 0 * LAST_INSERT_ID({now} - expires)", "LAST_INSERT_ID(fence)"),
            ],
        },
        Mutant {
            name: "fence_reset_by_delete",
            what_is_wrong: "a release deletes the row, and its fence with it",
            killed_by: "c09_fences_rise_over_releases",
            replacements: &[
                ("LAST_INSERT_ID(GREATEST(COALESCE(", "LAST_INSERT_ID(LEAST(1, COALESCE("),
                (
                    "UPDATE `{table}` SET fence = fence + 0 * LAST_INSERT_ID(IF(expires > {now}, 2, 1)), owner = NULL, label = NULL, acquired = {now}, expires = 0 WHERE name = ? AND owner = ?",
                    "DELETE FROM `{table}` WHERE name = ? AND owner = ? AND LAST_INSERT_ID(2) = 2",
                ),
            ],
        },
        Mutant {
            name: "case_folding_names",
            what_is_wrong: "names are compared as under a collation that ignores case",
            killed_by: "c11_distinct_names_never_block_each_other",
            replacements: &[
                ("VALUES (?, ?, LAST", "VALUES (LOWER(CONVERT(? USING utf8mb4)), ?, LAST"),
                ("name = ?", "name = LOWER(CONVERT(? USING utf8mb4))"),
            ],
        },
        Mutant {
            name: "trailing_blanks_ignored",
            what_is_wrong: "names are compared as under a collation that pads with blanks, such as utf8mb4_bin",
            killed_by: "c11_distinct_names_never_block_each_other",
            replacements: &[
                ("VALUES (?, ?, LAST", "VALUES (TRIM(TRAILING ' ' FROM ?), ?, LAST"),
                ("name = ?", "name = TRIM(TRAILING ' ' FROM ?)"),
            ],
        },
        Mutant {
            name: "advisory_lock_left_in_the_pool",
            what_is_wrong: "a lock of the session in place of the lease: it stays with the pooled connection that has taken it for as long as that lives",
            killed_by: "l01_an_abandoned_lock_is_free_after_its_ttl",
            replacements: &[
                (
                    "LAST_INSERT_ID(GREATEST(COALESCE(",
                    "LAST_INSERT_ID(GREATEST(GET_LOCK(SHA1(name), 0), COALESCE(",
                ),
                ("IF(expires <= {now}, LAST", "IF(GET_LOCK(SHA1(name), 0) = 1, LAST"),
                ("expires <= {now},", "IS_USED_LOCK(SHA1(name)) = CONNECTION_ID(),"),
                ("LAST_INSERT_ID({now} - expires)", "LAST_INSERT_ID(-1)"),
                ("IF(expires <= VALUES(acquired), LAST", "IF(GET_LOCK(SHA1(name), 0) = 1, LAST"),
                ("expires <= VALUES(acquired),", "IS_USED_LOCK(SHA1(name)) = CONNECTION_ID(),"),
                ("LAST_INSERT_ID(VALUES(acquired) - expires)", "LAST_INSERT_ID(-1)"),
                (
                    "expires = 0 WHERE name = ? AND owner = ?",
                    "expires = 0 WHERE name = ? AND owner = ? AND RELEASE_LOCK(SHA1(name)) = 1",
                ),
            ],
        },
        Mutant {
            name: "release_without_owner",
            what_is_wrong: "a release frees the hold of anybody",
            killed_by: "c07_a_release_after_busy_does_nothing",
            replacements: &[("WHERE name = ? AND owner = ?", "WHERE name = ? AND ? <> ''")],
        },
        Mutant {
            name: "renewal_without_owner",
            what_is_wrong: "a renewal prolongs the hold of anybody, whatever its token",
            killed_by: "s03_a_late_renewal_does_not_touch_the_next_holder",
            replacements: &[
                (
                    "WHERE name = ? AND owner = ? AND expires",
                    "WHERE name = ? AND ? <> '' AND expires",
                ),
                ("> {now} AND ? IN (0, fence)", "> {now} AND ? >= 0"),
            ],
        },
        Mutant {
            name: "the_fence_of_a_takeover_is_believed",
            what_is_wrong: "the token in the text of a lease, which its bearer can edit, is believed",
            killed_by: "c14_a_greater_fence_is_not_believed",
            replacements: &[
                (
                    "owner = ? AND expires > {now} AND ? IN (0, fence)",
                    "owner = ? AND expires > {now} AND ? >= 0",
                ),
                ("owner = ? AND ? IN (0, fence)", "owner = ? AND ? >= 0"),
            ],
        },
        Mutant {
            name: "renewal_of_what_has_ended",
            what_is_wrong: "a renewal prolongs a lease that has ended",
            killed_by: "c06_a_renewal_after_the_end_is_lost",
            replacements: &[("AND owner = ? AND expires > ", "AND owner = ? AND 0 < ")],
        },
        Mutant {
            name: "new_token_on_repeat",
            what_is_wrong: "a repeated try gets another token",
            killed_by: "c02_a_repeated_try_returns_the_same_token",
            replacements: &[("LAST_INSERT_ID(fence), IF(", "LAST_INSERT_ID(fence + 1), IF(")],
        },
        Mutant {
            name: "the_lease_of_another_is_taken",
            what_is_wrong: "a lease is taken that still runs",
            killed_by: "s01_a_lock_is_not_reentrant",
            replacements: &[
                ("IF(expires <= VALUES(acquired)", "IF(expires - 300000000 <= VALUES(acquired)"),
                ("IF(expires <= {now}", "IF(expires - 300000000 <= {now}"),
            ],
        },
        Mutant {
            name: "a_repeat_shortens_the_lease",
            what_is_wrong: "a repeated try ends the lease at once",
            killed_by: "c04_a_repeat_is_kept_as_long_as_promised",
            replacements: &[
                ("GREATEST(expires, VALUES(expires))", "VALUES(acquired)"),
                ("IF(owner <=> ?, GREATEST(expires, {now} + ?)", "IF(owner <=> ?, {now} + 0 * ?"),
            ],
        },
        Mutant {
            name: "the_fence_stays",
            what_is_wrong: "the next holder gets the token of the last one",
            killed_by: "c09_fences_rise_over_releases",
            replacements: &[
                ("GREATEST(fence + 1, VALUES(acquired))", "fence"),
                ("GREATEST(fence + 1, {now})", "fence"),
            ],
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
