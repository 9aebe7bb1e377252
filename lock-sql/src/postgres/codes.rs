//! What PostgreSQL's error codes mean for a lock.

use lock_core::ErrorKind::{Config, Denied, Store, Unavailable};

use crate::engine::error::{Left, Means, Rule};

/// The connection's prepared statements are gone: a pooler passes each message to another server
/// connection.
pub(super) const POOLED: &[&str] = &["26000", "42P05"];

pub(super) const RULES: &[Rule] = &[
    // Serialisation failure, deadlock, lock_timeout.
    Rule::contended(&["40001", "40P01", "55P03"]),
    // A plan that the table's owner has made obsolete stays with its connection.
    Rule::contended(&["0A000"]).leaves(Left::Broken),
    Rule::contended(POOLED).leaves(Left::AllBroken),
    Rule::fails(&["42P01"], Store, "{table} was dropped while it was in use")
        .means(Means::NoTable)
        .leaves(Left::AllBroken)
        .retryable(),
    // Or the role was read-only when the connection was made: a new one may write.
    Rule::fails(
        &["25006"],
        Unavailable,
        "{at} is read-only: it is a standby, or default_transaction_read_only is on. Connect to the primary",
    )
    .leaves(Left::AllBroken),
    // No statement of ours meets another limit that has this code.
    Rule::fails(
        &["54000"],
        Unavailable,
        "the notification queue of {at} is full: look for a session that listens and never ends its transaction",
    )
    .means(Means::FullQueue),
    // The server is starting or stopping or has crashed, or an operator has ended the connection.
    Rule::cut(
        &["57P01", "57P02", "57P03", "57P05"],
        "{at} has ended the connection, or is starting or stopping",
    )
    .leaves(Left::AllBroken),
    Rule::cut(&["08*"], "the connection to {at} has failed").leaves(Left::AllBroken),
    Rule::fails(&["42501"], Denied, "{at} refuses this role: it needs {grant}"),
    Rule::fails(
        &["28P01", "28000"],
        Denied,
        "{at} refuses the user or the password, or pg_hba.conf does not let this role in",
    ),
    Rule::fails(
        &["3D000"],
        Config,
        "{at}: there is no such database: create it, or name another",
    ),
    Rule::fails(
        &["42703", "42804", "42P10", "42883"],
        Store,
        "{table} does not have the expected shape: choose another with lock_table=…, or create it with\n{create};",
    ),
    Rule::fails(
        &["53300"],
        Unavailable,
        "{at} has too many connections: raise max_connections, or put a pooler in front of it",
    ),
    Rule::fails(
        &["57014"],
        Unavailable,
        "{at} cancelled the statement: check statement_timeout",
    ),
    Rule::fails(
        &["22003"],
        Store,
        "{at}: the fencing tokens of this lock are used up (2^63-1 was stored): something else writes to the lock table",
    ),
    Rule::fails(&["53*"], Unavailable, "{at} is out of disk space, memory or another resource"),
    Rule::fails(
        &["23*"],
        Store,
        "{at} refused the write: a constraint or trigger was added to {table}",
    ),
    Rule::fails(&["*"], Store, "{at} refused the statement (SQLSTATE {code})"),
];
