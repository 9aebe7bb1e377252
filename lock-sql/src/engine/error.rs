//! Why a statement was not executed, and what the error codes of a database mean to a lock: one table
//! for each dialect.

use std::time::Duration;

use lock_core::{Error, ErrorKind};

/// Why a statement was not executed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) means: Means,
    pub(crate) left: Left,
    pub(crate) error: Error,
}

/// What may be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// Somebody else was writing. Nothing was done, and the same statement may succeed at once.
    Contended,
    /// The table is not there any more. Nothing was done.
    NoTable,
    /// The server takes no more notifications. Nothing was done, and the same statement without one may
    /// succeed.
    FullQueue,
    /// The connection was lost, perhaps long ago, and perhaps with the statement done.
    Cut,
    /// Anything else.
    Failed,
}

/// What is left of the connections when a statement has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// This one is as good as new.
    Usable,
    /// This one has ended, or is about to.
    Broken,
    /// The server does not write, or is going away: the next one may be another server.
    AllBroken,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { means: Means::Failed, left: Left::Broken, error }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// What some codes mean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// With a `*` at the end: all that begin so.
    codes: &'static [&'static str],
    means: Means,
    left: Left,
    kind: ErrorKind,
    unknown: bool,
    retryable: bool,
    text: &'static str,
}

impl Rule {
    /// The statement was undone, and may succeed at once.
    pub(crate) const fn contended(codes: &'static [&'static str]) -> Self {
        let text = "{at}: others were writing to the same row all the time";
        Self::fails(codes, ErrorKind::Unavailable, text).means(Means::Contended)
    }

    /// The connection has ended, perhaps with the statement done.
    pub(crate) const fn cut(codes: &'static [&'static str], text: &'static str) -> Self {
        let rule = Self::fails(codes, ErrorKind::Unavailable, text);
        rule.means(Means::Cut).leaves(Left::Broken).unknown()
    }

    /// `text` may have `{at}`, `{table}`, `{grant}`, `{create}` and `{code}`.
    pub(crate) const fn fails(
        codes: &'static [&'static str],
        kind: ErrorKind,
        text: &'static str,
    ) -> Self {
        let (means, left) = (Means::Failed, Left::Usable);
        Self { codes, means, left, kind, unknown: false, retryable: false, text }
    }

    pub(crate) const fn means(mut self, means: Means) -> Self {
        self.means = means;
        self
    }

    pub(crate) const fn leaves(mut self, left: Left) -> Self {
        self.left = left;
        self
    }

    /// It may have been done all the same.
    pub(crate) const fn unknown(mut self) -> Self {
        self.unknown = true;
        self
    }

    pub(crate) const fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    fn covers(&self, code: &str) -> bool {
        self.codes.iter().any(|known| match known.strip_suffix('*') {
            Some(start) => code.starts_with(start),
            None => *known == code,
        })
    }
}

/// The database and its table as errors name them, without a credential, and what its codes mean.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) at: String,
    pub(crate) table: String,
    /// The statements that give the rights and make the table.
    pub(crate) grant: String,
    pub(crate) create: String,
    /// The first one that covers a code counts; the last one covers all.
    pub(crate) rules: &'static [Rule],
    /// What to look at when no TLS connection can be made, and when the driver refuses its settings.
    pub(crate) hints: [&'static str; 2],
}

impl Names {
    /// What the failure of a statement means. `code`: the database's own, if it has answered; `sent`:
    /// the statement is one of ours, and not one of those that make a connection.
    pub(crate) fn failure(&self, code: Option<&str>, error: sqlx::Error, sent: bool) -> Failure {
        let Some(code) = code else { return self.without_answer(error, sent) };
        let rule = self.rules.iter().find(|rule| rule.covers(code));
        let rule = rule.unwrap_or(const { &Rule::fails(&[], ErrorKind::Store, "{at}: {code}") });
        let text = rule
            .text
            .replace("{at}", &self.at)
            .replace("{table}", &self.table)
            .replace("{grant}", &self.grant)
            .replace("{create}", &self.create)
            .replace("{code}", code);
        let mut described = Error::new(rule.kind, text);
        if rule.retryable {
            described = described.with_retryable(true);
        }
        if rule.unknown && sent {
            described = described.with_unknown_effect();
        }
        Failure { means: rule.means, left: rule.left, error: described.with_source(error) }
    }

    fn without_answer(&self, error: sqlx::Error, sent: bool) -> Failure {
        let Self { at, hints: [tls, settings], .. } = self;
        // A certificate that is refused comes as an error of reading.
        let is_tls = match &error {
            sqlx::Error::Tls(_) => true,
            sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
            _ => false,
        };
        let (kind, text) = match &error {
            sqlx::Error::Configuration(_) => {
                return Error::config(format!(
                    "{at} cannot be used with these settings: {settings}"
                ))
                .with_source(error)
                .into();
            }
            _ if is_tls => {
                (ErrorKind::Unavailable, format!("no TLS connection to {at} can be made: {tls}"))
            }
            // Of the connection that listens.
            sqlx::Error::PoolTimedOut => {
                (ErrorKind::NoAnswer, format!("{at} did not answer in time"))
            }
            sqlx::Error::Io(_) if !sent => {
                (ErrorKind::Unavailable, format!("no connection to {at} can be made"))
            }
            sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => {
                (ErrorKind::Unavailable, format!("the connection to {at} was lost"))
            }
            // A reply that ends in its middle reads as nonsense.
            _ => (ErrorKind::Unavailable, format!("{at} answered something unexpected")),
        };
        let described = Error::new(kind, text).with_source(error);
        let error = if sent { described.with_unknown_effect() } else { described };
        Failure { means: Means::Cut, left: Left::AllBroken, error }
    }

    pub(crate) fn no_table(&self, why: &str) -> Error {
        let Self { table, create, grant, .. } = self;
        Error::config(format!(
            "{table} is not there, and {why}: let an administrator execute\n{create};\n{grant}"
        ))
    }

    pub(crate) fn other_shape(&self, how: &str) -> Error {
        let Self { table, create, .. } = self;
        let text = format!(
            "{table} is not our lock table: {how}. Choose another with lock_table=…, or create it with\n{create};"
        );
        Error::new(ErrorKind::Store, text)
    }
}

/// No answer in time: the statement may be executed later.
pub(crate) fn no_answer(at: &str, limit: Duration) -> Error {
    Error::new(ErrorKind::NoAnswer, format!("{at} did not answer within {limit:.1?}"))
}

/// Somebody else was writing all the time. Nothing was written.
pub(crate) fn still_locked(at: &str, limit: Duration) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "{at} stayed locked by another writer for {limit:.1?}: look for a transaction that was left open"
        ),
    )
}

pub(crate) fn closed() -> Failure {
    Error::new(ErrorKind::Closed, "this connection to the store was closed").into()
}
