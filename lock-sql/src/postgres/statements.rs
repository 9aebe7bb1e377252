//! The statements of the PostgreSQL dialect.
//!
//! # Time
//!
//! The server's clock, read inside of the statement. `clock_timestamp()` and not `now()`, which is the
//! start of the transaction. A statement that decides more than one thing reads it once, before it
//! waits for a row: a present that is stale by that wait takes a lock over later than it might, and
//! starts its lease earlier than it might, but not before the call (clause C4). A renewal reads it when it
//! has the row, so a later one ends later, unless it asks for less: who has taken a hold over may
//! (clause C14).
//!
//! # The fence
//!
//! `greatest(fence + 1, clock in µs)` rises whatever the clock does. The clock carries it over a loss of
//! the data. The sweep deletes a row only if its fence is not above that of the row [`MARK`], from
//! which a new row starts.
//!
//! # The waiters
//!
//! `waiters` lists the clients (processes) that wait for the lock, each once, in the order of their
//! arrival. A release takes the first one off the list and notifies that client alone, on its own
//! channel, in the same statement. Nobody is notified where nobody waits: a commit with a notification
//! takes a lock that all such commits share. The list is a hint; who wants the lock also looks at a
//! slow poll.
//!
//! # Who locks the row
//!
//! The lock on a row lasts until its transaction is on the disk, and a renewal passes over a row that is
//! locked. So `acquire` reads first, and goes to the row only to take the lock or to put itself on the
//! list: those who wait do not keep the row from its holder. Where others come and go all the time,
//! `renew_waiting` queues for the row.
//!
//! # Reads
//!
//! A proxy may send a plain `SELECT` to a standby that is behind. What it says is good enough for "busy",
//! and for people. That a hold is gone is only believed to a statement that writes or locks.

use crate::engine::schema::Column;
use crate::engine::sweep::{MARK, PAGE};
use crate::engine::table::TableName;
use crate::engine::value::Sql;

/// For how long a renewal waits for a row that others keep locking.
pub(crate) const WAIT_FOR_ROW: &str = "200ms";

/// The channel of a client is this and the client's id.
pub(crate) const CHANNEL: &str = "distlock_";

/// The statement that creates the table, for people too.
pub(crate) fn create_table(table: &TableName) -> String {
    format!(
        r#"CREATE TABLE IF NOT EXISTS "{}" (
  name     text COLLATE "C" PRIMARY KEY, -- the lock, compared byte by byte
  owner    text COLLATE "C",             -- who holds it; NULL when it is free
  fence    bigint      NOT NULL,         -- rises with every holder
  expires  timestamptz NOT NULL,         -- end of the lease, or when it was released
  acquired timestamptz NOT NULL,         -- start of the hold
  label    text,                         -- for people
  waiters  text[]      NOT NULL,         -- the clients that wait
  woken    text                          -- the one that was told last
) WITH (fillfactor = 50)"#,
        table.as_str()
    )
}

/// The columns; `more`: whether it may compare by more than bytes.
pub(crate) const COLUMNS: [Column; 8] = [
    Column { name: "name", kind: "text", not_null: true, more: 0 },
    Column { name: "owner", kind: "text", not_null: false, more: 0 },
    Column { name: "fence", kind: "bigint", not_null: true, more: 1 },
    Column { name: "expires", kind: "timestamp with time zone", not_null: true, more: 1 },
    Column { name: "acquired", kind: "timestamp with time zone", not_null: true, more: 1 },
    Column { name: "label", kind: "text", not_null: false, more: 1 },
    Column { name: "waiters", kind: "text[]", not_null: true, more: 1 },
    Column { name: "woken", kind: "text", not_null: false, more: 1 },
];

/// Nothing → the server's settings that matter. Whether it may be written to is shown by a write: a proxy
/// may send this to a standby.
pub(crate) const SERVER: &str = "SELECT current_setting('server_version'), \
     (SELECT pg_encoding_to_char(encoding)::text FROM pg_database WHERE datname = current_database()), \
     current_setting('synchronous_commit')";

/// Makes the server send something over a connection that rests: what is between us does not forget it,
/// and the server notices that we have gone without a word. The driver has no setting for our side.
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

