//! From a URL to the locks of a store.

use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::url::Params;
use lock_core::{Error, LockBackend, Locks, Operation, Result};

use crate::scheme::{Kind, SCHEMES, schemes};

/// Connects to the store that `url` names.
///
/// | URL | store |
/// |---|---|
/// | `memory://` | a store of its own in this process; `memory://name` is shared by all who name it |
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
/// | `lock_prefix` | kept in front of all names, so that applications can share a store | none |
/// | `lock_ttl` | how long the store keeps a lock without a renewal | `30s` |
/// | `lock_call_timeout` | the limit for one call to the store | a third of the ttl, at most `5s` |
/// | `lock_unavailable_after` | when a wait without a limit gives up on a store that does not answer | `30s`; Redlock: `30s` more than its longest ttl |
/// | `lock_label` | who holds the locks, for people who look | host and process id |
///
/// The store's own parameters are on its page. Durations are written as `500ms`, `30s` or `1m 30s`.
///
/// With the feature `metrics`, the use of the store is reported: see `MetricsLayer`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let locks = distlock::connect("memory://?lock_ttl=10s").await?;
/// let guard = locks.lock("order:42")?.acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`Config`](lock_core::ErrorKind::Config) for an unknown scheme, a scheme whose cargo feature is
/// not compiled in, and an unknown or unreadable parameter: the message names what would be right.
/// Whatever the store meets on the first contact. No error shows a password.
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect(url: &str) -> Result<Locks> {
    open(url).await.map_err(|error| error.in_operation(Operation::Connect))
}

async fn open(url: &str) -> Result<Locks> {
    let (scheme, rest) = url.split_once(':').ok_or_else(|| {
        Error::config(format!(
            "a store URL begins with a scheme and a colon; this build has {}",
            in_words(&schemes())
        ))
    })?;
    // RFC 3986, section 3.1: schemes are case-insensitive.
    let scheme = &scheme.to_ascii_lowercase();
    let known = SCHEMES.iter().find(|known| known.names.contains(&scheme.as_str()));
    let known = known.ok_or_else(|| unknown_scheme(scheme, rest))?;
    let (common, own) = Common::take_out_of(rest)?;
    let url = format!("{scheme}:{own}");
    match known.kind {
        Some(Kind::Memory) => common.locks(memory(&url)?),
        #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
        Some(Kind::Sql) => common.locks(lock_sql::connect(&url).await?),
        #[cfg(feature = "redis")]
        Some(Kind::Redis) => common.locks(lock_redis::connect(&url).await?),
        #[cfg(feature = "redlock")]
        Some(Kind::Redlock) => {
            let backend = lock_redis::connect_redlock(&url).await?;
            // A new quorum, or one whose nodes were restarted, says why it does not vote yet, for as
            // long as the longest lease. That is worth waiting for.
            let longest = backend.capabilities().max_ttl;
            let patience = Duration::from_secs(30) + longest.unwrap_or_default();
            let unavailable_after = common.unavailable_after.or(Some(patience));
            Common { unavailable_after, ..common }.locks(backend)
        }
        #[cfg(feature = "etcd")]
        Some(Kind::Etcd) => common.locks(lock_etcd::connect(&url).await?),
        #[cfg(feature = "zookeeper")]
        Some(Kind::ZooKeeper) => common.locks(lock_zk::connect(&url).await?),
        None => Err(missing_feature(scheme, known.feature)),
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

/// What the parameters say that every store has: [`COMMON`](lock_core::url::COMMON).
struct Common {
    prefix: Option<String>,
    ttl: Option<Duration>,
    call_timeout: Option<Duration>,
    unavailable_after: Option<Duration>,
    label: Option<String>,
}

impl Common {
    /// Splits a URL into what is ours and what the backend sees.
    fn take_out_of(rest: &str) -> Result<(Self, String)> {
        let (base, mut params) = Params::split(rest)?;
        let common = Self {
            prefix: params.text("lock_prefix")?,
            ttl: params.duration("lock_ttl")?,
            call_timeout: params.duration("lock_call_timeout")?,
            unavailable_after: params.duration("lock_unavailable_after")?,
            label: params.text("lock_label")?,
        };
        Ok((common, params.rejoin(base)))
    }

    /// The locks of this store.
    fn locks(self, backend: impl LockBackend) -> Result<Locks> {
        let mut builder = Locks::builder(backend);
        #[cfg(feature = "metrics")]
        {
            builder = builder.layer(lock_core::MetricsLayer::default());
        }
        if let Some(prefix) = self.prefix {
            builder = builder.prefix(prefix)?;
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
        if let Some(label) = self.label {
            builder = builder.label(label);
        }
        Ok(builder.build())
    }
}

fn unknown_scheme(scheme: &str, rest: &str) -> Error {
    let left_out: Vec<_> = SCHEMES
        .iter()
        .filter(|known| known.kind.is_none())
        .filter_map(|known| {
            Some(format!("{} (feature {:?})", known.names.join("/"), known.feature?))
        })
        .collect();
    // The scheme is what stands before the first colon: where a real one was forgotten that may be a
    // password, so it is shown only if the rest looks like a URL.
    let shown = if rest.starts_with("//") && scheme.len() <= 20 {
        format!("{scheme:?}")
    } else {
        "of this URL".to_owned()
    };
    let mut message =
        format!("unknown store scheme {shown}: this build has {}", in_words(&schemes()));
    if !left_out.is_empty() {
        message.push_str("; it can have ");
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
