//! What the server's error codes mean to a lock.

use lock_core::{Error, ErrorKind};
use sqlx::mysql::MySqlDatabaseError;

use crate::statements::TableName;
use crate::statements::mysql::create_table;

/// Why a statement was not executed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Somebody else had the row, or the whole table. Nothing was done, and the same statement may
    /// succeed at once.
    Contended,
    /// The connection has ended, perhaps with the statement done.
    Cut(Error),
    /// The table is not there.
    NoTable(Error),
    /// Anything else.
    Failed(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What is left of the connection on which a statement has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connections {
    /// It is as good as new.
    Usable,
    /// It has ended, or is about to.
    Broken,
    /// The server does not write, or is going away: the next one may be another server.
    AllBroken,
}

/// The database as errors name it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) endpoint: String,
    pub(super) table: TableName,
}

// https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html and
// https://mariadb.com/docs/server/reference/error-codes; the two share the numbers below 1900.

/// Lock wait, deadlock, a deadlock in a distributed transaction, a row that has changed since it was
/// read, a statement that an administrator or a time limit has ended, a statement that must be
/// prepared anew, a conflict at commit (Galera), a row that two have inserted at once. The statement
/// was undone.
const CONTENDED: &[u16] =
    &[1205, 1213, 1614, 1020, 1317, 1969, 3024, 1412, 1615, 1243, 1180, 1062, 3101];
/// Read-only by an option, by a transaction, by a mode of the server.
const READ_ONLY: &[u16] = &[1290, 1792, 1836, 3100];
/// Shutting down; not part of the cluster; too many connections of all and of this user.
const NOT_NOW: &[u16] = &[1053, 1047, 1040, 1203, 1226];
/// A connection that was killed, for a reason that was not to do with the statement.
const KILLED: &[u16] = &[1927, 3169, 4031, 1152, 1159, 1161];
/// Wrong credentials, locked accounts, hosts that may not connect.
const REFUSED: &[u16] =
    &[1044, 1045, 1129, 1130, 1251, 1275, 1524, 1698, 1820, 1862, 3118, 3159, 4151];
/// No right to a table, a column, a statement.
const NO_RIGHT: &[u16] = &[1142, 1143, 1227, 1370];
/// A full disk or table, no memory, an error of the storage engine.
const TROUBLE: &[u16] = &[1021, 1114, 1030, 1037, 1038, 1041, 1135, 1197];

impl Place {
    pub(super) fn table(&self) -> String {
        format!("the table `{}` of {}", self.table.as_str(), self.endpoint)
    }

    /// The rights that are needed, as the statement that gives them.
    pub(super) fn grant(&self) -> String {
        format!("GRANT SELECT, INSERT, UPDATE, DELETE ON `{}` TO …", self.table.as_str())
    }

    pub(super) fn failure(&self, error: sqlx::Error) -> (Failure, Connections) {
        let Some(number) = number(&error) else {
            return (self.broken(error), Connections::Broken);
        };
        let kept = match number {
            _ if READ_ONLY.contains(&number) || [1053, 1047].contains(&number) => {
                Connections::AllBroken
            }
            // A connection learns of new rights on its database when it is made.
            _ if NO_RIGHT.contains(&number) => Connections::AllBroken,
            _ if KILLED.contains(&number) => Connections::Broken,
            // A statement that the connection has forgotten is forgotten by its cache, too.
            1243 | 1615 => Connections::Broken,
            _ => Connections::Usable,
        };
        if CONTENDED.contains(&number) {
            return (Failure::Contended, kept);
        }
        let described = self.describe(number).with_source(error);
        let failure = match number {
            1146 => Failure::NoTable(described),
            _ if KILLED.contains(&number) || number == 1053 => {
                Failure::Cut(described.with_unknown_effect())
            }
            _ => Failure::Failed(described),
        };
        (failure, kept)
    }

