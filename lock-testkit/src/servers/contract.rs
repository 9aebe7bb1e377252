//! What a harness does with the servers of any store.

use std::fmt;
use std::net::SocketAddr;

use conformance_tests::Unavailable;
use lock_core::async_trait;

/// The servers of one store, as [`proxied`](crate::proxied) uses them.
#[async_trait]
pub trait Servers: fmt::Debug + Send + Sync + 'static {
    /// The URL that a variable names, if they are not the test's own.
    fn foreign(&self) -> Option<&str> {
        None
    }

    /// Where clients reach each server of the test's own.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// Freezes all (SIGSTOP): connections stay open, nothing is answered.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if they are not the test's own; [`Unavailable::broken`] if one has ended.
    fn freeze(&self) -> Result<(), Unavailable>;

    /// Ends [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze).
    fn thaw(&self) -> Result<(), Unavailable>;

    /// Kills all without warning, starts them again with the data that they have acknowledged, and waits
    /// until they serve.
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze), and if one does not start.
    async fn restart(&self) -> Result<(), Unavailable>;

    /// Waits until all serve, after whatever has happened to them.
    ///
    /// # Errors
    ///
    /// If one does not.
    async fn serve(&self) -> Result<(), Unavailable> {
        Ok(())
    }
}
