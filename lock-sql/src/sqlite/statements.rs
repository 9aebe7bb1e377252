//! The statements of the SQLite dialect.
//!
//! # Time
//!
//! `boot` and `expires` are the time base: the id of the machine's current boot, and
//! `CLOCK_BOOTTIME` in µs. All clients of a file share one kernel, so all read the same clock, and
//! a step of the wall clock moves no lease. A row of another boot is over: the machine was
//! restarted, so its holder is gone. But not if its fence, which is about the time of the grant, is
//! younger than our boot: then another machine or container shares the file against the rules, and
//! a lease that may be running is left alone. The acquire says so; see [`over`].
//!
//! SQLite has no such clock, so the client binds the current time, as late as it can: after it has
//! its connection, before SQLite has the write lock. A reading made stale by the wait for that lock
//! does no harm:
//!
//! - *takeover*: `expires <= now` with a stale `now` is stricter than with a fresh one;
//! - *grant*: the lease ends one ttl after `now`, and `now` was read after the call had started, so
//!   the promise "not before the start of the call + ttl" (clause C4) holds;
//! - *renewal*: `expires > now` may prolong a lease that ended during the wait. The row still has
//!   its owner, so no other client has taken it, and none can while the statement runs;
//! - *order*: a statement whose caller has given up may run after a later one of the same owner,
//!   which may have asked for another ttl. `max` keeps it from moving the end of the lease back.
//!
//! # The fence
//!
//! `max(fence + 1, wall clock in µs)` rises whatever the wall clock does. The row has the last fence of
//! a block, so the next holder's first one is above it. After a loss of the file,
//! the wall clock keeps it rising. The sweep deletes a row only if its fence is not above that of
//! the row [`MARK`](crate::engine::table::settings::MARK), from which a new row starts.

use lock_core::ErrorKind;

use crate::engine::table::lock_table::{LockTable, TableTexts, statements};
use crate::engine::table::preparation::Preparation;
use crate::engine::table::row::DueRenewal;
use crate::engine::table::settings::Settings;
use crate::engine::wire::errors::{CodeRule, rules};
use crate::engine::wire::statement::{PlaceStyle, micros};

pub(crate) const NAME: &str = "sqlite";

pub(crate) const VERSION: &str = "SELECT sqlite_version()";
pub(crate) const JOURNAL: &str = "PRAGMA journal_mode";
pub(crate) const WAL: &str = "PRAGMA journal_mode = WAL";
/// Shows that the file can be written to, and writes nothing.
pub(crate) const BEGIN_AND_ROLLBACK: &str = "BEGIN IMMEDIATE; ROLLBACK";
/// The table → what is wrong with it, or NULL.
const TABLE: &str = "SELECT CASE \
       WHEN t.type <> 'table' THEN 'it is a ' || t.type \
       WHEN (SELECT group_concat(name) FROM pragma_table_xinfo(t.name) WHERE pk > 0) IS NOT 'name' THEN 'its name is not its primary key' \
       WHEN EXISTS (SELECT 1 FROM pragma_index_list(t.name) AS l, pragma_index_xinfo(l.name) AS x \
         WHERE l.origin = 'pk' AND x.key = 1 AND x.coll <> 'BINARY' COLLATE NOCASE) \
         THEN 'its names are not compared byte by byte, so that different locks would be one' \
       ELSE (SELECT CASE WHEN name IN ('name', 'owner', 'fence', 'boot', 'expires', 'acquired', 'label') THEN 'its column ' || name || ' differs' \
           ELSE 'it has a column ' || name || ' that we cannot fill' END \
         FROM pragma_table_xinfo(t.name) WHERE CASE \
           WHEN name IN ('fence', 'expires', 'acquired') THEN upper(type) <> 'INTEGER' \
           WHEN name IN ('name', 'owner', 'boot', 'label') THEN upper(type) <> 'TEXT' \
           ELSE \"notnull\" AND dflt_value IS NULL END LIMIT 1) END \
     FROM pragma_table_list AS t WHERE t.schema = 'main' AND t.name = :table COLLATE NOCASE";

