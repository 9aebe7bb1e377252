//! What PostgreSQL's error codes mean for a lock.

use lock_core::ErrorKind::{Config, Denied, Store, Unavailable, Unsupported};

use sqlx::postgres::PgDatabaseError;

use crate::engine::wire::errors::{CodeRule, Damage, FailureRemedy, rules};

/// The connection's prepared statements are gone: a pooler passes each message to another server
/// connection.
pub(super) const POOLED: &[&str] = &["26000", "42P05"];

/// No code of the server: an error that has ended the connection, whatever the reason.
pub(super) const ENDED: &str = "ended";
/// No code of the server: a plan that the table's owner has made obsolete stays with its connection.
const STALE_PLAN: &str = "stale plan";

pub(crate) const RULES: &[CodeRule] = rules! {
    // Serialisation failure, deadlock, lock_timeout.
    &["40001", "40P01", "55P03"] => contended();
    // An insert that took too long: see `ACQUIRE_OR_QUEUE`.
    &["22012"] => contended();
    &[STALE_PLAN] => contended().damages(Damage::Connection);
    &["0A000"] => fails(Unsupported):
        "{at} lacks something that PostgreSQL has: use PostgreSQL itself";
    POOLED => contended().damages(Damage::Server);
    &["42P01"] => fails(Store).remedy(FailureRemedy::NoTable).damages(Damage::Server).retryable():
        "{table} was dropped while it was in use";
    // Or the role was read-only when the connection was made: a new one may write.
    &["25006"] => fails(Unavailable).damages(Damage::Server):
        "{at} is read-only: it is a standby, or default_transaction_read_only is on. Connect to the primary";
    // No statement of ours meets another limit that has this code.
    &["54000"] => fails(Unavailable).remedy(FailureRemedy::FullQueue):
        "the notification queue of {at} is full: look for a session that listens and never ends its transaction";
    // The server is starting or stopping or has crashed, or an operator has ended the connection.
    &["57P01", "57P02", "57P03", "57P05", ENDED] => cut().damages(Damage::Server):
        "{at} has ended the connection, or is starting or stopping";
    &["08*"] => cut().damages(Damage::Server): "the connection to {at} has failed";
    &["42501"] => fails(Denied): "{at} refuses this role: it needs {grant}";
    &["28P01", "28000"] => fails(Denied):
        "{at} refuses the user or the password, or pg_hba.conf does not let this role in";
    &["3D000"] => fails(Config): "{at}: there is no such database: create it, or name another";
    &["42703", "42804", "42P10", "42883"] => fails(Store):
        "{table} does not have the expected shape: choose another with lock_table=…, or create it with\n{create};";
    &["53300"] => fails(Unavailable):
        "{at} has too many connections: raise max_connections, or put a pooler in front of it";
    &["57014"] => fails(Unavailable): "{at} cancelled the statement: check statement_timeout";
    &["22003"] => fails(Store):
        "{at}: the fencing tokens of this lock are used up (2^63-1 was stored): something else writes to the lock table";
    &["53*"] => fails(Unavailable): "{at} is out of disk space, memory or another resource";
    // What poolers say when they have lost their server, also after it has got the statement (Supavisor,
    // Pgpool, PgCat), and errors of the server's own.
    &["58*", "XX*", "25P0*"] => fails(Unavailable).damages(Damage::Connection).unknown():
        "{at}, or the pooler in front of it, has failed (SQLSTATE {code})";
    &["23*"] => fails(Store):
        "{at} refused the write: a constraint or trigger was added to {table}";
    &["*"] => fails(Store): "{at} refused the statement (SQLSTATE {code})";
};

/// The server's code for what went wrong, if it has answered.
pub(crate) fn code(error: &sqlx::Error) -> Option<String> {
    let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    // The text is in the language of the server.
    let is_stale = error.code() == "0A000" && error.routine() == Some("RevalidateCachedQuery");
    Some(if is_stale { STALE_PLAN } else { error.code() }.to_owned())
}
