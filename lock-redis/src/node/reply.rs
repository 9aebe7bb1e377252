//! Reads the replies of scripts. A server's reply is input like any other: nothing is assumed.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Result;
use redis::Value;

use crate::error::unexpected;

/// The value of a field of `INFO`.
pub(crate) fn info_field(info: &Value, field: &str) -> Option<String> {
    let text = match info {
        Value::BulkString(text) => String::from_utf8_lossy(text),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.as_str().into(),
        _ => return None,
    };
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find_map(|(name, value)| (name == field).then(|| value.trim().to_owned()))
}

/// Whether a script that answers a number has answered 1.
pub(crate) fn is_one(what: &str, answer: &Value) -> Result<bool> {
    match answer {
        Value::Int(number) => Ok(*number == 1),
        other => Err(unexpected(what, other)),
    }
}

/// An answer that is a list.
#[derive(Debug)]
pub(crate) struct ReplyReader<'a> {
    what: &'a str,
    items: &'a [Value],
    whole: &'a Value,
}

impl<'a> ReplyReader<'a> {
    pub(crate) fn new(what: &'a str, value: &'a Value) -> Result<Self> {
        match value {
            Value::Array(items) => Ok(Self { what, items, whole: value }),
            _ => Err(unexpected(what, value)),
        }
    }

    /// Reads a list of so many lists, one after the other.
    pub(crate) fn lists<T>(
        what: &'a str,
        value: &'a Value,
        number: usize,
        read: impl Fn(Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let all = Self::new(what, value)?;
        if all.len() != number {
            return Err(all.wrong());
        }
        (0..number).map(|at| read(all.list(at)?)).collect()
    }

    /// Reads a list of so many numbers.
    pub(crate) fn numbers(what: &'a str, value: &'a Value, number: usize) -> Result<Vec<i64>> {
        let all = Self::new(what, value)?;
        if all.len() != number {
            return Err(all.wrong());
        }
        (0..number).map(|at| all.number(at)).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn number(&self, at: usize) -> Result<i64> {
        match self.items.get(at) {
            Some(Value::Int(number)) => Ok(*number),
            Some(Value::BulkString(digits)) => std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| digits.parse().ok())
                .ok_or_else(|| self.wrong()),
            _ => Err(self.wrong()),
        }
    }

    /// A number that is not negative.
    pub(crate) fn count(&self, at: usize) -> Result<u64> {
        u64::try_from(self.number(at)?).map_err(|_| self.wrong())
    }

    pub(crate) fn bytes(&self, at: usize) -> Result<&'a [u8]> {
        match self.items.get(at) {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            _ => Err(self.wrong()),
        }
    }

