//! The statements of the MySQL dialect, in words that MySQL 8 and MariaDB both understand.
//!
//! # Time
//!
//! `expires` and `acquired` are µs since 1970 by the server's own clock, as `UTC_TIMESTAMP(6)` tells
//! it: that depends on no time zone and is the same for the whole statement, from its start. Not
//! `SYSDATE()`, which runs on within the statement and is another time on a replica. A present that
//! is stale by the wait for a row lock does no harm:
//!
//! - *takeover*: `expires <= now` with a stale `now` is stricter than with a fresh one;
//! - *grant*: the lease ends one ttl after `now`, which is after the start of the call, so the
//!   promise "not before the start of the call + ttl" (clause C4) holds;
//! - *renewal*: `expires > now` may prolong a lease that ended during the wait. The row still has
//!   its owner, so nobody has taken it in the meantime, and nobody can while the statement runs;
//! - *order*: a statement whose caller has given up may run after a later one of the same owner.
//!   `GREATEST` keeps it from moving the end of the lease back.
//!
//! # The outcome
//!
//! There is no `UPDATE … RETURNING`. The number of affected rows says nothing that can be relied
//! on: 0, 1 and 2 depend on whether a value has changed and on a flag of the connection. So each
//! statement calls `LAST_INSERT_ID(…)` on exactly one of its ways, and the server puts that number
//! into its reply. It is 0 if no row was found, since none of the ways gives 0.
//!
//! Assignments are made from left to right, and each sees the values of those before it. Hence
//! their order: `owner` and `expires`, by which all others are decided, come last.
//!
//! # Who is asked
//!
//! A plain `SELECT` may be answered by a replica that is behind, where a proxy such as ProxySQL or
//! MaxScale sends reads there. So it is good for hints: what it does not show is not lost until a
//! statement that writes has not found it either (clause C6).
//!
//! # The fence
//!
//! `GREATEST(fence + 1, now)` rises whatever the clock does. The clock carries it over a loss of the
//! table. The sweep deletes a row only if its fence is not above that of the row [`MARK`], from
//! which a new row starts.

use crate::engine::renewals::BATCH;
use crate::engine::schema::Column;
use crate::engine::sweep::PAGE;
use crate::engine::table::TableName;
use crate::engine::value::Sql;

/// The name of the row that has the greatest fence of all rows that were deleted: U+0001 and
/// `fence`. No lock can be called so, since a name has no control character.
const MARK: &str = "x'0166656E6365'";

/// The server's clock, in µs since 1970.
pub(crate) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The answers of `release`, beside 0 for "no such row".
pub(crate) const WAS_RUNNING: i64 = 2;

/// How many names a statement on many rows has. Only these sizes, so that a connection prepares few
/// statements; the last name is repeated until the places are full.
pub(crate) const SIZES: [usize; 4] = [8, 32, 128, BATCH];

/// How many rows one statement deletes.
pub(crate) const SWEEP: usize = 64;

/// A label is cut to so many characters.
pub(crate) const LABEL: usize = 255;

/// What every connection starts with.
///
/// - `autocommit`, since the server's default may be another;
/// - `sql_mode`, since some modes change what a statement means (`ANSI_QUOTES`, and MariaDB's
///   `SIMULTANEOUS_ASSIGNMENT`), and without a strict one a long name would be cut;
/// - the shortest lock waits: who waits for a row, or for the end of an `ALTER TABLE`, should say so
///   soon, and should not do what it was asked for long after its caller has given up.
pub(crate) const SESSION: &str = "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
     innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, sql_safe_updates = 0, NAMES utf8mb4";

/// The statement that creates the table, for people too.
pub(crate) fn create_table(table: &TableName) -> String {
    format!(
        r"CREATE TABLE IF NOT EXISTS `{}` (
  name     VARBINARY(1025) NOT NULL, -- the lock, compared byte by byte
  owner    VARBINARY(32),            -- who holds it, NULL when it is free
  fence    BIGINT NOT NULL,          -- rises with every holder
  expires  BIGINT NOT NULL,          -- end of the lease, the server's clock in microseconds since 1970
  acquired BIGINT NOT NULL,          -- start of the hold, or the release
  label    VARCHAR(255),             -- for people
  PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4",
        table.as_str()
    )
}

