//! `etcd`: one member, or a cluster of several.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::Servers;
use super::peers::{PeerLinks, Peers};
use super::process::{Process, broken, free_port, url_from};
use conformance_tests::Unavailable;
use lock_core::async_trait;

/// The variable that names a cluster to use in place of a local binary.
const URL: &str = "LOCK_TEST_ETCD_URL";
/// The variable that names the binary; `etcd` by default.
const BINARY: &str = "LOCK_TEST_ETCD";
const START_LIMIT: Duration = Duration::from_secs(20);
/// Whether `etcd` can leave out `fsync`, as newer versions can. What it has written survives a kill
/// all the same: only a crash of the machine would lose it.
static UNSYNCED: AtomicBool = AtomicBool::new(true);

/// An etcd cluster of the test's own, or the one that `LOCK_TEST_ETCD_URL` names.
pub struct EtcdCluster {
    own: Option<Own>,
    url: String,
}

struct Own {
    directory: TempDir,
    members: Vec<Member>,
    options: Vec<String>,
    peers: Arc<Peers>,
    links: PeerLinks,
}

#[derive(Debug)]
struct Member {
    port: u16,
    tls_port: Option<u16>,
    peer_port: u16,
    /// Where the other members reach it.
    announced: SocketAddr,
    /// It follows without a vote, and serves no requests.
    learner: bool,
    process: Mutex<Option<Process>>,
}

/// Settings of a cluster of one's own.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct EtcdClusterBuilder {
    members: usize,
    learner: bool,
    options: Vec<String>,
    cuttable: bool,
    election: Option<Duration>,
    tls: bool,
}

impl EtcdClusterBuilder {
    /// The number of members; 1 by default.
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// Adds one more member, the last one, as a learner: it has no vote, and refuses requests.
    pub fn learner(mut self) -> Self {
        self.learner = true;
        self
    }

    /// One more option of the command line, such as `("auth-token-ttl", "2")`.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push(format!("--{name}={value}"));
        self
    }

    /// After how long without a leader the others elect one. By default 100 ms for one member, which
    /// is up sooner so, and 1 s for several, since a busy machine would depose their leader.
    pub fn election_timeout(mut self, timeout: Duration) -> Self {
        self.election = Some(timeout);
        self
    }

    /// Lets each member listen for TLS too, on a port of its own. The options for its certificates,
    /// such as `cert-file`, are up to the test.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Lets the test cut members off from each other. On Linux only.
    pub fn cuttable(mut self) -> Self {
        self.cuttable = true;
        self
    }

    /// Starts the cluster and waits until every member answers. Never the one of `LOCK_TEST_ETCD_URL`.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if `etcd` is not installed, with the package that has it;
    /// [`Unavailable::broken`] if it does not start, with what it has logged.
    pub async fn start(self) -> Result<EtcdCluster, Unavailable> {
        // Between finding a free port and opening it somebody else may take it.
        let mut last = None;
        for _ in 0..5 {
            let own = self.prepare()?;
            match own.start_all(false).await {
                Ok(()) => {
                    let members: Vec<_> =
                        own.members.iter().map(|m| format!("127.0.0.1:{}", m.port)).collect();
                    let url = format!("etcd://{}", members.join(","));
                    return Ok(EtcdCluster { own: Some(own), url });
                }
                Err(error) if error.is_broken() => {
                    if own.log_has("unsafe-no-fsync") {
                        UNSYNCED.store(false, Relaxed);
                    }
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Unavailable::broken("etcd does not start")))
    }

    fn prepare(&self) -> Result<Own, Unavailable> {
        let directory = tempfile::Builder::new()
            .prefix("etcd")
            .tempdir()
            .map_err(|error| Unavailable::broken(format!("no temporary folder: {error}")))?;
        let election = self.election.unwrap_or(Duration::from_millis(match self.members {
            1 => 100,
            _ => 1000,
        }));
        let mut options = self.options.clone();
        options.push(format!("--election-timeout={}", election.as_millis()));
        options.push(format!("--heartbeat-interval={}", (election / 10).as_millis()));
        let peers = Arc::<Peers>::default();
        let (mut members, mut links) = (Vec::new(), PeerLinks::default());
        for at in 0..self.members + usize::from(self.learner) {
            let (port, peer_port) = (free_port()?, free_port()?);
            let mut announced = SocketAddr::from(([127, 0, 0, 1], peer_port));
            if self.cuttable {
                announced = links.add(&peers, at, announced)?;
            }
            let tls_port = if self.tls { Some(free_port()?) } else { None };
            let (learner, process) = (at == self.members, Mutex::default());
            members.push(Member { port, tls_port, peer_port, announced, learner, process });
        }
        Ok(Own { directory, members, options, peers, links })
    }
}

