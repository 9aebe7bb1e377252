//! The statements of the PostgreSQL dialect.
//!
//! # Time
//!
//! The server's clock, read inside the statement: `clock_timestamp()`, not `now()`, which is the
//! start of the transaction. A statement that decides more than one thing by one reading has it from
//! before it waits for a row: with a reading made stale by that wait, it takes a lock over later than
//! it might, and starts its lease earlier than it might, but not before the call (clause C4). For a
//! release that is `statement_timestamp()`, which costs no join. `Acquire` reads the clock anew each
//! time, first for the end of the lease that was, so that its own begins later. A statement whose
//! caller has given up may run after a later one of the same owner, which may have asked for another
//! ttl: `greatest` keeps it from moving the end of the lease back.
//!
//! # The fence
//!
//! `greatest(fence + 1, clock in µs)` rises whatever the clock does. After a loss of the data, the
//! clock keeps it rising. The sweep deletes a row only if its fence is not above that of the row
//! [`MARK`](crate::engine::table::settings::MARK), from which a new row starts.
//!
//! # The waiters
//!
//! `waiters` lists the clients (processes) that wait for the lock, each once, in order of arrival.
//! A release takes the first one off the list and notifies only that client, on its own channel, in
//! the same statement. If no client waits, none is notified: a commit with a notification takes a
//! lock that all such commits share. The list is a hint; waiters also poll slowly. Whoever asks when
//! the lock is free gets it, on the list or not.
//!
//! # Who locks the row
//!
//! The lock on a row lasts until its transaction is on the disk, and a renewal skips a locked row.
//! So `Acquire` and `AcquireOrQueue` read first, and lock the row only to take the lock or to join the list:
//! waiters do not keep the row from its holder. Where waiters constantly come and go, `RenewAlone`
//! queues for the row.
//!
//! # Reads
//!
//! A proxy may send a plain `SELECT` to a standby that lags behind. Its result is good enough for
//! "busy", and for people. A hold counts as gone only if a statement that writes or locks says so.
//!
//! `LookNow` is no hint, and yet neither writes nor locks a row: a deletion of nothing is part of it. So a proxy
//! sends it to the primary, and a standby refuses it. Its snapshot has every commit that was acknowledged when
//! the statement began, since PostgreSQL acknowledges a commit after it has become visible. And it is taken
//! when the statement is executed, as for all that write, after `statement_timestamp()`. (Of a plain `SELECT` in
//! the extended protocol it is taken when values are bound, before that.)
//!
//! # The floor of a removed row
//!
//! It is not the fence of the mark: an insert under way may have read the mark before that was raised, and
//! start below it. It is the number in the mark's `label`, which a deletion raises in the same statement as
//! it deletes rows: no fence of a deleted row is above it, and every insert that read the mark before the mark
//! was raised so far has made its row before the deletion (see `AcquireOrQueue`).

use std::fmt::Write as _;

use crate::engine::table::lock_table::{LockTable, TableTexts, statements};
use crate::engine::table::preparation::Preparation;
use crate::engine::table::settings::{Settings, TableName};
use crate::engine::wire::statement::{PlaceStyle, SqlValue};
use crate::postgres::codes::RULES;

pub(crate) const NAME: &str = "postgres";

/// The channel of a client is this and the client's id.
pub(crate) const CHANNEL: &str = "distlock_";

/// The quoted table → the server's settings that matter, and how the table is kept, if it is there.
/// Whether it may be written to is shown by a write: a proxy may send this to a standby.
pub(crate) const SERVER: &str = "SELECT current_setting('server_version'), \
     (SELECT pg_encoding_to_char(encoding)::text FROM pg_database WHERE datname = current_database()), \
     current_setting('synchronous_commit'), \
     (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(:table::text))";

/// Goes ahead of the question for the schema, in the same message: the search path that the role or the
/// database has, whatever somebody has set on this connection of the server.
pub(crate) const DEFAULT_PATH: &str = "SET LOCAL search_path TO DEFAULT; ";

