//! The statements of the MySQL dialect, in syntax that both MySQL 8 and MariaDB understand.
//!
//! # Time
//!
//! `expires` and `acquired` are µs since 1970 by the server's own clock, from
//! `UTC_TIMESTAMP(6)`, which depends on no time zone and is the same for the whole statement, from
//! its start. Not `SYSDATE()`, which advances within the statement and differs on a replica. A
//! reading made stale by the wait for a row lock does no harm:
//!
//! - *takeover*: `expires <= now` with a stale `now` is stricter than with a fresh one;
//! - *grant*: the lease ends one ttl after `now`, which is after the start of the call, so the
//!   promise "not before the start of the call + ttl" (clause C4) holds;
//! - *renewal*: `expires > now` may prolong a lease that ended during the wait. The row still has
//!   its owner, so no other client has taken it, and none can while the statement runs;
//! - *order*: a statement whose caller has given up may run after a later one of the same owner,
//!   which may have asked for another ttl. `GREATEST` keeps it from moving the end of the lease
//!   back.
//!
//! # The outcome
//!
//! There is no `UPDATE … RETURNING`. The number of affected rows cannot be relied
//! on: 0, 1 and 2 depend on whether a value has changed and on a flag of the connection. So each
//! statement calls `LAST_INSERT_ID(…)` on exactly one of its paths, and the server puts that number
//! into its reply. It is 0 if no row was found, since none of the paths gives 0.
//!
//! Assignments are made from left to right, and each sees the values of those before it. Hence
//! their order: `owner` and `expires`, which decide all others, come last.
//!
//! # Who is asked
//!
//! A replica that lags behind may answer a plain `SELECT`, if a proxy such as ProxySQL or MaxScale
//! sends reads there. So its result is only a hint: a hold that it does not show is not lost until
//! a writing statement has not found it either (clause C6). `LookNow`, which is no hint, is a consistent
//! read: it waits for no lock, and shows all that was committed when it began. InnoDB commits before the server
//! answers, with semi-synchronous replication or without.
//!
//! # The fence
//!
//! `GREATEST(fence + 1, now)` rises whatever the clock does. After a loss of the table, the clock
//! keeps it rising. The sweep deletes a row only if its fence is not above that of the row
//! [`MARK`](crate::engine::table::settings::MARK), from which a new row starts.

use crate::engine::table::lock_table::{LockTable, TableTexts, statements};
use crate::engine::table::preparation::Preparation;
use crate::engine::table::settings::{BATCH, Settings};
use crate::engine::wire::statement::{PlaceStyle, SqlValue};
use crate::mysql::codes::RULES;

pub(crate) const NAME: &str = "mysql";

/// The name of the row [`MARK`](crate::engine::table::settings::MARK), as bytes.
const MARK: &str = "x'0166656E6365'";

/// The server's clock, in µs since 1970.
pub(crate) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The answers of `Release`, besides 0 for "no such row".
pub(crate) const WAS_RUNNING: i64 = 2;

/// The session settings of every connection.
///
/// - `autocommit`, since the server's default may differ;
/// - `sql_mode`, since some modes change what a statement means (`ANSI_QUOTES`, and MariaDB's
///   `SIMULTANEOUS_ASSIGNMENT`), and without strict mode a long name would be cut;
/// - the shortest lock waits: a statement that waits for a row, or for the end of an `ALTER TABLE`,
///   should report that soon, and should not run long after its caller has given up.
pub(crate) const SESSION: &str = "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
     innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, sql_safe_updates = 0, NAMES utf8mb4";

/// The server's default may be READ UNCOMMITTED, under which a look would show what is undone later. A statement
/// of its own: the variable has different names on the two servers.
pub(crate) const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";

pub(crate) const VERSION: &str = "SELECT VERSION()";
/// The table → what is wrong with it, or NULL. A prefix and a name have 512 bytes each, and U+001F
/// between them.
const TABLE: &str = "SELECT CASE \
       WHEN t.table_type <> 'BASE TABLE' THEN CONCAT('it is a ', LOWER(t.table_type)) \
       WHEN t.engine <> 'InnoDB' THEN CONCAT('its engine is ', t.engine, ', which locks whole tables or forgets what was committed') \
       WHEN (SELECT COALESCE(GROUP_CONCAT(index_name, '.', LOWER(column_name), '.', COALESCE(sub_part, 'all')), '') FROM information_schema.statistics \
         WHERE table_schema = DATABASE() AND table_name = t.table_name AND non_unique = 0) <> 'PRIMARY.name.all' \
         THEN 'the whole of the column name must be its primary key and its only unique key' \
       ELSE (SELECT CASE WHEN LOWER(column_name) <> 'name' THEN CONCAT('it has a column ', column_name, ' that we cannot fill') \
           WHEN data_type <> 'varbinary' THEN 'its column name differs: it must be compared byte by byte' \
           ELSE CONCAT('its column name takes ', character_maximum_length, ' bytes, and 1025 are needed') END \
         FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = t.table_name \
           AND (LOWER(column_name) = 'name' AND (data_type <> 'varbinary' OR character_maximum_length < 1025) \
             OR LOWER(column_name) NOT IN ('name', 'owner', 'fence', 'expires', 'acquired', 'label') \
               AND is_nullable <> 'YES' AND column_default IS NULL AND extra = '') \
         LIMIT 1) END \
     FROM information_schema.tables AS t WHERE t.table_schema = DATABASE() AND t.table_name = CONVERT(:table USING utf8mb4)";

