//! A URL, and settings besides it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::clock::Clock;
use lock_core::contract::LockLayer;
use lock_core::{Locks, LocksBuilder, Operation, Result};
use tokio::runtime::Handle;

use crate::lazy::LazyLocks;
use crate::opening::{Opening, Setting};
use crate::target::Target;

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
/// For the parameters of a URL see [`connect`](crate::connect()).
pub fn builder(url: impl Into<String>) -> ConnectBuilder {
    ConnectBuilder::new(url)
}

/// Settings for [`connect`](crate::connect()), made by [`builder`]. All are optional, and each has
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
}

impl ConnectBuilder {
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            runtime: None,
            #[cfg(feature = "metrics")]
            metrics: lock_core::MetricsLayer::default(),
            settings: Vec::new(),
        }
    }

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

    /// The ttl of locks that do not set their own: see [`LocksBuilder::default_ttl`].
    pub fn default_ttl(self, ttl: Duration) -> Self {
        self.with(move |locks| locks.default_ttl(ttl))
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

    /// How many tasks may pass one hold on: see [`LocksBuilder::cohort`].
    pub fn cohort(self, holders: u32) -> Self {
        self.with(move |locks| locks.cohort(holders))
    }

    /// The holder's name as shown to people: see [`LocksBuilder::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        let label = label.into();
        self.with(move |locks| locks.label(&label))
    }

    /// How the use of the store is reported: for instance with
    /// [names of locks](lock_core::MetricsLayer::named_by), or on another clock.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, layer: lock_core::MetricsLayer) -> Self {
        self.metrics = layer;
        self
    }

    /// Wraps the backend: see [`LocksBuilder::layer`].
    pub fn layer(self, layer: impl LockLayer + Send + Sync + 'static) -> Self {
        let layer = Arc::new(layer);
        self.with(move |locks| locks.layer(Arc::clone(&layer)))
    }

    /// Connects to the store.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](crate::connect()), and of [`LocksBuilder::build`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(self) -> Result<Locks> {
        self.opening()?.connect().await
    }

    /// Locks of a store that may not be running yet. The URL is read now, so a mistake in it is
    /// found when the program starts; the first call that needs the store connects to it.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) as for [`connect`](crate::connect()), for anything
    /// wrong with the URL.
    pub fn connect_lazy(self) -> Result<LazyLocks> {
        Ok(LazyLocks::new(self.opening()?))
    }

    fn opening(self) -> Result<Opening> {
        let target = Target::parse(&self.url);
        let target = target.map_err(|error| error.in_operation(Operation::Connect))?;
        Ok(Opening {
            target,
            runtime: self.runtime,
            #[cfg(feature = "metrics")]
            metrics: self.metrics,
            settings: self.settings,
        })
    }
}

/// Omits the URL, which may contain a password.
impl fmt::Debug for ConnectBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.url.split_once("://").map(|(scheme, _)| scheme);
        f.debug_struct("ConnectBuilder").field("scheme", &scheme).finish_non_exhaustive()
    }
}
