//! Connecting by URL: with the settings in the URL or with others besides it, now or when it is needed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backoff::Backoff;
use lock_core::clock::Clock;
use lock_core::contract::LockLayer;
use lock_core::testing::MemoryBackend;
use lock_core::{Error, ErrorKind, Feature, Locks, LocksBuilder, Operation, Result, blocking};
use lock_kit::connect_once::ConnectOnce;
use tokio::runtime::Handle;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

use crate::stores::Opener;
use crate::url::{self, Setting};

/// Connects to the store named by `url`.
///
/// | URL | store |
/// |---|---|
/// | `memory://` | a new store in this process; `memory://name` is shared by all users of it |
/// | `sqlite:///var/lib/app/locks.db` | an SQLite file, for the processes of one machine |
/// | `postgres://user:password@host[:5432]/database`, `postgresql://` | a table of PostgreSQL |
/// | `mysql://user:password@host[:3306]/database`, `mariadb://` | a table of MySQL or MariaDB |
/// | `redis://[user:password@]host[:6379][/db]`, `rediss://`, `redis+unix:///socket` | one Redis server |
/// | `redis+sentinel://[user:password@]sentinel[:26379],sentinel/group[/db]`, `rediss+sentinel://` | the master of a group that sentinels watch |
/// | `redlock://a:6379,b:6379,c:6379`, `redlocks://` | a quorum of independent Redis servers |
/// | `etcd://[user:password@]host[:2379],host,host[/prefix]`, `etcds://` | an etcd cluster |
/// | `zookeeper://host[:2181],host,host[/root]`, `zk://` | a ZooKeeper ensemble |
///
/// Every store understands these parameters, all optional:
///
/// | parameter | meaning | default |
/// |---|---|---|
/// | `lock_prefix` | put before all names, so applications can share a store | none |
/// | `lock_ttl` | how long the store keeps a lock without a renewal | `30s` |
/// | `lock_delay` | how long others are kept away after a holder has lost a lock: see [`Lock::lock_delay`](crate::Lock::lock_delay) | none |
/// | `lock_min_hold` | the least time for which a lock is kept from others: see [`Lock::min_hold`](crate::Lock::min_hold) | none |
/// | `lock_call_timeout` | the limit for one call to the store | a third of the TTL, at most `5s` |
/// | `lock_unavailable_after` | when a wait without a limit gives up on a store that does not answer | `30s`; Redlock: `30s` more than its longest TTL; Redis with sentinels: `30s` more than a new master waits |
/// | `lock_cohort` | how many tasks of this process may have a lock one after the other: see [`LocksBuilder::cohort`](crate::backend::LocksBuilder::cohort) | `1`, off |
/// | `lock_label` | the holder's name as shown to people | host and process id |
///
/// Each store's own parameters are on its page. Durations are written as `500ms`, `30s` or
/// `1m 30s`.
///
/// With the feature `metrics`, the use of the store is reported: see `MetricsLayer`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let locks = distlock::connect("memory://?lock_ttl=10s").await?;
/// let guard = locks.named("order:42")?.acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`Config`](lock_core::ErrorKind::Config) for an unknown scheme, a scheme whose cargo feature is
/// not enabled, and an unknown or invalid parameter: the message lists what is valid. Also any
/// error of the store on first contact. Errors never show a password.
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect(url: &str) -> Result<Locks> {
    builder(url).connect().await
}

/// [`connect`] for a program without async code. The store's tasks run on the runtime of this
/// thread, or otherwise on a thread of this library: see
/// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
///
/// ```
/// fn main() -> distlock::Result<()> {
///     let locks = distlock::connect_blocking("memory://")?;
///     let guard = locks.named("order:42")?.acquire_blocking()?;
///     guard.release_blocking()?;
///     locks.close_blocking(std::time::Duration::from_secs(5))
/// }
/// ```
///
/// # Errors
///
/// Those of [`connect`], and [`NoAnswer`](lock_core::ErrorKind::NoAnswer) if the runtime of this
/// thread is not driven while it waits.
pub fn connect_blocking(url: &str) -> Result<Locks> {
    let builder = builder(url);
    blocking::run(async move { builder.connect().await })
}

/// A store named by a URL, with settings that a URL cannot express or should not decide.
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let locks = distlock::builder("memory://?lock_label=blue")
///     .prefix("shop")
///     .default_ttl(Duration::from_secs(10))
///     .connect()
///     .await?;
/// assert_eq!(locks.named("order:42")?.key().to_string(), "shop/order:42");
/// # Ok(()) }
/// ```
///
/// For the parameters of a URL see [`connect`].
pub fn builder(url: impl Into<String>) -> ConnectBuilder {
    ConnectBuilder {
        url: url.into(),
        runtime: None,
        #[cfg(feature = "metrics")]
        metrics: lock_core::MetricsLayer::default(),
        settings: Vec::new(),
        layers: Vec::new(),
        required: Vec::new(),
    }
}

