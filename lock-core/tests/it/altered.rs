//! The memory store, which declares something else, or at first sees something else.

use std::sync::Mutex;

use lock_core::memory::MemoryBackend;
use lock_core::{
    Capabilities, Claim, ClaimRequest, Error, LockAdmin, LockBackend, LockKey, Result, Seen,
    async_trait,
};

/// What it does not declare it does not do.
#[derive(Debug)]
pub(crate) struct Altered {
    store: MemoryBackend,
    pub(crate) can: Capabilities,
    /// What its first look finds instead.
    pub(crate) first_look: Mutex<Option<Seen>>,
}

impl Altered {
    /// One that is like the store still.
    pub(crate) fn of(store: MemoryBackend) -> Self {
        Self { can: store.capabilities(), store, first_look: Mutex::default() }
    }
}

#[async_trait]
impl LockBackend for Altered {
    fn name(&self) -> &'static str {
        "altered"
    }

    fn capabilities(&self) -> Capabilities {
        self.can.clone()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        self.store.claim(request)
    }

    async fn ping(&self) -> Result<()> {
        self.store.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        if !self.can.look {
            return Err(Error::unsupported("it cannot look"));
        }
        let seen = self.store.look(keys).await?;
        let instead = self.first_look.lock().unwrap().take();
        Ok(instead.map_or(seen, |instead| vec![instead; keys.len()]))
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.store.admin().filter(|_| self.can.inspect)
    }
}
