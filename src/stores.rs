//! The table of stores: the form and the schemes of their URLs, the cargo feature that enables each,
//! and what opens it.

use std::pin::Pin;
use std::sync::Arc;

use lock_core::testing::MemoryBackend;
use lock_core::{Locks, LocksBuilder, Result};
use lock_kit::url::Params;

/// Connects to one store, at each call anew.
pub(crate) type Opener =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<LocksBuilder>> + Send>> + Send + Sync>;

/// A kind of store that a URL can name, whether or not this build has it: see [`stores`].
#[derive(Clone, Copy, Debug)]
pub struct StoreKind {
    name: &'static str,
    url: &'static str,
    schemes: &'static [&'static str],
    feature: Option<&'static str>,
    /// Reads a URL, and sends nothing. `None` if the store is not part of this build.
    pub(crate) read: Option<fn(&str) -> Result<Opener>>,
}

impl StoreKind {
    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The form of its URL; parts in brackets are optional.
    pub const fn url_pattern(&self) -> &'static str {
        self.url
    }

    /// All schemes of its URLs, the one that [`url_pattern`](Self::url_pattern) shows first.
    pub const fn schemes(&self) -> &'static [&'static str] {
        self.schemes
    }

    /// The cargo feature of distlock that enables it; `None` if it is always available.
    pub const fn feature(&self) -> Option<&'static str> {
        self.feature
    }

    /// Whether this build can [`connect`](crate::connect()) to it.
    pub const fn is_built(&self) -> bool {
        self.read.is_some()
    }
}

/// A row of the table: a store that is named like the feature that enables it, or has another name, how its URL is read,
/// how it is connected, and what makes a builder of its locks. The text is here, since a build knows
/// the stores, too, that it leaves out.
macro_rules! kind {
    ($feature:literal, $url:literal, $schemes:expr, $read:expr, $connect:expr) => {
        kind!($feature, $url, $schemes, $read, $connect, Locks::builder)
    };
    ($feature:literal, $url:literal, $schemes:expr, $read:expr, $connect:expr, $build:expr) => {
        kind!($feature of $feature, $url, $schemes, $read, $connect, $build)
    };
    ($name:literal of $feature:literal, $url:literal, $schemes:expr, $read:expr, $connect:expr, $build:expr) => {
        StoreKind {
            name: $name,
            url: $url,
            schemes: $schemes,
            feature: Some($feature),
            #[cfg(feature = $feature)]
            read: Some(|url| {
                let open = |config| async { $connect(config).await.map($build) };
                Ok(opener($read(url)?, open))
            }),
            #[cfg(not(feature = $feature))]
            read: None,
        }
    };
}

#[rustfmt::skip] // one row, one store
const KINDS: &[StoreKind] = &[
    StoreKind {
        name: "memory",
        url: "memory://",
        schemes: &["memory"],
        feature: None,
        read: Some(|url| Ok(opener(memory(url)?, |store| async { Ok(Locks::builder(store)) }))),
    },
    kind!(
        "sqlite", "sqlite:///path/to/locks.db", &["sqlite"],
        lock_sql::SqlConfig::from_url, lock_sql::SqlBackend::connect
    ),
    kind!(
        "postgres", "postgres://user[:password]@host[:5432]/database", &["postgres", "postgresql"],
        lock_sql::SqlConfig::from_url, lock_sql::SqlBackend::connect
    ),
    kind!(
        "mysql", "mysql://user[:password]@host[:3306]/database", &["mysql", "mariadb"],
        lock_sql::SqlConfig::from_url, lock_sql::SqlBackend::connect
    ),
    kind!(
        "redis", "redis://[[user]:password@]host[:6379][/database]", &["redis", "rediss", "redis+unix"],
        lock_redis::RedisConfig::from_url, lock_redis::RedisBackend::connect
    ),
    kind!(
        "sentinel" of "redis", "redis+sentinel://[[user]:password@]sentinel[:26379][,sentinel...]/group[/database]",
        &["redis+sentinel", "rediss+sentinel"],
        lock_redis::SentinelConfig::from_url, lock_redis::SentinelBackend::connect, past_failover
    ),
    kind!(
        "redlock", "redlock://[[user]:password@]host[:6379],host,host", &["redlock", "redlocks"],
        lock_redis::RedlockConfig::from_url, lock_redis::RedlockBackend::connect, past_quarantine
    ),
    kind!(
        "etcd", "etcd://[user:password@]host[:2379][,host...][/prefix]", &["etcd", "etcds"],
        lock_etcd::EtcdConfig::from_url, lock_etcd::EtcdBackend::connect
    ),
    kind!(
        "zookeeper", "zookeeper://host[:2181][,host...][/root]", &["zookeeper", "zk"],
        lock_zk::ZkConfig::from_url, lock_zk::ZkBackend::connect
    ),
];

