//! The servers of an ensemble, and how a connection to one of them is made.

use std::fmt;
use std::time::Duration;

use lock_core::Result;
use zookeeper_client as zk;

use super::driver::Connection;
use crate::config::{Access, ZkConfig};
use crate::error::bad_hosts;

/// What is needed for connecting to one server of an ensemble.
pub(crate) struct Ensemble {
    connector: zk::Connector,
    /// Connect strings of one server each.
    hosts: Vec<String>,
    access: Access,
}

impl fmt::Debug for Ensemble {
    /// Credentials are in the connector.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ensemble").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl Ensemble {
    pub(crate) fn new(config: &ZkConfig) -> Self {
        let mut connector = zk::Client::connector();
        if let Some(auth) = &config.auth {
            connector = connector.with_auth("digest", auth.digest().as_bytes());
        }
        let hosts = config.endpoint().split(',').map(str::to_owned).collect();
        Self { connector, hosts, access: config.access() }
    }

    /// With a connector of the caller's, and a connect string of the driver: several servers, and a chroot
    /// behind the last one.
    pub(crate) fn given(connector: zk::Connector, cluster: &str) -> Result<Self> {
        let begin = cluster.rfind("://").map_or(0, |at| at + "://".len());
        let at = cluster[begin..].find('/').map_or(cluster.len(), |at| begin + at);
        let (servers, chroot) = cluster.split_at(at);
        if servers.split(',').any(str::is_empty) {
            return Err(bad_hosts(cluster));
        }
        let hosts = servers.split(',').map(|server| format!("{server}{chroot}")).collect();
        Ok(Self { connector, hosts, access: Access::Open })
    }

    pub(crate) fn len(&self) -> usize {
        self.hosts.len()
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn endpoint(&self) -> String {
        self.hosts.join(",")
    }

    /// A connection to the server of this number, modulo their count, and a session that lasts for
    /// `timeout` if the server allows it: a new one, or `session` once more.
    ///
    /// # Errors
    ///
    /// Also if the server is silent for `patience`.
    pub(crate) async fn connect(
        &self,
        host: usize,
        timeout: Duration,
        patience: Duration,
        session: Option<&zk::SessionInfo>,
    ) -> Result<Connection, zk::Error> {
        let mut connector = self
            .connector
            .clone()
            .with_session_timeout(timeout)
            .with_connection_timeout(patience)
            .with_fail_eagerly();
        if let Some(session) = session {
            connector = connector.with_session(session.clone());
        }
        Connection::connect(connector, &self.hosts[host % self.hosts.len()]).await
    }
}
