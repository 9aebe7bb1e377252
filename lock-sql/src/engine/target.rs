//! The database that a configuration names.

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::Arc;

use lock_core::{LockBackend, Result, async_trait};

use super::settings::Settings;

/// A database, in the terms of its dialect. It does not change, so it survives a panic.
#[async_trait]
pub(crate) trait Target: Send + Sync + RefUnwindSafe {
    /// The name of the dialect.
    fn dialect(&self) -> &'static str;
    /// The database as errors name it, without credentials.
    fn endpoint(&self) -> String;
    async fn open(&self, settings: &Settings) -> Result<Arc<dyn LockBackend>>;
}

/// Shows no credentials, as a derived one would.
impl fmt::Debug for dyn Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(self.dialect()).field(&self.endpoint()).finish()
    }
}
