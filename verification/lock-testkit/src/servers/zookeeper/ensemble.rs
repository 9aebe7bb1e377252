//! The servers, and what tests do with them.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::proxied::Servers;
use conformance_tests::server::Proxy;
use lock_core::async_trait;

use super::member::{self, Member};
use crate::servers::process::{cpu_time, failed, url_from};

/// The variable that names an ensemble to use instead of local servers.
const URL: &str = "LOCK_TEST_ZOOKEEPER_URL";
/// The shortest and the longest session that a server allows by default.
const SESSIONS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The test's own ZooKeeper servers, or those that `LOCK_TEST_ZOOKEEPER_URL` names.
///
/// What a server has acknowledged survives killing it, since it is first written to the file,
/// though not to the disk. Containers are scanned every half second, so that a lock's node vanishes
/// while it is in use.
pub struct ZooKeeper {
    members: Vec<Member>,
    url: String,
}

impl ZooKeeper {
    /// What `LOCK_TEST_ZOOKEEPER_URL` names, or else one server of the test's own.
    pub async fn start() -> Result<Self, Unavailable> {
        match url_from(URL) {
            Some(url) => Ok(Self { members: Vec::new(), url }),
            None => Self::single().await,
        }
    }

    /// One server.
    pub async fn single() -> Result<Self, Unavailable> {
        Self::with_members(1, SESSIONS).await
    }

    /// This many servers, which allow sessions of `shortest` to `longest`; those of the other ways
    /// allow 0.5 s to 60 s.
    pub async fn with_sessions(
        members: usize,
        shortest: Duration,
        longest: Duration,
    ) -> Result<Self, Unavailable> {
        Self::with_members(members, (shortest, longest)).await
    }

    /// An ensemble of three.
    pub async fn ensemble() -> Result<Self, Unavailable> {
        Self::with_members(3, SESSIONS).await
    }

    /// An ensemble of three, and the link over which its first server hears from the leader. That server never leads while
    /// none has any data: of those that have started the last one does.
    pub async fn with_distant_follower() -> Result<(Self, PeerLink), Unavailable> {
        let members = (0..3).map(Member::new).collect::<Result<Vec<_>, _>>()?;
        let mut proxies = Vec::new();
        for member in &members {
            proxies.push(Proxy::start(member.peer_address()).await?);
        }
        let link = PeerLink(proxies);
        let seen = |from: &Member, to: &Member| match from.number() == 0 && to.number() != 0 {
            true => link.0[to.number()].address().port(),
            false => to.peer_address().port(),
        };
        member::prepare(&members, seen, SESSIONS)?;
        Ok((Self::started(members).await?, link))
    }

    async fn with_members(
        count: usize,
        sessions: (Duration, Duration),
    ) -> Result<Self, Unavailable> {
        let members = (0..count).map(Member::new).collect::<Result<Vec<_>, _>>()?;
        member::prepare(&members, |_, to| to.peer_address().port(), sessions)?;
        Self::started(members).await
    }

    async fn started(members: Vec<Member>) -> Result<Self, Unavailable> {
        let hosts: Vec<_> = members.iter().map(|member| member.address().to_string()).collect();
        let servers = Self { url: format!("zookeeper://{}", hosts.join(",")), members };
        servers.restart().await?;
        Ok(servers)
    }

    /// `zookeeper://127.0.0.1:port,…`, or the value of the variable.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the test may stop and restart them.
    pub fn is_own(&self) -> bool {
        !self.members.is_empty()
    }

    /// How many of the test's own servers there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none: see [`is_own`](Self::is_own).
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The address of one of the test's own servers.
    pub fn address(&self, member: usize) -> Result<SocketAddr, Unavailable> {
        Ok(self.member(member)?.address())
    }

    /// Which one leads the ensemble; 0 for a single server.
    pub fn leader(&self) -> Result<usize, Unavailable> {
        let leads = |member: &&Member| {
            let mode = member.ask("srvr").unwrap_or_default();
            mode.contains("Mode: leader") || mode.contains("Mode: standalone")
        };
        let leader = self.members.iter().find(leads);
        leader.map(Member::number).ok_or_else(|| Unavailable::broken("no ZooKeeper server leads"))
    }

    /// The answer of a server to a four-letter command.
    pub fn ask(&self, member: usize, command: &str) -> Result<String, Unavailable> {
        self.member(member)?.ask(command).map_err(|error| failed(command, error))
    }

    /// Freezes all servers (SIGSTOP): connections stay open, nothing is answered.
    pub fn freeze(&self) -> Result<(), Unavailable> {
        self.own()?;
        (0..self.len()).try_for_each(|member| self.freeze_one(member))
    }

