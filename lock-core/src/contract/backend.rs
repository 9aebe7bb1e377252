//! One store, as seen by one client, and layers around it.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    Capabilities, Claim, ClaimRequest, Error, LockAdmin, LockKey, LockObserver, Result, Seen,
};

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

    /// Whether somebody has these locks, and by which fencing tokens, in the order of the names (clause
    /// C18). Reads only.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) unless
    /// [`Capabilities::look`](crate::Capabilities) is declared, and whatever any call to the store can
    /// fail with.
    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        let _ = keys;
        Err(Error::unsupported("this store cannot show who has a lock at this moment"))
    }

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

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        (**self).look(keys).await
    }

    async fn close(&self) -> Result<()> {
        (**self).close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        (**self).admin()
    }
}

/// Comes between the core and a backend: watches the locks, as metrics do, or wraps the backend in another one,
/// as fault injection does.
///
/// A wrapper must forward every method of [`LockBackend`] and of [`Claim`](crate::Claim),
/// including the provided ones: `#[deny(clippy::missing_trait_methods)]` on the impl finds a
/// forgotten one. A layer must keep the clauses of the contract: it must not retry, cache or wait.
/// Layers are applied in the order in which they are added, the last one outermost.
///
/// ```
/// use std::sync::Arc;
/// use lock_core::{LockBackend, LockLayer, Locks, memory::MemoryBackend};
///
/// #[derive(Debug)]
/// struct Nothing;
/// impl LockLayer for Nothing {
///     fn layer(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> { inner }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// let locks = Locks::builder(MemoryBackend::queued()).layer(Nothing).build()?;
/// locks.named("a")?.acquire().await?.release().await?;
/// # Ok(()) }
/// ```
pub trait LockLayer {
    /// Wraps `inner`. The default does not.
    fn layer(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> {
        inner
    }

    /// Who is notified of what happens to the locks; nobody by default.
    fn observer(&self) -> Option<Arc<dyn LockObserver>> {
        None
    }
}

/// A shared layer is a layer.
impl<L: LockLayer + ?Sized> LockLayer for Arc<L> {
    fn layer(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> {
        (**self).layer(inner)
    }

    fn observer(&self) -> Option<Arc<dyn LockObserver>> {
        (**self).observer()
    }
}