/// Settings for [`connect`], made by [`builder`]. All are optional, and each has
/// the default and the limits of its namesake in [`LocksBuilder`]. Settings made here override the
/// URL.
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct ConnectBuilder {
    url: String,
    runtime: Option<Handle>,
    #[cfg(feature = "metrics")]
    metrics: lock_core::MetricsLayer,
    settings: Vec<Setting>,
    layers: Vec<Setting>,
    required: Vec<Feature>,
}

impl ConnectBuilder {
    fn with(mut self, set: impl Fn(LocksBuilder) -> LocksBuilder + Send + Sync + 'static) -> Self {
        self.settings.push(Arc::new(set));
        self
    }

    /// The source of time: see [`LocksBuilder::clock`].
    pub fn clock(self, clock: impl Clock) -> Self {
        let clock = Arc::new(clock);
        self.with(move |locks| locks.clock(Arc::clone(&clock)))
    }

    /// The runtime on which the store is connected and locks are kept: see
    /// [`LocksBuilder::runtime`]. By default the caller's.
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// A prefix for all names: see [`LocksBuilder::prefix`].
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        self.with(move |locks| locks.prefix(&prefix))
    }

    /// The TTL of locks that do not set their own: see [`LocksBuilder::default_ttl`].
    pub fn default_ttl(self, ttl: Duration) -> Self {
        self.with(move |locks| locks.default_ttl(ttl))
    }

    /// For how long others are kept away after a lock was lost because it could not be renewed: see
    /// [`LocksBuilder::lock_delay`].
    pub fn lock_delay(self, delay: Duration) -> Self {
        self.with(move |locks| locks.lock_delay(delay))
    }

    /// For how long a lock is kept from others at least: see [`LocksBuilder::min_hold`].
    pub fn min_hold(self, least: Duration) -> Self {
        self.with(move |locks| locks.min_hold(least))
    }

    /// The limit for one call to the store: see [`LocksBuilder::call_timeout`].
    pub fn call_timeout(self, limit: Duration) -> Self {
        self.with(move |locks| locks.call_timeout(limit))
    }

    /// When a wait without a limit gives up on a store that does not answer: see
    /// [`LocksBuilder::unavailable_after`].
    pub fn unavailable_after(self, limit: Duration) -> Self {
        self.with(move |locks| locks.unavailable_after(limit))
    }

    /// How many tasks may have a lock one after the other: see [`LocksBuilder::cohort`].
    pub fn cohort(self, holders: u32) -> Self {
        self.with(move |locks| locks.cohort(holders))
    }

    /// The holder's name as shown to people: see [`LocksBuilder::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        let label = label.into();
        self.with(move |locks| locks.label(&label))
    }

    /// How the use of the store is reported: for instance with
    /// [names of locks](lock_core::MetricsLayer::named_by).
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, layer: lock_core::MetricsLayer) -> Self {
        self.metrics = layer;
        self
    }

    /// Wraps the backend: see [`LocksBuilder::layer`].
    pub fn layer(mut self, layer: impl LockLayer + Send + Sync + 'static) -> Self {
        let layer = Arc::new(layer);
        self.layers.push(Arc::new(move |locks| locks.layer(Arc::clone(&layer))));
        self
    }

    /// What the program needs of the store: connecting fails if the store lacks it, as [`Locks::require`] does.
    pub fn require(mut self, features: impl IntoIterator<Item = Feature>) -> Self {
        self.required.extend(features);
        self
    }

    /// Connects to the store.
    ///
    /// # Errors
    ///
    /// Those of [`connect`], of [`LocksBuilder::build`] and of [`Locks::require`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(self) -> Result<Locks> {
        let (opener, builder) = self.read()?;
        builder.open(opener).await
    }

    /// Locks of a store that may not be running yet. The URL and the settings are read now, so a mistake in them is
    /// found when the program starts; the first call that needs the store connects to it.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) as for [`connect`], for anything
    /// wrong with the URL; [`InvalidInput`](lock_core::ErrorKind::InvalidInput) for a setting that no store can have.
    pub fn connect_lazy(self) -> Result<LazyLocks> {
        let (opener, builder) = self.read()?;
        Ok(LazyLocks::new(opener, builder))
    }

    /// What connects to the store of the URL, and a builder in which the settings of the URL come before those made
    /// here; if there can be locks with them at all: a store that allows everything says so at once.
    fn read(mut self) -> Result<(Opener, Self)> {
        let opener = url::parse(&self.url).and_then(|(opener, settings)| {
            self.settings.splice(..0, settings);
            with_each(&self.settings, Locks::builder(MemoryBackend::queued())).build()?;
            Ok(opener)
        });
        let opener = opener.map_err(|error| error.in_operation(Operation::Connect))?;
        Ok((opener, self))
    }

    async fn open(self, opener: Opener) -> Result<Locks> {
        let opened = match &self.runtime {
            // A driver stays on the runtime in which it connects.
            Some(runtime) => {
                let opening = AbortOnDropHandle::new(runtime.spawn(opener()));
                opening.await.unwrap_or_else(|error| Err(runtime_ended(error)))
            }
            None => opener().await,
        };
        let mut locks = opened.map_err(|error| error.in_operation(Operation::Connect))?;
        #[cfg(feature = "metrics")]
        {
            locks = locks.layer(self.metrics);
        }
        if let Some(runtime) = self.runtime {
            locks = locks.runtime(runtime);
        }
        let locks = with_each(&self.layers, with_each(&self.settings, locks));
        let locks = locks.build().map_err(|error| error.in_operation(Operation::Connect))?;
        locks.require(self.required)?;
        Ok(locks)
    }
}

