//! The statements of the SQLite dialect.
//!
//! # Time
//!
//! `boot` and `expires` are the time base: the id of the machine's current boot, and
//! `CLOCK_BOOTTIME` in µs. All clients of a file share one kernel, so all read the same clock, and a
//! step of the wall clock moves no lease. A row of another boot is over: the machine was restarted,
//! so its holder is gone. But not if its fence, which is about the time of the grant, is younger than
//! our boot: then another machine or container shares the file against the rules, and a lease that
//! may be running is left alone. The acquire says so; see [`over`].
//!
//! SQLite has no such clock, so the client binds the present, as late as it can: after it has got
//! its connection, before SQLite has got the write lock. A present that is stale by the wait for
//! that lock does no harm:
//!
//! - *takeover*: `expires <= now` with a stale `now` is stricter than with a fresh one;
//! - *grant*: the lease ends one ttl after `now`, and `now` was read after the call had started, so
//!   the promise "not before the start of the call + ttl" (clause C4) holds;
//! - *renewal*: `expires > now` may prolong a lease that ended during the wait. The row still has
//!   its owner, so nobody has taken it in the meantime, and nobody can while the statement runs;
//! - *order*: a statement whose caller has given up may run after a later one of the same owner.
//!   `max` keeps it from moving the end of the lease back.
//!
//! # The fence
//!
//! `max(fence + 1, wall clock in µs)` rises whatever the wall clock does. The wall clock carries it
//! over a loss of the file. The sweep deletes a row only if its fence is not above that of the row
//! [`MARK`], from which a new row starts.

use crate::engine::schema::Column;
use crate::engine::sweep::{MARK, PAGE};
use crate::engine::table::TableName;
use crate::engine::value::Sql;

/// How many rows one statement deletes.
pub(crate) const BATCH: usize = 64;

/// The statement that creates the table, for people too.
pub(crate) fn create_table(table: &TableName) -> String {
    format!(
        r#"CREATE TABLE IF NOT EXISTS "{}" (
  name     TEXT    NOT NULL PRIMARY KEY, -- the lock, compared byte by byte
  owner    TEXT,                         -- who holds it; NULL when it is free
  fence    INTEGER NOT NULL,             -- rises with every holder
  boot     TEXT    NOT NULL,             -- the boot id under which the times count
  expires  INTEGER NOT NULL,             -- end of the lease, CLOCK_BOOTTIME in microseconds
  acquired INTEGER NOT NULL,             -- start of the hold, likewise
  label    TEXT                          -- for people
) STRICT, WITHOUT ROWID"#,
        table.as_str()
    )
}

/// The columns; `more`: the place in the primary key.
pub(crate) const COLUMNS: [Column; 7] = [
    Column { name: "name", kind: "TEXT", not_null: true, more: 1 },
    Column { name: "owner", kind: "TEXT", not_null: false, more: 0 },
    Column { name: "fence", kind: "INTEGER", not_null: true, more: 0 },
    Column { name: "boot", kind: "TEXT", not_null: true, more: 0 },
    Column { name: "expires", kind: "INTEGER", not_null: true, more: 0 },
    Column { name: "acquired", kind: "INTEGER", not_null: true, more: 0 },
    Column { name: "label", kind: "TEXT", not_null: false, more: 0 },
];

/// Whether there is a table or view of this name: `type`.
pub(crate) const TABLE_TYPE: &str =
    "SELECT type FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE";
/// Name, type, NOT NULL, whether it may be left out, place in the primary key.
pub(crate) const TABLE_COLUMNS: &str = "SELECT name, upper(type), \"notnull\", \
     pk = 0 AND (\"notnull\" = 0 OR dflt_value IS NOT NULL), pk FROM pragma_table_xinfo(?1)";
/// The collations of the primary key's columns.
pub(crate) const KEY_COLLATIONS: &str = "SELECT x.coll FROM pragma_index_list(?1) AS l, pragma_index_xinfo(l.name) AS x \
     WHERE l.origin = 'pk' AND x.key = 1";

/// The leases to renew, as one bound value: name, owner, new end, fence or null, and from which end on
/// the lease is cut to the new one.
pub(crate) fn leases<'a>(
    dues: impl IntoIterator<Item = (&'a str, &'a str, i64, Option<i64>, i64)>,
) -> String {
    use std::fmt::Write as _;

    let mut json = String::from("[");
    for (name, owner, expires, fence, cut) in dues {
        if json.len() > 1 {
            json.push(',');
        }
        json.push_str("[\"");
        for character in name.chars() {
            match character {
                '"' | '\\' => json.extend(['\\', character]),
                // Writing to a string does not fail.
                c if c.is_control() => {
                    let _ = write!(json, "\\u{:04x}", u32::from(c));
                }
                c => json.push(c),
            }
        }
        let fence = fence.map_or_else(|| "null".to_owned(), |fence| fence.to_string());
        let _ = write!(json, "\",\"{owner}\",{expires},{fence},{cut}]");
    }
    json.push(']');
    json
}

/// Whether the lease in a row is over at `now`: by the clock of this boot, or because the machine was
/// restarted since the grant. `booted` is the wall clock at our boot.
fn over(boot: &str, now: &str, booted: &str) -> String {
    format!("CASE WHEN boot = {boot} THEN expires <= {now} ELSE fence < {booted} END")
}

