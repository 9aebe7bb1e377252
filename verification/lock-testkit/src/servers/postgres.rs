//! `postgres`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance_tests::Unavailable;
use rustix::process::Signal;
use tempfile::TempDir;

use super::data::{self, Servant};
use super::process::{failed, not_installed};
use super::single::{Builder, Kind, Server};

/// The variable that names the folder of the binaries; by default that of the newest version
/// installed by Debian packages.
const BINARIES: &str = "LOCK_TEST_POSTGRES_BIN";
const DEBIAN: &str = "/usr/lib/postgresql";

/// A PostgreSQL server. The superuser is `postgres`, without a password.
pub type PostgresServer = Server<Postgres>;

/// The folder of a PostgreSQL server.
#[derive(Debug)]
pub struct Postgres {
    binaries: PathBuf,
    directory: TempDir,
}

impl Kind for Postgres {
    const PROGRAM: &'static str = "postgres";
    const PACKAGE: &'static str = "postgresql";
    const URL: &'static str = "LOCK_TEST_POSTGRES_URL";
    /// "Fast".
    const STOP: Signal = Signal::INT;
    /// "Immediate": as a crash, and it cleans up after itself. A killed server leaves a small
    /// shared-memory segment behind, of which a machine has only a few thousand.
    const END: Option<Signal> = Some(Signal::QUIT);

    fn prepare() -> Result<Self, Unavailable> {
        let (binaries, servant) = (binaries()?, servant()?);
        let name = format!("postgres-{}", version_of(&binaries));
        let template = data::template(&name, servant, |data| {
            let mut initdb = Servant::command(servant, &binaries.join("initdb"));
            initdb.arg("-D").arg(data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8"]);
            initdb.args(["--locale=C", "--no-sync", "--wal-segsize=1"]);
            data::output(&mut initdb, Self::PACKAGE).map(drop)
        })?;
        let new = Self { binaries, directory: Servant::folder(servant, "postgres")? };
        data::copy(&template, &new.data())?;
        Ok(new)
    }

    fn folder(&self) -> &Path {
        self.directory.path()
    }

    fn url(address: SocketAddr) -> String {
        format!("postgres://postgres@{address}/postgres")
    }

    fn option(name: &str, value: &str) -> Vec<String> {
        vec!["-c".to_owned(), format!("{name}={value}")]
    }

    fn command(&self, port: u16) -> Result<Command, Unavailable> {
        let mut command = Servant::command(servant()?, &self.binaries.join("postgres"));
        command.arg("-D").arg(self.data()).args(["-p", &port.to_string()]);
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            // Commits reach the operating system and not the disk: this outlives a kill.
            "fsync=off",
            "full_page_writes=off",
            "max_connections=250",
            "shared_buffers=16MB",
            "autovacuum=off",
            // Not in /dev/shm, where a killed server would leave it behind.
            "dynamic_shared_memory_type=mmap",
            "wal_level=minimal",
            "max_wal_senders=0",
        ] {
            command.args(["-c", setting]);
        }
        Ok(command)
    }

    fn answers(&self, address: SocketAddr, id: u32) -> bool {
        self.is_ready(id) && lets_in(address)
    }

    fn clean_up(&self) {
        let pid_file = std::fs::read_to_string(self.data().join("postmaster.pid"));
        let memory = pid_file
            .ok()
            .and_then(|text| Some(text.lines().nth(6)?.split_whitespace().nth(1)?.to_owned()));
        if let Some(memory) = memory {
            let mut remove = Command::new("ipcrm");
            remove.args(["-m", &memory]).stdout(Stdio::null()).stderr(Stdio::null());
            let _ = remove.status();
        }
    }
}

impl Server<Postgres> {
    /// Kills the server if it runs, and starts it again on the same port with its data.
    pub async fn restart(&self) -> Result<(), Unavailable> {
        self.start_again().await
    }

    /// A server that may have standbys.
    pub async fn primary() -> Result<Self, Unavailable> {
        Self::replicated().start().await
    }

