//! The memory store, on which some calls take their time.

use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::{
    Attempt, Bytes, Capabilities, Claim, ClaimRequest, LockBackend, LockKey, Released, Renewal,
    Result, Seen, async_trait,
};

#[derive(Debug)]
pub(crate) struct SlowStore {
    pub(crate) store: MemoryBackend,
    /// How long each look takes.
    pub(crate) look: Duration,
    /// How long each renewal takes.
    pub(crate) renewal: Duration,
}

#[async_trait]
impl LockBackend for SlowStore {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(SlowClaim(self.store.claim(request)?, self.renewal)))
    }

    async fn ping(&self) -> Result<()> {
        self.store.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        tokio::time::sleep(self.look).await;
        self.store.look(keys).await
    }
}

#[derive(Debug)]
struct SlowClaim(Box<dyn Claim>, Duration);

#[async_trait]
impl Claim for SlowClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        self.0.try_acquire().await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        tokio::time::sleep(self.1).await;
        self.0.renew().await
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.0.check().await
    }

    async fn release(&mut self) -> Result<Released> {
        self.0.release().await
    }

    async fn changed(&mut self) -> Result<()> {
        self.0.changed().await
    }

    async fn detach(&mut self) -> Result<Bytes> {
        self.0.detach().await
    }
}
