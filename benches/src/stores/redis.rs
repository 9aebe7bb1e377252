//! Redis, and several of it for Redlock.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::proxied::Servers;
use futures_util::future::try_join_all;
use lock_testkit::servers::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, Script};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

use super::{Floor, OWNER, Subject, Usage, own_name};
use crate::Done;

pub(super) struct Redis {
    servers: Vec<RedisServer>,
    connections: Vec<MultiplexedConnection>,
}

impl Redis {
    pub(super) async fn start(number: usize) -> Done<Self> {
        let (mut servers, mut connections) = (Vec::new(), Vec::new());
        for _ in 0..number {
            let server = RedisServer::builder().start().await?;
            connections.push(connect(server.url()).await?);
            servers.push(server);
        }
        Ok(Self { servers, connections })
    }
}

async fn connect(url: &str) -> Done<MultiplexedConnection> {
    let client = Client::open(url)?;
    Ok(client.get_multiplexed_async_connection_with_config(&patient()).await?)
}

/// By default a connection waits for half a second, which is too little when the machine is full.
fn patient() -> AsyncConnectionConfig {
    let limit = Some(Duration::from_secs(30));
    AsyncConnectionConfig::new().set_response_timeout(limit).set_connection_timeout(limit)
}

#[async_trait]
impl Subject for Redis {
    fn url(&self) -> String {
        match &self.servers[..] {
            [server] => server.url().to_owned(),
            servers => {
                let hosts =
                    servers.iter().map(|server| server.url().trim_start_matches("redis://"));
                // Nobody holds a lock on new nodes. They have a name, since some clients reach them over a link.
                format!(
                    "redlock://{}?lock_quorum_name=bench&lock_bootstrap=now",
                    hosts.collect::<Vec<_>>().join(",")
                )
            }
        }
    }

    async fn version(&mut self) -> Done<String> {
        let info = info(&mut self.connections[0], "server").await?;
        Ok(format!("Redis {}, {} of it", field(&info, "redis_version")?, self.servers.len()))
    }

    /// All that a lock sends is a script; the commands inside of scripts are no requests.
    async fn usage(&mut self) -> Done<Usage> {
        let (mut requests, mut cpu, mut bytes) = (0.0, Duration::ZERO, 0.0);
        for (server, connection) in self.servers.iter().zip(&mut self.connections) {
            let stats = info(connection, "commandstats").await?;
            for command in ["cmdstat_eval", "cmdstat_evalsha"] {
                let Ok(figures) = field(&stats, command) else { continue };
                let calls = figures.trim_start_matches("calls=").split(',').next();
                requests += calls.unwrap_or("0").parse::<f64>()?;
            }
            cpu += server.cpu_time()?;
            bytes += field(&info(connection, "memory").await?, "used_memory")?.parse::<f64>()?;
        }
        Ok(Usage { requests: Some(requests), cpu: Some(cpu), bytes: Some(bytes) })
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().flat_map(Servers::addresses).collect()
    }

    async fn members(&self) -> Done<Vec<&'static str>> {
        Ok(if self.servers.len() > 1 { vec!["one node"] } else { Vec::new() })
    }

    fn freeze(&self, member: usize, frozen: bool) -> Done {
        let server = &self.servers[member];
        Ok(if frozen { server.freeze() } else { server.thaw() }?)
    }
}

async fn info(connection: &mut MultiplexedConnection, section: &str) -> Done<String> {
    Ok(redis::cmd("INFO").arg(section).query_async(connection).await?)
}

fn field<'a>(info: &'a str, name: &str) -> Done<&'a str> {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.ok_or_else(|| format!("INFO has no {name}"))?.trim())
}

/// The servers of `redis://…` or `redlock://…,…,…`.
pub(crate) fn servers(url: &str) -> Vec<String> {
    let (_, hosts) = url.split_once("://").unwrap_or_default();
    let hosts = hosts.split('?').next().unwrap_or_default();
    hosts.split(',').map(|host| format!("redis://{host}")).collect()
}

/// One script or command to each of the nodes at once.
pub(super) struct RedisFloor {
    nodes: Vec<Node>,
    release: Script,
    publish: Script,
}

struct Node {
    commands: MultiplexedConnection,
    subscriber: MultiplexedConnection,
    pushes: UnboundedReceiver<PushInfo>,
    channel: String,
}

impl RedisFloor {
    pub(super) async fn connect(url: &str) -> Done<Self> {
        let nodes = servers(url).into_iter().map(Node::connect);
        let release = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
        let publish = "return redis.call('PUBLISH', KEYS[1], '1')";
        Ok(Self {
            nodes: try_join_all(nodes).await?,
            release: Script::new(release),
            publish: Script::new(publish),
        })
    }
}

impl Node {
    async fn connect(url: String) -> Done<Self> {
        let (pushed, pushes) = tokio::sync::mpsc::unbounded_channel();
        let config = patient().set_push_sender(pushed);
        let client = Client::open(format!("{url}/?protocol=resp3"))?;
        let mut subscriber = client.get_multiplexed_async_connection_with_config(&config).await?;
        let channel = own_name();
        subscriber.subscribe(&channel).await?;
        Ok(Self { commands: connect(&url).await?, subscriber, pushes, channel })
    }
}

async fn set(connection: &mut MultiplexedConnection) -> Done {
    let mut command = redis::cmd("SET");
    command.arg("raw").arg(OWNER).arg("NX").arg("PX").arg(30_000);
    let _: redis::Value = command.query_async(connection).await?;
    Ok(())
}

#[async_trait]
impl Floor for RedisFloor {
    async fn acquire(&mut self) -> Done {
        try_join_all(self.nodes.iter_mut().map(|node| set(&mut node.commands))).await?;
        Ok(())
    }

    async fn release(&mut self) -> Done {
        let release = &self.release;
        let released = self.nodes.iter_mut().map(async |node| {
            let _: i64 = release.key("raw").arg(OWNER).invoke_async(&mut node.commands).await?;
            Done::Ok(())
        });
        try_join_all(released).await?;
        Ok(())
    }

    async fn hand_over(&mut self) -> Done<Duration> {
        let publish = &self.publish;
        let handed = self.nodes.iter_mut().map(async |node| {
            // Whatever was pushed before is another round's.
            while node.pushes.try_recv().is_ok() {}
            let publish = publish.key(&node.channel);
            let (answer, push) =
                tokio::join!(publish.invoke_async::<i64>(&mut node.commands), node.pushes.recv());
            answer?;
            push.ok_or("no push")?;
            set(&mut node.subscriber).await
        });
        let start = Instant::now();
        try_join_all(handed).await?;
        Ok(start.elapsed())
    }
}
