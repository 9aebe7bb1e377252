//! What SQLite's result codes mean for a lock (<https://www.sqlite.org/rescode.html>).

use lock_core::ErrorKind::{Denied, Store, Unavailable};

use crate::engine::error::Rule;

/// A STRICT table refused a value: the fence has become a floating-point number. The others are
/// primary codes.
pub(super) const CONSTRAINT_DATATYPE: i32 = 3091;
/// The file cannot be opened; SQLite does not say why.
pub(super) const CANTOPEN: &str = "14";
pub(super) const READONLY: &str = "8";

pub(super) const RULES: &[Rule] = &[
    // BUSY, LOCKED; PROTOCOL: too many clients were starting to read the log; SCHEMA: the table was
    // changed while the statement was prepared.
    Rule::contended(&["5", "6", "15", "17"]),
    // PERM, READONLY, AUTH.
    Rule::fails(
        &["3", READONLY, "23"],
        Denied,
        "{at} is read-only for this process: taking a lock writes to the file and to two files next to it: grant the right to write to the file and its folder",
    ),
    // FULL.
    Rule::fails(
        &["13"],
        Unavailable,
        "the disk of {at} is full: free some space; no lock can be taken or renewed until then",
    ),
    // NOMEM.
    Rule::fails(&["7"], Unavailable, "not enough memory to use {at}"),
    // IOERR.
    Rule::fails(&["10"], Unavailable, "reading or writing {at} failed").unknown(),
    // NOTADB.
    Rule::fails(
        &["26"],
        Store,
        "{at} is not an SQLite database (or is encrypted): name another file",
    ),
    // CORRUPT.
    Rule::fails(
        &["11"],
        Store,
        "{at} is damaged: stop its users, move it away with its -wal and -shm files, and start again",
    ),
    Rule::fails(
        &["3091"],
        Store,
        "the fencing tokens of this lock in {at} are used up (2^63-1 was stored): something else writes to the lock table",
    ),
    // CONSTRAINT.
    Rule::fails(
        &["19"],
        Store,
        "{at} refused the write: a constraint or trigger was added to the lock table",
    ),
    // ERROR. The connection is opened again by the next call, which looks for the table.
    Rule::fails(
        &["1"],
        Store,
        "{at} refused the statement: the lock table was dropped or changed while it was in use",
    )
    .retryable(),
    Rule::fails(&["*"], Store, "{at} refused the statement (result code {code})").unknown(),
];
