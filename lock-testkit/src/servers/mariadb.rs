//! `mariadbd`.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::Servers;
use super::process::{Process, broken, free_port, url_from};
use conformance_tests::Unavailable;
use lock_core::async_trait;

/// The variable that names a server, with a database, to use in place of a local binary.
const URL: &str = "LOCK_TEST_MYSQL_URL";
/// The variable that names the binary; `mariadbd` by default.
const BINARY: &str = "LOCK_TEST_MARIADBD";
const PACKAGE: &str = "mariadb-server";
/// The user as whom the server runs if we are root, as whom it refuses to run.
const USER: &str = "mysql";
/// The database that every server has.
const DATABASE: &str = "locks";
/// A folder in memory, where the machine has one: a fresh server is 30 MB of files.
const IN_MEMORY: &str = "/dev/shm";
const START_LIMIT: Duration = Duration::from_secs(30);

/// A MariaDB server of the test's own, or the MySQL or MariaDB server that `LOCK_TEST_MYSQL_URL`
/// names.
///
/// Its own server writes its log at every commit, though not through to a disk: a kill and a restart
/// lose nothing that was acknowledged. Its user is `root`, without a password.
pub struct MariaDbServer {
    own: Option<Own>,
    url: String,
}

struct Own {
    port: u16,
    directory: TempDir,
    options: Vec<String>,
    process: Mutex<Option<Process>>,
}

/// Settings of a server of one's own.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct MariaDbServerBuilder {
    options: Vec<String>,
}

impl MariaDbServerBuilder {
    /// One more option of the command line, such as `("max-connections", "10")`.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push(format!("--{name}={value}"));
        self
    }

    /// Starts the server and waits until it answers. Never the one of `LOCK_TEST_MYSQL_URL`, whose
    /// options are not ours.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if `mariadbd` is not installed, with the package that has it;
    /// [`Unavailable::broken`] if it does not start, with what it has logged.
    pub async fn start(self) -> Result<MariaDbServer, Unavailable> {
        let template = template()?;
        // Between finding a free port and opening it somebody else may take it.
        let mut last = None;
        for _ in 0..5 {
            let directory = folder()?;
            copy(&template, &directory.path().join("data"))?;
            let own = Own {
                port: free_port()?,
                directory,
                options: self.options.clone(),
                process: Mutex::default(),
            };
            let url = format!("mysql://root@127.0.0.1:{}/{DATABASE}", own.port);
            match own.start().await {
                Ok(()) => return Ok(MariaDbServer { own: Some(own), url }),
                Err(error) if error.is_broken() => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Unavailable::broken("mariadbd does not start")))
    }
}

impl MariaDbServer {
    /// The server that `LOCK_TEST_MYSQL_URL` names, else one of the test's own.
    ///
    /// # Errors
    ///
    /// As [`MariaDbServerBuilder::start`].
    pub async fn start() -> Result<Self, Unavailable> {
        match url_from(URL) {
            Some(url) => Ok(Self { own: None, url }),
            None => Self::builder().start().await,
        }
    }

    /// A server of the test's own with options.
    pub fn builder() -> MariaDbServerBuilder {
        MariaDbServerBuilder::default()
    }

    /// `mysql://root@127.0.0.1:port/locks`, or what the variable says.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of the same database of the test's own server by another way: for a proxy.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own.
    pub fn url_by(&self, address: SocketAddr) -> Result<String, Unavailable> {
        self.own()?;
        Ok(format!("mysql://root@{address}/{DATABASE}"))
    }

    /// Where the server of the test's own listens.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own.
    pub fn address(&self) -> Result<SocketAddr, Unavailable> {
        Ok(SocketAddr::from(([127, 0, 0, 1], self.own()?.port)))
    }

    /// The process id of the server.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own; [`Unavailable::broken`] if it has ended.
    pub fn pid(&self) -> Result<u32, Unavailable> {
        self.own()?.running(|process| Ok(process.id()))
    }

    /// The processor time that the server has used.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own; [`Unavailable::broken`] if it has ended.
    pub fn cpu_time(&self) -> Result<Duration, Unavailable> {
        self.own()?.running(|process| Ok(process.cpu_time()))
    }

    /// Whether the test may stop and restart it.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Freezes the server (SIGSTOP): connections stay open, nothing is answered.
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