/// Their lengths matter, too, in bytes.
pub(crate) const COLUMNS: [Column; 6] = [
    // A prefix and a name of 512 bytes each, and U+001F between them.
    Column { name: "name", kind: "varbinary", not_null: true, more: 1025 },
    Column { name: "owner", kind: "varbinary", not_null: false, more: 32 },
    Column { name: "fence", kind: "bigint", not_null: true, more: 0 },
    Column { name: "expires", kind: "bigint", not_null: true, more: 0 },
    Column { name: "acquired", kind: "bigint", not_null: true, more: 0 },
    Column { name: "label", kind: "varchar", not_null: false, more: 255 },
];

pub(crate) const VERSION: &str = "SELECT VERSION()";
/// What the table is: its kind and its engine.
pub(crate) const TABLE: &str = "SELECT table_type, COALESCE(engine, '') FROM information_schema.tables \
     WHERE table_schema = DATABASE() AND table_name = ?";
/// Name, type, NOT NULL, whether it may be left out, its length.
pub(crate) const TABLE_COLUMNS: &str = "SELECT LOWER(column_name), LOWER(data_type), CAST(is_nullable <> 'YES' AS SIGNED), \
     CAST(column_default IS NOT NULL OR is_nullable = 'YES' OR extra <> '' AS SIGNED), \
     CAST(COALESCE(character_maximum_length, 0) AS SIGNED) \
     FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?";
/// The columns of the unique keys, and whether only their beginning counts.
pub(crate) const TABLE_KEYS: &str = "SELECT index_name, LOWER(column_name), CAST(sub_part IS NOT NULL AS SIGNED) \
     FROM information_schema.statistics \
     WHERE table_schema = DATABASE() AND table_name = ? AND non_unique = 0";

/// One statement for each of [`SIZES`].
#[derive(Debug)]
pub(crate) struct Sizes(pub(super) [Sql; SIZES.len()]);

impl Sizes {
    fn new(statement: impl Fn(usize) -> Sql) -> Self {
        Self(SIZES.map(statement))
    }

    /// The statement for so many names, and how many places it has.
    pub(super) fn fitting(&self, count: usize) -> (&Sql, usize) {
        let at = SIZES.iter().position(|size| *size >= count).unwrap_or(SIZES.len() - 1);
        (&self.0[at], SIZES[at])
    }
}

/// All statements for one table. What stands before the arrow is bound, in this order; a plain
/// number after it is the one in the reply.
#[derive(Debug)]
pub(crate) struct Statements {
    /// owner three times, label, owner twice, ttl, name → the fence; if somebody else has it, the time
    /// left as a negative number; 0 if there is no such row.
    pub(crate) take: Sql,
    /// name, owner, ttl, label → as `take`, and never 0.
    pub(crate) make: Sql,
    /// ttl, longest excess, ttl twice, name, owner, fence or 0 → the fence.
    pub(crate) renew: Sql,
    /// names → rows of name, key of the hold, whether it is running; no rows that somebody else has
    /// locked. One for each of [`SIZES`], as are the next two.
    pub(crate) unlocked: Sizes,
    /// names → rows as `unlocked`, of all that there are.
    pub(crate) present: Sizes,
    /// ttl, longest excess, ttl twice, names, keys of the holds.
    pub(crate) renew_all: Sizes,
    /// name, owner, fence or 0 → the time left; 0 if there is no such hold. Changes nothing.
    pub(crate) confirm: Sql,
    /// name, owner, fence or 0 → [`WAS_RUNNING`], or 1 for a lease that had ended.
    pub(crate) release: Sql,
    /// name → as `release`, whoever the owner is.
    pub(crate) force: Sql,
    /// name → rows of name, owner, fence, time left, time since the start, label.
    pub(crate) look: Sql,
    /// start of the stored name, its length, whether the prefix is empty → rows as `look`.
    pub(crate) list: Sql,
    /// retention, after → rows of name, fence, whether it can go.
    pub(crate) sweep_page: Sql,
    /// fence.
    pub(crate) sweep_fold: Sql,
    /// the folded fence, retention, names.
    pub(crate) sweep_delete: Sql,
    /// Writes the row [`MARK`] if it is missing.
    pub(crate) mark: Sql,
    /// Write nothing, and fail where writing would.
    pub(crate) probes: [Sql; 3],
}

