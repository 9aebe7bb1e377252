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
    /// How long each release takes.
    pub(crate) release: Duration,
}

impl SlowStore {
    /// One on which no call takes its time yet.
    pub(crate) fn of(store: MemoryBackend) -> Self {
        let none = Duration::ZERO;
        Self { store, look: none, renewal: none, release: none }
    }
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
        let (renewal, release) = (self.renewal, self.release);
        Ok(Box::new(SlowClaim { claim: self.store.claim(request)?, renewal, release }))
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
struct SlowClaim {
    claim: Box<dyn Claim>,
    renewal: Duration,
    release: Duration,
}

#[async_trait]
impl Claim for SlowClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        self.claim.try_acquire().await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        tokio::time::sleep(self.renewal).await;
        self.claim.renew().await
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.claim.check().await
    }

    async fn release(&mut self) -> Result<Released> {
        tokio::time::sleep(self.release).await;
        self.claim.release().await
    }

    async fn changed(&mut self) -> Result<()> {
        self.claim.changed().await
    }

    async fn detach(&mut self) -> Result<Bytes> {
        self.claim.detach().await
    }
}
