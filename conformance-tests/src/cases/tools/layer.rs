//! A layer around a store, to look at what passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use lock_core::{
    Attempt, Bytes, Capabilities, Claim, ClaimRequest, LockAdmin, LockBackend, LockKey, Released,
    Renewal, Result, Seen,
};

/// A layer that changes nothing, and counts the calls of claims. A backend that recognises its own
/// claims by their type would not survive it.
#[derive(Debug)]
pub(crate) struct Forward {
    pub(crate) inner: Arc<dyn LockBackend>,
    pub(crate) calls: Arc<AtomicU64>,
}

#[derive(Debug)]
struct ForwardClaim {
    inner: Box<dyn Claim>,
    calls: Arc<AtomicU64>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for Forward {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        let inner = self.inner.claim(request)?;
        Ok(Box::new(ForwardClaim { inner, calls: Arc::clone(&self.calls) }))
    }

    async fn ping(&self) -> Result<()> {
        self.inner.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.inner.look(keys).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.inner.admin()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Claim for ForwardClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.try_acquire().await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.renew().await
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.check().await
    }

    async fn release(&mut self) -> Result<Released> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.release().await
    }

    async fn changed(&mut self) -> Result<()> {
        self.inner.changed().await
    }

    async fn detach(&mut self) -> Result<Bytes> {
        self.inner.detach().await
    }
}
