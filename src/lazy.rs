//! Locks of a store that may not be there yet.

use std::fmt;
use std::time::Duration;

use lock_core::kit::backoff::Backoff;
use lock_core::kit::connect_once::ConnectOnce;
use lock_core::{Locks, Result};

use crate::builder::ConnectBuilder;
use crate::target::Target;

/// Locks of a store that is connected by the first call that needs it, made by
/// [`ConnectBuilder::connect_lazy`]: for a service that may start before its store.
///
/// What a store promises is known only when it has been asked, so this is not a
/// [`Locks`] itself: [`get`](Self::get) returns one. Clones share the connection.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let lazy = distlock::builder("memory://").connect_lazy()?; // sends nothing
/// assert!(lazy.current().is_none());
///
/// // In each request:
/// let locks = lazy.get().await?;
/// let guard = locks.named("order:42")?.acquire().await?;
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LazyLocks {
    builder: ConnectBuilder,
    target: Target,
    link: ConnectOnce<Locks>,
}

impl LazyLocks {
    /// The longest time of one attempt. The store's own connect timeout is shorter, unless it was set so.
    const LIMIT: Duration = Duration::from_secs(60);
    /// The shortest and the longest pause after an attempt that has failed.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

    pub(crate) fn new(builder: ConnectBuilder, target: Target) -> Self {
        let backoff = Backoff::new(Self::PAUSES.0, Self::PAUSES.1);
        let link = ConnectOnce::new("the store", Self::LIMIT, backoff);
        Self { builder, target, link }
    }

    /// The locks, which are connected first if they are not: by one attempt, that all who wait share.
    /// After one that has failed, the next call makes another one, up to two seconds later.
    ///
    /// # Errors
    ///
    /// Those of [`ConnectBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the attempt goes on, for the next call.
    pub async fn get(&self) -> Result<Locks> {
        let connect = || self.builder.clone().open(self.target.clone());
        self.link.get(Self::LIMIT + Self::PAUSES.1, connect).await
    }

    /// The locks, if they are connected. Never waits: to end a program without connecting first.
    pub fn current(&self) -> Option<Locks> {
        self.link.current()
    }
}

impl fmt::Debug for LazyLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyLocks")
            .field("builder", &self.builder)
            .field("is_connected", &self.current().is_some())
            .finish_non_exhaustive()
    }
}
