//! The name of the table: the only text that is put into a statement. Values are bound.

use lock_core::{Error, Result};

/// A table name that can stand in a statement of any dialect: a letter or `_`, then letters, digits
/// and `_`, at most 63 bytes (the limit of PostgreSQL, the shortest of the three).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableName(String);

impl TableName {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let mut bytes = name.bytes();
        let starts_well =
            bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
        if !starts_well
            || !bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            || name.len() > 63
        {
            return Err(Error::config(format!(
                "lock_table={name:?} is not a table name: use 1 to 63 letters, digits and `_`, and no digit first"
            )));
        }
        if name.to_ascii_lowercase().starts_with("sqlite_") {
            return Err(Error::config(format!(
                "lock_table={name:?} starts with `sqlite_`, which SQLite keeps for itself: choose another name"
            )));
        }
        Ok(Self(name.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// In standard SQL quotes, which preserve upper and lower case.
    pub(crate) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self("distlock".to_owned())
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
    }
}
