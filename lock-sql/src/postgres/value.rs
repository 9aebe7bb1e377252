//! What is bound to a statement.

use std::fmt::Write as _;

use sqlx::Postgres;
use sqlx::postgres::PgArguments;

pub(super) type Query = sqlx::query::Query<'static, Postgres, PgArguments>;

/// A value. Statements cast each place to its type, so a value can also be written into the text.
#[derive(Clone)]
pub(super) enum Value {
    Text(Option<String>),
    Int(i64),
    Bool(bool),
    Texts(Vec<String>),
    Ints(Vec<i64>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Self {
        Self::Text(text.map(str::to_owned))
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

impl Value {
    pub(super) fn bind(self, query: Query) -> Query {
        match self {
            Self::Text(text) => query.bind(text),
            Self::Int(number) => query.bind(number),
            Self::Bool(flag) => query.bind(flag),
            Self::Texts(texts) => query.bind(texts),
            Self::Ints(numbers) => query.bind(numbers),
        }
    }

    fn write(&self, sql: &mut String) {
        match self {
            Self::Text(None) => sql.push_str("NULL"),
            Self::Text(Some(text)) => write_text(sql, text),
            Self::Int(number) => write_number(sql, *number),
            Self::Bool(flag) => sql.push_str(if *flag { "true" } else { "false" }),
            Self::Texts(texts) => write_array(sql, texts, |sql, text| write_text(sql, text)),
            Self::Ints(numbers) => {
                write_array(sql, numbers, |sql, number| write_number(sql, *number));
            }
        }
    }
}

/// The statement with its values in place of `$1` and so on, for the simple protocol. A pooler may give
/// each message to another server connection, so that a prepared statement is not there any more when
/// it is executed; a statement that is complete in itself always works.
///
/// A text is written in hexadecimal, so there is nothing in it that could be read as SQL, whatever
/// `standard_conforming_strings` is.
pub(super) fn inline(sql: &str, values: &[Value]) -> String {
    let mut text = String::with_capacity(sql.len() * 2);
    let mut rest = sql;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let digits = rest[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest[at + 1..].split_at(digits);
        let place: Option<usize> = number.parse().ok();
        match place.and_then(|place| values.get(place.checked_sub(1)?)) {
            Some(value) => value.write(&mut text),
            None => {
                text.push('$');
                text.push_str(number);
            }
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

fn write_text(sql: &mut String, text: &str) {
    sql.push_str("convert_from(decode('");
    for byte in text.bytes() {
        // Writing to a string does not fail.
        let _ = write!(sql, "{byte:02x}");
    }
    sql.push_str("','hex'),'UTF8')");
}

fn write_number(sql: &mut String, number: i64) {
    // In quotes, since the least number cannot be written without them.
    let _ = write!(sql, "'{number}'");
}

fn write_array<T>(sql: &mut String, values: &[T], write: impl Fn(&mut String, &T)) {
    sql.push_str("ARRAY[");
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            sql.push(',');
        }
        write(sql, value);
    }
    sql.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_so_that_nothing_is_read_as_sql() {
        let values = [
            Value::from("a'; \\ $2 ü"),
            Value::from(None::<&str>),
            Value::from(i64::MIN),
            Value::from(true),
            Value::Texts(vec!["x".into(), String::new()]),
            Value::Ints(vec![1, -2]),
        ];
        let sql = "SELECT $1::text, $2::text, $3::bigint, $4::bool, $5::text[], $6::bigint[], $10";
        assert_eq!(
            inline(sql, &values),
            "SELECT convert_from(decode('61273b205c20243220c3bc','hex'),'UTF8')::text, NULL::text, \
             '-9223372036854775808'::bigint, true::bool, \
             ARRAY[convert_from(decode('78','hex'),'UTF8'),convert_from(decode('','hex'),'UTF8')]::text[], \
             ARRAY['1','-2']::bigint[], $10"
        );
    }
}
