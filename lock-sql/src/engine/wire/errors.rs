//! Why a statement failed, and what the database's error codes mean for a lock, with one table per
//! dialect.

use std::time::Duration;

use lock_core::{Error, ErrorKind};

/// Why a statement failed.
#[derive(Clone, Debug)]
pub(crate) struct StatementFailure {
    pub(crate) remedy: FailureRemedy,
    pub(crate) damage: Damage,
    pub(crate) error: Error,
}

/// What may be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureRemedy {
    /// Another client was writing. Nothing was done, and the same statement may succeed at once.
    Contended,
    /// The table no longer exists. Nothing was done.
    NoTable,
    /// The server accepts no more notifications. Nothing was done, and the same statement without
    /// one may succeed.
    FullQueue,
    /// The connection was lost, perhaps long ago, and perhaps after the statement was executed.
    Cut,
    /// Anything else.
    Failed,
}

/// Which connections are still usable after a statement has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// This one is still good.
    Nothing,
    /// This one has ended, or is about to.
    Connection,
    /// The server is read-only or shutting down: a new connection may reach another server.
    Server,
}

impl From<Error> for StatementFailure {
    fn from(error: Error) -> Self {
        Self { remedy: FailureRemedy::Failed, damage: Damage::Connection, error }
    }
}

impl From<StatementFailure> for Error {
    fn from(failure: StatementFailure) -> Self {
        failure.error
    }
}

/// What some codes mean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeRule {
    /// A `*` at the end matches any suffix.
    codes: &'static [&'static str],
    remedy: FailureRemedy,
    damage: Damage,
    kind: ErrorKind,
    unknown: bool,
    retryable: bool,
    text: &'static str,
}

impl CodeRule {
    /// The statement was rolled back, and may succeed at once.
    pub(crate) const fn contended(codes: &'static [&'static str]) -> Self {
        let text = "{at}: other clients kept writing to the same row";
        Self::fails(codes, ErrorKind::Unavailable, text).remedy(FailureRemedy::Contended)
    }

    /// The connection has ended, perhaps after the statement was executed.
    pub(crate) const fn cut(codes: &'static [&'static str], text: &'static str) -> Self {
        let rule = Self::fails(codes, ErrorKind::Unavailable, text);
        rule.remedy(FailureRemedy::Cut).damages(Damage::Connection).unknown()
    }

    /// `text` may contain `{at}`, `{table}`, `{grant}`, `{create}` and `{code}`.
    pub(crate) const fn fails(
        codes: &'static [&'static str],
        kind: ErrorKind,
        text: &'static str,
    ) -> Self {
        let (remedy, damage) = (FailureRemedy::Failed, Damage::Nothing);
        Self { codes, remedy, damage, kind, unknown: false, retryable: false, text }
    }

    pub(crate) const fn remedy(mut self, remedy: FailureRemedy) -> Self {
        self.remedy = remedy;
        self
    }

    pub(crate) const fn damages(mut self, damage: Damage) -> Self {
        self.damage = damage;
        self
    }

    /// It may still have taken effect.
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

/// The rules of a dialect: what some codes mean, and the text for people.
macro_rules! rules {
    ($($codes:expr => $means:ident($($kind:expr)?)$(.$and:ident($($with:expr)?))* $(: $text:expr)?;)*) => {
        &[$(CodeRule::$means($codes, $($kind,)? $($text)?)$(.$and($($with)?))*),*]
    };
}
pub(crate) use rules;

/// What the database said. The driver adds the line of PostgreSQL's source code from which it came,
/// which helps nobody.
fn said(error: &sqlx::Error) -> String {
    let said = error.as_database_error().map(|said| said.message().to_owned());
    format!("the database said: {}", said.unwrap_or_else(|| error.to_string()))
}

