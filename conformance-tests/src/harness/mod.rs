//! What a store's author writes: how to get a fresh store, its clients, and faults.

pub(crate) mod memory;
mod simulated;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::server::Server;
use async_trait::async_trait;
use lock_core::{Error, ErrorKind, LockBackend, LockKey, LocksBuilder, Result, Victim};

/// How time passes for the store under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The store lives in this process and follows tokio's paused clock
    /// ([`TokioClock`](lock_core::testing::TokioClock)): each case runs on its own runtime, in a
    /// few milliseconds.
    Virtual,
    /// The store has its own clock: cases really wait.
    Real,
}

/// Gives stores to the suite. About fifty lines for your own store; see the [crate's page](crate).
#[async_trait]
pub trait Harness: fmt::Debug + Send + Sync + 'static {
    /// A short name, for reports and for `LOCK_TEST_REQUIRE`.
    fn name(&self) -> &str;

    /// How time passes: by default as it does for a server.
    fn time(&self) -> Time {
        Time::Real
    }

    /// A fresh store for one case, or one in which [`Store::prefix`] keeps this case apart from all
    /// others. Called inside the case's runtime.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if the store is not available here: its cases are shown as ignored
    /// with that reason. [`Unavailable::broken`] if it should be available and is not: its cases
    /// fail.
    async fn start(&self) -> Result<Box<dyn Store>, Unavailable>;

    /// As [`start`](Self::start), for the few cases that freeze or restart the store: no other case may be on
    /// its servers meanwhile. By default `start`, which is right where each case has servers of its own.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    async fn start_alone(&self) -> Result<Box<dyn Store>, Unavailable> {
        self.start().await
    }

    /// The file with which [`main`](crate::main) compares a run of the whole suite: which cases run, and why
    /// the others do not. It need not be there; `LOCK_TEST_EXPECT_WRITE=1` writes it. By default
    /// `tests/expected/NAME.txt` in the package whose tests run. `None` where a run says nothing about the
    /// next one.
    fn expected(&self) -> Option<PathBuf> {
        let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
        Some(package.join(format!("tests/expected/{}.txt", self.name())))
    }

    /// Opens a running store from another process: `uri` is what [`Store::uri`] returned in the
    /// process that started it. Called only if that was `Some`.
    ///
    /// # Errors
    ///
    /// If the store cannot be opened.
    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        let _ = uri;
        Err(Error::unsupported("this harness's store cannot be opened by another process"))
    }
}

#[async_trait]
impl<H: Harness + ?Sized> Harness for Arc<H> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn time(&self) -> Time {
        (**self).time()
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        (**self).start().await
    }

    async fn start_alone(&self) -> Result<Box<dyn Store>, Unavailable> {
        (**self).start_alone().await
    }

    fn expected(&self) -> Option<PathBuf> {
        (**self).expected()
    }

    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        (**self).join(uri).await
    }
}

/// The store of one case. It is dropped when the case has ended: clean up in `Drop`.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// A client of the store that shares nothing with the others, as if it were another process:
    /// its own connections, its own session.
    ///
    /// # Errors
    ///
    /// If the store cannot be opened. The case fails.
    async fn client(&self) -> Result<Client>;

    /// The prefix of all keys of this case. Must be unique where the stores of several cases, or of
    /// several runs, are one and the same server. At most 200 bytes.
    fn prefix(&self) -> String {
        String::new()
    }

    /// Adjusts the settings of every [`Locks`](lock_core::Locks) of a case last, for instance its
    /// clock, rng or layers. The clock is already set.
    fn configure(&self, builder: LocksBuilder) -> LocksBuilder {
        builder
    }

    /// Passwords and keys with which [`client`](Self::client) opens the store, of at least eight
    /// bytes each: the suite searches what the store prints for them. None by default.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// Takes the lock away from its holder, as an operator or a fault of the store would. By
    /// default [`LockAdmin::force_release`](lock_core::LockAdmin::force_release).
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if there is no way.
    async fn break_hold(&self, key: &LockKey) -> Result<(), Unavailable> {
        take_away(&*self.client().await?.backend, key).await
    }

    /// The one server of this store, if it has one: the suite then freezes and restarts it, and opens
    /// the store from other processes by its address ([`Harness::join`]). None by default.
    fn server(&self) -> Option<&Server> {
        None
    }

    /// Stops the whole store: requests arrive and are not answered until [`thaw`](Self::thaw). By
    /// default [`Server::freeze`].
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if there is no way.
    async fn freeze(&self) -> Result<(), Unavailable> {
        let missing = || Unavailable::missing("this harness cannot freeze its store");
        self.server().ok_or_else(missing)?.freeze()
    }

    /// Ends [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze).
    async fn thaw(&self) -> Result<(), Unavailable> {
        let missing = || Unavailable::missing("this harness cannot freeze its store");
        self.server().ok_or_else(missing)?.thaw()
    }

    /// Kills the store without warning and starts it again with the data that it has acknowledged.
    /// Existing clients are expected to reconnect. By default [`Server::restart`].
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if there is no way.
    async fn restart(&self) -> Result<(), Unavailable> {
        let missing = || Unavailable::missing("this harness cannot restart its store");
        self.server().ok_or_else(missing)?.restart().await
    }

    /// What another process needs to open this store with [`Harness::join`]; `None` if the store
    /// lives in this process. It travels in an environment variable of a child process. By default the
    /// address of the [`server`](Self::server).
    fn uri(&self) -> Option<String> {
        self.server().map(|server| server.address().to_string())
    }
}

