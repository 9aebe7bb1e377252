//! One ZooKeeper server.

use std::future::ready;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::server::{Port, Process};
use tempfile::TempDir;

use crate::servers::data;
use crate::servers::process::{START_LIMIT, failed, from_package, not_installed};

/// The variable that names the class path; Debian's jar by default.
const CLASS_PATH: &str = "LOCK_TEST_ZOOKEEPER_JAR";
const JAR: &str = "/usr/share/java/zookeeper.jar";
/// The packages needed on Debian: neither a service nor a graphical Java.
const PACKAGES: &str = "libzookeeper-java default-jre-headless";
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
/// A small, quick virtual machine that writes no file outside the folder.
const MACHINE: &[&str] = &[
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xmx128m",
    "-XX:-UsePerfData",
    "-XX:CICompilerCount=1",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=1024",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dznode.container.checkIntervalMs=500",
    "-Dzookeeper.extendedTypesEnabled=true",
];
const ARCHIVE: &str = "classes.jsa";
/// How long the server runs whose classes are archived, in seconds.
const REHEARSAL: &str = "6";
/// How long to wait for a server that accepts a request and does not answer, one value after the
/// other: it accepts connections before it answers, and a busy machine keeps it waiting.
const PATIENCE: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// The server's unit of time. A session lasts for at least two of them, and ends on such a
/// boundary.
pub const TICK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Member {
    number: usize,
    /// Dropped before its folder is removed, or it would write into it again.
    process: Process,
    directory: TempDir,
    port: Port,
    /// Where it talks to the other members: one for data and one for elections.
    peer_ports: (Port, Port),
}

/// Members that have not been started, with their configuration: for each, the ports of all members between
/// which the data of the ensemble flows, as that member sees them.
pub(super) fn prepare(
    members: &[Member],
    ports: impl Fn(&Member, &Member) -> u16,
    sessions: (Duration, Duration),
) -> Result<(), Unavailable> {
    for member in members {
        let mut peers = String::new();
        for peer in members.iter().filter(|_| members.len() > 1) {
            let (number, election) = (peer.number + 1, &peer.peer_ports.1);
            peers += &format!("server.{number}=127.0.0.1:{}:{election}\n", ports(member, peer));
        }
        let write = || {
            std::fs::create_dir(member.data())?;
            std::fs::write(member.data().join("myid"), format!("{}\n", member.number + 1))?;
            std::fs::write(member.settings(), member.config(&peers, sessions))
        };
        write().map_err(|error: std::io::Error| failed("no configuration", error))?;
    }
    Ok(())
}

/// The classes of a server, loaded and linked: with them it starts for two fifths less of a processor. They are made
/// once on a machine; none where Java cannot.
fn classes() -> Option<PathBuf> {
    let (java, jar) = (std::fs::canonicalize("/usr/bin/java").ok()?, std::fs::metadata(JAR).ok()?);
    let java = java.to_string_lossy().replace('/', "-");
    let name = format!("zookeeper-classes{java}-{}", jar.mtime());
    let folder = data::template(&name, None, |folder| {
        let member = Member::new(0)?;
        let (data, election) = &member.peer_ports;
        // It elects itself.
        let alone = format!("standaloneEnabled=false\nserver.1=127.0.0.1:{data}:{election}\n");
        prepare(std::slice::from_ref(&member), |_, _| 0, (TICK, TICK))?;
        member.configure(&alone)?;
        std::fs::create_dir(folder).map_err(|error| failed("no folder for classes", error))?;
        let archive = format!("-XX:ArchiveClassesAtExit={}", folder.join(ARCHIVE).display());
        let mut rehearsal = Command::new("timeout");
        rehearsal.args([REHEARSAL, "java", &archive]).args(MACHINE).args(["-cp", JAR, MAIN]);
        // It is ended, which is no success.
        let _ = data::output(rehearsal.arg(member.settings()), PACKAGES);
        Ok(())
    });
    let archive = folder.ok()?.join(ARCHIVE);
    archive.is_file().then_some(archive)
}

impl Member {
    pub(super) fn new(number: usize) -> Result<Self, Unavailable> {
        let directory = data::folder("zookeeper")?;
        let process = from_package("a ZooKeeper server", PACKAGES, directory.path().join("log"));
        let (port, peer_ports) = (Port::reserve()?, (Port::reserve()?, Port::reserve()?));
        Ok(Self { number, process, directory, port, peer_ports })
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Where it takes the data of the ensemble from the others.
    pub(super) fn peer_address(&self) -> SocketAddr {
        self.peer_ports.0.address()
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn settings(&self) -> PathBuf {
        self.directory.path().join("zoo.cfg")
    }

    fn config(&self, peers: &str, (shortest, longest): (Duration, Duration)) -> String {
        format!(
            "tickTime={}\ninitLimit=100\nsyncLimit=50\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             maxClientCnxns=0\nminSessionTimeout={}\nmaxSessionTimeout={}\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\n{peers}",
            TICK.as_millis(),
            self.data().display(),
            self.port,
            shortest.as_millis(),
            longest.as_millis(),
        )
    }

    /// Adds lines to the settings.
    pub(super) fn configure(&self, lines: &str) -> Result<(), Unavailable> {
        let write = || {
            // The last line with a name wins.
            let settings = std::fs::read_to_string(self.settings())? + lines;
            std::fs::write(self.settings(), settings)
        };
        write().map_err(|error: std::io::Error| failed("no configuration", error))
    }

    pub(super) fn lose_data(&self) -> Result<(), Unavailable> {
        let removed = std::fs::remove_dir_all(self.data().join("version-2"));
        removed.map_err(|error| failed("no data to remove", error))
    }

    pub(super) fn spawn(&self) -> Result<(), Unavailable> {
        let class_path = std::env::var_os(CLASS_PATH).unwrap_or_else(|| JAR.into());
        let is_packaged = class_path == JAR;
        if is_packaged && !Path::new(JAR).exists() {
            return Err(not_installed("ZooKeeper", PACKAGES));
        }
        let mut command = Command::new("java");
        if let Some(archive) = is_packaged.then(classes).flatten() {
            command.arg(format!("-XX:SharedArchiveFile={}", archive.display()));
        }
        command.args(MACHINE).arg("-cp").arg(class_path).arg(MAIN).arg(self.settings());
        self.process.spawn(&mut command)
    }

    /// Waits until it is ready.
    pub(super) async fn wait(&self) -> Result<(), Unavailable> {
        let serves = |_| {
            let answer = self.ask_within("srvr", PATIENCE[0]);
            ready(answer.is_ok_and(|answer| answer.contains("Mode:")))
        };
        self.process.ready(START_LIMIT, serves).await
    }

    /// Asks again with more patience while the server is silent; a server that is down is not asked
    /// again.
    pub(super) fn ask(&self, command: &str) -> std::io::Result<String> {
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
        let mut stream = TcpStream::connect_timeout(&self.address(), limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(command.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}
