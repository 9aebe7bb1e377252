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

use std::fmt;
use std::net::SocketAddr;

use conformance_tests::Unavailable;
use lock_core::async_trait;

pub use etcd::{EtcdCluster, EtcdClusterBuilder};
pub use mariadb::{MariaDbServer, MariaDbServerBuilder};
pub use pgbouncer::PgBouncer;
pub use postgres::{PostgresServer, PostgresServerBuilder};
pub use process::{Process, free_port};
pub use redis::{Data, RedisServer, RedisServerBuilder};
pub use zookeeper::{TICK, ZooKeeper};

/// The servers of one store, as [`proxied`](crate::proxied) uses them.
#[async_trait]
pub trait Servers: fmt::Debug + Send + Sync + 'static {
    /// The URL that a variable names, if they are not the test's own.
    fn foreign(&self) -> Option<&str> {
        None
    }

    /// Where clients reach each server of the test's own.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// Freezes all (SIGSTOP): connections stay open, nothing is answered.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if they are not the test's own; [`Unavailable::broken`] if one has ended.
    fn freeze(&self) -> Result<(), Unavailable>;

    /// Ends [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze).
    fn thaw(&self) -> Result<(), Unavailable>;

    /// Kills all without warning, starts them again with the data that they have acknowledged, and waits
    /// until they serve.
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze), and if one does not start.
    async fn restart(&self) -> Result<(), Unavailable>;

    /// Waits until all serve, after whatever has happened to them.
    ///
    /// # Errors
    ///
    /// If one does not.
    async fn serve(&self) -> Result<(), Unavailable> {
        Ok(())
    }
}
