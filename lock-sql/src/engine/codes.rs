//! What the error codes of a database mean to a lock: one table for each dialect.

use lock_core::{Error, ErrorKind};

use super::driver::{Failure, Left};

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

/// Which [`Failure`] it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Means {
    Contended,
    NoTable,
    FullQueue,
    Cut,
    Failed,
}

impl Rule {
    /// The statement was undone, and may succeed at once.
    pub(crate) const fn contended(codes: &'static [&'static str]) -> Self {
        Self::fails(codes, ErrorKind::Unavailable, "").means(Means::Contended)
    }

    /// The connection has ended, perhaps with the statement done.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
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

/// The database and its table as errors name them, without a credential.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) at: String,
    pub(crate) table: String,
    /// The statements that give the rights and make the table.
    pub(crate) grant: String,
    pub(crate) create: String,
    /// The first one that covers a code counts; the last one covers all.
    pub(crate) rules: &'static [Rule],
}

impl Names {
    fn rule(&self, code: &str) -> &Rule {
        let rule = self.rules.iter().find(|rule| rule.covers(code));
        rule.unwrap_or(
            &const { Rule::fails(&[], ErrorKind::Store, "{at}: error {code}").unknown() },
        )
    }

    /// What the failure of a statement means, and what is left of the connections. `sent`: it is one of
    /// ours, and not one of those that make a connection.
    pub(crate) fn failure(&self, code: &str, error: sqlx::Error, sent: bool) -> (Failure, Left) {
        let rule = self.rule(code);
        let failure = match rule.means {
            Means::Contended => Failure::Contended,
            Means::NoTable => Failure::NoTable(self.describe(code, error, sent)),
            Means::FullQueue => Failure::FullQueue(self.describe(code, error, sent)),
            Means::Cut => Failure::Cut(self.describe(code, error, sent)),
            Means::Failed => Failure::Failed(self.describe(code, error, sent)),
        };
        (failure, rule.left)
    }

    pub(crate) fn describe(&self, code: &str, error: sqlx::Error, sent: bool) -> Error {
        let rule = self.rule(code);
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
        described.with_source(error)
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
