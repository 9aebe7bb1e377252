//! The servers of an ensemble, and how a connection to one of them is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Clock, Result, SystemClock};
use zookeeper_client as zk;

use crate::config::{Acl, ZkConfig};
use crate::connection::Connection;
use crate::error::bad_hosts;
use crate::wire;

/// What is needed to connect to one server of an ensemble.
pub(crate) struct Ensemble {
    connector: zk::Connector,
    /// Connect strings of one server each.
    pub(crate) hosts: Vec<String>,
    /// Hosts and ports: never a credential.
    pub(crate) endpoint: String,
    pub(super) acl: Acl,
    pub(crate) config: Arc<ZkConfig>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl fmt::Debug for Ensemble {
    /// Credentials are in the connector.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ensemble").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Ensemble {
    pub(crate) fn new(config: ZkConfig) -> Self {
        let mut connector = zk::Client::connector();
        if let Some(digest) = config.digest() {
            connector = connector.with_auth("digest", digest.as_bytes());
        }
        let hosts = config.endpoint().split(',').map(str::to_owned).collect();
        Self::of(connector, hosts, config.granted_acl(), config)
    }

    /// With the caller's connector, and a connect string of the driver: several servers, and a
    /// chroot after the last one.
    pub(crate) fn given(connector: zk::Connector, cluster: &str) -> Result<Self> {
        let begin = cluster.rfind("://").map_or(0, |at| at + "://".len());
        let at = cluster[begin..].find('/').map_or(cluster.len(), |at| begin + at);
        let (servers, chroot) = cluster.split_at(at);
        if servers.split(',').any(str::is_empty) {
            return Err(bad_hosts(cluster));
        }
        let hosts = servers.split(',').map(|server| format!("{server}{chroot}")).collect();
        Ok(Self::of(connector, hosts, Acl::Open, ZkConfig::new("localhost")?))
    }

    fn of(connector: zk::Connector, hosts: Vec<String>, acl: Acl, config: ZkConfig) -> Self {
        let (endpoint, config) = (hosts.join(","), Arc::new(config));
        Self { connector, hosts, endpoint, acl, config, clock: Arc::new(SystemClock::default()) }
    }

    /// Connects to the server with this number, modulo their count, with a session that lasts for
    /// `timeout` if the server allows it: a new one, or `session` resumed.
    ///
    /// # Errors
    ///
    /// Including when the server is silent for `patience`.
    pub(super) async fn connect(
        &self,
        host: usize,
        timeout: Duration,
        patience: Duration,
        session: Option<&zk::SessionInfo>,
    ) -> Result<Connection, zk::Error> {
        let connector =
            self.connector.clone().with_connection_timeout(patience).with_fail_eagerly();
        let connector = match session {
            Some(session) => connector.with_session(session.clone()),
            None => connector,
        };
        wire::connect(connector, &self.hosts[host % self.hosts.len()], timeout).await
    }
}
