//! Which table is used, and how: what all dialects share.

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, LockBackend, Result, async_trait};
use lock_kit::settings::{Between, Parameter, ReadBy, Words};
use lock_kit::url::Params;

/// The URL parameters that all dialects of this backend share. A dialect may have more.
pub const PARAMETERS: &[&str] =
    &[CONNECT_TIMEOUT.name, CREATE_TABLE.name, RETENTION.name, TABLE.name];

const TABLE: Parameter<ReadBy<TableName>> = Parameter {
    name: "lock_table",
    text: "the table: 1 to 63 letters, digits and `_`",
    default: "`distlock`",
    values: TableName::new,
};
const CREATE_TABLE: Parameter<Words<bool>> = Parameter {
    name: "lock_create_table",
    text: "`true` or `false`: create the table if it is missing",
    default: "`true`",
    values: &[("true", true), ("false", false)],
};
const RETENTION: Parameter<Between> = Parameter {
    name: "lock_retention",
    text: "how long the row of a free lock is kept",
    default: "`1h`",
    values: Duration::ZERO..=Duration::MAX,
};
const CONNECT_TIMEOUT: Parameter<Between> = Parameter {
    name: "lock_connect_timeout",
    text: "the time limit for opening the database",
    default: "`10s`",
    values: Duration::from_millis(1)..=Duration::from_secs(3600),
};

/// The name of the row that holds the greatest fence of all deleted rows. No lock can have this
/// name: U+0001 is a control character, and not the one that separates prefix and name.
pub(crate) const MARK: &str = "\u{1}fence";
/// How many rows are read in one step of a sweep.
pub(crate) const PAGE: usize = 512;
/// How many rows one statement deletes.
pub(crate) const SWEPT: usize = 64;
/// How many names one statement looks at.
pub(crate) const SEEN: usize = 64;
/// The most rows that one statement renews: this keeps it short, and a deadlock undoes no more than these.
pub(crate) const BATCH: usize = 500;

/// What [`PARAMETERS`] set.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) table: TableName,
    /// Only PostgreSQL has schemas.
    pub(crate) schema: Option<String>,
    pub(crate) retention: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) create_table: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            table: TableName::default(),
            schema: None,
            retention: Duration::from_secs(3600),
            connect_timeout: Duration::from_secs(10),
            create_table: true,
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> Result<()> {
        CONNECT_TIMEOUT.check(self.connect_timeout)
    }

    /// Takes [`PARAMETERS`] out of the parameters of a URL.
    pub(crate) fn read(params: &mut Params) -> Result<Self> {
        let default = Self::default();
        Ok(Self {
            table: TABLE.read(params)?.unwrap_or(default.table),
            schema: None,
            retention: RETENTION.read(params)?.unwrap_or(default.retention),
            connect_timeout: CONNECT_TIMEOUT.read(params)?.unwrap_or(default.connect_timeout),
            create_table: CREATE_TABLE.read(params)?.unwrap_or(default.create_table),
        })
    }
}

/// A table name that can stand in a statement of any dialect: a letter or `_`, then letters, digits
/// and `_`, at most 63 bytes (the limit of PostgreSQL, the shortest of the three).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableName {
    name: String,
    schema: Option<String>,
}

impl TableName {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let starts_well = !name.starts_with(|first: char| first.is_ascii_digit());
        if name.is_empty() || name.len() > 63 || !starts_well || !name.chars().all(fits) {
            return Err(Error::config(format!(
                "lock_table={name:?} is not a table name: use 1 to 63 letters, digits and `_`, and no digit first"
            )));
        }
        if name.to_ascii_lowercase().starts_with("sqlite_") {
            return Err(Error::config(format!(
                "lock_table={name:?} starts with `sqlite_`, which SQLite keeps for itself: choose another name"
            )));
        }
        Ok(Self { name: name.to_owned(), schema: None })
    }

    /// The table of this name in a [schema](schema_name), wherever a search path leads to.
    pub(crate) fn within(&self, schema: &str) -> Self {
        Self { schema: Some(schema.to_owned()), ..self.clone() }
    }

    /// Without the schema.
    pub(crate) fn as_str(&self) -> &str {
        &self.name
    }

    /// In standard SQL quotes, which preserve upper and lower case.
    pub(crate) fn quoted(&self) -> String {
        match &self.schema {
            Some(schema) => format!("\"{schema}\".\"{}\"", self.name),
            None => format!("\"{}\"", self.name),
        }
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self { name: "distlock".to_owned(), schema: None }
    }
}

/// A schema that can stand in a statement, in quotes: letters of any script, digits, `_` and `-`.
pub(crate) fn schema_name(name: &str) -> Result<String> {
    let fits = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-');
    if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
        return Err(Error::config(format!(
            "the schema {name:?} cannot be used: name one by lock_schema=… that has 1 to 63 letters, digits, `_` and `-`"
        )));
    }
    Ok(name.to_owned())
}

/// A database, in the terms of its dialect. It does not change, so it survives a panic.
#[async_trait]
pub(crate) trait SqlTarget: Send + Sync + RefUnwindSafe {
    /// The name of the dialect.
    fn dialect(&self) -> &'static str;
    /// The URL parameters that only this dialect has.
    fn parameters(&self) -> &'static [&'static str];
    /// The database as errors name it, without credentials.
    fn endpoint(&self) -> String;
    async fn open(&self, settings: &Settings) -> Result<Arc<dyn LockBackend>>;
}

/// Shows no credentials, as a derived one would.
impl fmt::Debug for dyn SqlTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(self.dialect()).field(&self.endpoint()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_identifiers_pass() {
        for good in ["distlock", "_l", "App_Locks2", &"x".repeat(63)] {
            assert_eq!(TableName::new(good).unwrap().as_str(), good);
        }
        for bad in
            ["", "2x", "a b", "a;b", "a\"b", "a.b", "é", "x'--", "sqlite_master", &"x".repeat(64)]
        {
            assert!(TableName::new(bad).is_err(), "{bad}");
        }
        for good in ["public", "my-app", "7", "Käse"] {
            let table = TableName::default().within(&schema_name(good).unwrap());
            assert_eq!(table.quoted(), format!("\"{good}\".\"distlock\""));
        }
        for bad in ["", "a.b", "a b", "a\"b", "$1", ":x", "{t}", &"x".repeat(64)] {
            assert!(schema_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_page_says_of_each_parameter_what_is_declared() {
        let rows = [TABLE.row(), CREATE_TABLE.row(), RETENTION.row(), CONNECT_TIMEOUT.row()];
        assert!(include_str!("../../../README.md").contains(&rows.concat()), "{}", rows.concat());
        let Settings { table, retention, connect_timeout, create_table, .. } = Settings::default();
        assert_eq!(TABLE.default, format!("`{}`", table.as_str()));
        assert_eq!(CREATE_TABLE.default, format!("`{create_table}`"));
        assert_eq!((RETENTION.default, retention.as_secs()), ("`1h`", 3600));
        assert_eq!(CONNECT_TIMEOUT.default, format!("`{connect_timeout:?}`"));
    }
}