/// What an acquire does to the row that is there: takes it if it is free, prolongs it if it is our
/// own, and leaves it alone otherwise. A repeat by the same owner keeps its fence (clause C2).
fn taken(me: &str, now: &str, until: &str, label: &str) -> String {
    format!(
        "fence = IF(owner <=> {me}, LAST_INSERT_ID(fence), \
           IF(expires <= {now}, LAST_INSERT_ID(GREATEST(fence + 1, {now})), \
             fence + 0 * LAST_INSERT_ID({now} - expires))), \
         acquired = IF(owner <=> {me} OR expires > {now}, acquired, {now}), \
         label = IF(owner <=> {me} OR expires <= {now}, {label}, label), \
         owner = IF(expires <= {now}, {me}, owner), \
         expires = IF(owner <=> {me}, GREATEST(expires, {until}), expires)"
    )
}

impl Statements {
    pub(crate) fn new(table: &TableName) -> Self {
        let t = format!("`{}`", table.as_str());
        let places = |count: usize| vec!["?"; count].join(",");
        let swept = places(SWEEP);
        // See `longest_excess`.
        let prolonged = format!(
            "expires = IF(expires > {NOW} + ? + ?, {NOW} + ?, GREATEST(expires, {NOW} + ?))"
        );
        let preparation = super::mutants::preparation(table);
        let statement = |text: String| preparation.statement(text);
        Self {
            // The row of a name that was used before is there, and the mark is not read. The present is
            // the same in the whole of a statement.
            take: statement(format!(
                "UPDATE {t} SET {} WHERE name = ?",
                taken("?", NOW, &format!("{NOW} + ?"), "?")
            )),
            // The greatest value is asked for, and not the value, since a derived table that is merged
            // into the statement may not read what the statement writes (error 1093).
            //
            // InnoDB reads the mark with a shared lock here, which is kept to the end of the statement:
            // that makes "no such row" and "the greatest fence of removed rows" one answer. A statement
            // that waits for a locked row would keep it all the while, and the next sweep, and behind
            // that all who want any lock, would wait with it. Hence `take` goes first.
            make: statement(format!(
                "INSERT INTO {t} (name, owner, fence, expires, acquired, label) VALUES (?, ?, \
                   LAST_INSERT_ID(GREATEST(COALESCE((SELECT m.fence FROM (SELECT MAX(fence) AS fence FROM {t} WHERE name = {MARK}) AS m), 0) + 1, {NOW})), \
                   {NOW} + ?, {NOW}, ?) \
                 ON DUPLICATE KEY UPDATE {}",
                taken("VALUES(owner)", "VALUES(acquired)", "VALUES(expires)", "VALUES(label)")
            )),
            renew: statement(format!(
                "UPDATE {t} SET fence = LAST_INSERT_ID(fence), {prolonged} \
                 WHERE name = ? AND owner = ? AND expires > {NOW} AND ? IN (0, fence)"
            )),
            // For a list of names that is a large part of the table, the optimizer reads all of it, and
            // would wait for rows that are not in the list: hence the index, here and below.
            //
            // A read that locks sees what is committed, and leaves out what others have locked; in
            // autocommit its locks end with it.
            unlocked: Sizes::new(|size| {
                statement(format!(
                    "SELECT name, CONCAT(owner, '.', fence), CAST(expires > {NOW} AS SIGNED) FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({}) FOR UPDATE SKIP LOCKED",
                    places(size)
                ))
            }),
            present: Sizes::new(|size| {
                statement(format!(
                    "SELECT name, CONCAT(owner, '.', fence), CAST(expires > {NOW} AS SIGNED) FROM {t} WHERE name IN ({})",
                    places(size)
                ))
            }),
            renew_all: Sizes::new(|size| {
                statement(format!(
                    "UPDATE {t} FORCE INDEX (PRIMARY) SET {prolonged} \
                     WHERE expires > {NOW} AND name IN ({0}) AND CONCAT(owner, '.', fence) IN ({0})",
                    places(size)
                ))
            }),
            // An update, which every proxy sends to the server that is written to.
            confirm: statement(format!(
                "UPDATE {t} SET fence = fence + 0 * LAST_INSERT_ID(expires - {NOW}) \
                 WHERE name = ? AND owner = ? AND expires > {NOW} AND ? IN (0, fence)"
            )),
            // The row stays, with its fence: the next holder's is greater by `take`.
            release: statement(format!(
                "UPDATE {t} SET fence = fence + 0 * LAST_INSERT_ID(IF(expires > {NOW}, {WAS_RUNNING}, 1)), \
                   owner = NULL, label = NULL, acquired = {NOW}, expires = 0 \
                 WHERE name = ? AND owner = ? AND ? IN (0, fence)"
            )),
            force: statement(format!(
                "UPDATE {t} SET fence = fence + 0 * LAST_INSERT_ID(IF(expires > {NOW}, {WAS_RUNNING}, 1)), \
                   owner = NULL, label = NULL, acquired = {NOW}, expires = 0 \
                 WHERE name = ? AND owner IS NOT NULL"
            )),
            look: statement(format!(
                "SELECT name, owner, fence, expires - {NOW}, {NOW} - acquired, label FROM {t} WHERE name = ?"
            )),
            // `LEFT` and not LIKE: no wildcards, and bytes are bytes.
            list: statement(format!(
                "SELECT name, owner, fence, expires - {NOW}, {NOW} - acquired, label FROM {t} \
                 WHERE name >= ? AND LEFT(name, ?) = ? AND (? = 0 OR LOCATE(x'1F', name) = 0) \
                   AND owner IS NOT NULL AND expires > {NOW} \
                 ORDER BY name"
            )),
            sweep_page: statement(format!(
                "SELECT name, fence, CAST(GREATEST(expires, acquired) <= {NOW} - ? AS SIGNED) FROM {t} \
                 WHERE name > ? ORDER BY name LIMIT {PAGE}"
            )),
            sweep_fold: statement(format!(
                "INSERT INTO {t} (name, owner, fence, expires, acquired, label) VALUES ({MARK}, NULL, ?, 0, 0, NULL) \
                 ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))"
            )),
            // Judged anew: since the page was read, a row may have been taken, and even released. A
            // fence that is not above the one that was folded is not above the mark, which rises.
            sweep_delete: statement(format!(
                "DELETE FROM {t} USING {t} FORCE INDEX (PRIMARY) WHERE name <> {MARK} AND fence <= ? AND GREATEST(expires, acquired) <= {NOW} - ? \
                   AND name IN ({swept})"
            )),
            mark: statement(format!(
                "INSERT IGNORE INTO {t} (name, owner, fence, expires, acquired, label) VALUES ({MARK}, NULL, 0, 0, 0, NULL)"
            )),
            probes: [
                statement(format!(
                    "INSERT INTO {t} (name, fence, expires, acquired) SELECT name, fence, expires, acquired FROM {t} WHERE 1 = 0"
                )),
                statement(format!("UPDATE {t} SET fence = fence WHERE 1 = 0")),
                statement(format!("DELETE FROM {t} WHERE 1 = 0")),
            ],
        }
    }
}
