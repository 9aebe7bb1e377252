//! ZooKeeper: one server, or an ensemble of three.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::Servers;
use super::process::{self, Process, free_port, url_from};
use conformance_tests::Unavailable;
use lock_core::async_trait;

/// The variable that names an ensemble to use in place of local servers.
const URL: &str = "LOCK_TEST_ZOOKEEPER_URL";
/// The variable that names the class path; Debian's jar by default.
const CLASS_PATH: &str = "LOCK_TEST_ZOOKEEPER_JAR";
const JAR: &str = "/usr/share/java/zookeeper.jar";
/// What is needed on Debian: neither a service nor a graphical Java.
const PACKAGES: &str = "libzookeeper-java default-jre-headless";
const START_LIMIT: Duration = Duration::from_secs(30);
/// The server's unit of time. A session lasts for two of them at least, and ends on such a boundary.
pub const TICK: Duration = Duration::from_millis(100);
/// The shortest and the longest session that a server allows if nothing else is said.
const SESSIONS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// How long a server is waited for that accepts a question and does not answer, one after the other:
/// it accepts connections before it answers, and a busy machine lets it wait.
const PATIENCE: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// ZooKeeper servers of the test's own, or those that `LOCK_TEST_ZOOKEEPER_URL` names.
///
/// What a server has acknowledged survives its kill, since it is written to the file before, though not
/// to the disk. Containers are looked through every half second, so that a node of a lock vanishes
/// while it is in use.
pub struct ZooKeeper {
    members: Vec<Member>,
    url: String,
}

struct Member {
    number: usize,
    port: u16,
    /// Ends before its folder goes, or it would write into it again.
    process: Mutex<Option<Process>>,
    directory: TempDir,
}

impl ZooKeeper {
    /// What `LOCK_TEST_ZOOKEEPER_URL` names, else one server of the test's own.
    ///
    /// # Errors
    ///
    /// As [`single`](Self::single).
    pub async fn start() -> Result<Self, Unavailable> {
        match url_from(URL) {
            Some(url) => Ok(Self { members: Vec::new(), url }),
            None => Self::single().await,
        }
    }

    /// One server.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if Java or ZooKeeper is not installed, with the packages that have
    /// them; [`Unavailable::broken`] if it does not start, with what it has logged.
    pub async fn single() -> Result<Self, Unavailable> {
        Self::with_members(1, SESSIONS).await
    }

    /// One server that allows sessions of `shortest` to `longest`; the others allow 0.5 s to 60 s.
    ///
    /// # Errors
    ///
    /// As [`single`](Self::single).
    pub async fn with_sessions(shortest: Duration, longest: Duration) -> Result<Self, Unavailable> {
        Self::with_members(1, (shortest, longest)).await
    }

    /// An ensemble of three.
    ///
    /// # Errors
    ///
    /// As [`single`](Self::single).
    pub async fn ensemble() -> Result<Self, Unavailable> {
        Self::with_members(3, SESSIONS).await
    }

    async fn with_members(
        count: usize,
        sessions: (Duration, Duration),
    ) -> Result<Self, Unavailable> {
        // Between finding a free port and opening it somebody else may take it.
        let mut last = None;
        for _ in 0..3 {
            let members = members(count, sessions)?;
            let hosts: Vec<_> =
                members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
            let servers = Self { url: format!("zookeeper://{}", hosts.join(",")), members };
            match servers.restart().await {
                Ok(()) => return Ok(servers),
                Err(error) if error.is_broken() => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Unavailable::broken("ZooKeeper does not start")))
    }

    /// `zookeeper://127.0.0.1:port,…`, or what the variable says.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the test may stop and restart them.
    pub fn is_own(&self) -> bool {
        !self.members.is_empty()
    }

    /// How many servers of the test's own there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none: see [`is_own`](Self::is_own).
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Where a server of the test's own listens.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if there is no such server.
    pub fn address(&self, member: usize) -> Result<SocketAddr, Unavailable> {
        Ok(SocketAddr::from(([127, 0, 0, 1], self.member(member)?.port)))
    }

    /// Which one leads the ensemble; 0 for a single server.
    ///
    /// # Errors
    ///
    /// [`Unavailable::broken`] if none does.
    pub fn leader(&self) -> Result<usize, Unavailable> {
        let leads = |member: &&Member| {
            let mode = member.ask("srvr").unwrap_or_default();
            mode.contains("Mode: leader") || mode.contains("Mode: standalone")
        };
        let leader = self.members.iter().find(leads);
        leader
            .map(|member| member.number)
            .ok_or_else(|| Unavailable::broken("no ZooKeeper server leads"))
    }

