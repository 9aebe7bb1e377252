//! The statements of the PostgreSQL dialect.
//!
//! # Time
//!
//! The server's clock, read inside the statement: `clock_timestamp()`, not `now()`, which is the
//! start of the transaction. A statement that decides more than one thing by one reading has it from
//! before it waits for a row: with a reading made stale by that wait, it takes a lock over later than
//! it might, and starts its lease earlier than it might, but not before the call (clause C4). For a
//! release that is `statement_timestamp()`, which costs no join. `acquire` reads the clock anew each
//! time, first for the end of the lease that was, so that its own begins later. A statement whose
//! caller has given up may run after a later one of the same owner, which may have asked for another
//! ttl: `greatest` keeps it from moving the end of the lease back.
//!
//! # The fence
//!
//! `greatest(fence + 1, clock in µs)` rises whatever the clock does. After a loss of the data, the
//! clock keeps it rising. The sweep deletes a row only if its fence is not above that of the row
//! [`MARK`], from which a new row starts.
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
//! So `acquire` and `enter` read first, and lock the row only to take the lock or to join the list:
//! waiters do not keep the row from its holder. Where waiters constantly come and go, `renew_waiting`
//! queues for the row.
//!
//! # Reads
//!
//! A proxy may send a plain `SELECT` to a standby that lags behind. Its result is good enough for
//! "busy", and for people. A hold counts as gone only if a statement that writes or locks says so.

use super::codes::RULES;
use crate::engine::lock_table::{LockTable, Texts};
use crate::engine::preparation::Preparation;
use crate::engine::settings::Settings;
use crate::engine::statement::{Places, Statement, Statements};

pub(crate) const NAME: &str = "postgres";

/// The channel of a client is this and the client's id.
pub(crate) const CHANNEL: &str = "distlock_";

/// The quoted table → the server's settings that matter, and how the table is kept, if it is there.
/// Whether it may be written to is shown by a write: a proxy may send this to a standby.
pub(crate) const SERVER: &str = "SELECT current_setting('server_version'), \
     (SELECT pg_encoding_to_char(encoding)::text FROM pg_database WHERE datname = current_database()), \
     current_setting('synchronous_commit'), \
     (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(:table::text))";

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
/// its row: without a limit each repeat would leave one more behind there, too.
pub(crate) const LIMITED: &str = "SET LOCAL lock_timeout = '1s'; ";

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
           ELSE 'its column ' || a.attname || ' has a collation for which different texts are equal' END \
         FROM pg_attribute AS a LEFT JOIN pg_collation AS o ON o.oid = a.attcollation \
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
           AND (a.attname IN ('name', 'owner') AND NOT o.collisdeterministic \
             OR a.attname NOT IN ('name', 'owner', 'fence', 'expires', 'acquired', 'label', 'waiters', 'woken') \
               AND a.attnotnull AND NOT a.atthasdef AND a.attidentity = '') \
         LIMIT 1) END::text \
     FROM pg_class AS c WHERE c.oid = to_regclass(:table::text)";

/// What only PostgreSQL has.
#[derive(Debug)]
pub(crate) struct OwnStatements {
    /// As `acquire`, whatever the row says: takes a free lock, makes the row, finds our own, or puts the
    /// client on the list. Answers a number, and the row as `look` does.
    pub(crate) enter: Statement,
    /// names, owners, fences, ttls: arrays → name, what was found.
    pub(crate) renew: Statement,
    /// name, owner, fence, ttl → a row if it was renewed. Waits for the row.
    pub(crate) renew_waiting: Statement,
    /// name, client. A free lock's next client is told, since this one does not want it.
    pub(crate) pass: Statement,
    /// name, client. The client waits no more.
    pub(crate) leave: Statement,
    /// the quoted table → how many row versions nobody needs any more, and are still there.
    pub(crate) dead_rows: Statement,
}

/// What [`OwnStatements::renew`] answers. Any other number: locked, or not seen.
pub(crate) const RENEWED: i64 = 0;
pub(crate) const GONE: i64 = 1;