/// The quoted table → what the server says it is, and the schema that has the table, or else the one for a
/// new table; NULL if there is none.
pub(crate) const SCHEMA: &str = "SELECT version(), coalesce( \
     (SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
       WHERE c.oid = to_regclass(:table::text)), \
     current_schema())::text";

/// Makes the server send something over a connection that rests: what is between us does not forget
/// it, and the server notices that we have gone without a word. The driver has no setting for our
/// side.
pub(crate) const KEEP_ALIVE: &str =
    "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3";

/// Settings of a connection that is ours alone, in one message. The isolation level may be set to
/// another one for the role, and anything above READ COMMITTED turns contention into errors. A
/// statement that waits for a row which somebody keeps locked must end by itself, or each repeat
/// would leave one more behind.
pub(crate) const SESSION: &str = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED; \
     SET lock_timeout = '1s'; SET plan_cache_mode = force_generic_plan; \
     SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

/// What goes ahead of each statement, in the same message and so in the same transaction, where a
/// connection of the server is not ours alone and has no settings of ours. A pooler closes the
/// connection of a statement that was given up, but the server notices only when the statement has
/// its row: without a limit each repeat would leave one more behind there, too. The role may have another
/// isolation level.
pub(crate) const LIMITED: &str =
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '1s'; ";

pub(crate) const BACKEND_PID: &str = "SELECT pg_backend_pid()";

/// The quoted table → what is wrong with it, or NULL. Text is compared
/// byte by byte unless a collation of its own says otherwise.
const TABLE: &str = "SELECT CASE \
       WHEN c.relkind NOT IN ('r', 'p') THEN 'it is no table' \
       WHEN c.relpersistence = 't' THEN 'it is a temporary table' \
       WHEN NOT EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid \
         WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate \
           AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum AND a.attname = 'name') \
         THEN 'its name is not a primary key' \
       ELSE (SELECT CASE WHEN a.attname NOT IN ('name', 'owner') THEN 'it has a column ' || a.attname || ' that we cannot fill' \
           WHEN a.atttypid NOT IN ('text'::regtype, 'varchar'::regtype) \
             THEN 'its column ' || a.attname || ' is no text that is compared byte by byte' \
           ELSE 'its column ' || a.attname || ' has a collation for which different texts are equal' END \
         FROM pg_attribute AS a LEFT JOIN pg_collation AS o ON o.oid = a.attcollation \
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
           AND (a.attname IN ('name', 'owner') AND (a.atttypid NOT IN ('text'::regtype, 'varchar'::regtype) \
               OR NOT o.collisdeterministic) \
             OR a.attname NOT IN ('name', 'owner', 'fence', 'expires', 'acquired', 'label', 'waiters', 'woken') \
               AND a.attnotnull AND NOT a.atthasdef AND a.attidentity = '') \
         LIMIT 1) END::text \
     FROM pg_class AS c WHERE c.oid = to_regclass(:table::text)";

/// What `RenewBatch` answers. Any other number: locked, or not seen.
pub(crate) const RENEWED: i64 = 0;
pub(crate) const GONE: i64 = 1;

