//! Connecting by URL, with the settings in the URL.

use lock_core::{Locks, Result, blocking};

use crate::builder::ConnectBuilder;

/// Connects to the store named by `url`.
///
/// | URL | store |
/// |---|---|
/// | `memory://` | a new store in this process; `memory://name` is shared by all users of it |
/// | `sqlite:///var/lib/app/locks.db` | an SQLite file, for the processes of one machine |
/// | `postgres://user:password@host[:5432]/database`, `postgresql://` | a table of PostgreSQL |
/// | `mysql://user:password@host[:3306]/database`, `mariadb://` | a table of MySQL or MariaDB |
/// | `redis://[user:password@]host[:6379][/db]`, `rediss://`, `redis+unix:///socket` | one Redis server |
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
/// | `lock_call_timeout` | the limit for one call to the store | a third of the ttl, at most `5s` |
/// | `lock_unavailable_after` | when a wait without a limit gives up on a store that does not answer | `30s`; Redlock: `30s` more than its longest ttl |
/// | `lock_cohort` | how many tasks of this process may pass one hold on: see [`LocksBuilder::cohort`](crate::LocksBuilder::cohort) | `1`, none |
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
/// not enabled, and an unknown or invalid parameter: the message says what would be valid. Also any
/// error of the store on first contact. No error shows a password.
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect(url: &str) -> Result<Locks> {
    ConnectBuilder::new(url).connect().await
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
    let builder = ConnectBuilder::new(url);
    blocking::run(async move { builder.connect().await })
}