    /// A standby of this server, which follows it as soon as it can.
    pub async fn standby(&self) -> Result<Self, Unavailable> {
        let (binaries, servant, address) = (binaries()?, servant()?, self.address()?);
        let new = Postgres { directory: Servant::folder(servant, "postgres")?, binaries };
        let mut copy = Servant::command(servant, &new.binaries.join("pg_basebackup"));
        copy.arg("-D").arg(new.data()).args(["-R", "--no-sync", "--checkpoint=fast"]);
        copy.args(["-U", "postgres", "-h", &address.ip().to_string()]);
        copy.args(["-p", &address.port().to_string()]);
        data::output(&mut copy, Postgres::PACKAGE)?;
        Self::replicated().start_in(new).await
    }

    fn replicated() -> Builder<Postgres> {
        Self::builder().option("wal_level", "replica").option("max_wal_senders", "4")
    }
}

impl Postgres {
    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// Whether the process `id` serves this folder.
    fn is_ready(&self, id: u32) -> bool {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let lines: Vec<_> = file.lines().collect();
        lines.first().is_some_and(|pid| *pid == id.to_string())
            && lines.get(7).is_some_and(|state| matches!(state.trim(), "ready" | "standby"))
    }
}

/// Whether a server lets a client in.
fn lets_in(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(200))?;
        stream.set_read_timeout(Some(Duration::from_millis(500)))?;
        let body = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
        stream.write_all(&[&length.to_be_bytes(), &body[..]].concat())?;
        // `R` asks for a password or says that none is needed; `E` is an error.
        let mut answer = [0; 1];
        stream.read_exact(&mut answer)?;
        // A polite goodbye, or the log has an error for each probe.
        stream.write_all(b"X\0\0\0\x04")?;
        Ok(answer == *b"R")
    };
    ask().unwrap_or(false)
}

/// The folder with `postgres` and `initdb`.
fn binaries() -> Result<PathBuf, Unavailable> {
    if let Some(folder) = std::env::var_os(BINARIES) {
        return Ok(folder.into());
    }
    let versions = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let newest = versions
        .map(|version| version.path().join("bin"))
        .filter(|bin| bin.join("postgres").is_file() && bin.join("initdb").is_file())
        .max_by_key(|bin| version_of(bin));
    newest.ok_or_else(|| not_installed(Postgres::PROGRAM, Postgres::PACKAGE))
}

fn version_of(binaries: &Path) -> u32 {
    let folder = binaries.parent().and_then(Path::file_name);
    folder.and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}

/// The user that PostgreSQL and its poolers run as under root.
pub(super) fn servant() -> Result<Option<Servant>, Unavailable> {
    Servant::find(&["postgres", "nobody"], Postgres::PACKAGE)
}

/// Makes a file one that only the server can read, as it insists on for its keys.
pub(crate) fn give_to_postgres(file: &Path) -> Result<(), Unavailable> {
    use std::os::unix::fs::PermissionsExt;

    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600))
        .map_err(|error| failed(&file.display().to_string(), error))?;
    Servant::give(servant()?, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_freezes_restarts_and_leaves_nothing() {
        let server = PostgresServer::builder().start().await.unwrap();
        let address = server.address().unwrap();
        assert!(lets_in(address));
        server.freeze().unwrap();
        assert!(!lets_in(address));
        server.thaw().unwrap();
        assert!(lets_in(address));
        server.restart().await.unwrap();
        assert!(lets_in(address));
        server.stop().unwrap();
        assert!(!lets_in(address));
        let directory = server.kind().unwrap().folder().to_owned();
        drop(server);
        assert!(!directory.exists());
    }

    #[tokio::test]
    async fn an_option_that_is_wrong_shows_the_log() {
        let error = PostgresServer::builder().option("nonsense", "1").start().await.unwrap_err();
        assert!(error.is_broken() && error.reason().contains("nonsense"), "{error}");
    }
}