const TEXTS: TableTexts = TableTexts {
    create: r#"CREATE TABLE IF NOT EXISTS {t} (
  name     text COLLATE "C" PRIMARY KEY, -- the lock, compared byte by byte
  owner    text COLLATE "C",             -- who holds it; NULL when it is free
  fence    bigint      NOT NULL,         -- rises with every holder
  expires  timestamptz NOT NULL,         -- end of the lease, or when it was released
  acquired timestamptz NOT NULL,         -- start of the hold
  label    text,                         -- for people
  waiters  text[]      NOT NULL,         -- the clients that wait
  woken    text                          -- the one that was told last
) WITH (fillfactor = 50)"#,
    grant: "GRANT SELECT, INSERT, UPDATE, DELETE ON {t} TO {user};",
    look: TABLE,
    // We may not create the table, or have no schema for it; another client is creating it.
    creating: [&["42501", "3F000"], &["42P07", "23505", "42710", "XX000"]],
    rules: RULES,
    hints: [
        "check sslmode, and that sslrootcert names the authority of the server's certificate; this program must be built with TLS (feature `tls`)",
        "correct the URL, or the options of the pool",
    ],
    statements: statements! {
        // Nothing but taking a free lock, since each further part costs its share whether it is
        // needed or not: for names of which this is expected. Of a held lock the row is only read. No
        // row: see `AcquireOrQueue`. Each reading of the clock is later than the one that found the lock
        // free, also after a wait for the row, where all is computed anew. A hold of our own that
        // has ended is not free: a repeat keeps its fence (clause C2). Also wants: client or NULL,
        // whether the client has more waiters.
        Acquire: "UPDATE {t} AS l SET owner = :owner::text, \
                   fence = greatest(l.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + :more::bigint, \
                   expires = clock_timestamp() + :ttl::bigint {us}, acquired = clock_timestamp(), label = :label::text, \
                   waiters = CASE WHEN NOT :company::bool THEN array_remove(l.waiters, :client::text) \
                     ELSE array_remove(l.waiters, :client::text) || :client::text END \
                 WHERE l.name = :name::text \
                   AND (l.owner IS NULL OR l.expires <= clock_timestamp() AND l.owner <> :owner::text) \
                 RETURNING l.fence",
        Confirm: "SELECT {left} FROM {t} AS l WHERE l.name = :name::text AND l.owner = :owner::text \
               AND :fence::bigint IN (0, l.fence) \
               AND {fences} > :more::bigint FOR KEY SHARE",
        // The row stays, with its fence. A lease that had ended already keeps its end, which
        // tells the two cases apart. The next holder's fence is greater by `Acquire`.
        Release: "UPDATE {t} AS l SET {free} \
                 WHERE l.name = :name::text AND l.owner = :owner::text AND :fence::bigint IN (0, l.fence) \
                 RETURNING l.expires = statement_timestamp(), {tell}",
        ReleaseByForce: "UPDATE {t} AS l SET {free} \
                 WHERE l.name = :name::text AND l.owner IS NOT NULL AND (:owner::text IS NULL OR l.owner = :owner::text) \
                   AND :fence::bigint IN (0, l.fence) \
                 RETURNING l.expires = statement_timestamp(), {tell}, \
                   CASE WHEN :tell::bool THEN pg_notify('{losses}', l.name) IS NULL END",
        Look: "SELECT {holder} FROM {t} AS l WHERE l.name = :name::text AND l.owner IS NOT NULL AND l.expires > clock_timestamp()",
        LookNow: "WITH unchanged AS (DELETE FROM {t} WHERE false) \
                 SELECT l.name, l.owner, CASE WHEN l.name = '{mark}' THEN {settled} ELSE l.fence END, \
                   (extract(epoch FROM l.expires - statement_timestamp()) * 1000000)::bigint, NULL::bigint, l.label \
                 FROM {t} AS l WHERE l.name = ANY (:names::text[])",
        // `starts_with` and not LIKE: no wildcards, and upper and lower case stay apart.
        List: "SELECT {holder} FROM {t} AS l \
                 WHERE l.name COLLATE \"C\" >= :start::text AND starts_with(l.name, :start::text) \
                   AND (NOT :bare::bool OR strpos(l.name, chr(31)) = 0) \
                   AND l.owner IS NOT NULL AND l.expires > clock_timestamp() \
                 ORDER BY l.name COLLATE \"C\"",
        SweepPage: "SELECT name, fence, expires <= clock_timestamp() - :retention::bigint {us} \
                 FROM {t} WHERE name > :after::text ORDER BY name LIMIT {page}",
        SweepFold: "INSERT INTO {t} AS l (name, owner, fence, expires, acquired, label, waiters) \
                 VALUES ('{mark}', NULL, :fence::bigint, to_timestamp(0), to_timestamp(0), '0', '{}') \
                 ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE l.fence < excluded.fence",
        // Judged anew: since the page was read, a row may have been taken, and even released. Its fence is
        // compared with one that was folded a while ago: the mark may have been raised only now.
        SweepDelete: "WITH settled AS ( \
                   UPDATE {t} AS l SET label = greatest({settled}, :folded::bigint)::text WHERE l.name = '{mark}' \
                   RETURNING l.label::bigint AS fence) \
                 DELETE FROM {t} AS l WHERE l.name = ANY (:names::text[]) AND l.name <> '{mark}' \
                   AND l.expires <= clock_timestamp() - :retention::bigint {us} \
                   AND l.fence <= (SELECT settled.fence FROM settled) \
                 RETURNING l.name",
        Probe: "DELETE FROM {t} WHERE false",
        AcquireOrQueue: ACQUIRE_OR_QUEUE,
        // Locking before updating, so that a row which is locked is passed over. What was neither
        // renewed nor is gone by the snapshot is asked for again.
        RenewBatch: "WITH due AS MATERIALIZED ( \
                   SELECT * FROM unnest(:names::text[], :owners::text[], :fences::bigint[], :ttls::bigint[]) AS d (name, owner, fence, ttl)), \
                 ours AS MATERIALIZED ( \
                   SELECT l.name FROM {t} AS l JOIN due ON l.name = due.name \
                   WHERE l.owner = due.owner AND due.fence IN (0, l.fence) AND l.expires > clock_timestamp() \
                   ORDER BY l.name FOR NO KEY UPDATE OF l SKIP LOCKED), \
                 renewed AS ( \
                   UPDATE {t} AS l SET expires = greatest(l.expires, clock_timestamp() + due.ttl {us}) \
                   FROM due JOIN ours ON ours.name = due.name \
                   WHERE l.name = due.name AND l.owner = due.owner AND due.fence IN (0, l.fence) \
                   RETURNING l.name) \
                 SELECT due.name, CASE WHEN renewed.name IS NOT NULL THEN 0 WHEN l.name IS NULL THEN 1 ELSE 2 END \
                 FROM due LEFT JOIN renewed ON renewed.name = due.name \
                   LEFT JOIN {t} AS l ON l.name = due.name AND l.owner = due.owner \
                     AND due.fence IN (0, l.fence) AND l.expires > clock_timestamp()",
        // Waits for a row that other clients keep locking for 200 ms: the limit is set before the
        // first row is looked at, and ends with the transaction.
        RenewAlone: "UPDATE {t} AS l SET expires = greatest(l.expires, clock_timestamp() + :ttl::bigint {us}) \
                 WHERE l.name = :name::text AND l.owner = :owner::text AND :fence::bigint IN (0, l.fence) \
                   AND l.expires > clock_timestamp() \
                   AND (SELECT set_config('lock_timeout', '200ms', true)) IS NOT NULL \
                 RETURNING l.name",
        Pass: "UPDATE {t} AS l SET woken = l.waiters[1], waiters = l.waiters[2:] \
                 WHERE l.name = :name::text AND (l.owner IS NULL OR l.expires <= clock_timestamp()) \
                   AND cardinality(l.waiters) > 0 \
                 RETURNING pg_notify('{channel}' || l.woken, l.name) IS NULL",
        Leave: "UPDATE {t} AS l SET waiters = array_remove(l.waiters, :client::text) \
                 WHERE l.name = :name::text AND :client::text = ANY (l.waiters)",
        DeadRows: "SELECT coalesce(pg_stat_get_dead_tuples(to_regclass(:table::text)), 0)",
    },
};

