//! What the server's error codes mean for a lock.
//!
//! <https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html> and
//! <https://mariadb.com/docs/server/reference/error-codes>; the two share the numbers below 1900.

use lock_core::ErrorKind::{Config, Denied, Store, Unavailable};

use crate::engine::error::{Left, Means, Rule};

const NOT_NOW: &str = "{at} is not accepting requests at the moment, or has too many connections";

pub(super) const RULES: &[Rule] = &[
    // A statement that must be prepared again. Closing the connection also clears the driver's
    // cache.
    Rule::contended(&["1243", "1615"]).leaves(Left::Broken),
    // Lock wait, deadlock, a deadlock in a distributed transaction, a row that has changed since it
    // was read, a statement ended by an administrator or a time limit, a conflict at commit
    // (Galera), a row that two have inserted at once.
    Rule::contended(&[
        "1205", "1213", "1614", "1020", "1317", "1969", "3024", "1412", "1180", "1062", "3101",
    ]),
    // By an option, by a transaction, by a mode of the server.
    Rule::fails(
        &["1290", "1792", "1836", "3100"],
        Unavailable,
        "{at} is read-only at the moment: a replica, or a primary under maintenance; connect to the server that accepts writes",
    )
    .leaves(Left::AllBroken),
    // Shutting down.
    Rule::cut(&["1053"], NOT_NOW).leaves(Left::AllBroken),
    // The node is not part of the cluster.
    Rule::fails(&["1047"], Unavailable, NOT_NOW).leaves(Left::AllBroken),
    // Too many connections, in total or for this user.
    Rule::fails(&["1040", "1203", "1226"], Unavailable, NOT_NOW),
    // Killed for a reason unrelated to the statement.
    Rule::cut(
        &["1927", "3169", "4031", "1152", "1159", "1161"],
        "the server ended a connection to {at}",
    ),
    // Wrong credentials, locked accounts, hosts that may not connect.
    Rule::fails(
        &[
            "1044", "1045", "1129", "1130", "1251", "1275", "1524", "1698", "1820", "1862", "3118",
            "3159", "4151",
        ],
        Denied,
        "{at} does not let this user in: check the user, the password, the allowed client host, and the user's rights on the database",
    ),
    // No right to a table, a column or a statement. New rights on a database take effect on new
    // connections.
    Rule::fails(
        &["1142", "1143", "1227", "1370"],
        Denied,
        "this user lacks rights on {table}: {grant}",
    )
    .leaves(Left::AllBroken),
    // A full disk or table, no memory, an error of the storage engine.
    Rule::fails(
        &["1021", "1114", "1030", "1037", "1038", "1041", "1135", "1197"],
        Unavailable,
        "{at} cannot write: its disk or table is full, its memory is used up, or its storage has failed",
    )
    .unknown(),
    Rule::fails(
        &["1049"],
        Config,
        "{at}: there is no such database: create it, or correct the URL",
    ),
    Rule::fails(
        &["1046"],
        Config,
        "the connections to {at} have no database: name the one with the lock table",
    ),
    Rule::fails(&["1146"], Store, "{table} does not exist, or was dropped while it was in use")
        .means(Means::NoTable)
        .retryable(),
    Rule::fails(
        &["1264", "1690"],
        Store,
        "the fencing tokens of this lock in {table} are used up (2^63-1 was stored): something else writes to the lock table",
    ),
    Rule::fails(
        &[
            "1054", "1064", "1136", "1364", "1366", "1406", "1048", "3819", "4025", "1451", "1452",
            "1644", "1442",
        ],
        Store,
        "{table} refused the statement: it was changed while it was in use, or has an extra constraint or trigger; create it with\n{create};",
    ),
    Rule::fails(&["*"], Store, "{at} refused the statement (error {code})").unknown(),
];