    fn describe(&self, number: u16) -> Error {
        let at = &self.endpoint;
        match number {
            _ if READ_ONLY.contains(&number) => Error::new(
                ErrorKind::Unavailable,
                format!("{at} is read-only at the moment: a replica, or a primary under maintenance; use the server that is written to"),
            ),
            _ if NOT_NOW.contains(&number) => Error::new(
                ErrorKind::Unavailable,
                format!("{at} takes no requests at the moment, or has too many connections"),
            ),
            _ if KILLED.contains(&number) => {
                Error::new(ErrorKind::Unavailable, format!("the server has ended a connection to {at}"))
                    .with_unknown_effect()
            }
            _ if REFUSED.contains(&number) => Error::new(
                ErrorKind::Denied,
                format!("{at} does not let this user in: check the user, the password, the host that it may come from, and its rights on the database"),
            ),
            _ if NO_RIGHT.contains(&number) => Error::new(
                ErrorKind::Denied,
                format!("this user may not use {} as a lock must: {}", self.table(), self.grant()),
            ),
            _ if TROUBLE.contains(&number) => Error::new(
                ErrorKind::Unavailable,
                format!("{at} cannot write: its disk or table is full, its memory is used up, or its storage fails"),
            )
            .with_unknown_effect(),
            1049 => Error::config(format!("{at}: there is no such database: create it, or correct the URL")),
            1046 => Error::config(format!(
                "the connections to {at} have no database: name the one in which the lock table is"
            )),
            // The next call looks for it again, and creates it if it may.
            1146 => Error::new(
                ErrorKind::Store,
                format!("{} is not there, or was dropped while it was in use", self.table()),
            )
            .with_retryable(true),
            1264 | 1690 => Error::new(
                ErrorKind::Store,
                format!("the fencing tokens of this lock in {} are used up (2^63-1 was stored): something else writes to the lock table", self.table()),
            ),
            1054 | 1064 | 1136 | 1364 | 1366 | 1406 | 1048 | 3819 | 4025 | 1451 | 1452 | 1644 | 1442 => Error::new(
                ErrorKind::Store,
                format!("{} refused the statement: it was changed while it was in use, or has a constraint or trigger of its own; create it with\n{};", self.table(), create_table(&self.table)),
            ),
            _ => Error::new(ErrorKind::Store, format!("{at} refused the statement"))
                .with_unknown_effect(),
        }
    }

    /// No answer from the server: the connection has ended, perhaps with our statement done.
    fn broken(&self, error: sqlx::Error) -> Failure {
        let at = &self.endpoint;
        let described = match &error {
            sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => {
                return Failure::Cut(self.unanswered().with_source(error));
            }
            sqlx::Error::Protocol(_) => Error::new(
                ErrorKind::Unavailable,
                format!("{at} answered something that is not MySQL's protocol"),
            ),
            _ => Error::new(ErrorKind::Store, format!("{at} answered something unexpected")),
        };
        Failure::Failed(described.with_unknown_effect().with_source(error))
    }

    pub(super) fn unanswered(&self) -> Error {
        let what = format!("a connection to {} has ended without an answer", self.endpoint);
        Error::new(ErrorKind::Unavailable, what).with_unknown_effect()
    }

    /// The row was written, and nobody knows how.
    pub(super) fn untold(&self) -> Error {
        Error::new(
            ErrorKind::Store,
            format!("the reply of {} to an UPDATE has not the number that the statement gave to LAST_INSERT_ID: use a proxy that hands it on, or none", self.endpoint),
        )
        .with_unknown_effect()
    }

    /// Why no connection could be made. No statement of ours was sent.
    pub(super) fn unreachable(&self, error: sqlx::Error) -> Error {
        let at = &self.endpoint;
        if let Some(number) = number(&error) {
            return self.describe(number).with_source(error);
        }
        // A certificate that is refused comes as invalid data.
        let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::InvalidData;
        let tls = match &error {
            sqlx::Error::Tls(_) => true,
            sqlx::Error::Io(error) => refused(error),
            _ => false,
        };
        match error {
            _ if tls => Error::new(
                ErrorKind::Unavailable,
                format!("no TLS connection to {at}: check ssl-mode, ssl-ca and the server's certificate"),
            ),
            // The driver needs TLS for the password of `caching_sha2_password`.
            sqlx::Error::Configuration(_) => Error::config(format!(
                "{at} cannot be used with these settings: a MySQL server that asks for the password needs TLS (the feature `tls`), or a user with mysql_native_password"
            )),
            _ => Error::new(ErrorKind::Unavailable, format!("no connection to {at} can be made")),
        }
        .with_source(error)
    }
}

pub(super) fn number(error: &sqlx::Error) -> Option<u16> {
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}