/// The database and its table as errors name them, without credentials, and what its codes mean.
#[derive(Clone, Debug)]
pub(crate) struct ErrorTexts {
    pub(crate) at: String,
    pub(crate) table: String,
    /// The statements that grant the rights and create the table.
    pub(crate) grant: String,
    pub(crate) create: String,
    /// The first rule that covers a code applies; the last one covers all.
    pub(crate) rules: &'static [CodeRule],
    /// What to check when no TLS connection can be made, and when the driver refuses its settings.
    pub(crate) hints: [&'static str; 2],
}

impl ErrorTexts {
    /// What the failure of a statement means. `code`: the database's own, if it has answered;
    /// `sent`: the statement is one of ours, not part of making a connection.
    pub(crate) fn failure(
        &self,
        code: Option<&str>,
        error: sqlx::Error,
        sent: bool,
    ) -> StatementFailure {
        let Some(code) = code else { return self.without_answer(error, sent) };
        let rule = self.rules.iter().find(|rule| rule.covers(code));
        let rule =
            rule.unwrap_or(const { &CodeRule::fails(&[], ErrorKind::Store, "{at}: {code}") });
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
        let shown = said(&error);
        let error = described.with_source_shown_as(error, shown);
        StatementFailure { remedy: rule.remedy, damage: rule.damage, error }
    }

    fn without_answer(&self, error: sqlx::Error, sent: bool) -> StatementFailure {
        let Self { at, hints: [tls, settings], .. } = self;
        // A refused certificate is reported as a read error.
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
                (ErrorKind::Unavailable, format!("cannot make a TLS connection to {at}: {tls}"))
            }
            // From the listening connection.
            sqlx::Error::PoolTimedOut => {
                (ErrorKind::NoAnswer, format!("{at} did not answer in time"))
            }
            sqlx::Error::Io(_) if !sent => {
                (ErrorKind::Unavailable, format!("cannot connect to {at}"))
            }
            sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => {
                (ErrorKind::Unavailable, format!("the connection to {at} was lost"))
            }
            // A truncated reply cannot be parsed.
            _ => (ErrorKind::Unavailable, format!("{at} sent an unexpected reply")),
        };
        let described = Error::new(kind, text).with_source(error);
        let error = if sent { described.with_unknown_effect() } else { described };
        StatementFailure { remedy: FailureRemedy::Cut, damage: Damage::Server, error }
    }

    pub(crate) fn no_table(&self, why: &str) -> Error {
        let Self { table, create, grant, .. } = self;
        Error::config(format!(
            "{table} does not exist, or this user may not see it, and {why}: ask an administrator to execute\n{create};\n{grant}"
        ))
    }

    /// It was there before.
    pub(crate) fn gone(&self) -> StatementFailure {
        let text = format!(
            "{} was dropped while it was in use: restore it, or start a program that creates it",
            self.table
        );
        let error = Error::new(ErrorKind::Store, text).with_retryable(true);
        StatementFailure { remedy: FailureRemedy::NoTable, damage: Damage::Connection, error }
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

/// Another client was writing the whole time. Nothing was written.
pub(crate) fn still_locked(at: &str, limit: Duration) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "{at} stayed locked by another writer for {limit:.1?}: look for a transaction that was left open"
        ),
    )
}

pub(crate) fn closed() -> StatementFailure {
    Error::new(ErrorKind::Closed, "this connection to the store was closed").into()
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn the_error_of_the_driver_can_be_reached() {
        let texts = ErrorTexts {
            at: "the server".to_owned(),
            table: "distlock".to_owned(),
            grant: String::new(),
            create: String::new(),
            rules: &[],
            hints: ["", ""],
        };
        for (code, error, shown) in [
            (
                Some("XX000"),
                sqlx::Error::RowNotFound,
                "the server: XX000: the database said: no rows",
            ),
            (None, sqlx::Error::WorkerCrashed, "the connection to the server was lost"),
            (
                None,
                sqlx::Error::Configuration("no port".into()),
                "cannot be used with these settings",
            ),
        ] {
            let kind = std::mem::discriminant(&error);
            let failed = texts.failure(code, error, true).error;
            assert!(failed.to_string().contains(shown), "{failed}");
            let driver = failed.source().and_then(|source| source.downcast_ref::<sqlx::Error>());
            assert_eq!(driver.map(std::mem::discriminant), Some(kind), "{failed}");
        }
    }
}