/// What an acquire does to the row that is there: takes it if it is free, prolongs it if it is our
/// own, and leaves it alone otherwise. A repeat by the same owner keeps its fence (clause C2).
fn taken(me: &str, now: &str, until: &str, label: &str) -> String {
    format!(
        "fence = IF(owner <=> {me}, LAST_INSERT_ID(fence), \
           IF(expires <= {now}, LAST_INSERT_ID(GREATEST(fence + 1, {now}) + :more), \
             fence + 0 * LAST_INSERT_ID({now} - expires))), \
         acquired = IF(owner <=> {me} OR expires > {now}, acquired, {now}), \
         label = IF(owner <=> {me} OR expires <= {now}, {label}, label), \
         owner = IF(expires <= {now}, {me}, owner), \
         expires = IF(owner <=> {me}, GREATEST(expires, {until}), expires)"
    )
}

const TEXTS: TableTexts = TableTexts {
    create: r"CREATE TABLE IF NOT EXISTS {t} (
  name     VARBINARY(1025) NOT NULL, -- the lock, compared byte by byte
  owner    VARBINARY(32),            -- who holds it, NULL when it is free
  fence    BIGINT NOT NULL,          -- rises with every holder
  expires  BIGINT NOT NULL,          -- end of the lease, the server's clock in microseconds since 1970
  acquired BIGINT NOT NULL,          -- start of the hold, or the release
  label    VARCHAR(523),             -- for people, after the number of fences if there are several
  PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4",
    grant: "GRANT SELECT, INSERT, UPDATE, DELETE ON {t} TO …",
    look: TABLE,
    // There are none for concurrent creation.
    creating: [&["1044", "1142", "1227", "1370"], &[]],
    rules: RULES,
    hints: [
        "check ssl-mode, ssl-ca and the server's certificate",
        // The driver needs TLS for the password of `caching_sha2_password`.
        "password authentication on a MySQL server needs TLS (the feature `tls`), or a user with mysql_native_password",
    ],
    statements: statements! {
        // The row of a name that was used before is there, and the mark is not read. The present is
        // the same in the whole of a statement.
        Acquire: "UPDATE {t} SET {taken} WHERE name = :name",
        // An update, which every proxy sends to the primary.
        Confirm: "UPDATE {t} SET fence = fence + 0 * LAST_INSERT_ID(expires - {now}) \
             WHERE name = :name AND owner = :owner AND expires > {now} AND :fence IN (0, fence) \
               AND IF(LOCATE(x'1F', label) > 0, CAST(SUBSTRING_INDEX(label, x'1F', 1) AS SIGNED), 1) > :more",
        // The row stays, with its fence: the next holder's is greater by `Acquire`.
        Release: "UPDATE {t} SET {freed} WHERE name = :name AND owner = :owner AND :fence IN (0, fence)",
        ReleaseByForce: "UPDATE {t} SET {freed} WHERE name = :name AND owner IS NOT NULL AND (:owner IS NULL OR owner = :owner) \
               AND :fence IN (0, fence)",
        Look: "SELECT {lease} FROM {t} WHERE name = :name",
        // The second part finds and locks no row. For its sake a proxy sends the statement to the primary, and a
        // server that is read-only by now refuses it, as it refuses a grant.
        LookNow: "(SELECT {lease} FROM {t} WHERE name IN (:[names])) \
             UNION ALL (SELECT {lease} FROM {t} WHERE 1 = 0 FOR UPDATE)",
        // `LEFT` and not LIKE: no wildcards, and bytes are bytes.
        List: "SELECT {lease} FROM {t} \
             WHERE name >= :start AND LEFT(name, :length) = :start AND (:bare = 0 OR LOCATE(x'1F', name) = 0) \
               AND owner IS NOT NULL AND expires > {now} \
             ORDER BY name",
        SweepPage: "SELECT name, fence, CAST(GREATEST(expires, acquired) <= {now} - :retention AS SIGNED) FROM {t} \
             WHERE name > :after ORDER BY name LIMIT {page}",
        SweepFold: "INSERT INTO {t} (name, owner, fence, expires, acquired, label) VALUES ({mark}, NULL, :fence, 0, 0, NULL) \
             ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))",
        // Checked again: since the page was read, a row may have been taken, and even released. A
        // fence that is not above the one that was folded is not above the mark, which rises.
        SweepDelete: "DELETE FROM {t} USING {t} FORCE INDEX (PRIMARY) WHERE name <> {mark} AND fence <= :folded \
               AND GREATEST(expires, acquired) <= {now} - :retention AND name IN (:[names])",
        Probe: "UPDATE {t} SET fence = fence WHERE 1 = 0",
        // The greatest value is asked for, and not the value, since a derived table that is merged
        // into the statement may not read what the statement writes (error 1093).
        //
        // InnoDB reads the mark with a shared lock here, which is kept to the end of the statement:
        // that makes "no such row" and "the greatest fence of removed rows" one answer. A statement
        // that waits for a locked row would keep it all the while, and the next sweep, and behind
        // that all who want any lock, would wait with it. Hence `Acquire` goes first.
        AcquireNew: "INSERT INTO {t} (name, owner, fence, expires, acquired, label) VALUES (:name, :owner, \
               LAST_INSERT_ID(GREATEST(COALESCE((SELECT m.fence FROM (SELECT MAX(fence) AS fence FROM {t} WHERE name = {mark}) AS m), 0) + 1, {now}) + :more), \
               {now} + :ttl, {now}, {label}) \
             ON DUPLICATE KEY UPDATE {retaken}",
        RenewAlone: "UPDATE {t} SET fence = LAST_INSERT_ID(fence), {prolonged} \
             WHERE name = :name AND owner = :owner AND expires > {now} AND :fence IN (0, fence)",
        // The locking read comes first, by STRAIGHT_JOIN, and skips rows that others have locked. The update finds
        // only rows that it has locked for it, and so waits for none. LIMIT leaves nothing out: it keeps the read from
        // being merged into the statement (error 1093).
        //
        // For a list of names that is a large part of the table, the optimizer reads all of it, and
        // would wait for rows that are not in the list: hence the index, both times.
        RenewUnlocked: "UPDATE (SELECT name FROM {t} FORCE INDEX (PRIMARY) \
               WHERE name IN (:[names]) AND expires > {now} AND CONCAT(owner, '.', fence) IN (:[keys]) \
               LIMIT {batch} FOR UPDATE SKIP LOCKED) AS alive \
             STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = alive.name \
             SET l.expires = GREATEST(l.expires, LAST_INSERT_ID({now} + :ttl))",
        // The second part as in `LookNow`.
        ReadRenewed: "(SELECT {renewed} FROM {t} WHERE name IN (:[names])) \
             UNION ALL (SELECT {renewed} FROM {t} WHERE 1 = 0 FOR UPDATE)",
    },
};

