//! ZooKeeper.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::proxied::Servers;
use lock_testkit::servers;
use tokio::time::Instant;
use zookeeper_client as zk;

use super::{Floor, Subject, Usage, own_name};
use crate::Done;

const EPHEMERAL: zk::CreateOptions<'static> =
    zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
const PERSISTENT: zk::CreateOptions<'static> =
    zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());

pub(super) struct ZooKeeper(servers::ZooKeeper);

impl ZooKeeper {
    pub(super) async fn start(members: usize) -> Done<Self> {
        let sessions = (Duration::from_millis(500), Duration::from_secs(60));
        Ok(Self(servers::ZooKeeper::with_sessions(members, sessions.0, sessions.1).await?))
    }

    fn told(&self, member: usize, command: &str, name: &str) -> Done<String> {
        let answer = self.0.ask(member, command)?;
        let line = answer.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.ok_or_else(|| format!("{command} does not tell {name}"))?.trim().to_owned())
    }
}

#[async_trait]
impl Subject for ZooKeeper {
    fn url(&self) -> String {
        self.0.url().to_owned()
    }

    async fn version(&mut self) -> Done<String> {
        let version = self.told(0, "srvr", "Zookeeper version: ")?;
        Ok(format!("ZooKeeper {}, without fsync", version.split('-').next().unwrap_or_default()))
    }

    async fn usage(&mut self) -> Done<Usage> {
        let (mut requests, mut cpu, mut bytes) = (0.0, Duration::ZERO, 0.0);
        for member in 0..self.0.len() {
            requests += self.told(member, "srvr", "Received: ")?.parse::<f64>()?;
            cpu += self.0.cpu_time(member)?;
            bytes += self.told(member, "mntr", "zk_approximate_data_size")?.parse::<f64>()?;
        }
        Ok(Usage { requests: Some(requests), cpu: Some(cpu), bytes: Some(bytes) })
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.0.addresses()
    }

    async fn members(&self) -> Done<Vec<&'static str>> {
        let leader = self.0.leader()?;
        let name = |member| if member == leader { "the leader" } else { "a follower" };
        Ok((0..self.0.len()).map(name).collect())
    }

    fn freeze(&self, member: usize, frozen: bool) -> Done {
        Ok(if frozen { self.0.freeze_one(member) } else { self.0.thaw_one(member) }?)
    }
}

pub(super) struct ZooKeeperFloor {
    first: zk::Client,
    second: zk::Client,
    folder: String,
    node: String,
}

impl ZooKeeperFloor {
    pub(super) async fn connect(url: &str) -> Done<Self> {
        let folder = format!("/{}", own_name());
        let (first, second) = (connect(url).await?, connect(url).await?);
        first.mkdir(&folder, &PERSISTENT).await?;
        Ok(Self { first, second, folder, node: String::new() })
    }

    async fn create(&mut self) -> Done {
        let (_, sequence) =
            self.first.create(&format!("{}/lock-", self.folder), b"", &EPHEMERAL).await?;
        self.node = format!("{}/lock-{sequence}", self.folder);
        Ok(())
    }
}

async fn connect(url: &str) -> Done<zk::Client> {
    let hosts = url.trim_start_matches("zookeeper://");
    let timeout = Duration::from_secs(30);
    Ok(zk::Client::connector().with_session_timeout(timeout).connect(hosts).await?)
}

/// The requests of the recipe.
#[async_trait]
impl Floor for ZooKeeperFloor {
    async fn acquire(&mut self) -> Done {
        self.create().await?;
        self.first.list_children(&self.folder).await?;
        Ok(())
    }

    async fn release(&mut self) -> Done {
        Ok(self.first.delete(&self.node, None).await?)
    }

    async fn hand_over(&mut self) -> Done<Duration> {
        self.create().await?;
        let (_, _, deleted) = self.second.get_and_watch_data(&self.node).await?;
        let woken = async {
            deleted.changed().await;
            self.second.list_children(&self.folder).await?;
            Done::Ok(Instant::now())
        };
        let start = Instant::now();
        let (released, woken) = tokio::join!(self.first.delete(&self.node, None), woken);
        released?;
        Ok(woken?.saturating_duration_since(start))
    }
}
