//! The harness of the memory store: virtual time, every fault. Mutants are built on it, too.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;
use lock_core::{LockAdmin as _, LockBackend, LockKey, LocksBuilder, Result};

use crate::{Client, Fault, Faults, Harness, Store, Time, Unavailable};

type Wrap = dyn Fn(Arc<dyn LockBackend>) -> Arc<dyn LockBackend> + Send + Sync;
type Configure = dyn Fn(LocksBuilder) -> LocksBuilder + Send + Sync;

/// Gives memory stores of one flavour, optionally with each client wrapped.
#[derive(Clone)]
pub struct MemoryHarness {
    name: String,
    queued: bool,
    wrap: Arc<Wrap>,
    configure: Arc<Configure>,
    secrets: Vec<String>,
}

impl MemoryHarness {
    /// Stores that serve their waiters in order and push.
    pub fn queued() -> Self {
        Self::new("memory-queued", true)
    }

    /// Stores without a queue and without pushes.
    pub fn poll_only() -> Self {
        Self::new("memory-poll", false)
    }

    fn new(name: &str, queued: bool) -> Self {
        let (wrap, configure) = (Arc::new(|backend| backend), Arc::new(|builder| builder));
        Self { name: name.to_owned(), queued, wrap, configure, secrets: Vec::new() }
    }

    /// Puts `wrap` around the backend of every client, under the name `name`.
    #[must_use]
    pub fn wrapped(
        mut self,
        name: impl Into<String>,
        wrap: impl Fn(Arc<dyn LockBackend>) -> Arc<dyn LockBackend> + Send + Sync + 'static,
    ) -> Self {
        self.name = name.into();
        self.wrap = Arc::new(wrap);
        self
    }

    /// Changes the settings of every [`Locks`](lock_core::Locks): see [`Store::configure`].
    #[must_use]
    pub fn configured(
        mut self,
        configure: impl Fn(LocksBuilder) -> LocksBuilder + Send + Sync + 'static,
    ) -> Self {
        self.configure = Arc::new(configure);
        self
    }

    /// Names a password that its clients are taken to be opened with.
    pub(crate) fn opened_with(mut self, password: &str) -> Self {
        self.secrets.push(password.to_owned());
        self
    }
}

impl fmt::Debug for MemoryHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryHarness").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl Harness for MemoryHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn time(&self) -> Time {
        Time::Virtual
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let flavour =
            if self.queued { MemoryBackend::queued() } else { MemoryBackend::poll_only() };
        let backend = flavour.with_clock(TokioClock::default()).stepwise();
        Ok(Box::new(MemoryStore { backend, harness: self.clone() }))
    }
}

/// One memory store on tokio's clock, whose requests yield half-way as those to a server do.
#[derive(Debug)]
pub struct MemoryStore {
    backend: MemoryBackend,
    harness: MemoryHarness,
}

#[async_trait]
impl Store for MemoryStore {
    async fn client(&self) -> Result<Client> {
        let backend = self.backend.client();
        let wrapped = (self.harness.wrap)(Arc::new(backend.clone()));
        let faults = MemoryFaults { backend, due: Mutex::default() };
        Ok(Client::from_arc(wrapped).with_faults(faults))
    }

    fn configure(&self, builder: LocksBuilder) -> LocksBuilder {
        (self.harness.configure)(builder)
    }

    fn secrets(&self) -> Vec<String> {
        self.harness.secrets.clone()
    }

    async fn break_hold(&self, key: &LockKey) -> Result<(), Unavailable> {
        self.backend.lose_now(key.name());
        Ok(())
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        self.backend.freeze();
        Ok(())
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        self.backend.thaw();
        Ok(())
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        // It loses its data, as it declares. Its count of fences continues, since it belongs to
        // this process.
        for info in self.backend.list("", "").await? {
            self.backend.lose_now(info.key.name());
        }
        Ok(())
    }
}

/// The faults of one client of a memory store.
#[derive(Debug)]
pub struct MemoryFaults {
    backend: MemoryBackend,
    /// The numbers of the requests that the faults are for, and of those that are skipped: each of the
    /// next requests takes one plan.
    due: Mutex<Vec<(u64, bool)>>,
}

impl MemoryFaults {
    fn is_due(&self, is_fault: bool) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let last = due.last().map_or(0, |(number, _)| *number);
        due.push((last.max(self.backend.requests()) + 1, is_fault));
    }
}

#[async_trait]
impl Faults for MemoryFaults {
    async fn inject(&self, fault: Fault) -> Result<(), Unavailable> {
        match fault {
            Fault::LoseNextRequest => self.backend.lose_next_request(),
            Fault::LoseNextReply => self.backend.lose_next_reply(),
            Fault::DelayNextReply(delay) => self.backend.delay_next(delay),
            Fault::HoldNextRequest(delay) => self.backend.hold_next_request(delay),
            Fault::SkipRequests(requests) => {
                self.backend.skip_requests(requests);
                (0..requests).for_each(|_| self.is_due(false));
            }
            Fault::Partition => self.backend.partition(),
            Fault::Refuse => self.backend.refuse(),
            Fault::Heal => self.backend.heal(),
        }
        if fault.is_for_one_request() {
            self.is_due(true);
        }
        Ok(())
    }

    fn requests(&self) -> Option<u64> {
        Some(self.backend.requests())
    }

    fn struck(&self) -> Option<u64> {
        let made = self.backend.requests();
        let due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let struck = due.iter().filter(|(number, is_fault)| *is_fault && *number <= made);
        u64::try_from(struck.count()).ok()
    }
}

/// In real time, and faster than any timer.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct RealTime(MemoryBackend);

#[cfg(test)]
impl Default for RealTime {
    fn default() -> Self {
        Self(MemoryBackend::queued())
    }
}

#[cfg(test)]
#[async_trait]
impl Harness for RealTime {
    fn name(&self) -> &str {
        "real-time"
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        Ok(Box::new(Self(self.0.clone())))
    }
}

#[cfg(test)]
#[async_trait]
impl Store for RealTime {
    async fn client(&self) -> Result<Client> {
        Ok(Client::with_simulated_faults(self.0.client()))
    }
}