fn with_each(settings: &[Setting], locks: LocksBuilder) -> LocksBuilder {
    settings.iter().fold(locks, |locks, set| set(locks))
}

fn runtime_ended(error: JoinError) -> Error {
    Error::new(ErrorKind::Closed, "the runtime on which the store was being connected has ended")
        .with_source(error)
}

/// Omits the URL, which may contain a password.
impl fmt::Debug for ConnectBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.url.split_once("://").map(|(scheme, _)| scheme);
        f.debug_struct("ConnectBuilder").field("scheme", &scheme).finish_non_exhaustive()
    }
}

/// Locks of a store that the first call to need it connects, made by
/// [`ConnectBuilder::connect_lazy`]: for a service that may start before its store.
///
/// A store's capabilities are known only once it is connected, so this is not itself a [`Locks`]:
/// [`get`](Self::get) returns one. Clones share the connection.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let lazy = distlock::builder("memory://").connect_lazy()?; // sends nothing
/// assert!(lazy.current().is_none());
///
/// // In each request:
/// let locks = lazy.get().await?;
/// let guard = locks.named("order:42")?.acquire().await?;
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LazyLocks(Source);

#[derive(Clone)]
enum Source {
    Connected(Locks),
    Url { opener: Opener, builder: Box<ConnectBuilder>, link: ConnectOnce<Locks> },
}

/// Locks that are connected already, such as those of a test, where a program takes `LazyLocks`.
impl From<Locks> for LazyLocks {
    fn from(locks: Locks) -> Self {
        Self(Source::Connected(locks))
    }
}

impl LazyLocks {
    /// The time limit of one attempt. The store's own connect timeout is shorter unless it was set
    /// longer.
    const LIMIT: Duration = Duration::from_secs(60);
    /// The shortest and the longest pause after a failed attempt.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

    fn new(opener: Opener, builder: ConnectBuilder) -> Self {
        let backoff = Backoff::new(Self::PAUSES.0, Self::PAUSES.1);
        let link = ConnectOnce::new("the store", Self::LIMIT, backoff);
        Self(Source::Url { opener, builder: Box::new(builder), link })
    }

    /// The locks, connecting first if necessary, by one attempt that all waiting callers share.
    /// After a failed attempt, the next call makes another one, up to two seconds later.
    ///
    /// # Errors
    ///
    /// Those of [`ConnectBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the attempt continues, for the next call.
    pub async fn get(&self) -> Result<Locks> {
        match &self.0 {
            Source::Connected(locks) => Ok(locks.clone()),
            Source::Url { opener, builder, link } => {
                let connect = || ConnectBuilder::clone(builder).open(Arc::clone(opener));
                link.get(Self::LIMIT + Self::PAUSES.1, connect).await
            }
        }
    }

    /// The locks, if they are connected. Never waits, so a program can shut down without connecting
    /// first.
    pub fn current(&self) -> Option<Locks> {
        match &self.0 {
            Source::Connected(locks) => Some(locks.clone()),
            Source::Url { link, .. } => link.current(),
        }
    }
}

/// Omits the store, whose settings may contain a password.
impl fmt::Debug for LazyLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyLocks")
            .field("is_connected", &self.current().is_some())
            .finish_non_exhaustive()
    }
}
