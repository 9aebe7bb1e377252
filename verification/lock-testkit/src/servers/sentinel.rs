//! A Redis master, its replicas, and the sentinels that watch them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use conformance_tests::Unavailable;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::data;
use super::process::{START_LIMIT, failed};
use super::redis::{BINARY, RedisServer};
use super::single::{Kind, Server};

/// The name of the group.
const GROUP: &str = "orders";
/// How many sentinels watch it.
const SENTINELS: usize = 3;

/// The folder of a sentinel.
#[derive(Debug)]
pub struct Sentinel(TempDir);

impl Kind for Sentinel {
    const PROGRAM: &'static str = "redis-server";
    const PACKAGE: &'static str = "redis-server";
    const URL: &'static str = "LOCK_TEST_SENTINEL_URL";
    const STOP: Signal = Signal::TERM;

    fn prepare() -> Result<Self, Unavailable> {
        Ok(Self(data::folder("sentinel")?))
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn url(address: SocketAddr) -> String {
        address.to_string()
    }

    fn option(name: &str, value: &str) -> Vec<String> {
        vec![format!("--{name}"), value.to_owned()]
    }

    /// A sentinel writes what it learns into its configuration file.
    fn command(&self, port: u16) -> Result<Command, Unavailable> {
        let file = self.folder().join("sentinel.conf");
        let text = format!("port {port}\nbind 127.0.0.1\ndir {}\n", self.folder().display());
        std::fs::write(&file, text)
            .map_err(|error| failed("a sentinel cannot be configured", error))?;
        let program = std::env::var_os(BINARY).unwrap_or_else(|| Self::PROGRAM.into());
        let mut command = Command::new(program);
        command.arg(file).arg("--sentinel");
        Ok(command)
    }

    fn answers(&self, address: SocketAddr, _: u32) -> bool {
        order(address, "PING").is_ok_and(|answer| answer == "+PONG\r\n")
    }
}

/// A master and its replicas, each with an append-only file, and three sentinels. The master changes when it fails.
#[derive(Debug)]
pub struct RedisGroup {
    servers: Vec<RedisServer>,
    sentinels: Vec<Server<Sentinel>>,
}

impl RedisGroup {
    /// Starts a group with so many replicas. Each server has these settings; a master that is silent for half a second
    /// is replaced.
    pub async fn start(replicas: usize, options: &[(&str, &str)]) -> Result<Self, Unavailable> {
        let (mut servers, mut sentinels) = (Vec::new(), Vec::new());
        for _ in 0..=replicas {
            servers.push(member(options).await?);
        }
        for _ in 0..SENTINELS {
            sentinels.push(Server::<Sentinel>::builder().start().await?);
        }
        let group = Self { servers, sentinels };
        group.introduce().await?;
        Ok(group)
    }

    /// Tells the replicas of their master, and the sentinels of the group, and waits until all know of each other.
    async fn introduce(&self) -> Result<(), Unavailable> {
        let master = self.servers[0].address()?;
        let replicas = self.servers.len() - 1;
        for server in &self.servers[1..] {
            follow(server.address()?, master)?;
        }
        has_replicas(master, replicas).await?;
        for sentinel in &self.sentinels {
            let at = sentinel.address()?;
            monitor(sentinel, GROUP, ("127.0.0.1", master.port()))?;
            let settings = "down-after-milliseconds 500 failover-timeout 3000";
            answered(at, &format!("SENTINEL SET {GROUP} {settings}"))?;
        }
        let known = format!("slaves={replicas},sentinels={SENTINELS}");
        for sentinel in &self.sentinels {
            until(sentinel.address()?, "INFO sentinel", |info| info.contains(&known)).await?;
        }
        Ok(())
    }

    /// The URL of the group, with these parameters, as in `a=1&b=2`.
    pub fn url(&self, parameters: &str) -> String {
        let sentinels: Vec<_> = self.sentinels.iter().map(Server::url).collect();
        format!("redis+sentinel://{}/{GROUP}?{parameters}", sentinels.join(","))
    }

    /// The servers, the first master first.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Server<Sentinel>] {
        &self.sentinels
    }

