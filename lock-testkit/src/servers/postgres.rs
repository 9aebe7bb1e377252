//! `postgres`.

use std::fmt;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use super::Servers;
use super::process::{Process, broken, free_port, url_from};
use conformance_tests::Unavailable;
use lock_core::async_trait;

/// The variable that names a server to use in place of a local binary.
const URL: &str = "LOCK_TEST_POSTGRES_URL";
/// The variable that names the folder of the binaries; by default that of the newest version which
/// Debian's packages have put on this machine.
const BINARIES: &str = "LOCK_TEST_POSTGRES_BIN";
const DEBIAN: &str = "/usr/lib/postgresql";
const PACKAGE: &str = "postgresql";
const START_LIMIT: Duration = Duration::from_secs(20);
/// The data are about locks and not about the disk.
const IN_MEMORY: &str = "/dev/shm";

/// A PostgreSQL server of the test's own, or the one that `LOCK_TEST_POSTGRES_URL` names.
///
/// Its own server hands every commit to the operating system before it answers: a kill and a restart
/// lose nothing that was acknowledged. The superuser is `postgres`, without a password.
pub struct PostgresServer {
    own: Option<Own>,
    url: String,
}

struct Own {
    port: u16,
    binaries: PathBuf,
    directory: TempDir,
    options: Vec<String>,
    process: Mutex<Option<Process>>,
}

/// Settings of a server of one's own.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct PostgresServerBuilder {
    options: Vec<String>,
}

impl PostgresServerBuilder {
    /// One more setting, such as `("default_transaction_isolation", "serializable")`.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.extend(["-c".to_owned(), format!("{name}={value}")]);
        self
    }

    /// Starts the server and waits until it answers. Never the one of `LOCK_TEST_POSTGRES_URL`, whose
    /// settings are not ours.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if PostgreSQL is not installed, with the package that has it;
    /// [`Unavailable::broken`] if it does not start, with what it has logged.
    pub async fn start(self) -> Result<PostgresServer, Unavailable> {
        let binaries = binaries()?;
        let template = template(&binaries)?;
        // Between finding a free port and opening it somebody else may take it.
        let mut last = None;
        for _ in 0..5 {
            let own = Own {
                port: free_port()?,
                binaries: binaries.clone(),
                directory: folder()?,
                options: self.options.clone(),
                process: Mutex::default(),
            };
            let mut copy = Command::new("cp");
            copy.arg("-a").arg(&template).arg(own.data());
            run(&mut copy)?;
            let url = format!("postgres://postgres@127.0.0.1:{}/postgres", own.port);
            match own.start().await {
                Ok(()) => return Ok(PostgresServer { own: Some(own), url }),
                Err(error) if error.is_broken() => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Unavailable::broken("postgres does not start")))
    }
}

impl PostgresServer {
    /// The server that `LOCK_TEST_POSTGRES_URL` names, else one of the test's own.
    ///
    /// # Errors
    ///
    /// As [`PostgresServerBuilder::start`].
    pub async fn start() -> Result<Self, Unavailable> {
        match url_from(URL) {
            Some(url) => Ok(Self { own: None, url }),
            None => Self::builder().start().await,
        }
    }

    /// A server of the test's own with options.
    pub fn builder() -> PostgresServerBuilder {
        PostgresServerBuilder::default()
    }

    /// `postgres://postgres@127.0.0.1:port/postgres`, or what the variable says.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where the server of the test's own listens.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own.
    pub fn address(&self) -> Result<SocketAddr, Unavailable> {
        Ok(SocketAddr::from(([127, 0, 0, 1], self.own()?.port)))
    }

    /// Whether the test may stop and restart it.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// The processor time that the server and its children have used since they were started.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own; [`Unavailable::broken`] if it has ended.
    pub fn cpu_time(&self) -> Result<Duration, Unavailable> {
        self.own()?.running(|process| Ok(process.cpu_time()))
    }

