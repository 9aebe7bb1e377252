//! ZooKeeper: one server or three.

use std::net::SocketAddr;
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::proxied::Servers;
use distlock::backend::async_trait;
use lock_testkit::servers::ZooKeeper;

use super::{Data, Site, Switch, Verb, not_here};

/// The shortest and the longest session.
const SESSIONS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

#[derive(Debug)]
pub(super) struct Ensemble(ZooKeeper);

impl Ensemble {
    pub(super) async fn launch(servers: usize) -> Result<Self, Unavailable> {
        Ok(Self(ZooKeeper::with_sessions(servers, SESSIONS.0, SESSIONS.1).await?))
    }
}

#[async_trait]
impl Site for Ensemble {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.0.addresses()
    }

    fn url(&self, hosts: &str) -> String {
        format!("zookeeper://{hosts}?lock_tick_time=100ms")
    }

    fn pids(&self) -> Vec<Option<u32>> {
        (0..self.0.len()).map(|server| self.0.pid(server).ok()).collect()
    }

    async fn leader(&self) -> Result<usize, Unavailable> {
        self.0.leader()
    }

    fn freeze(&self, server: usize) -> Result<(), Unavailable> {
        self.0.freeze_one(server)
    }

    fn thaw(&self, server: usize) -> Result<(), Unavailable> {
        self.0.thaw_one(server)
    }

    fn kill(&self, server: usize) -> Result<(), Unavailable> {
        self.0.kill_one(server)
    }

    async fn start(&self, servers: &[usize], data: Data) -> Result<(), Unavailable> {
        match (servers, data) {
            (_, Data::Lost) => Err(not_here(data)),
            (several, _) if several.len() > 1 => self.0.restart().await,
            (servers, _) => {
                for server in servers {
                    self.0.start_one(*server).await?;
                }
                Ok(())
            }
        }
    }

    async fn operate(&self, verb: Verb) -> Result<(), Unavailable> {
        match verb {
            Verb::LoseAll => self.0.restart_without_data().await,
            _ => Err(not_here(verb)),
        }
    }

    async fn switch(&self, switch: Switch, _: bool) -> Result<(), Unavailable> {
        Err(not_here(switch))
    }
}