const TEXTS: TableTexts = TableTexts {
    create: r#"CREATE TABLE IF NOT EXISTS {t} (
  name     TEXT    NOT NULL PRIMARY KEY, -- the lock, compared byte by byte
  owner    TEXT,                         -- who holds it; NULL when it is free
  fence    INTEGER NOT NULL,             -- rises with every holder
  boot     TEXT    NOT NULL,             -- the boot id under which the times count
  expires  INTEGER NOT NULL,             -- end of the lease, CLOCK_BOOTTIME in microseconds
  acquired INTEGER NOT NULL,             -- start of the hold, likewise
  label    TEXT                          -- for people
) STRICT, WITHOUT ROWID"#,
    grant: "",
    look: TABLE,
    creating: [&[], &[]],
    rules: RULES,
    hints: ["", "correct the options of the pool"],
    // The values that this dialect adds: the id of the machine's boot, its clock (now), the wall
    // clock, and the wall clock at that boot (booted).
    statements: statements! {
        // A repeat by the same owner finds its own row and keeps its fence (clause C2). No row when
        // it is held.
        Acquire: "INSERT INTO {t} (name, owner, fence, boot, expires, acquired, label) \
             VALUES (:name, :owner, max(coalesce((SELECT fence FROM {t} WHERE name = '{mark}'), 0) + 1, :wall) + :more, :boot, {end} :ttl, :now, :label) \
             ON CONFLICT (name) DO UPDATE SET \
               owner = excluded.owner, \
               fence = CASE WHEN owner = excluded.owner THEN fence ELSE max(fence + 1, :wall) + :more END, \
               boot = excluded.boot, \
               expires = CASE WHEN owner = excluded.owner AND boot = excluded.boot \
                 THEN max(expires, excluded.expires) ELSE excluded.expires END, \
               acquired = CASE WHEN owner = excluded.owner AND boot = excluded.boot \
                 THEN acquired ELSE excluded.acquired END, \
               label = excluded.label \
             WHERE owner IS NULL OR owner = excluded.owner OR {over} \
             RETURNING fence",
        // The row stays, with its fence. A lease that had ended already keeps its end, which
        // tells the two cases apart. The next holder's fence is greater by `Acquire`.
        Release: "UPDATE {t} SET owner = NULL, label = NULL, expires = min(expires, :now) \
             WHERE name = :name AND owner IS NOT NULL AND (:owner IS NULL OR owner = :owner) AND :fence IN (0, fence) \
             RETURNING CASE WHEN boot = :boot THEN expires = :now ELSE fence >= :booted END",
        Look: "SELECT {lease} FROM {t} WHERE name = :name",
        LookNow: "SELECT {lease} FROM {t} WHERE name IN (:[names])",
        // `substr` and not LIKE: no wildcards, and case matters.
        List: "SELECT {lease} FROM {t} \
             WHERE name >= :start AND substr(name, 1, length(:start)) = :start AND (:bare = 0 OR instr(name, char(31)) = 0) \
               AND owner IS NOT NULL AND NOT ({over}) \
             ORDER BY name",
        SweepPage: "SELECT name, fence, {unused} FROM {t} WHERE name > :after ORDER BY name LIMIT {page}",
        SweepFold: "INSERT INTO {t} (name, owner, fence, boot, expires, acquired, label) \
             VALUES ('{mark}', NULL, :fence, '', 0, 0, NULL) \
             ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE fence < excluded.fence",
        // Checked again: since the page was read, a row may have been taken, and even released.
        SweepDelete: "DELETE FROM {t} WHERE name IN (:[names]) AND name <> '{mark}' AND {unused} \
               AND fence <= (SELECT fence FROM {t} WHERE name = '{mark}') \
             RETURNING name",
        Probe: "DELETE FROM {t} WHERE 0",
        RenewBatch: "UPDATE {t} SET expires = max(expires, {end} (due.value ->> 2)) FROM json_each(:leases) AS due \
             WHERE name = due.value ->> 0 AND owner = due.value ->> 1 AND boot = :boot AND expires > :now \
               AND due.value ->> 3 IN (0, fence) \
             RETURNING name",
        Save: "PRAGMA wal_checkpoint(PASSIVE)",
    },
};

