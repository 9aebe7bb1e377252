//! Statements with named parameters, the values bound to them, and the rows that they return, without
//! driver types.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, Result};

/// How a database writes the parameters of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceStyle {
    /// `$1`. A list is one array.
    Dollars,
    /// `?1`. A list has a place for each of its items.
    Numbers,
    /// `?`, even for a repeated name. Lists as above.
    Marks,
}

/// A statement for one table, prepared once per connection. Written with `:name` for a place and
/// `:[names]` for the places of a list.
#[derive(Clone)]
pub(crate) struct SqlStatement {
    /// With names.
    text: Arc<str>,
    sql: Arc<str>,
    /// What is bound: the value of this name, or this item of a list.
    places: Vec<(String, Option<usize>)>,
}

impl SqlStatement {
    /// `size`: how many places a list has.
    pub(crate) fn new(style: PlaceStyle, size: usize, text: &str) -> Self {
        let (mut sql, mut places) = (String::with_capacity(text.len()), Vec::new());
        let mut rest = text;
        while let Some(at) = rest.find(':') {
            let (before, after) = rest.split_at(at);
            sql.push_str(before);
            let is_list = after.starts_with(":[");
            let name = &after[1 + usize::from(is_list)..];
            let end = name.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            let (name, tail) = name.split_at(end.unwrap_or(name.len()));
            if name.is_empty() {
                // A cast, or the bounds of an array.
                let colons = after.len() - after.trim_start_matches(':').len();
                let next = after[colons..].find(':').map_or(after.len(), |next| colons + next);
                sql.push_str(&after[..next]);
                rest = &after[next..];
                continue;
            }
            let items: Vec<_> = match is_list {
                true => (0..size).map(Some).collect(),
                false => vec![None],
            };
            for (nth, item) in items.into_iter().enumerate() {
                if nth > 0 {
                    sql.push(',');
                }
                let place = (name.to_owned(), item);
                let known = places.iter().position(|known| *known == place);
                let number = match known.filter(|_| style != PlaceStyle::Marks) {
                    Some(at) => at + 1,
                    None => {
                        places.push(place);
                        places.len()
                    }
                };
                sql.push_str(&match style {
                    PlaceStyle::Dollars => format!("${number}"),
                    PlaceStyle::Numbers => format!("?{number}"),
                    PlaceStyle::Marks => "?".to_owned(),
                });
            }
            rest = if is_list { tail.trim_start_matches(']') } else { tail };
        }
        sql.push_str(rest);
        Self { text: text.into(), sql: sql.into(), places }
    }

    /// The statement with its values, ready to be sent.
    pub(crate) fn bind<'v>(&self, values: &Values<'v>) -> Query<'v> {
        let value = |(name, item): &(String, Option<usize>)| {
            let value = values.get(name);
            debug_assert!(value.is_some(), "nothing is bound to {name} in {}", self.text);
            match (value, item) {
                (Some(SqlValue::List(items)), Some(item)) => {
                    items.get(*item).or(items.last()).cloned()
                }
                (value, _) => value.cloned(),
            }
            .unwrap_or(SqlValue::Null)
        };
        Query::new(Arc::clone(&self.sql), self.places.iter().map(value).collect())
    }

    /// The statement with NULL in all its places.
    pub(crate) fn bare(&self) -> Query<'static> {
        Query::new(Arc::clone(&self.sql), vec![SqlValue::Null; self.places.len()])
    }
}

/// As it was written.
impl fmt::Debug for SqlStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A statement with its values.
pub(crate) struct Query<'v> {
    pub(crate) sql: Arc<str>,
    pub(crate) values: Vec<SqlValue<'v>>,
}

impl<'v> Query<'v> {
    pub(crate) fn new(sql: impl Into<Arc<str>>, values: Vec<SqlValue<'v>>) -> Self {
        Self { sql: sql.into(), values }
    }
}

