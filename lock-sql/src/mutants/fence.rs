//! The statements of [`fence`](crate::fence), and what sends them, each wrong when its mistake is wanted.

use lock_core::testing::Mutant;
use sqlx::query::{Query, QueryScalar};
use sqlx::{AssertSqlSafe, Database, FromRow, RawSql, SqlSafeStr};

use crate::mutants::WrongTexts;

pub(super) const ALL: &[WrongTexts] = &[
    WrongTexts {
        name: "a_token_is_raised_again",
        what: "a token is raised to itself, so each transaction of a holder waits for the one before",
        killed_by: "transactions_of_one_holder_do_not_wait_for_each_other",
        sqlite: &[],
        postgres: &[("AND fence < $2 RETURNING", "AND fence <= $2 RETURNING")],
        mysql: &[("LOCK IN SHARE MODE", "FOR UPDATE")],
    },
    WrongTexts {
        name: "an_equal_token_is_not_locked",
        what: "a token that need not be raised can be raised by others before the end of the transaction",
        killed_by: "the_next_holder_waits_and_sees_what_was_committed",
        sqlite: &[],
        postgres: &[("fence >= $2 FOR SHARE", "fence >= $2")],
        mysql: &[(
            "fence FROM distlock_fence WHERE name = ? LOCK IN SHARE MODE",
            "fence FROM distlock_fence WHERE name = ?",
        )],
    },
    WrongTexts {
        name: "an_equal_token_is_locked_as_a_key",
        what: "the lock on a token keeps only its name from being changed",
        killed_by: "the_next_holder_waits_and_sees_what_was_committed",
        sqlite: &[],
        postgres: &[("fence >= $2 FOR SHARE", "fence >= $2 FOR KEY SHARE")],
        mysql: &[],
    },
    WrongTexts {
        name: "a_token_is_only_compared",
        what: "a transaction that only reads leaves nothing behind, so an earlier holder writes after it",
        killed_by: "whoever_was_overtaken_is_refused",
        sqlite: &[],
        postgres: &[(
            "UPDATE distlock_fence SET fence = $2, raised = now() WHERE name = $1 AND fence < $2 RETURNING fence)",
            "SELECT $2::bigint AS fence FROM distlock_fence WHERE name = $1 AND fence < $2 FOR UPDATE)",
        )],
        mysql: &[],
    },
    WrongTexts {
        name: "a_token_is_raised_uncompared",
        what: "a smaller token takes the place of a greater one",
        killed_by: "whoever_was_overtaken_is_refused",
        sqlite: &[],
        postgres: &[("AND fence < $2 RETURNING", "RETURNING")],
        mysql: &[],
    },
    WrongTexts {
        name: "a_token_is_entered_uncompared",
        what: "who has seen no token enters his own, though another one is there by now",
        killed_by: "no_update_is_lost_at_read_committed",
        sqlite: &[],
        postgres: &[],
        mysql: &[("GREATEST(fence, VALUES(fence))", "VALUES(fence)")],
    },
    WrongTexts {
        name: "a_later_token_is_not_seen",
        what: "whoever has not raised the token is taken for the last holder",
        killed_by: "whoever_was_overtaken_is_refused",
        sqlite: &[],
        postgres: &[("(SELECT fence FROM (SELECT fence", "(SELECT $2::bigint FROM (SELECT fence")],
        mysql: &[],
    },
    WrongTexts {
        name: "an_old_snapshot_is_admitted",
        what: "a transaction is admitted that may read what is older than its admission",
        killed_by: "a_snapshot_that_is_too_old_is_refused",
        sqlite: &[],
        postgres: &[("= 'repeatable read' THEN -1", "= 'none of them' THEN -1")],
        mysql: &[],
    },
    WrongTexts {
        name: "tokens_of_similar_names",
        what: "the tokens of two names that differ in case are compared",
        killed_by: "whoever_was_overtaken_is_refused",
        sqlite: &[("WHERE name = ?1", "WHERE name = ?1 COLLATE NOCASE")],
        postgres: &[("WHERE name = $1", "WHERE lower(name) = lower($1)")],
        mysql: &[(
            "WHERE name = ? LOCK",
            "WHERE LOWER(CONVERT(name USING utf8mb4)) = LOWER(CONVERT(? USING utf8mb4)) LOCK",
        )],
    },
    WrongTexts {
        name: "a_raised_token_stays_old",
        what: "a token is as old as its name, and is forgotten while it is in use",
        killed_by: "old_tokens_can_be_forgotten",
        sqlite: &[("fence = excluded.fence, raised = excluded.raised", "fence = excluded.fence")],
        postgres: &[("SET fence = $2, raised = now()", "SET fence = $2")],
        mysql: &[("raised = IF(fence < VALUES(fence), CURRENT_TIMESTAMP, raised), ", "")],
    },
    // Mistakes at the commit, where the values stand in the text.
    WrongTexts {
        name: "a_commit_by_anybody",
        what: "a transaction is committed, whoever has the lock by now",
        killed_by: "a_commit_after_a_later_grant_is_refused",
        sqlite: &[("SELECT count(*) FROM", "SELECT 1 + 0 * count(*) FROM")],
        postgres: &[("ELSE 'the lock is not held' END", "ELSE '0' END")],
        mysql: &[("+ (1 - COUNT(*))", "+ 0 * COUNT(*)")],
    },
    WrongTexts {
        name: "a_commit_by_the_owner_of_old",
        what: "the owner is compared, and his token only with the greatest",
        killed_by: "an_earlier_hold_of_the_owner_is_refused",
        sqlite: &[("BETWEEN fence + 1 - CASE", "BETWEEN 0 * fence + 1 - CASE")],
        postgres: &[("BETWEEN fence + 1 - CASE", "BETWEEN 0 * fence + 1 - CASE")],
        mysql: &[("BETWEEN fence + 1 - IF(", "BETWEEN 0 * fence + 1 - IF(")],
    },
    WrongTexts {
        name: "only_the_last_of_a_cohort_commits",
        what: "the token is compared with the last of its block, which the row has",
        killed_by: "every_holder_of_a_cohort_commits",
        sqlite: &[("THEN CAST(substr(label, 1, instr(label, char(31)) - 1) AS INTEGER)", "THEN 1")],
        postgres: &[("THEN split_part(label, chr(31), 1)::bigint", "THEN 1")],
        mysql: &[("CAST(SUBSTRING_INDEX(label, x'1F', 1) AS SIGNED), 1)", "1, 1)")],
    },
    WrongTexts {
        name: "a_commit_that_locks_nothing",
        what: "the lock can be granted after the check, and before the end of the commit",
        killed_by: "nobody_is_granted_the_lock_while_it_commits",
        sqlite: &[],
        postgres: &[("FOR SHARE) AS held", ") AS held")],
        mysql: &[],
    },
    WrongTexts {
        name: "a_commit_that_locks_a_key",
        what: "the check keeps only the name of the lock from being changed",
        killed_by: "nobody_is_granted_the_lock_while_it_commits",
        sqlite: &[],
        postgres: &[("FOR SHARE) AS held", "FOR KEY SHARE) AS held")],
        mysql: &[],
    },
];

/// As that of `sqlx`.
pub(crate) fn query<'q, D: Database>(text: impl SqlSafeStr) -> Query<'q, D, D::Arguments> {
    sqlx::query(altered(text))
}

/// As that of `sqlx`.
pub(crate) fn query_scalar<'q, D: Database, O>(
    text: impl SqlSafeStr,
) -> QueryScalar<'q, D, O, D::Arguments>
where
    (O,): for<'r> FromRow<'r, D::Row>,
{
    sqlx::query_scalar(altered(text))
}

/// As that of `sqlx`.
pub(crate) fn raw_sql(text: impl SqlSafeStr) -> RawSql {
    sqlx::raw_sql(altered(text))
}

/// What is replaced is in the statements of one database only.
fn altered(text: impl SqlSafeStr) -> AssertSqlSafe<String> {
    let mutant = ALL.iter().find(|mutant| Mutant::is_wanted(mutant.name));
    let all = mutant.map(|mutant| [mutant.sqlite, mutant.postgres, mutant.mysql].concat());
    let text = text.into_sql_str().as_str().to_owned();
    let replaced = all.into_iter().flatten();
    AssertSqlSafe(replaced.fold(text, |text, (from, to)| text.replace(from, to)))
}
