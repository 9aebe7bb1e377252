//! Redis: one node, a node with a replica, or the nodes of a quorum.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use conformance_tests::Unavailable;
use distlock::backend::async_trait;
use lock_testkit::servers::{Data as Kept, RedisServer};

use super::front::Front;
use super::{Data, Site, Switch, Verb, WallClock, not_here, tool};
use crate::kind::Kind;

/// A port on which nothing listens.
const NOWHERE: &str = "1";

#[derive(Debug)]
pub(super) struct Nodes {
    servers: Vec<RedisServer>,
    /// Before the master and its replica.
    front: Option<Front>,
    master: AtomicUsize,
    is_quorum: bool,
    clock: WallClock,
}

impl Nodes {
    pub(super) async fn launch(kind: Kind) -> Result<Self, Unavailable> {
        let clock = WallClock::new()?;
        let mut servers = Vec::new();
        for _ in 0..kind.servers() {
            let mut builder = RedisServer::builder();
            for (name, value) in clock.variables()? {
                builder = builder.variable(&name, value);
            }
            servers.push(builder.start().await?);
        }
        let is_quorum = matches!(kind, Kind::Redlock3 | Kind::Redlock5);
        let front = match kind {
            Kind::RedisReplica => Some(Front::start(servers[0].address()?).await?),
            _ => None,
        };
        let nodes = Self { servers, front, master: AtomicUsize::new(0), is_quorum, clock };
        if nodes.front.is_some() {
            nodes.follow(1, 0).await?;
        }
        Ok(nodes)
    }

    async fn tell(&self, server: usize, command: &[&str]) -> Result<String, Unavailable> {
        let port = self.servers[server].address()?.port().to_string();
        let answer = tool("redis-cli", &[&["-p", &port], command].concat()).await?;
        match answer.trim() {
            refused if refused.starts_with("ERR ") => {
                Err(Unavailable::broken(format!("redis-cli {command:?}: {refused}")))
            }
            answer => Ok(answer.to_owned()),
        }
    }

    /// The nodes that serve clients.
    fn serving(&self) -> Vec<usize> {
        match self.is_quorum {
            true => (0..self.servers.len()).collect(),
            false => vec![self.master.load(Relaxed)],
        }
    }

    async fn tell_all(&self, commands: &[&[&str]]) -> Result<(), Unavailable> {
        for server in self.serving() {
            for command in commands {
                self.tell(server, command).await?;
            }
        }
        Ok(())
    }

    async fn follow(&self, replica: usize, master: usize) -> Result<(), Unavailable> {
        let port = self.servers[master].address()?.port().to_string();
        self.tell(replica, &["REPLICAOF", "127.0.0.1", &port]).await.map(drop)
    }

    async fn take_over(&self) -> Result<(), Unavailable> {
        let front = self.front.as_ref().ok_or_else(|| not_here(Switch::Lag))?;
        let old = self.master.load(Relaxed);
        let new = 1 - old;
        self.tell(new, &["REPLICAOF", "NO", "ONE"]).await?;
        self.master.store(new, Relaxed);
        front.move_to(self.servers[new].address()?);
        self.follow(old, new).await
    }
}

#[async_trait]
impl Site for Nodes {
    fn addresses(&self) -> Vec<SocketAddr> {
        match &self.front {
            Some(front) => vec![front.address()],
            None => self.servers.iter().filter_map(|server| server.address().ok()).collect(),
        }
    }

    fn url(&self, hosts: &str) -> String {
        match self.is_quorum {
            true => format!("redlock://{hosts}?lock_quorum_name=soak&lock_max_ttl=2s"),
            false => format!("redis://{hosts}"),
        }
    }

    fn first_url(&self, hosts: &str) -> String {
        let url = self.url(hosts);
        if self.is_quorum { url + "&lock_bootstrap=now" } else { url }
    }

    fn pids(&self) -> Vec<Option<u32>> {
        self.servers.iter().map(|server| server.pid().ok()).collect()
    }

    fn wall_clock(&self) -> Option<&WallClock> {
        Some(&self.clock)
    }

    async fn leader(&self) -> Result<usize, Unavailable> {
        Ok(self.master.load(Relaxed))
    }

    fn freeze(&self, server: usize) -> Result<(), Unavailable> {
        self.servers[server].freeze()
    }

    fn thaw(&self, server: usize) -> Result<(), Unavailable> {
        self.servers[server].thaw()
    }

    fn kill(&self, server: usize) -> Result<(), Unavailable> {
        self.servers[server].kill()
    }

    async fn start(&self, servers: &[usize], data: Data) -> Result<(), Unavailable> {
        let data = if data == Data::Kept { Kept::Keep } else { Kept::Lose };
        for server in servers {
            self.servers[*server].restart(data).await?;
        }
        if self.front.is_some() {
            let master = self.master.load(Relaxed);
            self.follow(1 - master, master).await?;
        }
        Ok(())
    }

    async fn operate(&self, verb: Verb) -> Result<(), Unavailable> {
        let kill = |what| ["CLIENT", "KILL", "TYPE", what];
        match verb {
            Verb::EndConnections => self.tell_all(&[&kill("normal"), &kill("pubsub")]).await,
            Verb::EndPushes => self.tell_all(&[&kill("pubsub")]).await,
            Verb::FlushScripts => self.tell_all(&[&["SCRIPT", "FLUSH", "SYNC"]]).await,
            Verb::LoseAll => self.tell_all(&[&["FLUSHALL", "SYNC"]]).await,
            Verb::LoseOne(pick) => {
                let node = usize::try_from(pick).unwrap_or(0) % self.servers.len();
                self.tell(node, &["FLUSHALL", "SYNC"]).await.map(drop)
            }
            Verb::Evict => {
                let set = |name, value| ["CONFIG", "SET", name, value];
                self.tell_all(&[
                    &set("maxmemory-policy", "allkeys-random"),
                    &set("maxmemory", "1"),
                    // Keys are evicted before a command is run that may need memory.
                    &["PING"],
                    &set("maxmemory", "0"),
                    &set("maxmemory-policy", "noeviction"),
                ])
                .await
            }
            _ => Err(not_here(verb)),
        }
    }

    async fn switch(&self, switch: Switch, on: bool) -> Result<(), Unavailable> {
        match (switch, on) {
            (Switch::ReadOnly, true) => {
                self.tell_all(&[&["REPLICAOF", "127.0.0.1", NOWHERE]]).await
            }
            (Switch::ReadOnly, false) => self.tell_all(&[&["REPLICAOF", "NO", "ONE"]]).await,
            (Switch::Lag, true) => {
                let replica = 1 - self.master.load(Relaxed);
                self.tell(replica, &["REPLICAOF", "127.0.0.1", NOWHERE]).await.map(drop)
            }
            (Switch::Lag, false) => self.take_over().await,
            (Switch::Deny, true) => {
                self.tell_all(&[&["ACL", "SETUSER", "default", "resetkeys"]]).await
            }
            (Switch::Deny, false) => {
                self.tell_all(&[&["ACL", "SETUSER", "default", "allkeys"]]).await
            }
            _ => Err(not_here(switch)),
        }
    }
}
