//! The set-ups: which store, on how many servers.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

/// A store, and how its servers are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    Pgbouncer,
    Mariadb,
    Redis,
    RedisReplica,
    Redlock3,
    Redlock5,
    Etcd1,
    Etcd3,
    Zookeeper1,
    Zookeeper3,
}

impl Kind {
    /// How many servers there are; none for a file.
    pub(crate) fn servers(self) -> usize {
        match self {
            Self::Sqlite => 0,
            Self::RedisReplica => 2,
            Self::Redlock3 | Self::Etcd3 | Self::Zookeeper3 => 3,
            Self::Redlock5 => 5,
            _ => 1,
        }
    }

    /// The ttl of all locks: short, so that a fault of some seconds outlasts it, but long enough for
    /// an election or for the shortest session.
    pub(crate) fn ttl(self) -> Duration {
        match self {
            Self::Etcd1 | Self::Etcd3 | Self::Zookeeper1 | Self::Zookeeper3 => {
                Duration::from_secs(2)
            }
            _ => Duration::from_secs(1),
        }
    }

    /// How often each fault strikes in a phase, so that all set-ups take about as long: a file has few rows,
    /// and etcd and ZooKeeper have the longest ttl, and elections.
    pub(crate) fn hits(self, asked: usize) -> usize {
        let eighths = match self {
            Self::Sqlite => 26,
            Self::Mariadb => 9,
            Self::Redlock3 | Self::Redlock5 => 7,
            Self::Etcd1 | Self::Zookeeper1 => 6,
            Self::Etcd3 | Self::Zookeeper3 => 4,
            _ => 8,
        };
        (asked * eighths).div_ceil(8)
    }

    /// Within this time and a ttl after the last fault every lock is granted again: reconnecting, an
    /// election, or the wait of Redlock nodes that have forgotten something.
    pub(crate) fn bound(self) -> Duration {
        Duration::from_secs(match self {
            Self::Redlock3 | Self::Redlock5 => 12,
            Self::Etcd3 | Self::Zookeeper1 | Self::Zookeeper3 => 15,
            _ => 8,
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.to_possible_value();
        f.write_str(name.as_ref().map_or("", |name| name.get_name()))
    }
}