    /// The text at this position, for people to read.
    pub(crate) fn text(&self, at: usize) -> Result<String> {
        self.bytes(at).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Milliseconds. Redis returns a negative number for a key without an expiry.
    pub(crate) fn millis(&self, at: usize) -> Result<Option<Duration>> {
        self.number(at).map(|ms| u64::try_from(ms).ok().map(Duration::from_millis))
    }

    pub(crate) fn list(&self, at: usize) -> Result<Self> {
        match self.items.get(at) {
            Some(value) => Self::new(self.what, value),
            None => Err(self.wrong()),
        }
    }

    pub(crate) fn wrong(&self) -> lock_core::Error {
        unexpected(self.what, self.whole)
    }
}

/// The setting of this name in the answer to `CONFIG GET`, which is a map, or a list in RESP2.
pub(crate) fn setting(answer: &Value, name: &str) -> Option<String> {
    let text = |value: &Value| match value {
        Value::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
        _ => String::new(),
    };
    match answer {
        Value::Map(pairs) => {
            pairs.iter().find(|(key, _)| text(key) == name).map(|(_, value)| text(value))
        }
        Value::Array(parts) => {
            parts.chunks_exact(2).find(|pair| text(&pair[0]) == name).map(|pair| text(&pair[1]))
        }
        _ => None,
    }
}

/// The process that says this of itself, and since which promotion it is a master. The scripts have the same words.
pub(crate) fn process_in(info: &Value) -> Arc<str> {
    let parts =
        ["run_id", "master_replid"].map(|field| info_field(info, field).unwrap_or_default());
    parts.iter().map(|part| part.get(..20).unwrap_or(part)).collect::<String>().into()
}

/// Whether a script refuses its one request, or all of them, because the marker names another process than the caller.
pub(crate) fn names_another_process(answer: &Value) -> bool {
    let Value::Array(items) = answer else { return false };
    match &items[..] {
        [Value::Int(-1), Value::BulkString(why), ..] => why == b"restarted",
        [first, ..] => names_another_process(first),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_come_and_nothing_is_assumed() {
        let list = Value::Array(vec![
            Value::Int(7),
            Value::BulkString(b"-8".to_vec()),
            Value::BulkString(b"x".to_vec()),
            Value::Nil,
        ]);
        let reply = ReplyReader::new("a script", &list).unwrap();
        assert_eq!(reply.len(), 4);
        assert_eq!((reply.number(0).unwrap(), reply.number(1).unwrap()), (7, -8));
        assert_eq!(reply.count(0).unwrap(), 7);
        assert_eq!(reply.millis(0).unwrap(), Some(Duration::from_millis(7)));
        assert_eq!(reply.millis(1).unwrap(), None, "a key without an expiry");
        assert!(reply.count(1).is_err() && reply.text(0).is_err() && reply.list(0).is_err());
        assert!([2, 3, 4].iter().all(|at| reply.number(*at).is_err()));
        assert_eq!(reply.text(2).unwrap(), "x");
        assert!(ReplyReader::new("a script", &Value::Nil).is_err());
    }

    #[test]
    fn only_a_refusal_for_the_process_is_one() {
        let refused = |why: &str| {
            Value::Array(vec![Value::Int(-1), Value::BulkString(why.as_bytes().to_vec())])
        };
        let held = Value::Array(vec![Value::Int(1), Value::BulkString(b"restarted".to_vec())]);
        let of_many = |first: &Value| Value::Array(vec![first.clone(), refused("restarted")]);
        for answer in [refused("restarted"), of_many(&refused("restarted"))] {
            assert!(names_another_process(&answer), "{answer:?}");
        }
        for answer in [refused("none"), of_many(&held), held, Value::Array(vec![]), Value::Nil] {
            assert!(!names_another_process(&answer), "{answer:?}");
        }
    }

    #[test]
    fn a_setting_is_found_in_either_protocol() {
        let words = ["a", "1", "b", "2"].map(|word| Value::BulkString(word.into()));
        let [a, one, b, two] = words.clone();
        for answer in [Value::Map(vec![(a, one), (b, two)]), Value::Array(words.to_vec())] {
            assert_eq!(setting(&answer, "b").as_deref(), Some("2"));
            assert_eq!(setting(&answer, "1"), None);
        }
        assert_eq!(setting(&Value::Nil, "a"), None);
    }

    #[test]
    fn a_field_of_info_is_found_in_either_protocol() {
        let text = "# Server\r\nredis_version:7.0.15\r\nrun_id:ab:c\r\n";
        let format = redis::VerbatimFormat::Text;
        for info in [
            Value::BulkString(text.into()),
            Value::SimpleString(text.into()),
            Value::VerbatimString { format, text: text.into() },
        ] {
            assert_eq!(info_field(&info, "redis_version").as_deref(), Some("7.0.15"));
            assert_eq!(info_field(&info, "run_id").as_deref(), Some("ab:c"));
            assert_eq!(info_field(&info, "version"), None);
            assert_eq!(&*process_in(&info), "ab:c", "without replication");
        }
        assert_eq!(info_field(&Value::Int(1), "run_id"), None);
    }
}