    /// Kills the server (SIGKILL). Nothing listens on its port until [`restart`](Self::restart).
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

    /// Stops the server in order (SIGTERM).
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill).
    pub fn stop(&self) -> Result<(), Unavailable> {
        match self.own()?.process().take() {
            Some(mut process) => process.terminate(),
            None => Ok(()),
        }
    }

    /// Kills the server if it runs, and starts it again on the same port, with the data.
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill) and [`MariaDbServerBuilder::start`].
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
impl Servers for MariaDbServer {
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

impl fmt::Debug for MariaDbServer {
    /// The URL may have a password, so only a server of the test's own is named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.own.as_ref().map(|own| own.port);
        f.debug_struct("MariaDbServer").field("port", &port).finish()
    }
}

impl Own {
    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running<T>(
        &self,
        act: impl FnOnce(&mut Process) -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        match &mut *self.process() {
            Some(process) => act(process),
            None => Err(Unavailable::broken("the MariaDB server is not running")),
        }
    }

    async fn start(&self) -> Result<(), Unavailable> {
        let directory = self.directory.path();
        let log = File::options()
            .create(true)
            .append(true)
            .open(directory.join("log"))
            .map_err(|error| Unavailable::broken(format!("no log file: {error}")))?;
        let errors = log
            .try_clone()
            .map_err(|error| Unavailable::broken(format!("no log file: {error}")))?;
        let mut command = Command::new(binary());
        command
            .args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve"])
            .arg(format!("--port={}", self.port))
            .arg(format!("--datadir={}", directory.join("data").display()))
            .arg(format!("--socket={}", directory.join("s").display()))
            .arg(format!("--pid-file={}", directory.join("pid").display()))
            // Several servers would use the same names in a folder that they share.
            .arg(format!("--tmpdir={}", directory.display()))
            // The log is written at each commit, and never synced: a test does not cut the power.
            .args(["--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync"])
            .args(["--skip-log-bin", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M"])
            .args(["--performance-schema=off", "--max-connections=500", "--key-buffer-size=1M"])
            .args(["--innodb-fast-shutdown=2", "--skip-stack-trace"])
            .args(&self.options)
            .stdout(log)
            .stderr(errors);
        if servant()?.is_some() {
            command.arg(format!("--user={USER}"));
        }
        let process = Process::start(&mut command, PACKAGE)?;
        *self.process() = Some(process);
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.running(|process| Ok(process.ended()))? {
                self.process().take();
                return Err(self.broken(&format!("mariadbd ended at once: {status}")));
            }
            // Somebody else's server may answer on a port that was taken meanwhile. Ours writes the
            // file once it has the port.
            if self.has_the_port()? && self.answers() {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                self.process().take();
                return Err(self.broken("mariadbd does not answer"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn has_the_port(&self) -> Result<bool, Unavailable> {
        let pid = self.running(|process| Ok(process.id()))?;
        let file = std::fs::read_to_string(self.directory.path().join("pid"));
        Ok(file.is_ok_and(|text| text.trim() == pid.to_string()))
    }

    /// Whether the server greets a client: its first packet begins with the protocol's version.
    fn answers(&self) -> bool {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let greeting = || -> std::io::Result<u8> {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(200))?;
            stream.set_read_timeout(Some(Duration::from_millis(500)))?;
            let mut packet = [0; 5];
            stream.read_exact(&mut packet)?;
            Ok(packet[4])
        };
        greeting().is_ok_and(|version| version == 10)
    }

    fn broken(&self, what: &str) -> Unavailable {
        broken(what, &self.directory.path().join("log"))
    }
}

fn binary() -> PathBuf {
    std::env::var_os(BINARY).unwrap_or_else(|| "mariadbd".into()).into()
}

fn failed(what: &str, error: impl fmt::Display) -> Unavailable {
    Unavailable::broken(format!("{what}: {error}"))
}

/// Whose the server's files must be, if we are root: user and group of [`USER`].
fn servant() -> Result<Option<(u32, u32)>, Unavailable> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").map_err(|e| failed("/etc/passwd", e))?;
    let ids = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _) = (fields.next()?, fields.next()?);
        (name == USER).then_some(())?;
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    match ids {
        Some(ids) => Ok(Some(ids)),
        None => Err(Unavailable::missing(format!(
            "there is no user {USER}, as whom mariadbd runs under root: apt-get install --no-install-recommends {PACKAGE}"
        ))),
    }
}

/// A folder for one server, with a short path: a socket's has at most 107 bytes.
fn folder() -> Result<TempDir, Unavailable> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("mariadb");
    let directory = match Path::new(IN_MEMORY).is_dir() {
        true => builder.tempdir_in(IN_MEMORY),
        false => builder.tempdir(),
    };
    let directory = directory.map_err(|error| failed("no temporary folder", error))?;
    if let Some((user, group)) = servant()? {
        chown(directory.path(), Some(user), Some(group))
            .map_err(|error| failed("the temporary folder", error))?;
    }
    Ok(directory)
}

/// A data folder as a new server has it, which is made once per version and kept: making it takes a
/// second, and copying it a few milliseconds.
fn template() -> Result<PathBuf, Unavailable> {
    // One at a time; another process may make one at the same time, and the first one is used.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let version = output(Command::new(binary()).arg("--version"))?;
    let version: String = version
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
        .collect();
    let me = rustix::process::geteuid().as_raw();
    let ready = std::env::temp_dir()
        .join(format!("distlock-mariadb-{me}-{}", version.trim_end_matches('-')));
    if let Ok(found) = std::fs::symlink_metadata(&ready) {
        // Somebody else could have put it there.
        let owners = [me, servant()?.map_or(me, |(user, _)| user)];
        if !found.is_dir() || !owners.contains(&found.uid()) {
            return Err(Unavailable::broken(format!("{} is not ours: remove it", ready.display())));
        }
        return Ok(ready);
    }
    let making = tempfile::Builder::new()
        .prefix("mariadb")
        .tempdir()
        .map_err(|error| failed("no temporary folder", error))?;
    let servant = servant()?;
    if let Some((user, group)) = servant {
        chown(making.path(), Some(user), Some(group))
            .map_err(|error| failed("the temporary folder", error))?;
    }
    let data = making.path().join("data");
    let mut install = Command::new("mariadb-install-db");
    install
        .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
        .args(["--innodb-log-file-size=8M", "--innodb-flush-method=nosync"])
        .arg(format!("--datadir={}", data.display()))
        .env("TMPDIR", making.path());
    if servant.is_some() {
        install.arg(format!("--user={USER}"));
    }
    output(&mut install)?;
    // A database is a folder.
    let database = data.join(DATABASE);
    std::fs::create_dir(&database).map_err(|error| failed("the database", error))?;
    if let Some((user, group)) = servant {
        chown(&database, Some(user), Some(group)).map_err(|error| failed("the database", error))?;
    }
    match std::fs::rename(&data, &ready) {
        Ok(()) => Ok(ready),
        // Another process was faster.
        Err(_) if ready.is_dir() => Ok(ready),
        Err(error) => Err(failed("the prepared data folder", error)),
    }
}

/// Copies a folder with its owners.
fn copy(from: &Path, to: &Path) -> Result<(), Unavailable> {
    output(Command::new("cp").arg("-a").arg(from).arg(to)).map(drop)
}

fn output(command: &mut Command) -> Result<String, Unavailable> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Unavailable::missing(format!(
            "{program} is not installed: apt-get install --no-install-recommends {PACKAGE}"
        )),
        _ => failed(&program, error),
    })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(Unavailable::broken(format!(
            "{program}: {}: {text} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_starts_keeps_its_data_and_ends() {
        let server = MariaDbServer::builder().start().await.unwrap();
        let pid = server.pid().unwrap();
        let directory = server.own().unwrap().directory.path().to_owned();
        server.stop().unwrap();
        assert!(server.pid().is_err());
        server.restart().await.unwrap();
        assert_ne!(server.pid().unwrap(), pid);
        server.freeze().unwrap();
        server.thaw().unwrap();
        let pid = server.pid().unwrap();
        drop(server);
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "mariadbd {pid} is still there");
        assert!(!directory.exists());
    }

    #[tokio::test]
    async fn an_option_that_is_wrong_shows_the_log() {
        let error = MariaDbServer::builder().option("nonsense", "1").start().await.unwrap_err();
        assert!(error.is_broken() && error.reason().contains("nonsense"), "{error}");
    }
}