fn opener<C, F>(config: C, open: fn(C) -> F) -> Opener
where
    C: Clone + Send + Sync + 'static,
    F: Future<Output = Result<LocksBuilder>> + Send + 'static,
{
    Arc::new(move || Box::pin(open(config.clone())))
}

fn memory(url: &str) -> Result<MemoryBackend> {
    let (url, params) = Params::split(url)?;
    params.finish("memory", &[])?;
    Ok(match url.trim_start_matches("memory:").trim_start_matches('/') {
        "" => MemoryBackend::queued(),
        name => MemoryBackend::named(name),
    })
}

/// A new quorum, or one whose nodes were restarted, does not vote for as long as the longest lease,
/// and says why. That is worth waiting for.
#[cfg(feature = "redlock")]
fn past_quarantine(store: lock_redis::RedlockBackend) -> LocksBuilder {
    let longest = lock_core::LockBackend::capabilities(&store).max_ttl.unwrap_or_default();
    Locks::builder(store).unavailable_after(std::time::Duration::from_secs(30) + longest)
}

/// A new master grants nothing for as long as it may have forgotten a lock, and says why. That is worth waiting for.
#[cfg(feature = "redis")]
fn past_failover(store: lock_redis::SentinelBackend) -> LocksBuilder {
    let wait = std::time::Duration::from_secs(30) + store.quarantine();
    Locks::builder(store).unavailable_after(wait)
}

/// All kinds of stores that this version knows, those included that this build leaves out: for a
/// program that tells its users which URLs it takes.
///
/// ```
/// let memory = distlock::stores().iter().find(|kind| kind.name() == "memory").unwrap();
/// assert!(memory.is_built() && memory.feature().is_none());
/// ```
pub const fn stores() -> &'static [StoreKind] {
    KINDS
}

/// The URL schemes that this build can [`connect`](crate::connect()) to.
///
/// ```
/// assert!(distlock::schemes().contains(&"memory"));
/// ```
pub fn schemes() -> Vec<&'static str> {
    let built = KINDS.iter().filter(|kind| kind.is_built());
    built.flat_map(|kind| kind.schemes.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each backend says what it serves, so no alias is forgotten here, nor one too many promised.
    #[test]
    fn the_table_knows_the_schemes_of_every_backend() {
        let backends: &[&[&str]] = &[
            &["memory"],
            #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
            lock_sql::SCHEMES,
            #[cfg(feature = "redis")]
            lock_redis::SCHEMES,
            #[cfg(feature = "redis")]
            lock_redis::SENTINEL_SCHEMES,
            #[cfg(feature = "redlock")]
            lock_redis::REDLOCK_SCHEMES,
            #[cfg(feature = "etcd")]
            lock_etcd::SCHEMES,
            #[cfg(feature = "zookeeper")]
            lock_zk::SCHEMES,
        ];
        let served: BTreeSet<_> = backends.concat().into_iter().collect();
        assert_eq!(served, schemes().into_iter().collect());
    }

    #[test]
    fn the_form_of_a_url_begins_with_the_first_scheme() {
        for kind in stores() {
            assert!(kind.url.starts_with(&format!("{}://", kind.schemes[0])), "{}", kind.url);
        }
    }
}
