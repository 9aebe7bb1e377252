//! Wrapping a backend.

use std::sync::Arc;

use crate::LockBackend;

/// Wraps a backend in another one: tracing, metrics, fault injection.
///
/// The wrapper must forward every method of [`LockBackend`] and of [`Claim`](crate::Claim),
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
    /// Wraps `inner`.
    fn layer(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend>;
}

/// A shared layer is a layer.
impl<L: LockLayer + ?Sized> LockLayer for Arc<L> {
    fn layer(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> {
        (**self).layer(inner)
    }
}
