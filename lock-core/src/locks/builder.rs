//! The settings for the locks of one store.

use std::sync::Arc;
use std::time::Duration;

use crate::mutex::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Locks;
use crate::contract::check_part;
use crate::hold::Defaults;
use crate::keeper::{Client, KeeperRuntime, LocalLines, SilentStore};
use crate::kinds::KindsInUse;
use crate::{Clock, LockBackend, LockLayer, LockObserver, OsRng, Result, Rng, SystemClock};

impl Locks {
    /// Creates the locks of `backend` with the defaults of [`LocksBuilder`].
    ///
    /// The tasks that keep locks alive run on the Tokio runtime of the caller. If this is called
    /// outside of one, they run on that of the caller that acquires.
    ///
    /// ```
    /// # use lock_core as distlock;
    /// use distlock::{Locks, testing::MemoryBackend};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let locks = Locks::new(MemoryBackend::queued());
    /// assert_eq!(locks.backend_name(), "memory");
    /// # }
    /// ```
    pub fn new(backend: impl LockBackend) -> Self {
        LocksBuilder::new(Arc::new(backend)).finish()
    }

    /// As [`new`](Self::new), on another clock.
    pub(crate) fn on_clock(backend: impl LockBackend, clock: impl Clock) -> Self {
        LocksBuilder::new(Arc::new(backend)).clock(clock).finish()
    }

    /// A builder for the locks of `backend` with custom settings. Pass a backend that is already
    /// shared as an `Arc`.
    pub fn builder(backend: impl LockBackend) -> LocksBuilder {
        LocksBuilder::new(Arc::new(backend))
    }
}

/// Settings of a [`Locks`]. All are optional; [`build`](Self::build) checks them.
///
/// ```
/// # use lock_core as distlock;
/// use std::time::Duration;
/// use distlock::{Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// let locks = Locks::builder(MemoryBackend::queued())
///     .prefix("shop")
///     .default_ttl(Duration::from_secs(10))
///     .label("worker 7")
///     .build()?;
/// assert_eq!(locks.named("order:42")?.key().to_string(), "shop/order:42");
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct LocksBuilder {
    backend: Arc<dyn LockBackend>,
    observers: Vec<Arc<dyn LockObserver>>,
    clock: Option<Arc<dyn Clock>>,
    rng: Arc<dyn Rng>,
    runtime: Option<Handle>,
    prefix: Arc<str>,
    defaults: Defaults,
}

impl LocksBuilder {
    fn new(backend: Arc<dyn LockBackend>) -> Self {
        Self {
            backend,
            observers: Vec::new(),
            clock: None,
            rng: Arc::new(OsRng),
            runtime: None,
            prefix: "".into(),
            defaults: Defaults {
                ttl: None,
                lock_delay: Duration::ZERO,
                min_hold: Duration::ZERO,
                call_timeout: None,
                unavailable_after: Duration::from_secs(30),
                label: default_label(),
                cohort: 1,
            },
        }
    }

    /// The source of time; [`SystemClock`] by default. Clocks for tests are in
    /// [`testing`](crate::testing).
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// The random source; the operating system's by default. Owner ids come from it, so outside of
    /// tests it must never repeat itself.
    pub fn rng(mut self, rng: impl Rng) -> Self {
        self.rng = Arc::new(rng);
        self
    }

    /// The runtime for the tasks that keep locks alive; by default the one in which
    /// [`build`](Self::build) is called. It must be driven for as long as any guard lives: a lock
    /// whose runtime is stalled is not renewed. Connections that the store opens later belong to it,
    /// too, whoever calls.
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// A prefix for all names, so applications can share a store; none by default. At most
    /// 512 bytes without control characters. It is kept apart from the name: ("a", "bc") and ("ab",
    /// "c") are different locks.
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Self {
        self.prefix = prefix.as_ref().into();
        self
    }