/// The words that come again.
const TERMS: [(&str, &str); 14] = [
    // Of the mark. One that was made by hand has a fence alone.
    ("{settled}", "coalesce(l.label::bigint, l.fence)"),
    // By the true clock, which no test sets, and no mutant moves.
    (
        "{in time}",
        "(CASE WHEN pg_catalog.clock_timestamp () - pg_catalog.now () > interval '1.5 s' THEN 0 ELSE 1 END)",
    ),
    // They stand before the label if there are several.
    (
        "{fences}",
        "CASE WHEN strpos(l.label, chr(31)) > 0 THEN split_part(l.label, chr(31), 1)::bigint ELSE 1 END",
    ),
    (
        "{holder}",
        "l.name, l.owner, l.fence, {left} AS left_us, \
         (extract(epoch FROM clock_timestamp() - l.acquired) * 1000000)::bigint AS held_us, l.label",
    ),
    ("{left}", "(extract(epoch FROM l.expires - clock_timestamp()) * 1000000)::bigint"),
    ("{taken at}", "(extract(epoch FROM excluded.acquired) * 1000000)::bigint"),
    ("{now}", "(extract(epoch FROM present.now) * 1000000)::bigint"),
    ("{present}", "(SELECT clock_timestamp() AS now) AS present"),
    // The release of a lock, and the choice of who is told.
    (
        "{free}",
        "owner = NULL, label = NULL, expires = least(l.expires, statement_timestamp()), woken = l.waiters[1], waiters = l.waiters[2:]",
    ),
    (
        "{tell}",
        "CASE WHEN l.woken IS NOT NULL AND :tell::bool THEN pg_notify('{channel}' || l.woken, l.name) IS NULL END",
    ),
    ("{can}", "(l.owner IS NULL OR l.owner = excluded.owner OR l.expires <= excluded.acquired)"),
    ("{mine}", "l.owner = excluded.owner"),
    ("{us}", "* interval '1 microsecond'"),
    ("{channel}", CHANNEL),
];

