//! What a URL says: which store, and with which settings.

use std::time::Duration;

use lock_core::testing::MemoryBackend;
use lock_core::url::Params;
use lock_core::{Error, LockBackend, LocksBuilder, Result};

use crate::scheme::{Opens, schemes, stores};

/// A store named by a URL, not connected yet.
#[derive(Clone)]
pub(crate) struct Target {
    store: Store,
    common: Common,
}

#[derive(Clone)]
enum Store {
    Memory(MemoryBackend),
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    Sql(Box<lock_sql::SqlConfig>),
    #[cfg(feature = "redis")]
    Redis(Box<lock_redis::RedisConfig>),
    #[cfg(feature = "redlock")]
    Redlock(Box<lock_redis::RedlockConfig>),
    #[cfg(feature = "etcd")]
    Etcd(Box<lock_etcd::EtcdConfig>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(Box<lock_zk::ZkConfig>),
}

impl Target {
    /// Reads a URL. Nothing is sent.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            Error::config(format!(
                "a store URL begins with a scheme and a colon; this build has {}",
                in_words(&schemes())
            ))
        })?;
        // RFC 3986, section 3.1: schemes are case-insensitive.
        let scheme = &scheme.to_ascii_lowercase();
        let known = stores().iter().find(|kind| kind.schemes().contains(&scheme.as_str()));
        let known = known.ok_or_else(|| unknown_scheme(scheme, rest))?;
        let (common, own) = Common::take_out_of(rest)?;
        let url = &format!("{scheme}:{own}");
        let store = match known.opens {
            Some(Opens::Memory) => Store::Memory(memory(url)?),
            #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
            Some(Opens::Sql) => Store::Sql(Box::new(lock_sql::SqlConfig::from_url(url)?)),
            #[cfg(feature = "redis")]
            Some(Opens::Redis) => Store::Redis(Box::new(lock_redis::RedisConfig::from_url(url)?)),
            #[cfg(feature = "redlock")]
            Some(Opens::Redlock) => {
                Store::Redlock(Box::new(lock_redis::RedlockConfig::from_url(url)?))
            }
            #[cfg(feature = "etcd")]
            Some(Opens::Etcd) => Store::Etcd(Box::new(lock_etcd::EtcdConfig::from_url(url)?)),
            #[cfg(feature = "zookeeper")]
            Some(Opens::ZooKeeper) => Store::ZooKeeper(Box::new(lock_zk::ZkConfig::from_url(url)?)),
            None => return Err(missing_feature(scheme, known.feature())),
        };
        Ok(Self { store, common })
    }

    /// Connects, and makes a builder with the settings of the URL.
    pub(crate) async fn open(self) -> Result<LocksBuilder> {
        let (store, common) = (self.store, self.common);
        Ok(match store {
            Store::Memory(backend) => common.builder(backend),
            #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
            Store::Sql(config) => common.builder(lock_sql::SqlBackend::connect(*config).await?),
            #[cfg(feature = "redis")]
            Store::Redis(config) => {
                common.builder(lock_redis::RedisBackend::connect(*config).await?)
            }
            #[cfg(feature = "redlock")]
            Store::Redlock(config) => {
                let backend = lock_redis::RedlockBackend::connect(*config).await?;
                // A new quorum, or one whose nodes were restarted, does not vote for as long as the
                // longest lease, and says why. That is worth waiting for.
                let longest = backend.capabilities().max_ttl;
                let patience = Duration::from_secs(30) + longest.unwrap_or_default();
                let unavailable_after = common.unavailable_after.or(Some(patience));
                Common { unavailable_after, ..common }.builder(backend)
            }
            #[cfg(feature = "etcd")]
            Store::Etcd(config) => common.builder(lock_etcd::EtcdBackend::connect(*config).await?),
            #[cfg(feature = "zookeeper")]
            Store::ZooKeeper(config) => common.builder(lock_zk::ZkBackend::connect(*config).await?),
        })
    }
}

fn memory(url: &str) -> Result<MemoryBackend> {
    let (url, params) = Params::split(url)?;
    params.finish("memory", &[])?;
    Ok(match url.trim_start_matches("memory:").trim_start_matches('/') {
        "" => MemoryBackend::queued(),
        name => MemoryBackend::named(name),
    })
}

/// The values of the parameters that every store has: [`COMMON`](lock_core::url::COMMON).
#[derive(Clone)]
struct Common {
    prefix: Option<String>,
    ttl: Option<Duration>,
    call_timeout: Option<Duration>,
    unavailable_after: Option<Duration>,
    cohort: Option<u32>,
    label: Option<String>,
}

impl Common {
    /// Splits a URL into our part and the backend's.
    fn take_out_of(rest: &str) -> Result<(Self, String)> {
        let (base, mut params) = Params::split(rest)?;
        let common = Self {
            prefix: params.text("lock_prefix")?,
            ttl: params.duration("lock_ttl")?,
            call_timeout: params.duration("lock_call_timeout")?,
            unavailable_after: params.duration("lock_unavailable_after")?,
            cohort: params.number("lock_cohort")?,
            label: params.text("lock_label")?,
        };
        Ok((common, params.rejoin(base)))
    }

    fn builder(self, backend: impl LockBackend) -> LocksBuilder {
        let mut builder = lock_core::Locks::builder(backend);
        if let Some(prefix) = self.prefix {
            builder = builder.prefix(prefix);
        }
        if let Some(ttl) = self.ttl {
            builder = builder.default_ttl(ttl);
        }
        if let Some(limit) = self.call_timeout {
            builder = builder.call_timeout(limit);
        }
        if let Some(limit) = self.unavailable_after {
            builder = builder.unavailable_after(limit);
        }
        if let Some(holders) = self.cohort {
            builder = builder.cohort(holders);
        }
        if let Some(label) = self.label {
            builder = builder.label(label);
        }
        builder
    }
}

fn unknown_scheme(scheme: &str, rest: &str) -> Error {
    let left_out = stores().iter().filter(|kind| !kind.is_built());
    let left_out: Vec<_> = left_out
        .filter_map(|kind| {
            Some(format!("{} (feature {:?})", kind.schemes().join("/"), kind.feature()?))
        })
        .collect();
    // The scheme is the part before the first colon. If the real one was forgotten, that may be a
    // password, so it is shown only if the rest looks like a URL.
    let shown = if rest.starts_with("//") && scheme.len() <= 20 {
        format!("{scheme:?}")
    } else {
        "of this URL".to_owned()
    };
    let mut message =
        format!("unknown store scheme {shown}: this build has {}", in_words(&schemes()));
    if !left_out.is_empty() {
        message.push_str("; it can be built with ");
        message.push_str(&left_out.join(", "));
    }
    Error::config(message)
}

fn missing_feature(scheme: &str, feature: Option<&str>) -> Error {
    let feature = feature.unwrap_or("full");
    Error::config(format!(
        "this build cannot use {scheme}: it has {}. Enable the cargo feature {feature:?} of distlock",
        in_words(&schemes())
    ))
}

fn in_words(names: &[&str]) -> String {
    names.join(", ")
}
