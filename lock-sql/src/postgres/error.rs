//! What PostgreSQL's error codes mean to a lock.

use lock_core::{Error, ErrorKind};

use crate::statements::TableName;
use crate::statements::postgres::create_table;

/// Why a statement was not executed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Somebody else was writing. Nothing was done, and the same statement may succeed at once.
    Contended,
    /// The connection's prepared statements are not there any more: a pooler hands each message to
    /// another server connection. Nothing was done.
    Pooled,
    /// The table is not there any more. Nothing was done.
    NoTable(Error),
    /// This connection does not write: the server has become a standby, or the role was made read-only
    /// when it was made. Nothing was done, and another connection may write.
    ReadOnly(Error),
    /// The server takes no more notifications. Nothing was done, and the same statement without one may
    /// succeed.
    FullQueue(Error),
    /// The connection was lost, perhaps long ago. Whether the statement was executed is not known.
    Cut(Error),
    /// Anything else.
    Failed(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Failure {
    /// An earlier copy of the statement may have been executed, whatever has become of this one.
    pub(super) fn with_unknown_effect(self) -> Self {
        match self {
            Self::Contended | Self::Pooled => self,
            Self::NoTable(error) => Self::NoTable(error.with_unknown_effect()),
            Self::ReadOnly(error) => Self::ReadOnly(error.with_unknown_effect()),
            Self::FullQueue(error) => Self::FullQueue(error.with_unknown_effect()),
            Self::Cut(error) => Self::Cut(error.with_unknown_effect()),
            Self::Failed(error) => Self::Failed(error.with_unknown_effect()),
        }
    }

    pub(super) fn into_error(self, endpoint: &str) -> Error {
        match self {
            Self::Contended | Self::Pooled => Error::new(
                ErrorKind::Unavailable,
                format!("{endpoint}: others were writing to the same row all the time"),
            ),
            Self::NoTable(error)
            | Self::ReadOnly(error)
            | Self::FullQueue(error)
            | Self::Cut(error)
            | Self::Failed(error) => error,
        }
    }
}

/// The server and the table as errors name them.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Host, port and database, and no credential.
    pub(super) endpoint: String,
    pub(super) table: TableName,
}

impl Place {
    /// What the failure of a statement means. `connecting`: nothing of ours was sent yet.
    pub(super) fn failure(&self, error: sqlx::Error, connecting: bool) -> Failure {
        let Some(code) = code(&error) else { return self.without_code(error, connecting) };
        match &*code {
            // Serialisation failure, deadlock, lock_timeout; a plan that the table's owner has made
            // obsolete.
            "40001" | "40P01" | "55P03" | "0A000" => Failure::Contended,
            "26000" | "42P05" => Failure::Pooled,
            "42P01" => Failure::NoTable(self.describe(&code, error)),
            "25006" => Failure::ReadOnly(self.describe(&code, error)),
            // No statement of ours meets another limit that has this code.
            "54000" => Failure::FullQueue(self.describe(&code, error)),
            // The server is starting or stopping or has crashed, or an operator has ended the connection.
            "57P01" | "57P02" | "57P03" | "57P05" => {
                Self::cut(self.describe(&code, error), connecting)
            }
            code if code.starts_with("08") => Self::cut(self.describe(code, error), connecting),
            code => Failure::Failed(self.describe(code, error)),
        }
    }

    /// While a connection is made nothing was sent that could have been executed.
    fn cut(error: Error, connecting: bool) -> Failure {
        Failure::Cut(if connecting { error } else { error.with_unknown_effect() })
    }