impl EtcdCluster {
    /// The cluster that `LOCK_TEST_ETCD_URL` names, else one member of the test's own.
    ///
    /// # Errors
    ///
    /// As [`EtcdClusterBuilder::start`].
    pub async fn start() -> Result<Self, Unavailable> {
        match url_from(URL) {
            Some(url) => Ok(Self { own: None, url }),
            None => Self::builder().start().await,
        }
    }

    /// A cluster of the test's own with options.
    pub fn builder() -> EtcdClusterBuilder {
        EtcdClusterBuilder {
            members: 1,
            learner: false,
            options: Vec::new(),
            cuttable: false,
            election: None,
            tls: false,
        }
    }

    /// `etcd://` and the addresses of all members, or what the variable says.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the test may stop and restart it.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// How many members there are; 0 if the cluster is not the test's own.
    pub fn members(&self) -> usize {
        self.own.as_ref().map_or(0, |own| own.members.len())
    }

    /// Where clients reach a member.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if the cluster is not the test's own.
    pub fn address(&self, member: usize) -> Result<SocketAddr, Unavailable> {
        Ok(SocketAddr::from(([127, 0, 0, 1], self.member(member)?.port)))
    }

    /// The port on which a member listens for TLS.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] unless the cluster was built with [`tls`](EtcdClusterBuilder::tls).
    pub fn tls_port(&self, member: usize) -> Result<u16, Unavailable> {
        let port = self.member(member)?.tls_port;
        port.ok_or_else(|| Unavailable::missing("the members of this cluster have no TLS"))
    }

    /// Freezes a member (SIGSTOP): connections stay open, nothing is answered.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own; [`Unavailable::broken`] if it has ended.
    pub fn freeze(&self, member: usize) -> Result<(), Unavailable> {
        self.member(member)?.running(|process| process.freeze())
    }

    /// Ends [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze).
    pub fn thaw(&self, member: usize) -> Result<(), Unavailable> {
        self.member(member)?.running(|process| process.thaw())
    }

    /// Kills a member (SIGKILL). Nothing listens on its port until [`restart`](Self::restart).
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own.
    pub fn kill(&self, member: usize) -> Result<(), Unavailable> {
        if let Some(mut process) = self.member(member)?.process().take() {
            process.kill();
        }
        Ok(())
    }