    /// Waits until all sentinels name another master than this server, and that says so itself. Returns its number.
    pub async fn successor(&self, of: usize) -> Result<usize, Unavailable> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let named = self.named();
            if let Some(master) = named.filter(|master| *master != of) {
                let role = order(self.servers[master].address()?, "ROLE").unwrap_or_default();
                if role.contains("master") {
                    return Ok(master);
                }
            }
            late(deadline, || format!("no server takes the place of number {of}: {named:?}"))?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The server that all sentinels name, if they agree.
    fn named(&self) -> Option<usize> {
        let named = |sentinel: &Server<Sentinel>| {
            let ask = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {GROUP}");
            let answer = order(sentinel.address().ok()?, &ask).ok()?;
            let port: u16 = answer.lines().last()?.parse().ok()?;
            let is_it = |server: &RedisServer| server.address().is_ok_and(|at| at.port() == port);
            self.servers.iter().position(is_it)
        };
        let mut all = self.sentinels.iter().map(named);
        let first = all.next()??;
        all.all(|other| other == Some(first)).then_some(first)
    }

    /// Has a replica take the place of the master, which goes on as a replica.
    pub async fn fail_over(&self) -> Result<(), Unavailable> {
        let deadline = Instant::now() + START_LIMIT;
        let ask = format!("SENTINEL FAILOVER {GROUP}");
        // Right after another one, a sentinel finds no replica that is fit.
        while !order(self.sentinels[0].address()?, &ask).is_ok_and(|answer| answer == "+OK\r\n") {
            late(deadline, || "the sentinels refuse a failover".to_owned())?;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// A server that may be a member of a group, with these settings.
pub async fn member(options: &[(&str, &str)]) -> Result<RedisServer, Unavailable> {
    let server = RedisServer::builder().option("repl-diskless-sync-delay", "0");
    let options = options.iter();
    options.fold(server, |server, (name, value)| server.option(name, value)).start().await
}

/// Makes a server the replica of this master.
pub fn follow(replica: SocketAddr, master: SocketAddr) -> Result<(), Unavailable> {
    answered(replica, &format!("REPLICAOF 127.0.0.1 {}", master.port()))
}

/// Waits until the master has so many replicas.
pub async fn has_replicas(master: SocketAddr, number: usize) -> Result<(), Unavailable> {
    let online = |info: String| info.matches("state=online").count() == number;
    until(master, "INFO replication", online).await
}

async fn until(
    address: SocketAddr,
    ask: &str,
    is_so: impl Fn(String) -> bool,
) -> Result<(), Unavailable> {
    let deadline = Instant::now() + START_LIMIT;
    while !order(address, ask).is_ok_and(&is_so) {
        late(deadline, || format!("the servers of a group do not find each other: {ask}"))?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Between two looks at what servers have become.
const PAUSE: Duration = Duration::from_millis(100);

fn late(deadline: Instant, what: impl FnOnce() -> String) -> Result<(), Unavailable> {
    if Instant::now() < deadline { Ok(()) } else { Err(Unavailable::broken(what())) }
}

/// Has a sentinel watch a group of this name, whose master is at this address.
pub fn monitor(
    sentinel: &Server<Sentinel>,
    group: &str,
    (host, port): (&str, u16),
) -> Result<(), Unavailable> {
    let quorum = SENTINELS / 2 + 1;
    answered(sentinel.address()?, &format!("SENTINEL MONITOR {group} {host} {port} {quorum}"))
}

/// Sends one command, and returns what comes back at once.
pub fn order(address: SocketAddr, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = vec![0; 16 * 1024];
    let length = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// Sends one command that must be answered with `+OK`.
fn answered(address: SocketAddr, command: &str) -> Result<(), Unavailable> {
    match order(address, command) {
        Ok(answer) if answer == "+OK\r\n" => Ok(()),
        Ok(answer) => Err(Unavailable::broken(format!("{command}: {answer}"))),
        Err(error) => Err(failed(command, error)),
    }
}

/// What takes itself for a sentinel, and names this master for ever. It ends with the runtime.
pub async fn sentinel(master: SocketAddr) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(name_master(stream, master));
        }
    });
    Ok(address)
}

async fn name_master(stream: tokio::net::TcpStream, master: SocketAddr) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    while let Some(header) = lines.next_line().await? {
        let words = header.trim_start_matches('*').parse().unwrap_or(0);
        let mut command = String::new();
        for word in 0..words {
            let _length = lines.next_line().await?;
            let text = lines.next_line().await?.unwrap_or_default();
            if word == 0 {
                command = text;
            }
        }
        let port = master.port().to_string();
        let answer = match command.as_str() {
            "SENTINEL" => format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len()),
            _ => "+OK\r\n".to_owned(),
        };
        writer.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}
