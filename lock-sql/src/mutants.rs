//! Deliberately wrong statements, for the tests of the tests: mistakes which locks in a table are
//! known to be made with, and the case of the suite, or the scene of a test, that must fail each.

mod ends;
mod shown;

use std::sync::atomic::{AtomicU64, Ordering};

/// Names the mutant, in the environment.
pub const VARIABLE: &str = "LOCK_SQL_MUTANT";

/// What is replaced by what in all statements of a dialect. `{t}` is the table, `{now}` MySQL's
/// clock, and `{skew}` another number of microseconds for each client.
type Replacements = &'static [(&'static str, &'static str)];

/// A mistake, in the dialects that can make it.
#[derive(Debug)]
pub struct Mutant {
    /// As the environment names it.
    pub name: &'static str,
    /// The mistake that it stands for.
    pub what_is_wrong: &'static str,
    /// What must fail.
    pub killed_by: &'static str,
    sqlite: Replacements,
    postgres: Replacements,
    mysql: Replacements,
}

impl Mutant {
    fn of(&self, dialect: &str) -> Replacements {
        match dialect {
            "sqlite" => self.sqlite,
            "postgres" => self.postgres,
            _ => self.mysql,
        }
    }
}

/// Those of one dialect.
pub fn mutants_of(dialect: &str) -> impl Iterator<Item = &'static Mutant> {
    all().filter(move |mutant| !mutant.of(dialect).is_empty())
}

fn all() -> impl Iterator<Item = &'static Mutant> {
    MUTANTS.iter().chain(ends::MUTANTS).chain(shown::MUTANTS)
}