/// As an operator does.
pub(crate) async fn take_away(backend: &dyn LockBackend, key: &LockKey) -> Result<(), Unavailable> {
    let admin = backend.admin().ok_or_else(|| {
        Unavailable::missing("this store has no way to take a lock away from its holder")
    })?;
    admin.force_release(key, &Victim::Anybody).await?;
    Ok(())
}

/// One client of a store, and the means to disturb its link.
#[derive(Clone, Debug)]
pub struct Client {
    /// The client.
    pub backend: Arc<dyn LockBackend>,
    /// The means to disturb the link between this client and the store, if any.
    pub faults: Option<Arc<dyn Faults>>,
}

impl Client {
    /// A client whose link cannot be disturbed.
    pub fn new(backend: impl LockBackend) -> Self {
        Self { backend: Arc::new(backend), faults: None }
    }

    /// Like [`new`](Self::new), for a backend that is already shared.
    pub fn from_arc(backend: Arc<dyn LockBackend>) -> Self {
        Self { backend, faults: None }
    }

    /// Adds a way to disturb its link, such as a `Proxy` of the module `server`. `faults` lives as long
    /// as the case, whatever the case keeps of this client.
    #[must_use]
    pub fn with_faults(mut self, faults: impl Faults + 'static) -> Self {
        self.faults = Some(Arc::new(faults));
        self
    }

    /// Replaces the backend by another on the same link: a wrapper around the first one.
    #[must_use]
    pub fn map(mut self, wrap: impl FnOnce(Arc<dyn LockBackend>) -> Arc<dyn LockBackend>) -> Self {
        self.backend = wrap(self.backend);
        self
    }
}

/// One disturbance of the link between one client and the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The next request is lost on its way: the store never acts on it, the client gets no answer
    /// or an error whose effect is unknown.
    LoseNextRequest,
    /// The store acts on the next request, and its answer is lost.
    LoseNextReply,
    /// The store acts on the next request at once, and its answer arrives this much later.
    DelayNextReply(Duration),
    /// The next request reaches the store only after this time, even if the client gives it up or
    /// makes other requests before then.
    HoldNextRequest(Duration),
    /// This many requests pass, and the fault that is injected next befalls the one after them.
    SkipRequests(u32),
    /// From now on nothing passes in either direction.
    Partition,
    /// From now on connections are refused, and those that exist are cut: the server is down.
    Refuse,
    /// Ends a partition or a refusal.
    Heal,
}

impl Fault {
    /// Whether it befalls one request, rather than the link.
    pub(crate) fn is_for_one_request(self) -> bool {
        !matches!(self, Self::SkipRequests(_) | Self::Partition | Self::Refuse | Self::Heal)
    }
}

/// Disturbs the link between one client and the store.
#[async_trait]
pub trait Faults: fmt::Debug + Send + Sync {
    /// Arranges `fault`. "The next request" counts from this call.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if this link cannot be disturbed in this way: the case is ignored
    /// with that reason.
    async fn inject(&self, fault: Fault) -> Result<(), Unavailable>;

    /// How many requests have left the client on this link so far, if they are counted.
    fn requests(&self) -> Option<u64> {
        None
    }

    /// How many of the faults for one request have befallen one so far, if they are counted. With it a
    /// case that was spared its fault is not taken for a pass: it is run again, and at last not judged.
    fn struck(&self) -> Option<u64> {
        None
    }

    /// How many connections the client has made on this link so far, if they are counted: one more
    /// tells a restart of the store, however short it was.
    fn connections(&self) -> Option<u64> {
        None
    }

    /// The last requests and replies on this link, as a person would read them; the oldest first. They are
    /// shown where a case has failed, without the store's [secrets](Store::secrets). None by default.
    fn last_messages(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Why something that a case needs is unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    reason: String,
    broken: bool,
}

impl Unavailable {
    /// It is missing, which is not an error: shown as ignored, with this reason.
    pub fn missing(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), broken: false }
    }

    /// It should be available and does not work: a failure.
    pub fn broken(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), broken: true }
    }

    /// The reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether it should be available.
    pub fn is_broken(&self) -> bool {
        self.broken
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unavailable {}

/// So that [`Store::client`] can use `?` on what only a test needs, such as a proxy.
impl From<Unavailable> for Error {
    fn from(unavailable: Unavailable) -> Self {
        Self::new(ErrorKind::Internal, unavailable.reason)
    }
}

/// An unexpected error of the store is a failure.
impl From<Error> for Unavailable {
    fn from(error: Error) -> Self {
        Self::broken(error.to_string())
    }
}
