//! The settings with which the locks of one store are made.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::locks::Locks;
use crate::contract::check_part;
use crate::keeper::{Client, Defaults, Gates};
use crate::{Clock, LockBackend, LockLayer, OsRng, Result, Rng, SystemClock};

impl Locks {
    /// Locks of `backend` with the defaults of [`LocksBuilder`].
    ///
    /// The tasks that keep locks alive run on the Tokio runtime of the caller. Outside of one, they
    /// run on that of whoever acquires.
    pub fn new(backend: impl LockBackend) -> Self {
        Self::builder(backend).build()
    }

    /// As [`new`](Self::new), for a backend that is shared already.
    pub fn from_arc(backend: Arc<dyn LockBackend>) -> Self {
        LocksBuilder::new(backend).build()
    }

    /// Locks with settings of one's own.
    pub fn builder(backend: impl LockBackend) -> LocksBuilder {
        LocksBuilder::new(Arc::new(backend))
    }

    /// As [`builder`](Self::builder), for a backend that is shared already.
    pub fn builder_from_arc(backend: Arc<dyn LockBackend>) -> LocksBuilder {
        LocksBuilder::new(backend)
    }
}

/// Settings of a [`Locks`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct LocksBuilder {
    backend: Arc<dyn LockBackend>,
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
            clock: None,
            rng: Arc::new(OsRng),
            runtime: None,
            prefix: "".into(),
            defaults: Defaults {
                ttl: None,
                call_timeout: None,
                unavailable_after: Duration::from_secs(30),
                label: default_label(),
            },
        }
    }

    /// The source of time; [`SystemClock`] by default.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// The source of chance; the operating system by default.
    pub fn rng(mut self, rng: impl Rng) -> Self {
        self.rng = Arc::new(rng);
        self
    }

    /// The runtime for the tasks that keep locks alive; the one in which `build` is called by
    /// default. It should live as long as any guard.
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// A prefix for all names, so that applications can share a store. It is kept apart from the
    /// name: ("a", "bc") and ("ab", "c") are different locks.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if it is longer than 512 bytes or has a control
    /// character.
    pub fn prefix(mut self, prefix: impl Into<Arc<str>>) -> Result<Self> {
        let prefix = prefix.into();
        check_part("lock prefix", &prefix)?;
        self.prefix = prefix;
        Ok(self)
    }

    /// The ttl of locks that do not set their own. By default 30 s, or the longest that the store
    /// allows if that is shorter; one that is set here is never shortened.
    pub fn default_ttl(mut self, ttl: Duration) -> Self {
        self.defaults.ttl = Some(ttl);
        self
    }

    /// The limit for one call to the store. By default a third of the lock's ttl, at least 10 ms
    /// and at most 5 s.
    pub fn call_timeout(mut self, limit: Duration) -> Self {
        self.defaults.call_timeout = Some(limit);
        self
    }

    /// How long [`Lock::acquire`](crate::Lock::acquire) goes on when the store does not answer at all; 30 s by default.
    pub fn unavailable_after(mut self, limit: Duration) -> Self {
        self.defaults.unavailable_after = limit;
        self
    }

    /// Who holds the locks, for people who inspect them; by default the host's name and the process
    /// id. An empty label shows nothing; see [`Lock::label`](crate::Lock::label) for what it may be.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        let label = label.into();
        self.defaults.label = (!label.is_empty()).then_some(label);
        self
    }

    /// Wraps the backend. The layer that is added last is the outermost.
    #[allow(clippy::needless_pass_by_value, reason = "a layer is used up by its use")]
    pub fn layer(mut self, layer: impl LockLayer) -> Self {
        self.backend = layer.layer(self.backend);
        self
    }

    /// The finished `Locks`. Nothing is sent.
    pub fn build(self) -> Locks {
        let mut phase = [0; 8];
        // Without chance all processes renew in step, which is a load, not an error.
        let _ = self.rng.fill(&mut phase);
        Locks(Arc::new(Client {
            capabilities: self.backend.capabilities(),
            backend: self.backend,
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock::default())),
            rng: self.rng,
            runtime: self.runtime.or_else(|| Handle::try_current().ok()),
            prefix: self.prefix,
            defaults: self.defaults,
            gates: Gates::default(),
            keepers: TaskTracker::new(),
            closing: CancellationToken::new(),
            killed: CancellationToken::new(),
            grid_phase: u64::from_le_bytes(phase),
        }))
    }
}

fn default_label() -> Option<Arc<str>> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Some(format!("{host}/{}", std::process::id()).into())
}
