//! The memory store: the reference implementation of the contract, and a test double for users.
//!
//! It lives in one process, so it locks between tasks, not between machines. It comes in two
//! flavours, for the two kinds of store: [`queued`](MemoryBackend::queued) serves its waiters in
//! order and pushes, [`poll_only`](MemoryBackend::poll_only) does neither. It runs on any
//! [`Clock`], and it can be made to fail: a lock can be lost, a client cut off, an answer delayed
//! or lost.
//!
//! ```
//! # use lock_core as distlock;
//! use std::time::Duration;
//! use distlock::{LockState, Locks, LostReason, testing::MemoryBackend};
//! use distlock::testing::ManualClock;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
//! let clock = ManualClock::default();
//! let store = MemoryBackend::queued().with_clock(clock.clone());
//! let locks = Locks::builder(store.clone()).clock(clock.clone()).build()?;
//!
//! let guard = locks.named("order:42")?.ttl(Duration::from_secs(30)).acquire().await?;
//! store.partition(); // from now on no renewal gets through …
//! clock.advance(Duration::from_secs(30)); // … and the lease ends
//! assert_eq!(guard.state(), LockState::Lost(LostReason::Expired));
//! # Ok(()) }
//! ```

mod claim;
mod link;
mod store;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::mutex::Mutex;
use async_trait::async_trait;

use self::claim::MemoryClaim;
pub use self::link::FaultLink;
use self::link::wait_until;
use self::store::{Flavour, MemoryStore};
use crate::{
    Binding, Capabilities, Claim, ClaimRequest, Clock, DataLoss, Fencing, HolderMark, LockAdmin,
    LockBackend, LockInfo, LockKey, Released, Result, Seen, SystemClock, Victim, Wake,
};

/// A client of a store in the memory of this process.
///
/// Clones are the same client; [`client`](Self::client) makes another client of the same store,
/// like another process. The faults of a client's [link](FaultLink), such as
/// [`partition`](FaultLink::partition), affect that client alone; [`lose_now`](Self::lose_now) and
/// [`freeze`](Self::freeze) affect all of them.
///
/// Fencing tokens rise only for as long as the store lives, so they are declared
/// [`BestEffort`](Fencing::BestEffort).
#[derive(Clone, Debug)]
pub struct MemoryBackend {
    store: Arc<MemoryStore>,
    link: Arc<FaultLink>,
}

impl MemoryBackend {
    /// A new store that wakes its waiters and serves them in the order of their arrival.
    pub fn queued() -> Self {
        Self::new(Flavour::Queued, Arc::new(SystemClock::default()), false)
    }

    /// A new store without a queue and without pushes, like an SQL table.
    pub fn poll_only() -> Self {
        Self::new(Flavour::PollOnly, Arc::new(SystemClock::default()), false)
    }

    /// A client of the store with this name, shared within the process; a new store if the name is
    /// not in use.
    pub fn named(name: &str) -> Self {
        static STORES: Mutex<Option<HashMap<String, Weak<MemoryStore>>>> = Mutex::new(None);
        let mut stores = STORES.lock();
        let stores = stores.get_or_insert_default();
        stores.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return Self::client_of(store);
        }
        let backend = Self::queued();
        stores.insert(name.to_owned(), Arc::downgrade(&backend.store));
        backend
    }

    fn new(flavour: Flavour, clock: Arc<dyn Clock>, stepwise: bool) -> Self {
        Self::client_of(Arc::new(MemoryStore::new(flavour, clock, stepwise)))
    }

    fn client_of(store: Arc<MemoryStore>) -> Self {
        let link = Arc::new(FaultLink::new(store.stepwise));
        Self { store, link }
    }

    /// A new, empty store of the same flavour on another clock.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock) -> Self {
        Self::new(self.store.flavour, Arc::new(clock), self.store.stepwise)
    }

    /// A new, empty store of the same flavour, whose every request yields before and after the
    /// store acts, as one to a real server does: for tests that drop calls half-way.
    #[must_use]
    pub fn stepwise(self) -> Self {
        Self::new(self.store.flavour, Arc::clone(&self.store.clock), true)
    }

    /// Another client of the same store.
    #[must_use]
    pub fn client(&self) -> Self {
        Self::client_of(Arc::clone(&self.store))
    }

    /// The store forgets the holders of the locks with this name, whatever their prefix. The old
    /// holder is told, and the next waiter gets the lock.
    pub fn lose_now(&self, name: &str) {
        self.store.take_away(|key| key.name() == name, |_| true);
    }

    /// Freezes the store, like a stopped server: the calls of all clients wait. Leases keep
    /// running.
    pub fn freeze(&self) {
        self.store.frozen.send_replace(true);
    }

    /// Ends a [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.store.frozen.send_replace(false);
    }
}

/// The link of this client, with its faults.
impl Deref for MemoryBackend {
    type Target = FaultLink;

    fn deref(&self) -> &FaultLink {
        &self.link
    }
}

#[async_trait]
impl LockBackend for MemoryBackend {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        let queued = self.store.flavour == Flavour::Queued;
        let mut can =
            Capabilities::new(Binding::Lease, if queued { Wake::Reliable } else { Wake::Poll });
        can.fair = queued;
        can.fencing = Fencing::BestEffort;
        can.fence_block = true;
        can.detachable = true;
        can.inspect = true;
        can.look = true;
        can.loses_data_on = &[DataLoss::Restart];
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(MemoryClaim::new(Arc::clone(&self.store), Arc::clone(&self.link), request)?))
    }

    async fn ping(&self) -> Result<()> {
        request(&self.link, &self.store, |_| ()).await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        let keys = keys.to_vec();
        request(&self.link, &self.store, move |store| store.look(&keys)).await?
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}

#[async_trait]
impl LockAdmin for MemoryBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let key = key.clone();
        request(&self.link, &self.store, move |store| store.list(|other| *other == key).pop()).await
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let (prefix, start) = (prefix.to_owned(), name_start.to_owned());
        request(&self.link, &self.store, move |store| {
            store.list(|key| key.prefix() == prefix && key.name().starts_with(&start))
        })
        .await
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        let (key, victim) = (key.clone(), victim.clone());
        request(&self.link, &self.store, move |store| {
            store.take_away(|other| *other == key, |owner| victim.is(&HolderMark::from(*owner)))
        })
        .await
    }
}

/// One request of a client: it waits while the store is frozen, then the store acts in one step.
async fn request<T: Send + 'static>(
    link: &FaultLink,
    store: &Arc<MemoryStore>,
    act: impl FnOnce(&Arc<MemoryStore>) -> T + Send + 'static,
) -> Result<T> {
    wait_until(&store.frozen, |frozen| !frozen).await;
    let at = Arc::clone(store);
    link.request(&store.clock, move || act(&at)).await
}
