//! Every store that is reached over a network, for the tests that treat them all alike.

use std::net::SocketAddr;

use conformance_tests::Unavailable;
use conformance_tests::proxied::Servers;

use crate::servers::{EtcdCluster, MariaDbServer, PostgresServer, RedisServer, ZooKeeper};

/// A store that is reached over a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Networked {
    /// One Redis server.
    Redis,
    /// Three Redis servers.
    Redlock,
    /// One member of etcd.
    Etcd,
    /// One ZooKeeper server.
    ZooKeeper,
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
}

impl Networked {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Redis, Self::Redlock, Self::Etcd, Self::ZooKeeper, Self::Postgres, Self::MariaDb];

    /// Servers of the test's own.
    pub async fn start(self) -> Result<Box<dyn Servers>, Unavailable> {
        Ok(match self {
            Self::Redis => Box::new(RedisServer::builder().start().await?),
            Self::Redlock => {
                let mut nodes = Vec::new();
                for _ in 0..3 {
                    nodes.push(RedisServer::builder().start().await?);
                }
                Box::new(nodes)
            }
            Self::Etcd => Box::new(EtcdCluster::builder().start().await?),
            Self::ZooKeeper => Box::new(ZooKeeper::single().await?),
            Self::Postgres => Box::new(PostgresServer::builder().start().await?),
            Self::MariaDb => Box::new(MariaDbServer::builder().start().await?),
        })
    }

    /// The URL of the store whose servers are reached there, with these parameters.
    pub fn url(self, servers: &[SocketAddr], parameters: &str) -> String {
        let hosts: Vec<_> = servers.iter().map(ToString::to_string).collect();
        let hosts = hosts.join(",");
        match self {
            Self::Redis => format!("redis://{hosts}?{parameters}"),
            Self::Redlock => {
                format!("redlock://{hosts}?lock_quorum_name=test&lock_bootstrap=now&{parameters}")
            }
            Self::Etcd => format!("etcd://{hosts}?{parameters}"),
            Self::ZooKeeper => format!("zookeeper://{hosts}?{parameters}"),
            Self::Postgres => format!("postgres://postgres@{hosts}/postgres?{parameters}"),
            Self::MariaDb => format!("mysql://root@{hosts}/locks?{parameters}"),
        }
    }
}