/// The quoted table's name → kind, persistence, and which of the four rights are missing.
pub(crate) const TABLE: &str = "SELECT c.relkind::text, c.relpersistence::text, \
     (SELECT coalesce(string_agg(r, ', '), '') FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) AS r \
        WHERE NOT has_table_privilege(c.oid, r)) \
     FROM pg_class AS c WHERE c.oid = to_regclass($1::text)";
/// The quoted table's name → column, type, NOT NULL, whether it may be left out, whether it compares
/// by more than bytes.
pub(crate) const TABLE_COLUMNS: &str = "SELECT a.attname::text, format_type(a.atttypid, NULL)::text, a.attnotnull, \
       NOT a.attnotnull OR a.atthasdef OR a.attidentity <> '', coalesce(NOT o.collisdeterministic, false) \
     FROM pg_attribute AS a LEFT JOIN pg_collation AS o ON o.oid = a.attcollation \
     WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped";
/// The quoted table's name → whether the name alone is unique, at once and in every row.
pub(crate) const TABLE_KEY: &str = "SELECT EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid \
       WHERE i.indrelid = to_regclass($1::text) AND i.indisunique AND i.indisvalid AND i.indimmediate \
         AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum AND a.attname = 'name')";

/// All statements for one table.
#[derive(Debug)]
pub(crate) struct Statements {
    /// name, owner, ttl in µs, label, client or NULL, whether the client has more waiters → whether
    /// it is ours, fence, µs that are left. No row: it has been made by somebody else at this moment.
    pub(crate) acquire: Sql,
    /// names, owners, fences or 0, ttls in µs → name, what was found.
    pub(crate) renew: Sql,
    /// name, owner, fence or 0, ttl in µs → a row if it was renewed. Waits for the row.
    pub(crate) renew_waiting: Sql,
    /// name, owner, fence or 0 → µs that are left. It locks the row, so that it is a read of the primary,
    /// and keeps nobody from renewing it.
    pub(crate) confirm: Sql,
    /// name, owner or NULL for any, whether to notify, fence or 0 → whether the lease was running.
    pub(crate) release: Sql,
    /// As `release`, and tells the holder too.
    pub(crate) force: Sql,
    /// name, client. A free lock's next client is told, since this one does not want it.
    pub(crate) pass: Sql,
    /// name, client. The client waits no more.
    pub(crate) leave: Sql,
    /// name → name, owner, fence, µs that are left, µs of the hold, label.
    pub(crate) look: Sql,
    /// start of the stored name, whether the prefix is empty → as `look`.
    pub(crate) list: Sql,
    /// the quoted table's name → how many row versions nobody needs any more, and are still there.
    pub(crate) dead_rows: Sql,
    /// after, retention in µs → name, fence, whether it can go.
    pub(crate) sweep_page: Sql,
    /// fence.
    pub(crate) sweep_fold: Sql,
    /// names, retention in µs → name.
    pub(crate) sweep_delete: Sql,
    /// Writes nothing, and fails where writing would.
    pub(crate) probe: Sql,
}

/// What [`Statements::renew`] answers.
pub(crate) const RENEWED: i64 = 0;
pub(crate) const GONE: i64 = 1;

