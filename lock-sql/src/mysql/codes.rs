//! What the server's error codes mean for a lock.
//!
//! <https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html> and
//! <https://mariadb.com/docs/server/reference/error-codes>; the two share the numbers below 1900.

use lock_core::ErrorKind::{Config, Denied, Store, Unavailable};

use sqlx::mysql::MySqlDatabaseError;

use crate::engine::wire::errors::{CodeRule, Damage, FailureRemedy, rules};

const NOT_NOW: &str = "{at} is not accepting requests at the moment, or has too many connections";

pub(crate) const RULES: &[CodeRule] = rules! {
    // A statement that must be prepared again. Closing the connection also clears the driver's
    // cache.
    &["1243", "1615"] => contended().damages(Damage::Connection);
    // Lock wait, deadlock, a deadlock in a distributed transaction, a row that has changed since it
    // was read, a statement ended by an administrator, a conflict at commit (Galera), a row that two have
    // inserted at once.
    &["1205", "1213", "1614", "1020", "1317", "1412", "1180", "1062", "3101"] => contended();
    &["1969", "3024"] => fails(Unavailable):
        "{at} ended the statement: check max_statement_time (MariaDB) or max_execution_time (MySQL)";
    // By an option, by a transaction, by a mode of the server.
    &["1290", "1792", "1836", "3100"] => fails(Unavailable).damages(Damage::Server):
        "{at} is read-only at the moment: a replica, or a primary under maintenance; connect to the server that accepts writes";
    // Shutting down.
    &["1053"] => cut().damages(Damage::Server): NOT_NOW;
    // In offline mode; ProxySQL when it reaches no server, as during a fail-over; Vitess for all that has no
    // code of its own.
    &["3032"] => cut().damages(Damage::Server): NOT_NOW;
    &["9*", "1105"] => fails(Unavailable).damages(Damage::Connection).unknown():
        "{at}, or the proxy in front of it, has failed (error {code})";
    // The node is not part of the cluster.
    &["1047"] => fails(Unavailable).damages(Damage::Server): NOT_NOW;
    // Too many connections, in total or for this user.
    &["1040", "1203", "1226"] => fails(Unavailable): NOT_NOW;
    // Nothing was executed: a statement could not be prepared.
    &["1461"] => fails(Unavailable):
        "{at} keeps as many prepared statements as max_prepared_stmt_count lets it: raise that, or use fewer connections";
    // Killed for a reason unrelated to the statement.
    &["1927", "3169", "4031", "1152", "1159", "1161"] => cut():
        "the server ended a connection to {at}";
    // Wrong credentials, locked accounts, hosts that may not connect.
    &[
        "1044", "1045", "1129", "1130", "1251", "1275", "1524", "1698", "1820", "1862", "3118",
        "3159", "4151",
    ] => fails(Denied):
        "{at} does not let this user in: check the user, the password, the allowed client host, and the user's rights on the database";
    // No right to a table, a column or a statement. New rights on a database take effect on new
    // connections.
    &["1142", "1143", "1227", "1370"] => fails(Denied).damages(Damage::Server):
        "this user lacks rights on {table}: {grant}";
    // A full disk or table, no memory, an error of the storage engine.
    &[
        "1021", "1114", "1030", "1037", "1038", "1041", "1135", "1197",
    ] => fails(Unavailable).unknown():
        "{at} cannot write: its disk or table is full, its memory is used up, or its storage has failed";
    &["1049"] => fails(Config): "{at}: there is no such database: create it, or correct the URL";
    &["1046"] => fails(Config):
        "the connections to {at} have no database: name the one with the lock table";
    &["1146"] => fails(Store).remedy(FailureRemedy::NoTable).retryable():
        "{table} does not exist, or was dropped while it was in use";
    &["1264", "1690"] => fails(Store):
        "the fencing tokens of this lock in {table} are used up (2^63-1 was stored): something else writes to the lock table";
    // The label: the width of the name is checked, and owners were never longer.
    &["1406"] => fails(Store):
        "{table} has a column that is too short, as an older version has made it: ALTER TABLE … MODIFY label VARCHAR(523)";
    &[
        "1054", "1064", "1136", "1364", "1366", "1048", "3819", "4025", "1451", "1452",
        "1644", "1442",
    ] => fails(Store):
        "{table} refused the statement: it was changed while it was in use, or has an extra constraint or trigger; create it with\n{create};";
    &["*"] => fails(Store).unknown(): "{at} refused the statement (error {code})";
};

/// The server's code for what went wrong, if it has answered.
pub(crate) fn code(error: &sqlx::Error) -> Option<String> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number().to_string())
}