    fn without_code(&self, error: sqlx::Error, connecting: bool) -> Failure {
        let at = &self.endpoint;
        let failure = match &error {
            sqlx::Error::Configuration(_) => {
                return Failure::Failed(
                    Error::config(format!("{at}: a setting of the connection is wrong"))
                        .with_source(error),
                );
            }
            _ if is_tls(&error) => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{at}: no TLS connection can be made: look at sslmode and the certificates, and whether this program was built with TLS (feature `tls`)"
                ),
            ),
            // Of the connection that listens.
            sqlx::Error::PoolTimedOut => {
                Error::new(ErrorKind::Timeout, format!("{at} did not answer in time"))
            }
            sqlx::Error::Io(_) if connecting => {
                Error::new(ErrorKind::Unavailable, format!("no connection to {at} can be made"))
            }
            sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => {
                Error::new(ErrorKind::Unavailable, format!("the connection to {at} was lost"))
            }
            // A reply that ends in its middle reads as nonsense.
            _ => Error::new(ErrorKind::Unavailable, format!("{at} answered something unexpected")),
        };
        Self::cut(failure.with_source(error), connecting)
    }

    /// A statement may have been executed, and its answer was lost.
    pub(super) fn unanswered(&self) -> Error {
        let what = format!("a connection to {} has ended without an answer", self.endpoint);
        Error::new(ErrorKind::Unavailable, what).with_unknown_effect()
    }

    fn describe(&self, code: &str, error: sqlx::Error) -> Error {
        let (at, table) = (&self.endpoint, self.table.quoted());
        let described = match code {
            "25006" => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{at} is read-only: it is a standby, or default_transaction_read_only is on. Connect to the primary"
                ),
            ),
            "42501" => Error::new(
                ErrorKind::Denied,
                format!(
                    "{at} refuses this role: it needs GRANT SELECT, INSERT, UPDATE, DELETE ON {table}"
                ),
            ),
            "28P01" | "28000" => Error::new(
                ErrorKind::Denied,
                format!(
                    "{at} refuses the user or the password, or pg_hba.conf does not let this role in"
                ),
            ),
            "3D000" => Error::config(format!(
                "{at}: there is no such database: create it, or name another"
            )),
            "42P01" => Error::new(
                ErrorKind::Store,
                format!("{at}: the lock table {table} was dropped while it was in use"),
            )
            .with_retryable(true),
            "42703" | "42804" | "42P10" | "42883" => Error::new(
                ErrorKind::Store,
                format!(
                    "{at}: the lock table {table} has another shape than ours: {}",
                    self.remedy()
                ),
            ),
            "53300" => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{at} has too many connections: raise max_connections, or put a pooler before it"
                ),
            ),
            "54000" => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the queue of notifications of {at} is full: look for a session that listens and never ends its transaction"
                ),
            ),
            "57014" => Error::new(
                ErrorKind::Unavailable,
                format!("{at} has cancelled the statement: look at statement_timeout"),
            ),
            "22003" => Error::new(
                ErrorKind::Store,
                format!(
                    "{at}: the fencing tokens of this lock are used up (2^63-1 was stored): something else writes to the lock table"
                ),
            ),
            "57P01" | "57P02" | "57P03" | "57P05" => Error::new(
                ErrorKind::Unavailable,
                format!("{at} has ended the connection, or is starting or stopping"),
            ),
            code if code.starts_with("08") => {
                Error::new(ErrorKind::Unavailable, format!("the connection to {at} has failed"))
            }
            code if code.starts_with("53") => Error::new(
                ErrorKind::Unavailable,
                format!("{at} lacks disk, memory or another resource"),
            ),
            code if code.starts_with("23") => Error::new(
                ErrorKind::Store,
                format!("{at} refused the write: a constraint or trigger was added to {table}"),
            ),
            _ => Error::new(
                ErrorKind::Store,
                format!("{at} refused the statement (SQLSTATE {code})"),
            ),
        };
        described.with_source(error)
    }

    pub(super) fn remedy(&self) -> String {
        format!(
            "choose another with lock_table=…, or create it with\n{};",
            create_table(&self.table)
        )
    }
}

/// A certificate that is refused comes as an error of reading.
fn is_tls(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Tls(_) => true,
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// The SQLSTATE.
pub(super) fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_unknown_and_a_refused_one_is_not() {
        let place = Place { endpoint: "h:1/d".into(), table: TableName::default() };
        let io = || sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        let Failure::Cut(error) = place.failure(io(), false) else { panic!("cut") };
        assert_eq!(error.effect(), lock_core::Effect::Unknown);
        assert!(error.is_retryable());
        let Failure::Cut(error) = place.failure(io(), true) else { panic!("cut") };
        assert_eq!(error.effect(), lock_core::Effect::None);
    }
}
