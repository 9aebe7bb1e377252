//! What a harness does with the servers of any store.

use std::fmt;
use std::net::SocketAddr;

use conformance_tests::Unavailable;
use lock_core::async_trait;

/// The servers of one store, as [`proxied`](crate::proxied) uses them.
#[async_trait]
pub trait Servers: fmt::Debug + Send + Sync + 'static {
    /// The URL from a variable, if they are not the test's own.
    fn foreign(&self) -> Option<&str> {
        None
    }

    /// Where clients reach each of the test's own servers.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// Freezes all (SIGSTOP): connections stay open, nothing is answered.
    fn freeze(&self) -> Result<(), Unavailable>;

    /// Ends [`freeze`](Self::freeze).
    fn thaw(&self) -> Result<(), Unavailable>;

    /// Kills all without warning, starts them again with the data they have acknowledged, and waits
    /// until they are ready.
    async fn restart(&self) -> Result<(), Unavailable>;

    /// Waits until all are ready, whatever has happened to them.
    async fn serve(&self) -> Result<(), Unavailable> {
        Ok(())
    }
}

/// Several servers of one kind, which know nothing of each other.
#[async_trait]
impl<S: Servers> Servers for Vec<S> {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.iter().flat_map(Servers::addresses).collect()
    }

    fn freeze(&self) -> Result<(), Unavailable> {
        self.iter().try_for_each(Servers::freeze)
    }

    fn thaw(&self) -> Result<(), Unavailable> {
        self.iter().try_for_each(Servers::thaw)
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        for server in self {
            server.restart().await?;
        }
        Ok(())
    }
}