    /// The answer of a server to a command of four letters.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn ask(&self, member: usize, command: &str) -> Result<String, Unavailable> {
        let answer = self.member(member)?.ask(command);
        answer.map_err(|error| Unavailable::broken(format!("{command}: {error}")))
    }

    /// Freezes all servers (SIGSTOP): connections stay open, nothing is answered.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if they are not the test's own; [`Unavailable::broken`] if one has
    /// ended.
    pub fn freeze(&self) -> Result<(), Unavailable> {
        self.own()?;
        (0..self.len()).try_for_each(|member| self.freeze_one(member))
    }

    /// Ends [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze).
    pub fn thaw(&self) -> Result<(), Unavailable> {
        self.own()?;
        (0..self.len()).try_for_each(|member| self.thaw_one(member))
    }

    /// Freezes one server.
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze).
    pub fn freeze_one(&self, member: usize) -> Result<(), Unavailable> {
        self.member(member)?.running(|process| process.freeze())
    }

    /// Ends [`freeze_one`](Self::freeze_one).
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze).
    pub fn thaw_one(&self, member: usize) -> Result<(), Unavailable> {
        self.member(member)?.running(|process| process.thaw())
    }

    /// The processor time that one server has used.
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill).
    pub fn cpu_time(&self, member: usize) -> Result<Duration, Unavailable> {
        self.member(member)?.running(|process| Ok(process.cpu_time()))
    }

    /// Kills all servers (SIGKILL).
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if they are not the test's own.
    pub fn kill(&self) -> Result<(), Unavailable> {
        self.own()?;
        (0..self.len()).try_for_each(|member| self.kill_one(member))
    }

    /// Kills one server.
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill).
    pub fn kill_one(&self, member: usize) -> Result<(), Unavailable> {
        if let Some(mut process) = self.member(member)?.process().take() {
            process.kill();
        }
        Ok(())
    }

    /// Kills all servers that run, starts all with the data that they have, and waits until they serve.
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill) and [`single`](Self::single).
    pub async fn restart(&self) -> Result<(), Unavailable> {
        self.kill()?;
        for member in &self.members {
            member.spawn()?;
        }
        self.serve().await
    }

    /// Kills all servers, and starts them without any of their data.
    ///
    /// # Errors
    ///
    /// As [`restart`](Self::restart).
    pub async fn restart_without_data(&self) -> Result<(), Unavailable> {
        self.kill()?;
        for member in &self.members {
            let data = member.directory.path().join("data/version-2");
            std::fs::remove_dir_all(data).map_err(|error| broken("no data to remove", &error))?;
        }
        self.restart().await
    }

    /// Waits until all servers serve: an ensemble that was frozen may have to find a leader first.
    ///
    /// # Errors
    ///
    /// [`Unavailable::broken`] if one does not, or has ended.
    pub async fn serve(&self) -> Result<(), Unavailable> {
        for member in &self.members {
            member.wait().await?;
        }
        Ok(())
    }

    /// From its next start on every server allows sessions of `shortest` to `longest`.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if they are not the test's own; [`Unavailable::broken`] if their
    /// settings cannot be written.
    pub fn allow_sessions(&self, shortest: Duration, longest: Duration) -> Result<(), Unavailable> {
        self.own()?;
        for member in &self.members {
            let path = member.directory.path().join("zoo.cfg");
            let write = || {
                let mut settings = std::fs::read_to_string(&path)?;
                // The last line of a name wins.
                let (shortest, longest) = (shortest.as_millis(), longest.as_millis());
                settings += &format!("minSessionTimeout={shortest}\nmaxSessionTimeout={longest}\n");
                std::fs::write(&path, settings)
            };
            write().map_err(|error| broken("no configuration", &error))?;
        }
        Ok(())
    }

    /// Starts one server that was killed, and waits until it serves.
    ///
    /// # Errors
    ///
    /// As [`restart`](Self::restart).
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

#[async_trait]
impl Servers for ZooKeeper {
    fn foreign(&self) -> Option<&str> {
        self.members.is_empty().then_some(&self.url)
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        (0..self.len()).filter_map(|member| self.address(member).ok()).collect()
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
    /// The URL may have a password, so only servers of the test's own are named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<_> = self.members.iter().map(|member| member.port).collect();
        f.debug_struct("ZooKeeper").field("ports", &ports).finish()
    }
}

