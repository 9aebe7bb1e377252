//! What the harness does with the servers of any store.

use std::fmt;
use std::net::SocketAddr;

use lock_core::async_trait;

use crate::Unavailable;
use crate::server::Server;

/// The servers of one store.
#[async_trait]
pub trait Servers: fmt::Debug + Send + Sync + 'static {
    /// The URL from a variable, if they are not the test's own.
    fn foreign(&self) -> Option<&str> {
        None
    }

    /// Where clients reach each of the test's own servers.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// Freezes all (SIGSTOP): connections stay open, nothing is answered.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if they must not be disturbed, [`Unavailable::broken`] if one does not run.
    fn freeze(&self) -> Result<(), Unavailable>;

    /// Ends [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// As of `freeze`.
    fn thaw(&self) -> Result<(), Unavailable>;

    /// Kills all without warning, starts them again with the data they have acknowledged, and waits
    /// until they are ready.
    ///
    /// # Errors
    ///
    /// As of `freeze`, or if one does not start.
    async fn restart(&self) -> Result<(), Unavailable>;

    /// Waits until all are ready, whatever has happened to them.
    ///
    /// # Errors
    ///
    /// If they are not ready within a time that the implementation sets.
    async fn serve(&self) -> Result<(), Unavailable> {
        Ok(())
    }
}

#[async_trait]
impl Servers for Server {
    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address()]
    }

    fn freeze(&self) -> Result<(), Unavailable> {
        self.freeze()
    }

    fn thaw(&self) -> Result<(), Unavailable> {
        self.thaw()
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        self.restart().await
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
