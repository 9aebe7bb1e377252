//! Self-contained statements, for poolers.

use std::fmt::Write as _;

use crate::engine::value::Value;

/// The statement with its values in place of `$1` and so on, for the simple protocol. A pooler may
/// give each message to another server connection, so a prepared statement may be missing when it
/// is executed; a self-contained statement always works.
///
/// Text is written in hexadecimal, so nothing in it can be read as SQL, whatever
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
            Some(value) => write(&mut text, value),
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

/// Writes a value so that nothing in it could be read as SQL. Statements cast each place to its
/// type.
fn write(sql: &mut String, value: &Value) {
    match value {
        Value::Null => sql.push_str("NULL"),
        Value::Text(text) => write_bytes(sql, text.as_bytes()),
        Value::Bytes(bytes) => write_bytes(sql, bytes),
        // In quotes, since the least number cannot be written without them.
        Value::Int(number) => {
            let _ = write!(sql, "'{number}'");
        }
        Value::Bool(flag) => sql.push_str(if *flag { "true" } else { "false" }),
        Value::List(items) => {
            sql.push_str("ARRAY[");
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    sql.push(',');
                }
                write(sql, item);
            }
            sql.push(']');
        }
    }
}

fn write_bytes(sql: &mut String, bytes: &[u8]) {
    sql.push_str("convert_from(decode('");
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(sql, "{byte:02x}");
    }
    sql.push_str("','hex'),'UTF8')");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_so_that_nothing_is_read_as_sql() {
        let values = [
            Value::from("a'; \\ $2 ü"),
            Value::Null,
            Value::from(i64::MIN),
            Value::from(true),
            Value::List(vec!["x".into(), "".into()]),
            Value::List(vec![1.into(), (-2).into()]),
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