    /// Freezes the server and its children (SIGSTOP): connections stay open, nothing is answered.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own; [`Unavailable::broken`] if it has ended.
    pub fn freeze(&self) -> Result<(), Unavailable> {
        self.own()?.running(|process| process.freeze())
    }

    /// Ends [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze).
    pub fn thaw(&self) -> Result<(), Unavailable> {
        self.own()?.running(|process| process.thaw())
    }

    /// Kills the server and its children (SIGKILL). Nothing listens on its port until
    /// [`restart`](Self::restart).
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own.
    pub fn kill(&self) -> Result<(), Unavailable> {
        if let Some(mut process) = self.own()?.process().take() {
            process.kill();
        }
        Ok(())
    }

    /// Stops the server in order, without waiting for its clients (SIGINT, "fast").
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill).
    pub fn stop(&self) -> Result<(), Unavailable> {
        match self.own()?.process().take() {
            Some(mut process) => process.end_by(Signal::INT),
            None => Ok(()),
        }
    }

    /// Kills the server if it runs, and starts it again on the same port with its data.
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill) and [`PostgresServerBuilder::start`].
    pub async fn restart(&self) -> Result<(), Unavailable> {
        self.kill()?;
        self.own()?.start().await
    }

    fn own(&self) -> Result<&Own, Unavailable> {
        self.own.as_ref().ok_or_else(|| {
            Unavailable::missing(format!("the server of {URL} is not ours to disturb"))
        })
    }
}

#[async_trait]
impl Servers for PostgresServer {
    fn foreign(&self) -> Option<&str> {
        self.own.is_none().then_some(&self.url)
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.address().into_iter().collect()
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
}

impl fmt::Debug for PostgresServer {
    /// The URL may have a password, so only a server of the test's own is named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.own.as_ref().map(|own| own.port);
        f.debug_struct("PostgresServer").field("port", &port).finish()
    }
}

