//! A store, as seen by one client.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Capabilities, Claim, ClaimRequest, LockAdmin, Result};

/// One store, as seen by one client: used as `Arc<dyn LockBackend>`.
///
/// Implemented by store authors, called by the core and by [`LockLayer`](crate::LockLayer)s. Users
/// work with [`Locks`](crate::Locks). A wrapper must forward every method, including the provided
/// ones. The clauses and the legal call sequences are in the [module
/// documentation](crate::contract).
#[async_trait]
pub trait LockBackend: Debug + Send + Sync + 'static {
    /// A short name for errors and metrics, such as `redis`.
    fn name(&self) -> &'static str;

    /// What this store promises.
    fn capabilities(&self) -> Capabilities;

    /// A new contender. No I/O happens here: the owner id exists before the first byte is sent.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) or
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if this store cannot serve the request.
    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>>;

    /// Asks whether the store answers and grants us access.
    ///
    /// # Errors
    ///
    /// Whatever any call to the store can fail with.
    async fn ping(&self) -> Result<()>;

    /// Ends what the client holds as a whole: sessions, leases granted ahead, pools. Claims that
    /// are still alive may fail from then on.
    ///
    /// # Errors
    ///
    /// If the store did not confirm. Calling this again is harmless.
    async fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Inspection and forced release, where [`Capabilities::inspect`](crate::Capabilities) is
    /// declared.
    fn admin(&self) -> Option<&dyn LockAdmin> {
        None
    }
}

/// A shared backend is a backend.
#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend + ?Sized> LockBackend for Arc<B> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        (**self).claim(request)
    }

    async fn ping(&self) -> Result<()> {
        (**self).ping().await
    }

    async fn close(&self) -> Result<()> {
        (**self).close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        (**self).admin()
    }
}
