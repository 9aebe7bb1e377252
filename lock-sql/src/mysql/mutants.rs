//! Deliberately wrong statements, for the tests of the tests.
//!
//! Only with the feature `mutants`, and only if the variable below names one: a mutation of the
//! statements that stands for a mistake which locks in a MySQL table are known to be made with.
//! `tests/mysql_mutants.rs` shows that the suite fails each of them.

#[cfg(not(distlock_mutants))]
#[derive(Debug)]
pub(crate) struct Mutation;

#[cfg(not(distlock_mutants))]
impl Mutation {
    pub(crate) fn of_environment(_table: &str) -> Self {
        Self
    }

    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn apply(&self, text: String) -> String {
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
    pub const VARIABLE: &str = "LOCK_MYSQL_MUTANT";

    /// The name of each mutation, and what is replaced by what in all statements. `{skew}` is another
    /// number of microseconds for each client, `{table}` the table, `{now}` the server's clock.
    pub const MUTANTS: &[(&str, &[(&str, &str)])] = &[
        (
            // The lease is judged by the clock of whoever asks.
            "client_clock",
            &[("UTC_TIMESTAMP(6)", "(UTC_TIMESTAMP(6) + INTERVAL {skew} MICROSECOND)")],
        ),
        (
            // "A row was affected, so it is mine": true for a row that was found and left alone, too.
            "affected_rows_trusted",
            &[
                ("fence + 0 * LAST_INSERT_ID(VALUES(acquired) - expires)", "LAST_INSERT_ID(fence)"),
                ("fence + 0 * LAST_INSERT_ID({now} - expires)", "LAST_INSERT_ID(fence)"),
            ],
        ),
        (
            "fence_reset_by_delete",
            &[
                ("LAST_INSERT_ID(GREATEST(COALESCE(", "LAST_INSERT_ID(LEAST(1, COALESCE("),
                (
                    "UPDATE `{table}` SET fence = fence + 0 * LAST_INSERT_ID(IF(expires > {now}, 2, 1)), owner = NULL, label = NULL, acquired = {now}, expires = 0 WHERE name = ? AND owner = ?",
                    "DELETE FROM `{table}` WHERE name = ? AND owner = ? AND LAST_INSERT_ID(2) = 2",
                ),
            ],
        ),
        (
            // As under a collation that ignores case.
            "case_folding_names",
            &[
                ("VALUES (?, ?, LAST", "VALUES (LOWER(CONVERT(? USING utf8mb4)), ?, LAST"),
                ("name = ?", "name = LOWER(CONVERT(? USING utf8mb4))"),
            ],
        ),
        (
            // As under a collation that pads with blanks, such as utf8mb4_bin.
            "trailing_blanks_ignored",
            &[
                ("VALUES (?, ?, LAST", "VALUES (TRIM(TRAILING ' ' FROM ?), ?, LAST"),
                ("name = ?", "name = TRIM(TRAILING ' ' FROM ?)"),
            ],
        ),
        (
            // A lock of the session in place of the lease: it stays with the pooled connection that has
            // taken it for as long as that lives.
            "advisory_lock_left_in_the_pool",
            &[
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
        ),
        (
            "release_without_owner",
            &[("WHERE name = ? AND owner = ?", "WHERE name = ? AND ? <> ''")],
        ),
        (
            "renewal_without_owner",
            // The token would tell the holds apart, too.
            &[
                (
                    "WHERE name = ? AND owner = ? AND expires",
                    "WHERE name = ? AND ? <> '' AND expires",
                ),
                ("> {now} AND ? IN (0, fence)", "> {now} AND ? >= 0"),
            ],
        ),
        (
            // The text of a lease is its bearer's to edit.
            "the_fence_of_a_takeover_is_believed",
            &[
                (
                    "owner = ? AND expires > {now} AND ? IN (0, fence)",
                    "owner = ? AND expires > {now} AND ? >= 0",
                ),
                ("owner = ? AND ? IN (0, fence)", "owner = ? AND ? >= 0"),
            ],
        ),
        (
            "renewal_of_what_has_ended",
            &[("AND owner = ? AND expires > ", "AND owner = ? AND 0 < ")],
        ),
        (
            "new_token_on_repeat",
            &[("LAST_INSERT_ID(fence), IF(", "LAST_INSERT_ID(fence + 1), IF(")],
        ),
        (
            "the_lease_of_another_is_taken",
            &[
                ("IF(expires <= VALUES(acquired)", "IF(expires - 300000000 <= VALUES(acquired)"),
                ("IF(expires <= {now}", "IF(expires - 300000000 <= {now}"),
            ],
        ),
        // `expires` first: the assignments after it see the new value.
        (
            "a_repeat_shortens_the_lease",
            &[
                ("GREATEST(expires, VALUES(expires))", "VALUES(acquired)"),
                ("IF(owner <=> ?, GREATEST(expires, {now} + ?)", "IF(owner <=> ?, {now} + 0 * ?"),
            ],
        ),
        (
            "the_fence_stays",
            &[
                ("GREATEST(fence + 1, VALUES(acquired))", "fence"),
                ("GREATEST(fence + 1, {now})", "fence"),
            ],
        ),
    ];

    /// A mutation that changes nothing would survive for the wrong reason.
    #[cfg(test)]
    mod tests {
        use crate::statements::TableName;
        use crate::statements::mysql::Statements;

        #[test]
        fn every_mutation_finds_what_it_changes() {
            let statements = format!("{:?}", Statements::new(&TableName::default()));
            for (name, replacements) in super::MUTANTS {
                for (from, _) in *replacements {
                    let from = super::filled(from, TableName::default().as_str(), 0);
                    assert!(statements.contains(&from), "{name} finds no {from}");
                }
            }
        }
    }

    #[derive(Debug)]
    pub(crate) struct Mutation {
        replacements: &'static [(&'static str, &'static str)],
        table: String,
        skew: u64,
    }

    impl Mutation {
        pub(crate) fn of_environment(table: &str) -> Self {
            static CLIENTS: AtomicU64 = AtomicU64::new(0);
            let wanted = std::env::var(VARIABLE).unwrap_or_default();
            let replacements =
                MUTANTS.iter().find(|(name, _)| *name == wanted).map_or(&[][..], |found| found.1);
            let skew = CLIENTS.fetch_add(1, Ordering::Relaxed) % 4 * 40_000_000;
            Self { replacements, table: table.to_owned(), skew }
        }

        pub(crate) fn apply(&self, mut text: String) -> String {
            let filled = |text| filled(text, &self.table, self.skew);
            for (from, to) in self.replacements {
                text = text.replace(&filled(from), &filled(to));
            }
            text
        }
    }

    fn filled(text: &str, table: &str, skew: u64) -> String {
        let text = text.replace("{skew}", &skew.to_string()).replace("{table}", table);
        text.replace("{now}", crate::statements::mysql::NOW)
    }
}