    /// Starts a member again, with its data, and waits until it answers.
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill) and [`EtcdClusterBuilder::start`].
    pub async fn restart(&self, member: usize) -> Result<(), Unavailable> {
        self.kill(member)?;
        self.own()?.spawn(member)?;
        self.own()?.wait_for(member, true).await
    }

    /// Kills all members, starts them again, and waits until each answers.
    ///
    /// # Errors
    ///
    /// As [`restart`](Self::restart).
    pub async fn restart_all(&self) -> Result<(), Unavailable> {
        for member in 0..self.members() {
            self.kill(member)?;
        }
        self.own()?.start_all(true).await
    }

    /// Keeps a copy of what the only member has stored, for [`restore`](Self::restore). It is restarted.
    ///
    /// # Errors
    ///
    /// As [`restart`](Self::restart), and if the copy cannot be made.
    pub async fn back_up(&self) -> Result<(), Unavailable> {
        self.kill(0)?;
        let own = self.own()?;
        let copied = copy_folder(&own.data(0), &own.copy());
        copied.map_err(|error| Unavailable::broken(format!("no copy of the data: {error}")))?;
        self.restart(0).await
    }

    /// Replaces what the only member has stored by the copy, as an operator does with an old snapshot.
    ///
    /// # Errors
    ///
    /// As [`back_up`](Self::back_up).
    pub async fn restore(&self) -> Result<(), Unavailable> {
        self.kill(0)?;
        let own = self.own()?;
        let restored = std::fs::remove_dir_all(own.data(0))
            .and_then(|()| copy_folder(&own.copy(), &own.data(0)));
        restored.map_err(|error| Unavailable::broken(format!("no data to restore: {error}")))?;
        self.restart(0).await
    }

    /// Cuts a member off from the others, in both directions; clients still reach it.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] unless the cluster was built [`cuttable`](EtcdClusterBuilder::cuttable).
    pub fn cut_off(&self, member: usize) -> Result<(), Unavailable> {
        self.cuttable()?.cut_off(member, true);
        Ok(())
    }

    /// Ends [`cut_off`](Self::cut_off).
    ///
    /// # Errors
    ///
    /// As [`cut_off`](Self::cut_off).
    pub fn rejoin(&self, member: usize) -> Result<(), Unavailable> {
        self.cuttable()?.cut_off(member, false);
        Ok(())
    }

    /// The member that leads, as some member sees it; waits for an election if there is none.
    ///
    /// # Errors
    ///
    /// [`Unavailable::broken`] if none leads for long.
    pub async fn leader(&self) -> Result<usize, Unavailable> {
        let own = self.own()?;
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        loop {
            let statuses: Vec<_> = own.members.iter().map(Member::status).collect();
            let named = statuses.iter().flatten().map(|(_, leader)| leader).find(|l| *l != "0");
            let at = named.and_then(|leader| {
                statuses.iter().position(|s| s.as_ref().is_some_and(|(id, _)| id == leader))
            });
            match at {
                // It says so itself, so it is none that was deposed.
                Some(at) if statuses[at].as_ref().is_some_and(|(id, leader)| id == leader) => {
                    return Ok(at);
                }
                _ if tokio::time::Instant::now() >= deadline => {
                    return Err(Unavailable::broken("etcd has elected no leader"));
                }
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Hands the leadership over to another member.
    ///
    /// # Errors
    ///
    /// [`Unavailable::broken`] if the leader refuses.
    pub async fn move_leader(&self, to: usize) -> Result<(), Unavailable> {
        let leader = self.leader().await?;
        let (id, _) = self
            .member(to)?
            .status()
            .ok_or_else(|| Unavailable::broken("the member that should lead does not answer"))?;
        let body = format!("{{\"targetID\":\"{id}\"}}");
        self.member(leader)?
            .post("/v3/maintenance/transfer-leadership", &body)
            .map(drop)
            .ok_or_else(|| Unavailable::broken("the leader does not hand over"))
    }

    fn own(&self) -> Result<&Own, Unavailable> {
        self.own.as_ref().ok_or_else(|| {
            Unavailable::missing(format!("the cluster of {URL} is not ours to disturb"))
        })
    }

    fn member(&self, member: usize) -> Result<&Member, Unavailable> {
        let members = &self.own()?.members;
        members.get(member).ok_or_else(|| Unavailable::broken(format!("no member {member}")))
    }

    fn cuttable(&self) -> Result<&Peers, Unavailable> {
        let own = self.own()?;
        if own.links.is_empty() {
            return Err(Unavailable::missing("the members of this cluster are linked directly"));
        }
        Ok(&own.peers)
    }
}

#[async_trait]
impl Servers for EtcdCluster {
    fn foreign(&self) -> Option<&str> {
        self.own.is_none().then_some(&self.url)
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        (0..self.members()).filter_map(|member| self.address(member).ok()).collect()
    }

    fn freeze(&self) -> Result<(), Unavailable> {
        self.own()?;
        (0..self.members()).try_for_each(|member| Self::freeze(self, member))
    }

    fn thaw(&self) -> Result<(), Unavailable> {
        self.own()?;
        (0..self.members()).try_for_each(|member| Self::thaw(self, member))
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        self.restart_all().await
    }
}

impl fmt::Debug for EtcdCluster {
    /// The URL may have a password, so only members of the test's own are named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports =
            self.own.as_ref().map(|own| own.members.iter().map(|m| m.port).collect::<Vec<_>>());
        f.debug_struct("EtcdCluster").field("ports", &ports).finish_non_exhaustive()
    }
}

impl Own {
    async fn start_all(&self, again: bool) -> Result<(), Unavailable> {
        let (learners, voters): (Vec<_>, Vec<_>) =
            (0..self.members.len()).partition(|at| self.members[*at].learner);
        for member in &voters {
            self.spawn(*member)?;
        }
        for member in &voters {
            self.wait_for(*member, again).await?;
        }
        for member in learners {
            if !again {
                self.add_learner(&self.members[member])?;
            }
            self.spawn(member)?;
            self.wait_for(member, again).await?;
        }
        Ok(())
    }

    /// As `etcdctl member add --learner`.
    fn add_learner(&self, learner: &Member) -> Result<(), Unavailable> {
        let body =
            format!("{{\"peerURLs\":[\"http://{}\"],\"isLearner\":true}}", learner.announced);
        let added = self.members[0].post("/v3/cluster/member/add", &body);
        added.map(drop).ok_or_else(|| Unavailable::broken("the cluster takes no learner"))
    }

    fn spawn(&self, at: usize) -> Result<(), Unavailable> {
        let member = &self.members[at];
        let broken = |error| Unavailable::broken(format!("no log file: {error}"));
        let log = File::options().create(true).append(true).open(self.log(at)).map_err(broken)?;
        let errors = log.try_clone().map_err(broken)?;
        let mut client = member.url();
        if let Some(port) = member.tls_port {
            client.push_str(&format!(",https://127.0.0.1:{port}"));
        }
        let (client, peer) = (client, format!("http://127.0.0.1:{}", member.peer_port));
        let cluster: Vec<_> = self
            .members
            .iter()
            .enumerate()
            // Those who begin the cluster do not know of who joins it later.
            .filter(|(_, other)| member.learner || !other.learner)
            .map(|(at, member)| format!("m{at}=http://{}", member.announced))
            .collect();
        let mut command = Command::new(std::env::var_os(BINARY).unwrap_or_else(|| "etcd".into()));
        command
            .arg(format!("--name=m{at}"))
            .arg("--data-dir")
            .arg(self.data(at))
            .args([
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
            ])
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls=http://{}", member.announced))
            .arg(format!("--initial-cluster={}", cluster.join(",")))
            .arg(format!(
                "--initial-cluster-state={}",
                if member.learner { "existing" } else { "new" }
            ))
            .args(["--logger=zap", "--log-level=error"])
            .args(&self.options)
            // Settings of a system service have no place here.
            .env_clear()
            .envs(
                std::env::vars_os()
                    .filter(|(name, _)| !name.to_string_lossy().starts_with("ETCD_")),
            )
            .stdout(log)
            .stderr(errors);
        if UNSYNCED.load(Relaxed) {
            command.arg("--unsafe-no-fsync");
        }
        let process = Process::start(&mut command, "etcd-server")?;
        let mut processes = self.peers.members.lock().unwrap_or_else(PoisonError::into_inner);
        processes.retain(|(_, known)| *known != at);
        processes.push((process.id(), at));
        *member.process() = Some(process);
        Ok(())
    }

    /// Waits until a member answers. One that has run before and is started `again` may have to wait for
    /// its port: while it was down, some connection of another process may have been given it.
    async fn wait_for(&self, at: usize, again: bool) -> Result<(), Unavailable> {
        let member = &self.members[at];
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = member.running(|process| Ok(process.ended()))? {
                member.process().take();
                if !again || tokio::time::Instant::now() >= deadline {
                    return Err(self.broken(at, &format!("etcd ended at once: {status}")));
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                self.spawn(at)?;
            }
            if member.is_healthy() {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                member.process().take();
                return Err(self.broken(at, "etcd does not answer"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn data(&self, at: usize) -> PathBuf {
        self.directory.path().join(format!("m{at}"))
    }

    fn copy(&self) -> PathBuf {
        self.directory.path().join("copy")
    }

    fn log(&self, at: usize) -> PathBuf {
        self.directory.path().join(format!("log{at}"))
    }

    fn log_has(&self, text: &str) -> bool {
        (0..self.members.len()).any(|at| read(&self.log(at)).contains(text))
    }

    fn broken(&self, at: usize, what: &str) -> Unavailable {
        broken(what, &self.log(at))
    }
}

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    // The server refuses a folder that others may read.
    std::fs::set_permissions(to, std::fs::metadata(from)?.permissions())?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

impl Member {
    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running<T>(
        &self,
        act: impl FnOnce(&mut Process) -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        match &mut *self.process() {
            Some(process) => act(process),
            None => Err(Unavailable::broken("the member of etcd is not running")),
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn is_healthy(&self) -> bool {
        self.ask("GET /health HTTP/1.0\r\n\r\n").is_some_and(|answer| answer.contains("\"true\""))
    }

    /// The ids of this member and of its leader.
    fn status(&self) -> Option<(String, String)> {
        let status = self.post("/v3/maintenance/status", "{}")?;
        let leader = status["leader"].as_str().unwrap_or("0").to_owned();
        Some((status["header"]["member_id"].as_str()?.to_owned(), leader))
    }

    /// A request through the JSON gateway; `None` unless it is answered well.
    fn post(&self, path: &str, body: &str) -> Option<Value> {
        let answer = self.ask(&format!(
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.lines().next()?.contains(" 200 ").then(|| serde_json::from_str(body).ok())?
    }

    fn ask(&self, request: &str) -> Option<String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let limit = Duration::from_millis(500);
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&address, limit)?;
            stream.set_read_timeout(Some(limit))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cluster_elects_moves_and_loses_its_leader() {
        let cluster = EtcdCluster::builder().members(3).cuttable().start().await.unwrap();
        let first = cluster.leader().await.unwrap();
        let next = (first + 1) % 3;
        cluster.move_leader(next).await.unwrap();
        assert_eq!(cluster.leader().await.unwrap(), next);
        cluster.cut_off(next).unwrap();
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        while cluster.member(first).unwrap().status().is_none_or(|(_, leader)| {
            leader == "0"
                || Some(leader) == cluster.member(next).unwrap().status().map(|(id, _)| id)
        }) {
            assert!(tokio::time::Instant::now() < deadline, "the others elect no leader");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.rejoin(next).unwrap();
        cluster.kill(first).unwrap();
        assert_ne!(cluster.leader().await.unwrap(), first);
        cluster.restart(first).await.unwrap();
    }

    /// A connection that somebody else makes while a member is down may be given its port.
    #[tokio::test]
    async fn a_member_that_is_restarted_waits_for_its_port() {
        let cluster = EtcdCluster::builder().start().await.unwrap();
        cluster.kill(0).unwrap();
        let taken = loop {
            match std::net::TcpListener::bind(cluster.address(0).unwrap()) {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let freed = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            drop(taken);
        };
        let (restarted, ()) = tokio::join!(cluster.restart(0), freed);
        restarted.unwrap();
    }

    #[tokio::test]
    async fn an_option_that_is_wrong_shows_the_log() {
        let error = EtcdCluster::builder().option("nonsense", "1").start().await.unwrap_err();
        assert!(error.is_broken() && error.reason().contains("nonsense"), "{error}");
    }
}