const TERMS: [(&str, &str); 4] = [
    // Whether the lease is over: by the clock of this boot, or because the machine was restarted
    // since the grant.
    ("{over}", "CASE WHEN boot = :boot THEN expires <= :now ELSE fence < :booted END"),
    // Whether the row was not used for the retention. A released one of another boot may go at
    // once.
    (
        "{unused}",
        "(CASE WHEN boot = :boot THEN expires <= :now - :retention ELSE fence < :booted END OR (owner IS NULL AND boot <> :boot))",
    ),
    (
        "{lease}",
        "name, owner, fence, CASE WHEN boot = :boot THEN expires - :now WHEN fence < :booted THEN 0 END, \
         CASE WHEN boot = :boot THEN :now - acquired END, label, boot",
    ),
    // The clock is cut to whole µs when it is read: one more, or the lease would be shorter than
    // promised by a part of one.
    ("{end}", ":now + 1 +"),
];

/// The lock table. `at`: the database as errors name it.
pub(crate) fn table(at: String, settings: &Settings) -> LockTable {
    let prepared = Preparation::new(PlaceStyle::Numbers, &settings.table, &TERMS);
    LockTable::new(&TEXTS, &prepared, at, &settings.table, settings.create_table)
}

/// The leases to renew, as one bound value: name, owner, ttl, fence or 0.
pub(crate) fn leases(dues: &[DueRenewal<'_>]) -> String {
    use std::fmt::Write as _;

    let mut json = String::from("[");
    for DueRenewal { entry, fence } in dues {
        if json.len() > 1 {
            json.push(',');
        }
        json.push_str("[\"");
        for character in entry.name.chars() {
            match character {
                '"' | '\\' => json.extend(['\\', character]),
                // Writing to a string does not fail.
                c if c.is_control() => {
                    let _ = write!(json, "\\u{:04x}", u32::from(c));
                }
                c => json.push(c),
            }
        }
        let (ttl, fence) = (micros(entry.ttl), fence.map_or(0, |fence| fence.as_i64()));
        let _ = write!(json, "\",\"{}\",{ttl},{fence}]", entry.owner.0);
    }
    json.push(']');
    json
}

/// A STRICT table refused a value: the fence has become a floating-point number. The others are
/// primary codes.
pub(super) const CONSTRAINT_DATATYPE: i32 = 3091;
/// The file cannot be opened; SQLite does not say why.
pub(super) const CANTOPEN: &str = "14";
pub(super) const READONLY: &str = "8";

pub(crate) const RULES: &[CodeRule] = rules! {
    // BUSY, LOCKED; PROTOCOL: too many clients were starting to read the log; SCHEMA: the table was
    // changed while the statement was prepared.
    &["5", "6", "15", "17"] => contended();
    // PERM, READONLY, AUTH.
    &["3", READONLY, "23"] => fails(ErrorKind::Denied):
        "{at} is read-only for this process: taking a lock writes to the file and to two files next to it: grant the right to write to the file and its folder";
    // FULL.
    &["13"] => fails(ErrorKind::Unavailable):
        "the disk of {at} is full: free some space; no lock can be taken or renewed until then";
    // NOMEM.
    &["7"] => fails(ErrorKind::Unavailable): "not enough memory to use {at}";
    // IOERR.
    &["10"] => fails(ErrorKind::Unavailable).unknown(): "reading or writing {at} failed";
    // NOTADB.
    &["26"] => fails(ErrorKind::Store):
        "{at} is not an SQLite database (or is encrypted): name another file";
    // CORRUPT.
    &["11"] => fails(ErrorKind::Store):
        "{at} is damaged: stop its users, move it away with its -wal and -shm files, and start again";
    &["3091"] => fails(ErrorKind::Store):
        "the fencing tokens of this lock in {at} are used up (2^63-1 was stored): something else writes to the lock table";
    // CONSTRAINT.
    &["19"] => fails(ErrorKind::Store):
        "{at} refused the write: a constraint or trigger was added to the lock table";
    // ERROR. The connection is opened again by the next call, which looks for the table.
    &["1"] => fails(ErrorKind::Store).retryable():
        "{at} refused the statement: the lock table was dropped or changed while it was in use";
    &["*"] => fails(ErrorKind::Store).unknown(): "{at} refused the statement (result code {code})";
};