impl Own {
    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
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
            None => Err(Unavailable::broken("the PostgreSQL server is not running")),
        }
    }

    async fn start(&self) -> Result<(), Unavailable> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.directory.path().join("log"))
            .map_err(|error| Unavailable::broken(format!("no log file: {error}")))?;
        let errors = log
            .try_clone()
            .map_err(|error| Unavailable::broken(format!("no log file: {error}")))?;
        let mut command = unprivileged(&self.binaries.join("postgres"));
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
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
        command.args(&self.options).stdout(log).stderr(errors);
        *self.process() = Some(Process::start(&mut command, PACKAGE)?);
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.running(|process| Ok(process.ended()))? {
                self.process().take();
                return Err(self.broken(&format!("postgres ended at once: {status}")));
            }
            let id = self.running(|process| Ok(process.id()))?;
            if self.is_ready(id) && self.answers() {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                self.process().take();
                return Err(self.broken("postgres does not answer"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whether the process `id` serves this folder. Somebody else's server may have got the port since
    /// it was found free, and would answer in its place.
    fn is_ready(&self, id: u32) -> bool {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let lines: Vec<_> = file.lines().collect();
        lines.first().is_some_and(|pid| *pid == id.to_string())
            && lines.get(7).is_some_and(|state| state.trim() == "ready")
    }

    /// Whether the server lets a client in.
    fn answers(&self) -> bool {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let ask = || -> std::io::Result<bool> {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(200))?;
            stream.set_read_timeout(Some(Duration::from_millis(500)))?;
            let body = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
            let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
            stream.write_all(&[&length.to_be_bytes(), &body[..]].concat())?;
            // `R` asks for a password or says that none is needed; `E` is an error.
            let mut answer = [0; 1];
            stream.read_exact(&mut answer)?;
            // A polite end, or the log has an error for each question.
            stream.write_all(b"X\0\0\0\x04")?;
            Ok(answer == *b"R")
        };
        ask().unwrap_or(false)
    }

    fn broken(&self, what: &str) -> Unavailable {
        broken(what, &self.directory.path().join("log"))
    }
}

/// A killed server leaves a small piece of shared memory behind, of which a machine has a few thousand.
impl Drop for Own {
    fn drop(&mut self) {
        if let Some(mut process) = self.process().take() {
            // "Immediate": as a crash, and it cleans up after itself.
            let _ = process.end_by(Signal::QUIT);
            return;
        }
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
    newest.ok_or_else(|| {
        Unavailable::missing(format!(
            "postgres is not installed: apt-get install --no-install-recommends {PACKAGE}"
        ))
    })
}

fn version_of(binaries: &Path) -> u32 {
    let folder = binaries.parent().and_then(Path::file_name);
    folder.and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}

/// A folder that is made once for each version and user of this machine, and copied for each server:
/// making it takes longer than all else.
fn template(binaries: &Path) -> Result<PathBuf, Unavailable> {
    let user = rustix::process::geteuid().as_raw();
    let name = format!("distlock-test-postgres-{}-{user}-1", version_of(binaries));
    let template = std::env::temp_dir().join(name);
    if template.join("PG_VERSION").is_file() {
        return Ok(template);
    }
    let folder = folder()?;
    if rustix::process::geteuid().is_root() {
        let mut give = Command::new("chown");
        run(give.arg(account()).arg(folder.path()))?;
    }
    let made = folder.path().join("data");
    let mut initdb = unprivileged(&binaries.join("initdb"));
    initdb.arg("-D").arg(&made).args(["-U", "postgres", "-A", "trust", "-E", "UTF8"]);
    run(initdb.args(["--locale=C", "--no-sync", "--wal-segsize=1"]))?;
    // By a copy with another name and a rename, so that nobody sees half of it.
    let beside = tempfile::Builder::new().prefix("distlock-test-postgres").tempdir();
    let beside =
        beside.map_err(|error| Unavailable::broken(format!("no temporary folder: {error}")))?;
    let whole = beside.path().join("data");
    let mut copy = Command::new("cp");
    run(copy.arg("-a").arg(&made).arg(&whole))?;
    // An error means that somebody else was faster.
    let _ = std::fs::rename(&whole, &template);
    Ok(template)
}

/// A temporary folder that the unprivileged user may enter.
fn folder() -> Result<TempDir, Unavailable> {
    let broken = |error| Unavailable::broken(format!("no temporary folder: {error}"));
    let mut builder = tempfile::Builder::new();
    builder.prefix("postgres");
    let memory = Path::new(IN_MEMORY);
    let folder = if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() };
    let folder = folder.map_err(broken)?;
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).map_err(broken)?;
    Ok(folder)
}

/// PostgreSQL refuses to run as root.
pub(super) fn unprivileged(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", account(), "--regid", account(), "--clear-groups", "--"]).arg(program);
    command
}

/// Its package makes a user for it.
fn account() -> &'static str {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = users.lines().any(|line| line.starts_with("postgres:"));
    if found { "postgres" } else { "nobody" }
}

fn run(command: &mut Command) -> Result<(), Unavailable> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Unavailable::broken(format!("{name} cannot be started: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(Unavailable::broken(format!("{name}: {}: {}", output.status, errors.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_freezes_restarts_and_leaves_nothing() {
        let server = PostgresServer::builder().start().await.unwrap();
        let own = server.own().unwrap();
        assert!(own.answers());
        server.freeze().unwrap();
        assert!(!own.answers());
        server.thaw().unwrap();
        assert!(own.answers());
        server.restart().await.unwrap();
        assert!(own.answers());
        server.stop().unwrap();
        assert!(!own.answers());
        let directory = own.directory.path().to_owned();
        drop(server);
        assert!(!directory.exists());
    }

    #[tokio::test]
    async fn an_option_that_is_wrong_shows_the_log() {
        let error = PostgresServer::builder().option("nonsense", "1").start().await.unwrap_err();
        assert!(error.is_broken() && error.reason().contains("nonsense"), "{error}");
    }
}
