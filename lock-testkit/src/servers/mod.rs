//! Real servers for tests, each in a temporary folder and on a free loopback port.
//!
//! A URL in the environment wins over a local binary. A missing binary is an error that names the
//! package. A server is killed when its value is dropped, also after a panic, and by a small
//! guardian process when the test process itself is killed.

mod etcd;
mod mariadb;
mod peers;
mod pgbouncer;
mod postgres;
mod process;
mod redis;
mod zookeeper;

pub use etcd::{EtcdCluster, EtcdClusterBuilder};
pub use mariadb::{MariaDbServer, MariaDbServerBuilder};
pub use pgbouncer::PgBouncer;
pub use postgres::{PostgresServer, PostgresServerBuilder};
pub use process::{Process, free_port};
pub use redis::{Data, RedisServer, RedisServerBuilder};
pub use zookeeper::{TICK, ZooKeeper};
