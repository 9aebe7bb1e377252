//! Locks of a store that may not be running yet.

use std::fmt;
use std::time::Duration;

use lock_core::kit::backoff::Backoff;
use lock_core::kit::connect_once::ConnectOnce;
use lock_core::{Locks, Result};

use crate::opening::Opening;

/// Locks of a store that the first call to need it connects, made by
/// [`ConnectBuilder::connect_lazy`](crate::ConnectBuilder::connect_lazy): for a service that may start before its store.
///
/// A store's capabilities are known only once it is connected, so this is not itself a [`Locks`]:
/// [`get`](Self::get) returns one. Clones share the connection.
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
    opening: Opening,
    link: ConnectOnce<Locks>,
}

impl LazyLocks {
    /// The time limit of one attempt. The store's own connect timeout is shorter unless it was set
    /// longer.
    const LIMIT: Duration = Duration::from_secs(60);
    /// The shortest and the longest pause after a failed attempt.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

    pub(crate) fn new(opening: Opening) -> Self {
        let backoff = Backoff::new(Self::PAUSES.0, Self::PAUSES.1);
        let link = ConnectOnce::new("the store", Self::LIMIT, backoff);
        Self { opening, link }
    }

    /// The locks, connecting first if necessary, by one attempt that all waiting callers share.
    /// After a failed attempt, the next call makes another one, up to two seconds later.
    ///
    /// # Errors
    ///
    /// Those of [`ConnectBuilder::connect`](crate::ConnectBuilder::connect).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the attempt continues, for the next call.
    pub async fn get(&self) -> Result<Locks> {
        let connect = || self.opening.clone().connect();
        self.link.get(Self::LIMIT + Self::PAUSES.1, connect).await
    }

    /// The locks, if they are connected. Never waits, so a program can shut down without connecting
    /// first.
    pub fn current(&self) -> Option<Locks> {
        self.link.current()
    }
}

/// Omits the store, whose settings may contain a password.
impl fmt::Debug for LazyLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyLocks")
            .field("is_connected", &self.current().is_some())
            .finish_non_exhaustive()
    }
}