const TEXTS: Texts = Texts {
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
    statements: Statements {
        // Nothing but taking a free lock, since each further part costs its share whether it is
        // needed or not: for names of which this is expected. Of a held lock the row is only read. No
        // row: see `enter`. Each reading of the clock is later than the one that found the lock
        // free, also after a wait for the row, where all is computed anew. A hold of our own that
        // has ended is not free: a repeat keeps its fence (clause C2). Also wants: client or NULL,
        // whether the client has more waiters.
        acquire: "UPDATE {t} AS l SET owner = :owner::text, \
                   fence = greatest(l.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + :more::bigint, \
                   expires = clock_timestamp() + :ttl::bigint {us}, acquired = clock_timestamp(), label = :label::text, \
                   waiters = CASE WHEN NOT :company::bool THEN array_remove(l.waiters, :client::text) \
                     ELSE array_remove(l.waiters, :client::text) || :client::text END \
                 WHERE l.name = :name::text \
                   AND (l.owner IS NULL OR l.expires <= clock_timestamp() AND l.owner <> :owner::text) \
                 RETURNING l.fence",
        confirm: Some(
            "SELECT {left} FROM {t} AS l WHERE l.name = :name::text AND l.owner = :owner::text AND :fence::bigint IN (0, l.fence) FOR KEY SHARE",
        ),
        // The row stays, with its fence. A lease that had ended already keeps its end, which
        // tells the two cases apart. The next holder's fence is greater by `acquire`.
        release: "UPDATE {t} AS l SET {free} \
                 WHERE l.name = :name::text AND l.owner = :owner::text AND :fence::bigint IN (0, l.fence) \
                 RETURNING l.expires = statement_timestamp(), {tell}",
        force: Some(
            "UPDATE {t} AS l SET {free} \
                 WHERE l.name = :name::text AND l.owner IS NOT NULL AND (:owner::text IS NULL OR l.owner = :owner::text) \
                   AND :fence::bigint IN (0, l.fence) \
                 RETURNING l.expires = statement_timestamp(), {tell}, \
                   CASE WHEN :tell::bool THEN pg_notify('{losses}', l.name) IS NULL END",
        ),
        look: "SELECT {holder} FROM {t} AS l WHERE l.name = :name::text AND l.owner IS NOT NULL AND l.expires > clock_timestamp()",
        // `starts_with` and not LIKE: no wildcards, and upper and lower case stay apart.
        list: "SELECT {holder} FROM {t} AS l \
                 WHERE l.name COLLATE \"C\" >= :start::text AND starts_with(l.name, :start::text) \
                   AND (NOT :bare::bool OR strpos(l.name, chr(31)) = 0) \
                   AND l.owner IS NOT NULL AND l.expires > clock_timestamp() \
                 ORDER BY l.name COLLATE \"C\"",
        sweep_page: "SELECT name, fence, expires <= clock_timestamp() - :retention::bigint {us} \
                 FROM {t} WHERE name > :after::text ORDER BY name LIMIT {page}",
        sweep_fold: "INSERT INTO {t} AS l (name, owner, fence, expires, acquired, label, waiters) \
                 VALUES ('{mark}', NULL, :fence::bigint, to_timestamp(0), to_timestamp(0), NULL, '{}') \
                 ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE l.fence < excluded.fence",
        // Judged anew: since the page was read, a row may have been taken, and even released.
        sweep_delete: "DELETE FROM {t} WHERE name = ANY (:names::text[]) AND name <> '{mark}' \
                   AND expires <= clock_timestamp() - :retention::bigint {us} \
                   AND fence <= (SELECT m.fence FROM {t} AS m WHERE m.name = '{mark}') \
                 RETURNING name",
        probe: "DELETE FROM {t} WHERE false",
    },
};

/// The words that come again.
const TERMS: [(&str, &str); 11] = [
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
const ENTER: &str = "WITH answer AS ( \
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
    SELECT CASE WHEN mine THEN fence ELSE -greatest(left_us, 0) END, \
      name, owner, fence, left_us, held_us, label FROM answer \
    UNION ALL \
    SELECT -greatest({left}, 0), {holder} FROM {t} AS l \
      WHERE l.name = :name::text AND NOT EXISTS (SELECT FROM answer)";

fn own(prepared: &Preparation) -> OwnStatements {
    let statement = |text: &str| prepared.statement(text);
    OwnStatements {
        enter: statement(ENTER),
        // Locking before updating, so that a row which is locked is passed over. What was neither
        // renewed nor is gone by the snapshot is asked for again.
        renew: statement(
            "WITH due AS MATERIALIZED ( \
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
        ),
        // Waits for a row that other clients keep locking for 200 ms: the limit is set before the
        // first row is looked at, and ends with the transaction.
        renew_waiting: statement(
            "UPDATE {t} AS l SET expires = greatest(l.expires, clock_timestamp() + :ttl::bigint {us}) \
                 WHERE l.name = :name::text AND l.owner = :owner::text AND :fence::bigint IN (0, l.fence) \
                   AND l.expires > clock_timestamp() \
                   AND (SELECT set_config('lock_timeout', '200ms', true)) IS NOT NULL \
                 RETURNING l.name",
        ),
        pass: statement(
            "UPDATE {t} AS l SET woken = l.waiters[1], waiters = l.waiters[2:] \
                 WHERE l.name = :name::text AND (l.owner IS NULL OR l.expires <= clock_timestamp()) \
                   AND cardinality(l.waiters) > 0 \
                 RETURNING pg_notify('{channel}' || l.woken, l.name) IS NULL",
        ),
        leave: statement(
            "UPDATE {t} AS l SET waiters = array_remove(l.waiters, :client::text) \
                 WHERE l.name = :name::text AND :client::text = ANY (l.waiters)",
        ),
        dead_rows: statement(
            "SELECT coalesce(pg_stat_get_dead_tuples(to_regclass(:table::text)), 0)",
        ),
    }
}

/// `at`: the database as errors name it; `user`: who needs the rights.
pub(crate) fn table(at: String, user: &str, settings: &Settings) -> LockTable<OwnStatements> {
    // Holders learn of a loss on the channel that has the name of the table.
    let more = [("{losses}", settings.table.as_str()), ("{user}", user)];
    let terms = [&TERMS[..], &more].concat();
    let prepared = Preparation::new(NAME, Places::Dollars, &settings.table, &terms);
    let own = own(&prepared);
    LockTable::new(&TEXTS, &prepared, at, settings, own)
}
