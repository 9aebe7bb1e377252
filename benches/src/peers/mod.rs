//! Other lock libraries, with their defaults and with the best settings that were found.

mod etcd;
mod postgres;
mod redis;
mod zookeeper;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::Done;
use crate::stores::Store;

/// How long a lock is kept without a renewal: as long as one of ours by default.
const TTL: Duration = Duration::from_secs(30);
/// A pause between two tries that serves a poller best: below it, tries take the server's time.
const BEST_PAUSE: Duration = Duration::from_millis(5);

/// A peer with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rslock,
    RslockBest,
    Distkit,
    DistkitBest,
    DistributedLock,
    PgAdvisory,
    PgAdvisoryBest,
    EtcdLock,
    EtcdLockBest,
    ZooKeeperLock,
}

/// What one process uses for all its locks.
#[async_trait]
pub(crate) trait Peer: Send + Sync {
    /// Waits for the lock without a limit.
    async fn acquire(&self, name: &str) -> Done<Box<dyn PeerHold>>;
}

/// A lock that is held.
#[async_trait]
pub(crate) trait PeerHold: Send {
    async fn release(self: Box<Self>) -> Done;
}

/// Those that work on this store.
pub(crate) fn on(store: Store) -> &'static [Kind] {
    match store {
        Store::Memory | Store::Sqlite | Store::Mariadb => &[],
        Store::Postgres => &[Kind::PgAdvisory, Kind::PgAdvisoryBest],
        Store::Redis => &[
            Kind::Rslock,
            Kind::RslockBest,
            Kind::Distkit,
            Kind::DistkitBest,
            Kind::DistributedLock,
        ],
        Store::Redlock => &[Kind::Rslock, Kind::RslockBest, Kind::DistributedLock],
        Store::Etcd => &[Kind::EtcdLock, Kind::EtcdLockBest],
        Store::Zookeeper => &[Kind::ZooKeeperLock],
    }
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rslock => "rslock",
            Self::RslockBest => "rslock, tries every 0–5 ms",
            Self::Distkit => "distkit",
            Self::DistkitBest => "distkit, tries every 5 ms",
            Self::DistributedLock => "distributed-lock",
            Self::PgAdvisory => "PgAdvisoryLock of sqlx",
            Self::PgAdvisoryBest => "PgAdvisoryLock of sqlx, 50 untested connections",
            Self::EtcdLock => "lock() of etcd-client, a lease each",
            Self::EtcdLockBest => "lock() of etcd-client, leases reused",
            Self::ZooKeeperLock => "lock() of zookeeper-client",
        }
    }

    pub(crate) async fn open(self, url: &str) -> Done<Arc<dyn Peer>> {
        Ok(match self {
            Self::Rslock => Arc::new(redis::Rslock::open(url, None)),
            Self::RslockBest => Arc::new(redis::Rslock::open(url, Some(BEST_PAUSE))),
            Self::Distkit => Arc::new(redis::Distkit::open(url, None).await?),
            Self::DistkitBest => Arc::new(redis::Distkit::open(url, Some(BEST_PAUSE)).await?),
            Self::DistributedLock => Arc::new(redis::DistributedLock::open(url).await?),
            Self::PgAdvisory => Arc::new(postgres::Advisory::open(url, false).await?),
            Self::PgAdvisoryBest => Arc::new(postgres::Advisory::open(url, true).await?),
            Self::EtcdLock => Arc::new(etcd::Rpc::open(url, false).await?),
            Self::EtcdLockBest => Arc::new(etcd::Rpc::open(url, true).await?),
            Self::ZooKeeperLock => Arc::new(zookeeper::Recipe::open(url).await?),
        })
    }
}