    /// Ends [`freeze`](Self::freeze).
    pub fn thaw(&self) -> Result<(), Unavailable> {
        self.own()?;
        (0..self.len()).try_for_each(|member| self.thaw_one(member))
    }

    /// Freezes one server.
    pub fn freeze_one(&self, member: usize) -> Result<(), Unavailable> {
        self.member(member)?.process().freeze()
    }

    /// Ends [`freeze_one`](Self::freeze_one).
    pub fn thaw_one(&self, member: usize) -> Result<(), Unavailable> {
        self.member(member)?.process().thaw()
    }

    /// The process id of one server.
    pub fn pid(&self, member: usize) -> Result<u32, Unavailable> {
        self.member(member)?.process().id()
    }

    /// The processor time that one server has used.
    pub fn cpu_time(&self, member: usize) -> Result<Duration, Unavailable> {
        cpu_time(self.member(member)?.process())
    }

    /// Kills all servers (SIGKILL).
    pub fn kill(&self) -> Result<(), Unavailable> {
        self.own()?;
        (0..self.len()).try_for_each(|member| self.kill_one(member))
    }

    /// Kills one server.
    pub fn kill_one(&self, member: usize) -> Result<(), Unavailable> {
        self.member(member)?.process().kill();
        Ok(())
    }

    /// Kills all running servers, starts all with the data they have, and waits until they are
    /// ready.
    pub async fn restart(&self) -> Result<(), Unavailable> {
        self.kill()?;
        for member in &self.members {
            member.spawn()?;
        }
        self.serve().await
    }

    /// Kills all servers, and starts them without any of their data.
    pub async fn restart_without_data(&self) -> Result<(), Unavailable> {
        self.kill()?;
        for member in &self.members {
            member.lose_data()?;
        }
        self.restart().await
    }

    /// Waits until all servers are ready: an ensemble that was frozen may have to elect a leader
    /// first.
    pub async fn serve(&self) -> Result<(), Unavailable> {
        for member in &self.members {
            member.wait().await?;
        }
        Ok(())
    }

    /// From its next start, every server allows sessions of `shortest` to `longest`.
    pub fn allow_sessions(&self, shortest: Duration, longest: Duration) -> Result<(), Unavailable> {
        let (shortest, longest) = (shortest.as_millis(), longest.as_millis());
        let lines = format!("minSessionTimeout={shortest}\nmaxSessionTimeout={longest}\n");
        self.own()?;
        self.members.iter().try_for_each(|member| member.configure(&lines))
    }

    /// From its next start, one server has these settings as well: lines of `zoo.cfg`.
    pub fn configure_one(&self, member: usize, lines: &str) -> Result<(), Unavailable> {
        self.member(member)?.configure(lines)
    }

    /// Starts one server that was killed, and waits until it is ready.
    pub async fn start_one(&self, member: usize) -> Result<(), Unavailable> {
        let member = self.member(member)?;
        member.spawn()?;
        member.wait().await
    }

    fn own(&self) -> Result<(), Unavailable> {
        match self.members.is_empty() {
            false => Ok(()),
            true => {
                Err(Unavailable::missing(format!("the servers of {URL} are not ours to disturb")))
            }
        }
    }

    fn member(&self, member: usize) -> Result<&Member, Unavailable> {
        self.own()?;
        self.members
            .get(member)
            .ok_or_else(|| Unavailable::missing(format!("there is no ZooKeeper server {member}")))
    }
}

/// The link between a server and those that may lead it.
#[derive(Debug)]
pub struct PeerLink(Vec<Proxy>);

impl PeerLink {
    /// The server hears nothing from the leader, and goes on answering what it can answer by itself.
    pub fn stall(&self) {
        self.0.iter().for_each(Proxy::stall);
    }

    /// It hears everything, including what it has missed.
    pub fn pass(&self) {
        self.0.iter().for_each(Proxy::pass);
    }
}

#[async_trait]
impl Servers for ZooKeeper {
    fn foreign(&self) -> Option<&str> {
        self.members.is_empty().then_some(&self.url)
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(Member::address).collect()
    }

    fn freeze(&self) -> Result<(), Unavailable> {
        Self::freeze(self)
    }

    fn thaw(&self) -> Result<(), Unavailable> {
        Self::thaw(self)
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        Self::restart(self).await
    }

    async fn serve(&self) -> Result<(), Unavailable> {
        Self::serve(self).await
    }
}

impl fmt::Debug for ZooKeeper {
    /// The URL may contain a password, so only the test's own servers are named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.members.iter().map(Member::address).collect();
        f.debug_struct("ZooKeeper").field("addresses", &addresses).finish()
    }
}
