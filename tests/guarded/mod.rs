//! Servers with a user `app`, made by the commands of `docs/guide/rights`.

#![allow(dead_code, reason = "each test target uses a part of it")]

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance_tests::proxied::Servers;
use distlock::Locks;
use lock_testkit::networked::Networked;
use lock_testkit::servers::EtcdCluster;
use tokio::time::Instant;

/// The class of `zkCli.sh`, and where Debian's server has it.
const ZOOKEEPER_CLIENT: [&str; 3] =
    ["-cp", "/usr/share/java/zookeeper.jar", "org.apache.zookeeper.ZooKeeperMain"];

/// What an administrator enters, for a user `app` with the password `secret`.
pub(crate) fn rights(store: Networked) -> &'static str {
    match store {
        Networked::Redis => include_str!("../../docs/guide/rights/redis.txt"),
        Networked::Redlock => include_str!("../../docs/guide/rights/redlock.txt"),
        Networked::Etcd => include_str!("../../docs/guide/rights/etcd.txt"),
        Networked::Postgres => include_str!("../../docs/guide/rights/postgres.txt"),
        Networked::MariaDb => include_str!("../../docs/guide/rights/mysql.txt"),
        Networked::ZooKeeper => include_str!("../../docs/guide/rights/zookeeper.txt"),
    }
}

/// Servers on which these commands were executed.
pub(crate) async fn start(store: Networked, commands: &str) -> Box<dyn Servers> {
    let servers: Box<dyn Servers> = match store {
        // The lowest cost of password hashing.
        Networked::Etcd => {
            let builder = EtcdCluster::builder().option("bcrypt-cost", "4");
            Box::new(builder.start().await.unwrap())
        }
        _ => store.start().await.unwrap(),
    };
    if matches!(store, Networked::Postgres | Networked::MariaDb) {
        // The table is there, as where an administrator has created it.
        open(&store.url(&servers.addresses(), "lock_connect_timeout=30s")).await.unwrap();
    }
    for address in servers.addresses() {
        administrate(store, address, commands);
    }
    servers
}

fn administrate(store: Networked, address: SocketAddr, commands: &str) {
    let port = address.port().to_string();
    let mut client = Command::new(match store {
        Networked::Redis | Networked::Redlock => "redis-cli",
        Networked::Etcd => "sh",
        Networked::Postgres => "psql",
        Networked::MariaDb => "mariadb",
        Networked::ZooKeeper => "java",
    });
    let mut commands = commands.to_owned();
    match store {
        Networked::Postgres => {
            client.args([
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-U",
                "postgres",
                "-v",
                "ON_ERROR_STOP=1",
            ]);
            commands = format!("REVOKE ALL ON SCHEMA public FROM PUBLIC;\n{commands}");
        }
        Networked::MariaDb => {
            let at = format!("--port={port}");
            client.args([
                "--no-defaults",
                "--protocol=tcp",
                "--host=127.0.0.1",
                &at,
                "--user=root",
            ]);
        }
        Networked::Etcd => {
            client.arg("-e").env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", address.to_string());
            let root = "etcdctl user add root:of-the-root\netcdctl user grant-role root root\n";
            commands = format!("{root}{commands}etcdctl auth enable\n");
        }
        Networked::ZooKeeper => {
            client.args(ZOOKEEPER_CLIENT);
            client.args(["-waitforconnection", "-server", &address.to_string()]);
        }
        Networked::Redis | Networked::Redlock => {
            client.args(["-p", &port]);
        }
    }
    let piped = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap_or_else(|error| panic!("{store:?}: its client: {error}"));
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    let refused = match store {
        // It says what it has created, on the channel for errors.
        Networked::ZooKeeper => errors
            .lines()
            .any(|line| !["SLF4J: ", "Created "].iter().any(|fine| line.starts_with(fine))),
        _ => said.lines().any(|line| line.starts_with("ERR") || line.starts_with("(error)")),
    };
    assert!(done.status.success() && !refused, "{store:?}: {commands}\n{said}\n{errors}");
}

/// The URL of the user `app`, for locks under the prefix `app`.
pub(crate) fn url(store: Networked, servers: &[SocketAddr], password: &str) -> String {
    let all = store.url(servers, "lock_connect_timeout=30s");
    let (scheme, rest) = all.split_once("://").unwrap();
    let hosts = rest.split_once('@').map_or(rest, |(_, hosts)| hosts);
    match store {
        Networked::Etcd | Networked::ZooKeeper => {
            format!("{scheme}://app:{password}@{}", hosts.replace('?', "/app?"))
        }
        Networked::Redis | Networked::Redlock => {
            format!("{scheme}://app:{password}@{hosts}&lock_prefix=app")
        }
        _ => format!("{scheme}://app:{password}@{hosts}"),
    }
}

/// Connects; again if a busy machine has not answered.
pub(crate) async fn open(url: &str) -> distlock::Result<Locks> {
    let start = Instant::now();
    loop {
        match distlock::connect(url).await {
            Err(error) if error.is_retryable() && start.elapsed() < Duration::from_secs(20) => {}
            opened => return opened,
        }
    }
}

/// Everything that two clients do to one lock.
pub(crate) async fn scene(url: &str) -> distlock::Result<()> {
    let (a, b) = (open(url).await?, open(url).await?);
    let limit = Duration::from_secs(20);
    let guard = a.named("x")?.acquire_timeout(limit).await?;
    let lock = b.named("x")?;
    let waiter = tokio::spawn(async move { lock.acquire_timeout(limit).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    guard.renew().await?;
    guard.check().await?;
    a.inspect("x").await?;
    assert_eq!(a.list("").await?.len(), 1);
    guard.release().await?;
    waiter.await.unwrap()?.release().await?;
    let taken = a.named("x")?.acquire_timeout(limit).await?;
    b.force_release_any("x").await?;
    drop(taken);
    b.health().await.map(drop)
}