/// A repeat by the same owner finds its own row and keeps its fence (clause C2). No row: another
/// client has made it at this moment.
///
/// A new row starts above the mark as of the start of the statement, and a row that was swept is deleted no
/// sooner than two seconds after the mark was raised above it: so the insert must have found that it is not
/// there before. A grant that has taken longer, as on a server that was stopped for a while, is undone by a
/// division by zero, and tried again.
const ACQUIRE_OR_QUEUE: &str = "WITH answer AS ( \
      INSERT INTO {t} AS l (name, owner, fence, expires, acquired, label, waiters) \
      SELECT :name::text, :owner::text, \
        greatest(coalesce((SELECT fence FROM {t} WHERE name = '{mark}'), 0) + 1, {now}) + :more::bigint, \
        present.now + :ttl::bigint {us}, present.now, :label::text, '{}' \
      FROM {present} \
      WHERE NOT EXISTS (SELECT FROM {t} AS h WHERE h.name = :name::text \
        AND h.owner <> :owner::text AND h.expires > present.now \
        AND (:client::text IS NULL OR :client::text = ANY (h.waiters))) \
      ON CONFLICT (name) DO UPDATE SET \
        owner = CASE WHEN {can} THEN excluded.owner ELSE l.owner END, \
        fence = CASE WHEN {mine} OR NOT {can} THEN l.fence ELSE greatest(l.fence + 1, {taken at}) + :more::bigint END, \
        expires = CASE WHEN {mine} THEN greatest(l.expires, excluded.expires) \
          WHEN {can} THEN excluded.expires ELSE l.expires END, \
        acquired = CASE WHEN {mine} OR NOT {can} THEN l.acquired ELSE excluded.acquired END, \
        label = CASE WHEN {can} THEN excluded.label ELSE l.label END, \
        waiters = CASE WHEN {can} AND NOT :company::bool THEN array_remove(l.waiters, :client::text) \
          WHEN {can} THEN array_remove(l.waiters, :client::text) || :client::text \
          ELSE l.waiters || :client::text END \
      WHERE {can} OR (:client::text IS NOT NULL AND :client::text <> ALL (l.waiters)) \
      RETURNING l.owner = :owner::text AS mine, {holder}) \
    SELECT CASE WHEN mine THEN fence / {in time} ELSE -greatest(left_us, 0) END, \
      name, owner, fence, left_us, held_us, label FROM answer \
    UNION ALL \
    SELECT -greatest({left}, 0), {holder} FROM {t} AS l \
      WHERE l.name = :name::text AND NOT EXISTS (SELECT FROM answer)";