/// Members that have not been started, with their configuration.
fn members(count: usize, sessions: (Duration, Duration)) -> Result<Vec<Member>, Unavailable> {
    let members = (0..count)
        .map(|number| {
            let directory = tempfile::Builder::new().prefix("zookeeper").tempdir();
            let directory = directory.map_err(|error| broken("no temporary folder", &error))?;
            Ok(Member { number, port: free_port()?, directory, process: Mutex::default() })
        })
        .collect::<Result<Vec<_>, Unavailable>>()?;
    let mut peers = String::new();
    if count > 1 {
        for member in &members {
            let (quorum, election) = (free_port()?, free_port()?);
            peers += &format!("server.{}=127.0.0.1:{quorum}:{election}\n", member.number + 1);
        }
    }
    for member in &members {
        let path = member.directory.path();
        let write = || {
            std::fs::create_dir(path.join("data"))?;
            std::fs::write(path.join("data/myid"), format!("{}\n", member.number + 1))?;
            std::fs::write(path.join("zoo.cfg"), member.config(&peers, sessions))
        };
        write().map_err(|error| broken("no configuration", &error))?;
    }
    Ok(members)
}

fn broken(what: &str, error: &std::io::Error) -> Unavailable {
    Unavailable::broken(format!("{what}: {error}"))
}

impl Member {
    fn config(&self, peers: &str, (shortest, longest): (Duration, Duration)) -> String {
        format!(
            "tickTime={}\ninitLimit=100\nsyncLimit=50\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             maxClientCnxns=0\nminSessionTimeout={}\nmaxSessionTimeout={}\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\n{peers}",
            TICK.as_millis(),
            self.directory.path().join("data").display(),
            self.port,
            shortest.as_millis(),
            longest.as_millis(),
        )
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running<T>(
        &self,
        act: impl FnOnce(&mut Process) -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        match &mut *self.process() {
            Some(process) => act(process),
            None => Err(Unavailable::broken("the ZooKeeper server is not running")),
        }
    }

    fn spawn(&self) -> Result<(), Unavailable> {
        let class_path = std::env::var_os(CLASS_PATH).unwrap_or_else(|| JAR.into());
        if class_path == JAR && !Path::new(JAR).exists() {
            return Err(Unavailable::missing(format!(
                "ZooKeeper is not installed: apt-get install --no-install-recommends {PACKAGES}"
            )));
        }
        let directory = self.directory.path();
        let open = || {
            let log = File::options().create(true).append(true).open(directory.join("log"))?;
            Ok((log.try_clone()?, log))
        };
        let (log, errors) = open().map_err(|error| broken("no log file", &error))?;
        let mut command = Command::new("java");
        command
            // A small and quick virtual machine; no file of it outside of the folder.
            .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx128m"])
            .args(["-XX:-UsePerfData", "-XX:CICompilerCount=1"])
            .args(["-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024"])
            .args(["-Dzookeeper.admin.enableServer=false", "-Dzookeeper.jmx.log4j.disable=true"])
            .args([
                "-Dznode.container.checkIntervalMs=500",
                "-Dzookeeper.extendedTypesEnabled=true",
            ])
            .arg("-cp")
            .arg(class_path)
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(directory.join("zoo.cfg"))
            .stdout(log)
            .stderr(errors);
        *self.process() = Some(Process::start(&mut command, PACKAGES)?);
        Ok(())
    }

    async fn wait(&self) -> Result<(), Unavailable> {
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.running(|process| Ok(process.ended()))? {
                self.process().take();
                return Err(self.failed(&format!("a ZooKeeper server ended at once: {status}")));
            }
            if self.ask_within("srvr", PATIENCE[0]).is_ok_and(|answer| answer.contains("Mode:")) {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                self.process().take();
                return Err(self.failed("a ZooKeeper server does not serve"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks again with more patience while the server is silent; one that is not there is not.
    fn ask(&self, command: &str) -> std::io::Result<String> {
        let mut answer = Err(ErrorKind::TimedOut.into());
        for limit in PATIENCE {
            answer = self.ask_within(command, limit);
            match &answer {
                Ok(text) if text.is_empty() => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                _ => break,
            }
        }
        answer
    }

    fn ask_within(&self, command: &str, limit: Duration) -> std::io::Result<String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let mut stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(command.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn failed(&self, what: &str) -> Unavailable {
        process::broken(what, &self.directory.path().join("log"))
    }
}