    /// The TTL of locks that do not set their own, 10 ms to 366 days. By default 30 s, or the
    /// longest that the store allows if that is shorter. A TTL set here is never shortened.
    pub fn default_ttl(mut self, ttl: Duration) -> Self {
        self.defaults.ttl = Some(ttl);
        self
    }

    /// For how long others are kept away after a lock was lost because it could not be renewed, for locks that do
    /// not set their own: see [`Lock::lock_delay`](crate::Lock::lock_delay). None by default.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.defaults.lock_delay = delay;
        self
    }

    /// The least time for which a lock is kept from others, for locks that do not set their own: see
    /// [`Lock::min_hold`](crate::Lock::min_hold). None by default.
    pub fn min_hold(mut self, least: Duration) -> Self {
        self.defaults.min_hold = least;
        self
    }

    /// The limit for one call to the store, more than zero and at most 366 days. By default a third of the lock's TTL, at
    /// least 10 ms and at most 5 s.
    pub fn call_timeout(mut self, limit: Duration) -> Self {
        self.defaults.call_timeout = Some(limit);
        self
    }

    /// How long [`Lock::acquire`](crate::Lock::acquire) keeps trying when the store does not answer
    /// at all; 30 s by default. With zero it gives up after the first attempt. It counts from the last
    /// answer that the call had, and a request that is on its way then is waited for, up to
    /// [`call_timeout`](Self::call_timeout).
    pub fn unavailable_after(mut self, limit: Duration) -> Self {
        self.defaults.unavailable_after = limit;
        self
    }

    /// The holder's name as shown to people who inspect the locks; by default the host name and the
    /// process id. At most 512 bytes without control characters; with an empty label no name is
    /// shown.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        let label = label.as_ref();
        self.defaults.label = (!label.is_empty()).then(|| label.into());
        self
    }

    /// How many tasks may have a lock one after the other without a request to the store for each, for
    /// locks that do not set it themselves: see [`Lock::cohort`](crate::Lock::cohort). 1 by default,
    /// which turns it off.
    pub fn cohort(mut self, holders: u32) -> Self {
        self.defaults.cohort = holders;
        self
    }

    /// Wraps the backend in a layer, or watches the locks; none by default. The layer added last is the outermost.
    #[allow(clippy::needless_pass_by_value, reason = "a layer is used up by its use")]
    pub fn layer(mut self, layer: impl LockLayer) -> Self {
        self.observers.extend(layer.observer());
        self.backend = layer.layer(self.backend);
        self
    }

    /// Builds the `Locks`. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a prefix, label, TTL, limit or cohort that
    /// breaks its rule, or a TTL that is longer than this store allows;
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a cohort on a store that does not support one.
    pub fn build(self) -> Result<Locks> {
        check_part("lock prefix", &self.prefix)?;
        check_part("label", self.defaults.label.as_deref().unwrap_or_default())?;
        self.defaults.check(&self.backend.capabilities(), self.backend.name())?;
        Ok(self.finish())
    }

    fn finish(self) -> Locks {
        let mut phase = [0; 8];
        // Without random bytes all processes renew in step, which costs load but is not an error.
        let _ = self.rng.fill(&mut phase);
        let killed = CancellationToken::new();
        let runtime = self.runtime.or_else(|| Handle::try_current().ok());
        Locks(Arc::new(Client {
            capabilities: self.backend.capabilities(),
            backend: self.backend,
            observers: self.observers,
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock::default())),
            rng: self.rng,
            runtime: runtime.map(|runtime| KeeperRuntime::new(runtime, &killed)),
            visited: Mutex::default(),
            prefix: self.prefix,
            defaults: self.defaults,
            lines: LocalLines::default(),
            kinds: KindsInUse::default(),
            silent_store: SilentStore::default(),
            keepers: TaskTracker::new(),
            closing: CancellationToken::new(),
            killed,
            grid_phase: u64::from_le_bytes(phase),
        }))
    }
}

fn default_label() -> Option<Arc<str>> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let label = format!("{host}/{}", std::process::id());
    check_part("label", &label).is_ok().then(|| label.into())
}