/// `at`: the database as errors name it.
pub(crate) fn table(at: String, settings: &Settings) -> LockTable {
    let terms = [
        ("{taken}", &*taken(":owner", "{now}", "{now} + :ttl", "{label}")),
        (
            "{retaken}",
            &*taken("VALUES(owner)", "VALUES(acquired)", "VALUES(expires)", "VALUES(label)"),
        ),
        (
            "{renewed}",
            "name, CONCAT(owner, '.', fence), CAST((expires > {now}) + (expires > {now} AND expires >= :end) AS SIGNED)",
        ),
        ("{batch}", &*BATCH.to_string()),
        ("{lease}", "name, owner, fence, expires - {now}, {now} - acquired, label"),
        ("{prolonged}", "expires = GREATEST(expires, {now} + :ttl)"),
        // The first number is `WAS_RUNNING`.
        (
            "{freed}",
            "fence = fence + 0 * LAST_INSERT_ID(IF(expires > {now}, 2, 1)), owner = NULL, label = NULL, acquired = {now}, expires = 0",
        ),
        // The longest that `Lock::label` allows, behind a number of ten digits and U+001F; what else a request brings is
        // cut off.
        ("{label}", "LEFT(CONVERT(:label USING utf8mb4), 523)"),
        ("{mark}", MARK),
        ("{now}", NOW),
    ];
    let prepared = Preparation::new(PlaceStyle::Marks, &settings.table, &terms);
    LockTable::new(&TEXTS, &prepared, at, &settings.table, settings.create_table)
}

/// The statement with its values, texts and numbers, in place of `?`, for a message of several statements. Text is
/// written in hexadecimal, so nothing in it can be read as SQL.
pub(crate) fn inline(sql: &str, values: &[SqlValue<'_>]) -> String {
    let written = |value: &SqlValue<'_>| match value {
        SqlValue::Int(number) => number.to_string(),
        text => {
            let bytes = text.as_bytes().iter();
            bytes.fold("x'".to_owned(), |text, byte| format!("{text}{byte:02x}")) + "'"
        }
    };
    let mut parts = sql.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.zip(values).fold(first, |text, (part, value)| text + &written(value) + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_so_that_nothing_is_read_as_sql() {
        let values = ["a' ?".into(), (-7).into()];
        assert_eq!(inline("SELECT ? + ?; COMMIT", &values), "SELECT x'6127203f' + -7; COMMIT");
    }
}
