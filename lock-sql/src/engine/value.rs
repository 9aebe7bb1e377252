//! Values bound to a statement and returned by it, without driver types.

use std::fmt;
use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, Result};

/// A value in a statement or in a row.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Null,
    Text(String),
    Bytes(Vec<u8>),
    Int(i64),
    Bool(bool),
    /// Of texts or of numbers.
    List(Vec<Self>),
}

/// Without the value, which may be an owner id.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl Value {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
            _ => &[],
        }
    }
}

/// `From` for each type: what a value of it becomes.
macro_rules! from {
    ($($type:ty, $from:ident => $value:expr;)*) => {$(
        impl From<$type> for Value {
            fn from($from: $type) -> Self {
                $value
            }
        }
    )*};
}

from! {
    &str, text => Self::Text(text.to_owned());
    String, text => Self::Text(text);
    Vec<u8>, bytes => Self::Bytes(bytes);
    i64, number => Self::Int(number);
    bool, flag => Self::Bool(flag);
    Vec<Self>, items => Self::List(items);
    // In whole µs, rounded up: a lease must not be shorter than promised.
    Duration, time => Self::Int(micros(time));
    // 0 is no token, and stands for any.
    Option<FencingToken>, fence => Self::Int(fence.map_or(0, FencingToken::as_i64));
}

/// NULL, or a value.
pub(crate) fn nullable(value: Option<impl Into<Value>>) -> Value {
    value.map_or(Value::Null, Into::into)
}

/// One row of a reply.
#[derive(Debug)]
pub(crate) struct Row(pub(crate) Vec<Value>);

impl Row {
    pub(crate) fn value(&self, column: usize) -> &Value {
        self.0.get(column).unwrap_or(&Value::Null)
    }

    /// A number; 1 and 0 for a truth value.
    pub(crate) fn int(&self, column: usize) -> Result<i64> {
        self.optional_int(column)?.ok_or_else(strange)
    }

    pub(crate) fn optional_int(&self, column: usize) -> Result<Option<i64>> {
        match self.value(column) {
            Value::Null => Ok(None),
            Value::Int(number) => Ok(Some(*number)),
            Value::Bool(flag) => Ok(Some(i64::from(*flag))),
            _ => Err(strange()),
        }
    }

    pub(crate) fn flag(&self, column: usize) -> Result<bool> {
        Ok(self.int(column)? != 0)
    }

    /// A text, or bytes that are one.
    pub(crate) fn text(&self, column: usize) -> Result<&str> {
        self.optional_text(column)?.ok_or_else(strange)
    }

    pub(crate) fn optional_text(&self, column: usize) -> Result<Option<&str>> {
        match self.value(column) {
            Value::Null => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            Value::Bytes(bytes) => std::str::from_utf8(bytes).map(Some).map_err(|_| strange()),
            _ => Err(strange()),
        }
    }
}

/// The complete reply to a statement.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) rows: Vec<Row>,
    /// How many rows the statement has found, or changed.
    pub(crate) affected: u64,
    /// The statement was sent before, over a connection that ended without a reply.
    pub(crate) repeated: bool,
}

impl Reply {
    /// From a database that returns the rows that it has changed.
    pub(crate) fn of_rows(rows: impl Iterator<Item = sqlx::Result<Row>>) -> sqlx::Result<Self> {
        let rows: Vec<_> = rows.collect::<sqlx::Result<_>>()?;
        let affected = u64::try_from(rows.len()).unwrap_or(u64::MAX);
        Ok(Self { rows, affected, repeated: false })
    }
}

/// A stored value that none of our clients can have written.
fn strange() -> Error {
    Error::new(
        ErrorKind::Store,
        "the lock table holds a value of another type: something else writes to it",
    )
}

pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

pub(crate) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