/// `at`: the database as errors name it; `user`: who needs the rights; `table`: with its schema, once that is
/// known.
pub(crate) fn table(at: String, user: &str, settings: &Settings, table: &TableName) -> LockTable {
    // As PostgreSQL quotes a name.
    let user = format!("\"{}\"", user.replace('"', "\"\""));
    // Holders learn of a loss on the channel that has the name of the table.
    let more = [("{losses}", settings.table.as_str()), ("{user}", &user)];
    let terms = [&TERMS[..], &more].concat();
    let prepared = Preparation::new(PlaceStyle::Dollars, table, &terms);
    LockTable::new(&TEXTS, &prepared, at, table, settings.create_table)
}

/// The statement with its values in place of `$1` and so on, for the simple protocol. A pooler may
/// give each message to another server connection, so a prepared statement may be missing when it
/// is executed; a self-contained statement always works.
///
/// Text is written in hexadecimal, so nothing in it can be read as SQL, whatever
/// `standard_conforming_strings` is.
pub(crate) fn inline(sql: &str, values: &[SqlValue<'_>]) -> String {
    let mut text = String::with_capacity(sql.len() * 2);
    let mut rest = sql;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let digits = rest[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest[at + 1..].split_at(digits);
        let place: Option<usize> = number.parse().ok();
        match place.and_then(|place| values.get(place.checked_sub(1)?)) {
            Some(value) => write(&mut text, value),
            None => {
                text.push('$');
                text.push_str(number);
            }
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

/// Writes a value so that nothing in it could be read as SQL. Statements cast each place to its
/// type.
fn write(sql: &mut String, value: &SqlValue<'_>) {
    match value {
        SqlValue::Null => sql.push_str("NULL"),
        SqlValue::Text(text) => write_bytes(sql, text.as_bytes()),
        SqlValue::Bytes(bytes) => write_bytes(sql, bytes),
        // In quotes, since the least number cannot be written without them.
        SqlValue::Int(number) => {
            let _ = write!(sql, "'{number}'");
        }
        SqlValue::Bool(flag) => sql.push_str(if *flag { "true" } else { "false" }),
        SqlValue::List(items) => {
            sql.push_str("ARRAY[");
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    sql.push(',');
                }
                write(sql, item);
            }
            sql.push(']');
        }
    }
}

fn write_bytes(sql: &mut String, bytes: &[u8]) {
    sql.push_str("convert_from(decode('");
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(sql, "{byte:02x}");
    }
    sql.push_str("','hex'),'UTF8')");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_so_that_nothing_is_read_as_sql() {
        let values = [
            SqlValue::from("a'; \\ $2 ü"),
            SqlValue::Null,
            SqlValue::from(i64::MIN),
            SqlValue::from(true),
            SqlValue::List(vec!["x".into(), "".into()]),
            SqlValue::List(vec![1.into(), (-2).into()]),
        ];
        let sql = "SELECT $1::text, $2::text, $3::bigint, $4::bool, $5::text[], $6::bigint[], $10";
        assert_eq!(
            inline(sql, &values),
            "SELECT convert_from(decode('61273b205c20243220c3bc','hex'),'UTF8')::text, NULL::text, \
             '-9223372036854775808'::bigint, true::bool, \
             ARRAY[convert_from(decode('78','hex'),'UTF8'),convert_from(decode('','hex'),'UTF8')]::text[], \
             ARRAY['1','-2']::bigint[], $10"
        );
    }
}
