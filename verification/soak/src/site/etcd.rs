//! etcd: one member or three.

use std::net::SocketAddr;

use conformance_tests::Unavailable;
use conformance_tests::proxied::Servers;
use distlock::backend::async_trait;
use lock_testkit::servers::EtcdCluster;

use super::{Data, Site, Switch, Verb, not_here, tool};

#[derive(Debug)]
pub(super) struct Etcd(EtcdCluster);

impl Etcd {
    pub(super) async fn launch(members: usize) -> Result<Self, Unavailable> {
        let builder = EtcdCluster::builder().members(members);
        let builder = if members > 1 { builder.cuttable() } else { builder };
        let cluster = builder.start().await?;
        if members == 1 {
            // For `Verb::Restore`.
            cluster.back_up().await?;
        }
        Ok(Self(cluster))
    }

    async fn compact(&self) -> Result<(), Unavailable> {
        let endpoints: Vec<_> = self.0.addresses().iter().map(ToString::to_string).collect();
        let endpoints = format!("--endpoints={}", endpoints.join(","));
        let status = tool("etcdctl", &[&endpoints, "endpoint", "status", "-w", "fields"]).await?;
        let revisions = status.lines().filter_map(|line| line.split_once("\"Revision\" : "));
        let revision = revisions.map(|(_, revision)| revision.trim()).next_back();
        let revision = revision.ok_or_else(|| not_here("a revision"))?.to_owned();
        tool("etcdctl", &[&endpoints, "compact", &revision]).await?;
        tool("etcdctl", &[&endpoints, "defrag"]).await.map(drop)
    }
}

#[async_trait]
impl Site for Etcd {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.0.addresses()
    }

    fn url(&self, hosts: &str) -> String {
        format!("etcd://{hosts}")
    }

    fn is_http2(&self) -> bool {
        true
    }

    fn pids(&self) -> Vec<Option<u32>> {
        (0..self.0.members()).map(|member| self.0.pid(member).ok()).collect()
    }

    async fn leader(&self) -> Result<usize, Unavailable> {
        self.0.leader().await
    }

    fn freeze(&self, server: usize) -> Result<(), Unavailable> {
        self.0.freeze(server)
    }

    fn thaw(&self, server: usize) -> Result<(), Unavailable> {
        self.0.thaw(server)
    }

    fn kill(&self, server: usize) -> Result<(), Unavailable> {
        self.0.kill(server)
    }

    async fn start(&self, servers: &[usize], data: Data) -> Result<(), Unavailable> {
        match (servers, data) {
            (_, Data::Lost) => Err(not_here(data)),
            // No member of several that are down answers before the others are there.
            (several, _) if several.len() > 1 => self.0.restart_all().await,
            (servers, _) => {
                for server in servers {
                    self.0.restart(*server).await?;
                }
                Ok(())
            }
        }
    }

    async fn operate(&self, verb: Verb) -> Result<(), Unavailable> {
        match verb {
            Verb::Compact => self.compact().await,
            Verb::MoveLeader(pick) => {
                let members = self.0.members();
                let by = 1 + usize::try_from(pick).unwrap_or(0) % (members - 1);
                self.0.move_leader((self.0.leader().await? + by) % members).await
            }
            Verb::Restore => self.0.restore().await,
            _ => Err(not_here(verb)),
        }
    }

    async fn switch(&self, switch: Switch, on: bool) -> Result<(), Unavailable> {
        match (switch, on) {
            (Switch::CutOff(member), true) => self.0.cut_off(member),
            (Switch::CutOff(member), false) => self.0.rejoin(member),
            _ => Err(not_here(switch)),
        }
    }
}
