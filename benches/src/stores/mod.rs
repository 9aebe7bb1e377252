//! The stores, with what is measured beside a lock on each of them.

mod etcd;
pub(crate) mod far;
mod mariadb;
mod memory;
mod postgres;
pub(crate) mod redis;
mod sqlite;
mod zookeeper;

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::Done;

/// What the bare drivers write where a lock would write its owner.
const OWNER: &str = "0123456789abcdef0123456789abcdef";

/// What a floor locks: several processes measure at a time.
fn own_name() -> String {
    format!("raw{}", std::process::id())
}

/// A store of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Store {
    Memory,
    Sqlite,
    Postgres,
    Mariadb,
    Redis,
    Redlock,
    Etcd,
    Zookeeper,
}

/// The servers of one store.
#[async_trait]
pub(crate) trait Subject: Send + Sync {
    /// Names it for all clients.
    fn url(&self) -> String;

    /// Which version it is.
    async fn version(&mut self) -> Done<String>;

    /// What it has counted so far.
    async fn usage(&mut self) -> Done<Usage>;

    /// Where clients reach its servers.
    fn addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// The members that can be stopped while the others go on: what each is called.
    async fn members(&self) -> Done<Vec<&'static str>> {
        Ok(Vec::new())
    }

    /// Stops the member at this place of [`members`](Self::members), or lets it go on.
    fn freeze(&self, _member: usize, _frozen: bool) -> Done {
        Err("no member to stop".into())
    }
}

/// The least with which the driver could do the work of a lock, on connections of its own.
#[async_trait]
pub(crate) trait Floor: Send {
    /// The request that a free lock cannot be acquired without.
    async fn acquire(&mut self) -> Done;

    /// The request that it cannot be released without.
    async fn release(&mut self) -> Done;

    /// How long a release, its push to another client, and a request of that one take.
    async fn hand_over(&mut self) -> Done<Duration>;
}

/// What the servers of a store have counted since they were started. `None`: it does not count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Messages of clients; for SQLite, write transactions.
    pub(crate) requests: Option<f64>,
    pub(crate) cpu: Option<Duration>,
    /// What the data takes.
    pub(crate) bytes: Option<f64>,
}

impl Usage {
    pub(crate) fn requests_since(self, before: Self) -> Option<f64> {
        Some(self.requests? - before.requests?)
    }

    /// Seconds.
    pub(crate) fn cpu_since(self, before: Self) -> Option<f64> {
        Some(self.cpu?.saturating_sub(before.cpu?).as_secs_f64())
    }

    pub(crate) fn bytes_since(self, before: Self) -> Option<f64> {
        Some(self.bytes? - before.bytes?)
    }
}

impl Store {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
            Self::Mariadb => "MariaDB",
            Self::Redis => "Redis",
            Self::Redlock => "Redlock",
            Self::Etcd => "etcd",
            Self::Zookeeper => "ZooKeeper",
        }
    }

    /// Starts its servers. Where the number of `members` is a choice, there are so many.
    pub(crate) async fn start(self, members: usize) -> Done<Box<dyn Subject>> {
        Ok(match self {
            Self::Memory => Box::new(memory::Memory::new()),
            Self::Sqlite => Box::new(sqlite::Sqlite::start().await?),
            Self::Postgres => Box::new(postgres::Postgres::start().await?),
            Self::Mariadb => Box::new(mariadb::MariaDb::start().await?),
            Self::Redis => Box::new(redis::Redis::start(1).await?),
            Self::Redlock => Box::new(redis::Redis::start(3).await?),
            Self::Etcd => Box::new(etcd::Etcd::start(members).await?),
            Self::Zookeeper => Box::new(zookeeper::ZooKeeper::start(members).await?),
        })
    }

    /// Connects the bare driver.
    pub(crate) async fn floor(self, url: &str) -> Done<Box<dyn Floor>> {
        Ok(match self {
            Self::Memory => Box::new(memory::MemoryFloor::default()),
            Self::Sqlite => Box::new(sqlite::SqliteFloor::connect(url).await?),
            Self::Postgres => Box::new(postgres::PostgresFloor::connect(url).await?),
            Self::Mariadb => Box::new(mariadb::MariaDbFloor::connect(url).await?),
            Self::Redis | Self::Redlock => Box::new(redis::RedisFloor::connect(url).await?),
            Self::Etcd => Box::new(etcd::EtcdFloor::connect(url).await?),
            Self::Zookeeper => Box::new(zookeeper::ZooKeeperFloor::connect(url).await?),
        })
    }

    /// Whether several processes can share it.
    pub(crate) fn is_shared(self) -> bool {
        self != Self::Memory
    }
}
