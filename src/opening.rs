//! A store that is still to be connected, and the settings of its locks.

use std::sync::Arc;

use lock_core::{Error, ErrorKind, Locks, LocksBuilder, Operation, Result};
use tokio::runtime::Handle;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

use crate::target::Target;

/// A setting waits for the backend, since the core's builder starts with one.
pub(crate) type Setting = Arc<dyn Fn(LocksBuilder) -> LocksBuilder + Send + Sync>;

/// Everything that it takes to connect.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) target: Target,
    /// Where the store is connected and locks are kept, if not on the caller's runtime.
    pub(crate) runtime: Option<Handle>,
    #[cfg(feature = "metrics")]
    pub(crate) metrics: lock_core::MetricsLayer,
    pub(crate) settings: Vec<Setting>,
}

impl Opening {
    /// Connects to the store.
    pub(crate) async fn connect(self) -> Result<Locks> {
        let opened = match &self.runtime {
            // A driver stays on the runtime in which it connects.
            Some(runtime) => {
                let opening = AbortOnDropHandle::new(runtime.spawn(self.target.open()));
                opening.await.map_err(ended)?
            }
            None => self.target.open().await,
        };
        let mut locks = opened.map_err(|error| error.in_operation(Operation::Connect))?;
        #[cfg(feature = "metrics")]
        {
            locks = locks.layer(self.metrics);
        }
        if let Some(runtime) = self.runtime {
            locks = locks.runtime(runtime);
        }
        let locks = self.settings.iter().fold(locks, |locks, set| set(locks));
        locks.build().map_err(|error| error.in_operation(Operation::Connect))
    }
}

fn ended(error: JoinError) -> Error {
    Error::new(ErrorKind::Closed, "the runtime on which the store was being connected has ended")
        .with_source(error)
        .in_operation(Operation::Connect)
}