/// The replacements of the mutant that the environment names.
pub(crate) fn wanted(dialect: &str, filled: impl Fn(&str) -> String) -> Vec<(String, String)> {
    static CLIENTS: AtomicU64 = AtomicU64::new(0);
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let skew = (CLIENTS.fetch_add(1, Ordering::Relaxed) % 4 * 40_000_000).to_string();
    let filled = |text: &str| filled(&text.replace("{skew}", &skew));
    let mutant = all().find(|mutant| mutant.name == wanted);
    let replacements = mutant.map_or(&[][..], |mutant| mutant.of(dialect));
    replacements.iter().map(|(from, to)| (filled(from), filled(to))).collect()
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "client_clock",
        what_is_wrong: "the lease is judged by the clock of the asking client",
        killed_by: "c03_two_releases_make_one_grant",
        sqlite: &[(":now", "(:now + {skew})")],
        postgres: &[(
            "clock_timestamp()",
            "(clock_timestamp() + {skew} * interval '1 microsecond')",
        )],
        mysql: &[("UTC_TIMESTAMP(6)", "(UTC_TIMESTAMP(6) + INTERVAL {skew} MICROSECOND)")],
    },
    Mutant {
        name: "affected_rows_trusted",
        what_is_wrong: "a row that was affected is taken for ours, also if it was found and left alone",
        killed_by: "s01_a_lock_is_not_reentrant",
        sqlite: &[],
        postgres: &[],
        mysql: &[
            ("fence + 0 * LAST_INSERT_ID(VALUES(acquired) - expires)", "LAST_INSERT_ID(fence)"),
            ("fence + 0 * LAST_INSERT_ID({now} - expires)", "LAST_INSERT_ID(fence)"),
        ],
    },
    Mutant {
        name: "a_place_on_the_list_is_a_grant",
        what_is_wrong: "a row that was written is taken for ours, also by those who have only put themselves on the list",
        killed_by: "c13_a_waiter_that_declines_passes_it_on",
        sqlite: &[],
        postgres: &[("RETURNING l.owner = :owner::text AS mine", "RETURNING true AS mine")],
        mysql: &[],
    },
    Mutant {
        name: "fence_reset_by_delete",
        what_is_wrong: "a release deletes the row, and its fence with it",
        killed_by: "c09_fences_rise_over_releases",
        sqlite: &[
            ("max(coalesce((SELECT fence", "min(coalesce((SELECT fence"),
            (
                "UPDATE {t} SET owner = NULL, label = NULL, expires = min(expires, :now) WHERE",
                "DELETE FROM {t} WHERE",
            ),
            ("THEN expires = :now ELSE", "THEN expires > :now ELSE"),
        ],
        postgres: &[
            ("greatest(coalesce((SELECT fence", "least(1, coalesce((SELECT fence"),
            (
                "UPDATE {t} AS l SET owner = NULL, label = NULL, expires = least(l.expires, statement_timestamp()), \
                 woken = l.waiters[1], waiters = l.waiters[2:] WHERE",
                "DELETE FROM {t} AS l WHERE",
            ),
            (
                "RETURNING l.expires = statement_timestamp()",
                "RETURNING l.expires > statement_timestamp()",
            ),
        ],
        mysql: &[
            ("LAST_INSERT_ID(GREATEST(COALESCE(", "LAST_INSERT_ID(LEAST(1, COALESCE("),
            (
                "UPDATE {t} SET fence = fence + 0 * LAST_INSERT_ID(IF(expires > {now}, 2, 1)), owner = NULL, label = NULL, acquired = {now}, expires = 0 WHERE name = :name AND owner = :owner",
                "DELETE FROM {t} WHERE name = :name AND owner = :owner AND LAST_INSERT_ID(2) = 2",
            ),
        ],
    },
    Mutant {
        name: "case_folding_names",
        what_is_wrong: "names are compared as under a collation that ignores case",
        killed_by: "c11_distinct_names_never_block_each_other",
        sqlite: &[
            ("VALUES (:name,", "VALUES (lower(:name),"),
            ("name = :name", "name = lower(:name)"),
        ],
        postgres: &[
            ("SELECT :name::text,", "SELECT lower(:name::text),"),
            ("l.name = :name::text", "l.name = lower(:name::text)"),
        ],
        mysql: &[
            ("VALUES (:name,", "VALUES (LOWER(CONVERT(:name USING utf8mb4)),"),
            ("name = :name", "name = LOWER(CONVERT(:name USING utf8mb4))"),
        ],
    },
    Mutant {
        name: "trailing_blanks_ignored",
        what_is_wrong: "names are compared as under a collation that pads with blanks, such as utf8mb4_bin",
        killed_by: "c11_distinct_names_never_block_each_other",
        sqlite: &[
            ("VALUES (:name,", "VALUES (rtrim(:name),"),
            ("name = :name", "name = rtrim(:name)"),
        ],
        postgres: &[],
        mysql: &[
            ("VALUES (:name,", "VALUES (TRIM(TRAILING ' ' FROM :name),"),
            ("name = :name", "name = TRIM(TRAILING ' ' FROM :name)"),
        ],
    },
    Mutant {
        name: "advisory_lock_left_in_the_pool",
        what_is_wrong: "a lock of the session in place of the lease: it stays with the pooled connection that has taken it for as long as that lives",
        killed_by: "l01_an_abandoned_lock_is_free_after_its_ttl",
        sqlite: &[],
        postgres: &[
            (
                "AS present WHERE NOT EXISTS (",
                "AS present WHERE pg_try_advisory_lock(hashtext(:name::text)) AND NOT EXISTS (",
            ),
            (
                "(l.owner IS NULL OR l.owner = excluded.owner OR l.expires <= excluded.acquired)",
                "true",
            ),
            (
                "(l.owner IS NULL OR l.expires <= clock_timestamp() AND l.owner <> :owner::text)",
                "pg_try_advisory_lock(hashtext(:name::text))",
            ),
            (
                "l.owner = :owner::text AND :fence::bigint IN (0, l.fence) RETURNING l.expires = statement_timestamp()",
                "l.owner = :owner::text AND :fence::bigint IN (0, l.fence) AND pg_advisory_unlock(hashtext(l.name)) RETURNING l.expires = statement_timestamp()",
            ),
        ],
        mysql: &[
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
                "expires = 0 WHERE name = :name AND owner = :owner",
                "expires = 0 WHERE name = :name AND owner = :owner AND RELEASE_LOCK(SHA1(name)) = 1",
            ),
        ],
    },
    Mutant {
        name: "a_plain_read_is_proof",
        what_is_wrong: "a read without a lock says that a hold is gone, and may be a standby's",
        killed_by: "reads_that_are_behind",
        sqlite: &[],
        postgres: &[(" FOR KEY SHARE", "")],
        mysql: &[],
    },
    Mutant {
        name: "every_look_locks_the_row",
        what_is_wrong: "a waiter goes to the row of a lock that is held",
        killed_by: "looks_write_nothing",
        sqlite: &[],
        postgres: &[(
            "AND h.expires > present.now AND",
            "AND h.expires > present.now AND false AND",
        )],
        mysql: &[],
    },
    Mutant {
        name: "the_lease_of_another_is_taken",
        what_is_wrong: "a lease is taken that still runs",
        killed_by: "s01_a_lock_is_not_reentrant",
        sqlite: &[("THEN expires <= :now ELSE", "THEN expires - 300000000 <= :now ELSE")],
        postgres: &[
            ("OR l.expires <= excluded.acquired", "OR l.expires > excluded.acquired"),
            ("AND h.expires > present.now", "AND h.expires <= present.now"),
            (
                "l.expires <= clock_timestamp() AND l.owner <> :owner::text",
                "l.expires > clock_timestamp() AND l.owner <> :owner::text",
            ),
        ],
        mysql: &[
            ("IF(expires <= VALUES(acquired)", "IF(expires - 300000000 <= VALUES(acquired)"),
            ("IF(expires <= {now}", "IF(expires - 300000000 <= {now}"),
        ],
    },
    Mutant {
        name: "release_without_owner",
        what_is_wrong: "a release frees the hold of anybody",
        killed_by: "c07_a_release_after_busy_does_nothing",
        sqlite: &[("(:owner IS NULL OR owner = :owner)", "(:owner IS NULL OR :owner <> '')")],
        postgres: &[(
            "WHERE l.name = :name::text AND l.owner = :owner::text AND :fence::bigint IN (0, l.fence) RETURNING",
            "WHERE l.name = :name::text AND :owner::text <> '' AND :fence::bigint >= 0 RETURNING",
        )],
        mysql: &[(
            "WHERE name = :name AND owner = :owner AND",
            "WHERE name = :name AND :owner <> '' AND",
        )],
    },
    Mutant {
        name: "the_fence_of_a_takeover_is_believed",
        what_is_wrong: "the token in the text of a lease, which its bearer can edit, is believed",
        killed_by: "c14_a_greater_fence_is_not_believed",
        sqlite: &[(":fence IN (0, fence)", ":fence >= 0")],
        postgres: &[(
            "l.owner = :owner::text AND :fence::bigint IN (0, l.fence)",
            "l.owner = :owner::text AND :fence::bigint >= 0",
        )],
        mysql: &[(":fence IN (0, fence)", ":fence >= 0")],
    },
    Mutant {
        name: "renewal_without_fence",
        what_is_wrong: "a renewal prolongs a hold of another token",
        killed_by: "c14_a_greater_fence_is_not_believed",
        sqlite: &[("due.value ->> 3 IN (0, fence)", "due.value ->> 3 >= 0")],
        postgres: &[("due.fence IN (0, l.fence)", "due.fence >= 0")],
        mysql: &[],
    },
    Mutant {
        name: "renewal_without_owner",
        what_is_wrong: "a renewal prolongs the hold of anybody, whatever its token",
        killed_by: "s03_a_late_renewal_does_not_touch_the_next_holder",
        sqlite: &[
            ("AND owner = due.value ->> 1 ", ""),
            ("due.value ->> 3 IN (0, fence)", "due.value ->> 3 >= 0"),
        ],
        postgres: &[
            ("l.owner = due.owner AND ", ""),
            ("AND l.owner = due.owner", ""),
            ("due.fence IN (0, l.fence)", "due.fence >= 0"),
        ],
        mysql: &[
            (
                "WHERE name = :name AND owner = :owner AND expires",
                "WHERE name = :name AND :owner <> '' AND expires",
            ),
            ("> {now} AND :fence IN (0, fence)", "> {now} AND :fence >= 0"),
        ],
    },
    Mutant {
        name: "new_token_on_repeat",
        what_is_wrong: "a repeated try gets another token",
        killed_by: "c02_a_repeated_try_returns_the_same_token",
        sqlite: &[("WHEN owner = excluded.owner THEN fence", "WHEN owner = '' THEN fence")],
        postgres: &[("WHEN l.owner = excluded.owner OR NOT", "WHEN NOT")],
        mysql: &[("LAST_INSERT_ID(fence), IF(", "LAST_INSERT_ID(fence + 1), IF(")],
    },
    Mutant {
        name: "block_of_one",
        what_is_wrong: "the fence moves by one, whatever block was asked for",
        killed_by: "c16_blocks_rise_over_releases",
        sqlite: &[("+ :more", "+ 0 * :more")],
        postgres: &[("+ :more::bigint", "+ 0 * :more::bigint")],
        mysql: &[("+ :more", "+ 0 * :more")],
    },
    Mutant {
        name: "the_fence_stays",
        what_is_wrong: "the next holder gets the token of the last one",
        killed_by: "c09_fences_rise_over_releases",
        sqlite: &[("ELSE max(fence + 1, :wall) + :more END", "ELSE fence END")],
        postgres: &[
            ("ELSE greatest(l.fence + 1,", "ELSE least(l.fence,"),
            ("fence = greatest(l.fence + 1,", "fence = least(l.fence,"),
        ],
        mysql: &[
            ("GREATEST(fence + 1, VALUES(acquired))", "fence"),
            ("GREATEST(fence + 1, {now})", "fence"),
        ],
    },
    Mutant {
        name: "a_waiter_is_not_on_the_list",
        what_is_wrong: "a waiter is not put on the list",
        killed_by: "c05_a_release_is_pushed",
        sqlite: &[],
        postgres: &[("OR (:client::text IS NOT NULL AND", "OR (:client::text IS NULL AND")],
        mysql: &[],
    },
    Mutant {
        name: "a_release_tells_nobody",
        what_is_wrong: "a release notifies no waiter",
        killed_by: "c05_a_release_is_pushed",
        sqlite: &[],
        postgres: &[("l.woken IS NOT NULL AND :tell::bool", "l.woken IS NULL AND :tell::bool")],
        mysql: &[],
    },
    Mutant {
        name: "force_by_owner_frees_any",
        what_is_wrong: "a release by force frees another owner's hold",
        killed_by: "s03_a_forced_release_of_another_hold_does_nothing",
        sqlite: &[("(:owner IS NULL OR owner = :owner)", "(:owner IS NULL OR :owner <> '')")],
        postgres: &[(
            "(:owner::text IS NULL OR l.owner = :owner::text)",
            "(:owner::text IS NULL OR :owner::text <> '')",
        )],
        mysql: &[("(:owner IS NULL OR owner = :owner)", "(:owner IS NULL OR :owner <> '')")],
    },
];

#[cfg(all(test, feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests;