/// The bound values, by name; of two with one name, the last. If a list has fewer items than the statement has
/// places, its last item is repeated.
#[derive(Clone, Default)]
pub(crate) struct Values<'v> {
    named: Vec<(&'static str, SqlValue<'v>)>,
}

impl<'v> Values<'v> {
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<SqlValue<'v>>) -> Self {
        self.named.push((name, value.into()));
        self
    }

    fn get(&self, name: &str) -> Option<&SqlValue<'v>> {
        self.named.iter().rfind(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

/// A value in a statement or in a row.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum SqlValue<'v> {
    Null,
    Text(Cow<'v, str>),
    Bytes(Vec<u8>),
    Int(i64),
    Bool(bool),
    /// Of texts or of numbers.
    List(Vec<Self>),
}

/// Without the value, which may be an owner id.
impl fmt::Debug for SqlValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl SqlValue<'_> {
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
        impl<'v> From<$type> for SqlValue<'v> {
            fn from($from: $type) -> Self {
                $value
            }
        }
    )*};
}

from! {
    &'v str, text => Self::Text(text.into());
    String, text => Self::Text(text.into());
    Cow<'v, str>, text => Self::Text(text);
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
pub(crate) fn nullable<'v>(value: Option<impl Into<SqlValue<'v>>>) -> SqlValue<'v> {
    value.map_or(SqlValue::Null, Into::into)
}

/// One row of a reply.
#[derive(Debug)]
pub(crate) struct Row(pub(crate) Vec<SqlValue<'static>>);

impl Row {
    pub(crate) fn value(&self, column: usize) -> &SqlValue<'static> {
        self.0.get(column).unwrap_or(&SqlValue::Null)
    }

    /// A number; 1 and 0 for a truth value.
    pub(crate) fn int(&self, column: usize) -> Result<i64> {
        self.optional_int(column)?.ok_or_else(strange)
    }

    pub(crate) fn optional_int(&self, column: usize) -> Result<Option<i64>> {
        match self.value(column) {
            SqlValue::Null => Ok(None),
            SqlValue::Int(number) => Ok(Some(*number)),
            SqlValue::Bool(flag) => Ok(Some(i64::from(*flag))),
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
            SqlValue::Null => Ok(None),
            SqlValue::Text(text) => Ok(Some(text)),
            SqlValue::Bytes(bytes) => std::str::from_utf8(bytes).map(Some).map_err(|_| strange()),
            _ => Err(strange()),
        }
    }
}

/// The complete reply to a statement.
#[derive(Debug, Default)]
pub(crate) struct StatementReply {
    pub(crate) rows: Vec<Row>,
    /// How many rows the statement has found, or changed.
    pub(crate) affected: u64,
    /// The statement was sent before, over a connection that ended without a reply.
    pub(crate) repeated: bool,
}

impl StatementReply {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_each_database_wants_them() {
        let text = "a = :name::text AND :fence IN (0, :name) AND b[2:] IN (:[names])";
        for (style, wanted) in [
            (PlaceStyle::Dollars, "a = $1::text AND $2 IN (0, $1) AND b[2:] IN ($3,$4)"),
            (PlaceStyle::Numbers, "a = ?1::text AND ?2 IN (0, ?1) AND b[2:] IN (?3,?4)"),
            (PlaceStyle::Marks, "a = ?::text AND ? IN (0, ?) AND b[2:] IN (?,?)"),
        ] {
            assert_eq!(&*SqlStatement::new(style, 2, text).sql, wanted);
        }
        let values = Values::default()
            .with("names", SqlValue::List(vec!["x".into()]))
            .with("name", "n")
            .with("fence", 7);
        let bound = SqlStatement::new(PlaceStyle::Marks, 2, text).bind(&values).values;
        let wanted = [SqlValue::from("n"), 7.into(), "n".into(), "x".into(), "x".into()];
        assert!(bound == wanted, "by name, and the last item again");
    }
}
