//! Which table to use, and how: the same for every database.

use std::time::Duration;

use lock_core::Result;
use lock_core::url::Params;

use super::table::TableName;

/// The URL parameters that all dialects of this backend share. A dialect may have more.
pub const PARAMETERS: &[&str] =
    &["lock_connect_timeout", "lock_create_table", "lock_retention", "lock_table"];

/// What [`PARAMETERS`] set.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) table: TableName,
    pub(crate) retention: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) create_table: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            table: TableName::default(),
            retention: Duration::from_secs(3600),
            connect_timeout: Duration::from_secs(10),
            create_table: true,
        }
    }
}

impl Settings {
    /// Takes [`PARAMETERS`] out of the parameters of a URL.
    pub(crate) fn take(&mut self, params: &mut Params) -> Result<()> {
        if let Some(name) = params.text("lock_table")? {
            self.table = TableName::new(&name)?;
        }
        if let Some(retention) = params.duration("lock_retention")? {
            self.retention = retention;
        }
        if let Some(limit) = params.duration("lock_connect_timeout")? {
            self.connect_timeout = limit;
        }
        let choices = [("true", true), ("false", false)];
        if let Some(allowed) = params.choice("lock_create_table", &choices)? {
            self.create_table = allowed;
        }
        Ok(())
    }
}
