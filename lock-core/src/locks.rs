//! The entry point: locks of one store.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::gate::Gates;
use crate::key::check_part;
use crate::shared::{Defaults, Shared};
use crate::terms::Options;
use crate::{
    Capabilities, Clock, Error, ErrorKind, HoldMark, Lock, LockAdmin, LockBackend, LockInfo,
    LockKey, LockLayer, Operation, OsRng, Released, Result, Rng, SystemClock,
};

/// All locks of one store. Cheap to clone; clones share the connection.
///
/// ```
/// use std::time::Duration;
/// use lock_core::{Locks, memory::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// let locks = Locks::new(MemoryBackend::queued());
/// let guard = locks.lock("order:42")?.acquire().await?;
/// println!("fence {}", guard.token()?);
/// drop(guard); // released in the background …
/// locks.close(Duration::from_secs(5)).await?; // … for which the end of a program waits
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Locks(Arc<Shared>);

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

    /// The lock with this name. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) unless the name has 1 to 512 bytes of UTF-8 without
    /// control characters.
    pub fn lock(&self, name: impl Into<Arc<str>>) -> Result<Lock> {
        Ok(Lock::new(Arc::clone(&self.0), self.key(name)?))
    }

    /// What the store promises.
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    /// The kind of store, such as `sqlite`.
    pub fn backend_name(&self) -> &'static str {
        self.0.backend.name()
    }

    /// The clock on which all validity is counted.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    /// Asks whether the store answers and lets us work.
    ///
    /// # Errors
    ///
    /// As any call to the store; [`Timeout`](ErrorKind::Timeout) after the call timeout.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn ping(&self) -> Result<()> {
        self.bounded(Operation::Ping, self.0.backend.ping()).await
    }

    /// What the store knows of the lock with this name; `None` if nobody holds it or waits for it.
    /// The answer is out of date when it arrives: use it to show, never to decide.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) where the store cannot tell, and as any call.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn inspect(&self, name: impl Into<Arc<str>>) -> Result<Option<LockInfo>> {
        let key = self.key(name)?;
        self.bounded(Operation::Inspect, self.admin()?.inspect(&key)).await
    }

    /// The locks whose names start with `name_start` and that are held or waited for, by name.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn list(&self, name_start: &str) -> Result<Vec<LockInfo>> {
        check_part("name prefix", name_start)?;
        self.bounded(Operation::List, self.admin()?.list(&self.0.prefix, name_start)).await
    }

    /// Takes the lock away from its holder, or ends only the hold that [`inspect`](Self::inspect) has
    /// shown ([`HolderInfo::mark`](crate::HolderInfo)): the store compares, so that nobody else loses the
    /// lock. The next holder gets a greater fencing token; the old one learns it at its next renewal
    /// at the latest.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may or may not have happened.
    pub async fn force_release(
        &self,
        name: impl Into<Arc<str>>,
        expected: Option<HoldMark>,
    ) -> Result<Released> {
        let key = self.key(name)?;
        let call = self.admin()?.force_release(&key, expected.as_ref());
        self.bounded(Operation::ForceRelease, call).await
    }

    /// Ends the use of the store: nothing can be acquired any more, those who wait give up, and locks
    /// that are held or being released are waited for, up to `timeout`. Guards that are alive still
    /// are lost then ([`LostReason::Closed`](crate::LostReason::Closed)), and the backend is closed.
    ///
    /// A program that ends without it may leave a lock that it has just dropped for the rest of its
    /// ttl.
    ///
    /// # Errors
    ///
    /// [`Timeout`](ErrorKind::Timeout) if locks were held or being cleaned up at the end of the time;
    /// whatever the backend meets while it closes.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has begun to close; call it again to go on.
    pub async fn close(&self, timeout: Duration) -> Result<()> {
        let end = self.0.clock.now() + timeout;
        self.0.closing.cancel();
        self.0.keepers.close();
        let in_time = tokio::select! {
            biased;
            () = self.0.keepers.wait() => true,
            () = self.0.clock.sleep(timeout) => false,
        };
        let left = self.0.keepers.len();
        self.0.killed.cancel();
        // Closing may be more than one call, and no lease runs out meanwhile: it has the time that is left.
        let limit = self.call_limit().max(end.since(self.0.clock.now()));
        self.within(limit, Operation::Close, self.0.backend.close()).await?;
        if in_time {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Timeout,
            format!("{left} locks were held or not yet cleaned up after {timeout:?}; the store ends them with their leases"),
        )
        .in_operation(Operation::Close)
        .on_backend(self.0.backend.name()))
    }

    fn key(&self, name: impl Into<Arc<str>>) -> Result<LockKey> {
        LockKey::new(Arc::clone(&self.0.prefix), name)
    }

    fn admin(&self) -> Result<&dyn LockAdmin> {
        self.0.backend.admin().ok_or_else(|| {
            Error::unsupported(format!("{} cannot show its locks", self.0.backend.name()))
        })
    }

    async fn bounded<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.within(self.call_limit(), operation, call).await
    }

    fn call_limit(&self) -> Duration {
        self.0.defaults.call_timeout.unwrap_or(Options::LONGEST_CALL)
    }

    async fn within<T>(
        &self,
        limit: Duration,
        operation: Operation,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let answer = tokio::select! {
            biased;
            answer = call => answer,
            () = self.0.clock.sleep(limit) => {
                Err(Error::new(ErrorKind::Timeout, format!("the store did not answer within {limit:?}")))
            }
        };
        answer.map_err(|error| error.in_operation(operation).on_backend(self.0.backend.name()))
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
    /// [`InvalidInput`](ErrorKind::InvalidInput) if it is longer than 512 bytes or has a control
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

    /// How long [`Lock::acquire`] goes on when the store does not answer at all; 30 s by default.
    pub fn unavailable_after(mut self, limit: Duration) -> Self {
        self.defaults.unavailable_after = limit;
        self
    }

    /// Who holds the locks, for people who inspect them; by default the host's name and the process
    /// id. An empty label shows nothing; see [`Lock::label`] for what it may be.
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
        Locks(Arc::new(Shared {
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