/// Whether a row was not used since `cut`. A released one of another boot may go at once.
fn unused(boot: &str, cut: &str, booted: &str) -> String {
    format!("{} OR (owner IS NULL AND boot <> {boot})", over(boot, cut, booted))
}

/// All statements for one table.
#[derive(Debug)]
pub(crate) struct Statements {
    /// name, owner, now, expires, boot, wall clock, label, wall clock at our boot → fence; no row when
    /// it is held.
    pub(crate) acquire: Sql,
    /// leases as JSON (see [`leases`]), now, boot → name of each that was renewed.
    pub(crate) renew: Sql,
    /// name, owner or NULL for any, now, boot, fence or NULL for any, wall clock at our boot → whether
    /// the lease was running; no row when there was no such hold.
    pub(crate) release: Sql,
    /// name → name, owner, fence, boot, expires, acquired, label.
    pub(crate) look: Sql,
    /// start of the stored name, whether the prefix is empty, boot, now, wall clock at our boot → as
    /// `look`.
    pub(crate) list: Sql,
    /// after, boot, cut, wall clock at our boot → name, fence, whether it can go.
    pub(crate) sweep_page: Sql,
    /// fence.
    pub(crate) sweep_fold: Sql,
    /// boot, cut, wall clock at our boot, names → name.
    pub(crate) sweep_delete: Sql,
    /// Writes nothing, and fails where writing would.
    pub(crate) probe: Sql,
}

impl Statements {
    pub(crate) fn new(table: &TableName) -> Self {
        let t = format!("\"{}\"", table.as_str());
        let names = (4..4 + BATCH).map(|n| format!("?{n}")).collect::<Vec<_>>().join(",");
        let statement = |text: String| -> Sql { text.into() };
        Self {
            // A repeat by the same owner finds its own row and keeps its fence (clause C2).
            acquire: statement(format!(
                "INSERT INTO {t} (name, owner, fence, boot, expires, acquired, label) \
                 VALUES (?1, ?2, max(coalesce((SELECT fence FROM {t} WHERE name = '{MARK}'), 0) + 1, ?6), ?5, ?4, ?3, ?7) \
                 ON CONFLICT (name) DO UPDATE SET \
                   owner = excluded.owner, \
                   fence = CASE WHEN owner = excluded.owner THEN fence ELSE max(fence + 1, ?6) END, \
                   boot = excluded.boot, \
                   expires = CASE WHEN owner = excluded.owner AND boot = excluded.boot \
                     THEN max(expires, excluded.expires) ELSE excluded.expires END, \
                   acquired = CASE WHEN owner = excluded.owner AND boot = excluded.boot \
                     THEN acquired ELSE excluded.acquired END, \
                   label = excluded.label \
                 WHERE owner IS NULL OR owner = excluded.owner OR {} \
                 RETURNING fence",
                over("excluded.boot", "?3", "?8")
            )),
            renew: statement(format!(
                "UPDATE {t} SET expires = CASE WHEN expires > due.value ->> 4 THEN due.value ->> 2 \
                   ELSE max(expires, due.value ->> 2) END FROM json_each(?1) AS due \
                 WHERE name = due.value ->> 0 AND owner = due.value ->> 1 AND boot = ?3 AND expires > ?2 \
                   AND (due.value ->> 3 IS NULL OR fence = due.value ->> 3) \
                 RETURNING name"
            )),
            // The row stays, with its fence. A lease that had ended already keeps its end, which
            // tells the two cases apart. The next holder's fence is greater by `acquire`.
            release: statement(format!(
                "UPDATE {t} SET owner = NULL, label = NULL, expires = min(expires, ?3) \
                 WHERE name = ?1 AND owner IS NOT NULL AND (?2 IS NULL OR owner = ?2) AND (?5 IS NULL OR fence = ?5) \
                 RETURNING CASE WHEN boot = ?4 THEN expires = ?3 ELSE fence >= ?6 END"
            )),
            look: statement(format!(
                "SELECT name, owner, fence, boot, expires, acquired, label FROM {t} WHERE name = ?1"
            )),
            // `substr` and not LIKE: no wildcards, and upper and lower case stay apart.
            list: statement(format!(
                "SELECT name, owner, fence, boot, expires, acquired, label FROM {t} \
                 WHERE name >= ?1 AND substr(name, 1, length(?1)) = ?1 AND (?2 = 0 OR instr(name, char(31)) = 0) \
                   AND owner IS NOT NULL AND NOT ({}) \
                 ORDER BY name",
                over("?3", "?4", "?5")
            )),
            sweep_page: statement(format!(
                "SELECT name, fence, {} FROM {t} WHERE name > ?1 ORDER BY name LIMIT {PAGE}",
                unused("?2", "?3", "?4")
            )),
            sweep_fold: statement(format!(
                "INSERT INTO {t} (name, owner, fence, boot, expires, acquired, label) \
                 VALUES ('{MARK}', NULL, ?1, '', 0, 0, NULL) \
                 ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE fence < excluded.fence"
            )),
            // Judged anew: since the page was read, a row may have been taken, and even released.
            sweep_delete: statement(format!(
                "DELETE FROM {t} WHERE name IN ({names}) AND name <> '{MARK}' AND ({}) \
                   AND fence <= (SELECT fence FROM {t} WHERE name = '{MARK}') \
                 RETURNING name",
                unused("?1", "?2", "?3")
            )),
            probe: statement(format!("DELETE FROM {t} WHERE 0")),
        }
    }
}
