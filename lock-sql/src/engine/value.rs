//! What is bound to a statement, and what it answers: no type of the driver's.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, Result};

/// The text of a statement, prepared once per connection.
pub(crate) type Sql = Arc<str>;

/// A statement with its values, ready to be sent.
#[derive(Clone)]
pub(crate) struct Query {
    pub(crate) sql: Sql,
    pub(crate) values: Vec<Value>,
}

impl Query {
    pub(crate) fn new(sql: &Sql) -> Self {
        Self { sql: Arc::clone(sql), values: Vec::new() }
    }

    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Binds as many values as the statement has places. NULL, for those that are left, is equal to
    /// nothing.
    pub(crate) fn bind_places(mut self, values: &[Value], places: usize) -> Self {
        self.values.extend(values.iter().cloned());
        self.values.extend((values.len()..places).map(|_| Value::Null));
        self
    }
}

/// A value in a statement or in a row.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Null,
    Text(String),
    Bytes(Vec<u8>),
    Int(i64),
    Bool(bool),
    Texts(Vec<String>),
    Ints(Vec<i64>),
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

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_vec())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// One row of an answer.
#[derive(Debug)]
pub(crate) struct Row(pub(crate) Vec<Value>);

impl Row {
    pub(crate) fn value(&self, column: usize) -> Value {
        self.0.get(column).cloned().unwrap_or(Value::Null)
    }

    /// A number; 1 and 0 for a truth value.
    pub(crate) fn int(&self, column: usize) -> Result<i64> {
        match self.0.get(column) {
            Some(Value::Int(number)) => Ok(*number),
            Some(Value::Bool(flag)) => Ok(i64::from(*flag)),
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
        match self.0.get(column) {
            Some(Value::Null) => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::Bytes(bytes)) => {
                std::str::from_utf8(bytes).map(Some).map_err(|_| strange())
            }
            _ => Err(strange()),
        }
    }

    pub(crate) fn duration(&self, column: usize) -> Result<Duration> {
        Ok(from_micros(self.int(column)?))
    }
}

/// What a statement has answered, up to its end.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) rows: Vec<Row>,
    /// How many rows the statement has found, or changed.
    pub(crate) affected: u64,
    /// The statement was sent before, over a connection that has ended without an answer.
    pub(crate) repeated: bool,
}

/// A stored value that nobody of ours can have written.
fn strange() -> Error {
    Error::new(
        ErrorKind::Store,
        "the lock table holds a value of another type: something else writes to it",
    )
}

/// In whole µs, rounded up: the lease must not be shorter than promised.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

pub(crate) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// 0 is no token, and stands for any.
pub(crate) fn fence_or_zero(fence: Option<FencingToken>) -> i64 {
    fence.map_or(0, FencingToken::as_i64)
}