impl Statements {
    pub(crate) fn new(table: &TableName) -> Self {
        let t = table.quoted();
        let channel = table.as_str();
        // The release of a lock, and the choice of who is told.
        let free = "owner = NULL, label = NULL, expires = least(l.expires, present.now), \
                    woken = l.waiters[1], waiters = l.waiters[2:]";
        let tell = format!(
            "CASE WHEN l.woken IS NOT NULL AND $3::bool THEN pg_notify('{CHANNEL}' || l.woken, l.name) IS NULL END"
        );
        let tell_all =
            format!("CASE WHEN $3::bool THEN pg_notify('{channel}', l.name) IS NULL END");
        let micros = |interval: &str| format!("(extract(epoch FROM {interval}) * 1000000)::bigint");
        let left = micros("l.expires - clock_timestamp()");
        let can = "(l.owner IS NULL OR l.owner = excluded.owner OR l.expires <= excluded.acquired)";
        let mine = "l.owner = excluded.owner";
        let holder = format!(
            "l.name, l.owner, l.fence, {left}, {}, l.label",
            micros("clock_timestamp() - l.acquired")
        );
        let preparation = super::mutants::preparation(table);
        let statement = |text: String| preparation.statement(text);
        Self {
            // A repeat by the same owner finds its own row and keeps its fence (clause C2).
            acquire: statement(format!(
                "WITH answer AS ( \
                       INSERT INTO {t} AS l (name, owner, fence, expires, acquired, label, waiters) \
                       SELECT $1::text, $2::text, \
                         greatest(coalesce((SELECT fence FROM {t} WHERE name = '{MARK}'), 0) + 1, {clock}), \
                         present.now + $3::bigint * interval '1 microsecond', present.now, $4::text, '{{}}' \
                       FROM (SELECT clock_timestamp() AS now) AS present \
                       WHERE NOT EXISTS (SELECT FROM {t} AS h WHERE h.name = $1::text \
                         AND h.owner <> $2::text AND h.expires > present.now \
                         AND ($5::text IS NULL OR $5::text = ANY (h.waiters))) \
                       ON CONFLICT (name) DO UPDATE SET \
                         owner = CASE WHEN {can} THEN excluded.owner ELSE l.owner END, \
                         fence = CASE WHEN {mine} OR NOT {can} THEN l.fence ELSE greatest(l.fence + 1, {excluded}) END, \
                         expires = CASE WHEN {mine} THEN greatest(l.expires, excluded.expires) \
                           WHEN {can} THEN excluded.expires ELSE l.expires END, \
                         acquired = CASE WHEN {mine} OR NOT {can} THEN l.acquired ELSE excluded.acquired END, \
                         label = CASE WHEN {can} THEN excluded.label ELSE l.label END, \
                         waiters = CASE WHEN {can} AND NOT $6::bool THEN array_remove(l.waiters, $5::text) \
                           WHEN {can} THEN array_remove(l.waiters, $5::text) || $5::text \
                           ELSE l.waiters || $5::text END \
                       WHERE {can} OR ($5::text IS NOT NULL AND $5::text <> ALL (l.waiters)) \
                       RETURNING l.owner = $2::text AS mine, l.fence, {left} AS left_us) \
                     SELECT mine, fence, left_us FROM answer \
                     UNION ALL \
                     SELECT false, l.fence, {left} FROM {t} AS l \
                       WHERE l.name = $1::text AND NOT EXISTS (SELECT FROM answer)",
                clock = micros("present.now"),
                excluded = micros("excluded.acquired"),
            )),
            // Locking before updating, so that a row which is locked is passed over. What was neither
            // renewed nor is gone by the snapshot is asked for again.
            renew: statement(format!(
                "WITH due AS MATERIALIZED ( \
                       SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS d (name, owner, fence, ttl)), \
                     ours AS MATERIALIZED ( \
                       SELECT l.name FROM {t} AS l JOIN due ON l.name = due.name \
                       WHERE l.owner = due.owner AND due.fence IN (0, l.fence) AND l.expires > clock_timestamp() \
                       ORDER BY l.name FOR NO KEY UPDATE OF l SKIP LOCKED), \
                     renewed AS ( \
                       UPDATE {t} AS l SET expires = clock_timestamp() + due.ttl * interval '1 microsecond' \
                       FROM due JOIN ours ON ours.name = due.name \
                       WHERE l.name = due.name AND l.owner = due.owner AND due.fence IN (0, l.fence) \
                       RETURNING l.name) \
                     SELECT due.name, CASE WHEN renewed.name IS NOT NULL THEN {RENEWED} WHEN l.name IS NULL THEN {GONE} ELSE 2 END \
                     FROM due LEFT JOIN renewed ON renewed.name = due.name \
                       LEFT JOIN {t} AS l ON l.name = due.name AND l.owner = due.owner \
                         AND due.fence IN (0, l.fence) AND l.expires > clock_timestamp()"
            )),
            // The limit is set before the first row is looked at, and ends with the transaction.
            renew_waiting: statement(format!(
                "UPDATE {t} AS l SET expires = clock_timestamp() + $4::bigint * interval '1 microsecond' \
                     WHERE l.name = $1::text AND l.owner = $2::text AND $3::bigint IN (0, l.fence) \
                       AND l.expires > clock_timestamp() \
                       AND (SELECT set_config('lock_timeout', '{WAIT_FOR_ROW}', true)) IS NOT NULL \
                     RETURNING l.name"
            )),
            confirm: statement(format!(
                "SELECT {left} FROM {t} AS l WHERE l.name = $1::text AND l.owner = $2::text AND $3::bigint IN (0, l.fence) FOR KEY SHARE"
            )),
            // The row stays, with its fence. A lease that had ended already keeps its end, which
            // tells the two cases apart. The next holder's fence is greater by `acquire`.
            release: statement(format!(
                "UPDATE {t} AS l SET {free} FROM (SELECT clock_timestamp() AS now) AS present \
                     WHERE l.name = $1::text AND l.owner = $2::text AND $4::bigint IN (0, l.fence) \
                     RETURNING l.expires = present.now, {tell}"
            )),
            force: statement(format!(
                "UPDATE {t} AS l SET {free} FROM (SELECT clock_timestamp() AS now) AS present \
                     WHERE l.name = $1::text AND l.owner IS NOT NULL AND ($2::text IS NULL OR l.owner = $2::text) \
                       AND $4::bigint IN (0, l.fence) \
                     RETURNING l.expires = present.now, {tell}, {tell_all}"
            )),
            pass: statement(format!(
                "UPDATE {t} AS l SET woken = l.waiters[1], waiters = l.waiters[2:] \
                     WHERE l.name = $1::text AND (l.owner IS NULL OR l.expires <= clock_timestamp()) \
                       AND cardinality(l.waiters) > 0 \
                     RETURNING pg_notify('{CHANNEL}' || l.woken, l.name) IS NULL"
            )),
            leave: statement(format!(
                "UPDATE {t} AS l SET waiters = array_remove(l.waiters, $2::text) \
                     WHERE l.name = $1::text AND $2::text = ANY (l.waiters)"
            )),
            look: statement(format!(
                "SELECT {holder} FROM {t} AS l WHERE l.name = $1::text AND l.owner IS NOT NULL AND l.expires > clock_timestamp()"
            )),
            // `starts_with` and not LIKE: no wildcards, and upper and lower case stay apart.
            list: statement(format!(
                "SELECT {holder} FROM {t} AS l \
                     WHERE l.name COLLATE \"C\" >= $1::text AND starts_with(l.name, $1::text) \
                       AND (NOT $2::bool OR strpos(l.name, chr(31)) = 0) \
                       AND l.owner IS NOT NULL AND l.expires > clock_timestamp() \
                     ORDER BY l.name COLLATE \"C\""
            )),
            dead_rows: statement(
                "SELECT coalesce(pg_stat_get_dead_tuples(to_regclass($1::text)), 0)".to_owned(),
            ),
            sweep_page: statement(format!(
                "SELECT name, fence, expires <= clock_timestamp() - $2::bigint * interval '1 microsecond' \
                     FROM {t} WHERE name > $1::text ORDER BY name LIMIT {PAGE}"
            )),
            sweep_fold: statement(format!(
                "INSERT INTO {t} AS l (name, owner, fence, expires, acquired, label, waiters) \
                     VALUES ('{MARK}', NULL, $1::bigint, to_timestamp(0), to_timestamp(0), NULL, '{{}}') \
                     ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE l.fence < excluded.fence"
            )),
            // Judged anew: since the page was read, a row may have been taken, and even released.
            sweep_delete: statement(format!(
                "DELETE FROM {t} WHERE name = ANY ($1::text[]) AND name <> '{MARK}' \
                       AND expires <= clock_timestamp() - $2::bigint * interval '1 microsecond' \
                       AND fence <= (SELECT m.fence FROM {t} AS m WHERE m.name = '{MARK}') \
                     RETURNING name"
            )),
            probe: statement(format!("DELETE FROM {t} WHERE false")),
        }
    }
}
