//! Real servers for tests, each in a temporary folder and on a free loopback port.
//!
//! A URL in the environment takes precedence over a local binary. A missing binary is an error that
//! names the package. A server is killed when its value is dropped, even after a panic, and by a
//! small guardian process when the test process itself is killed.
//!
//! An error is `Unavailable::missing` if a program is not installed, or if a server is not the
//! test's own and so must not be disturbed; otherwise `Unavailable::broken`, with the server's log.

mod data;
mod etcd;
mod mariadb;
mod pgbouncer;
mod postgres;
mod process;
mod redis;
mod sentinel;
mod single;
mod zookeeper;

pub use etcd::{EtcdCluster, EtcdClusterBuilder, GrpcProxy};
pub use mariadb::{MariaDb, MariaDbServer};
pub use pgbouncer::PgBouncer;
pub(crate) use postgres::give_to_postgres;
pub use postgres::{Postgres, PostgresServer};
pub use redis::{Data, Redis, RedisServer};
pub use sentinel::{RedisGroup, Sentinel, follow, has_replicas, member, monitor, order, sentinel};
pub use single::{Builder, Kind, Server};
pub use zookeeper::{PeerLink, TICK, ZooKeeper};
