//! `redis-server`.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::Servers;
use super::process::{Process, broken, free_port, url_from};
use conformance_tests::Unavailable;
use lock_core::async_trait;

/// The variable that names a server to use in place of a local binary.
const URL: &str = "LOCK_TEST_REDIS_URL";
/// The variable that names the binary; `redis-server` by default.
const BINARY: &str = "LOCK_TEST_REDIS_SERVER";
const START_LIMIT: Duration = Duration::from_secs(10);

/// A Redis server of the test's own, or the one that `LOCK_TEST_REDIS_URL` names.
///
/// Its own server keeps an append-only file, which is written before a reply is sent: a kill and a
/// restart with the data lose nothing that was acknowledged.
pub struct RedisServer {
    own: Option<Own>,
    url: String,
}

struct Own {
    port: u16,
    directory: TempDir,
    options: Vec<String>,
    process: Mutex<Option<Process>>,
}

/// What a restarted server still knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Everything that it had acknowledged.
    Keep,
    /// Nothing.
    Lose,
}

/// Settings of a server of one's own.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct RedisServerBuilder {
    options: Vec<String>,
}

impl RedisServerBuilder {
    /// One more option of the command line, such as `("maxmemory", "1mb")`.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push(format!("--{name}"));
        self.options.push(value.to_owned());
        self
    }

    /// Starts the server and waits until it answers. Never the one of `LOCK_TEST_REDIS_URL`, whose
    /// options are not ours.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if `redis-server` is not installed, with the package that has it;
    /// [`Unavailable::broken`] if it does not start, with what it has logged.
    pub async fn start(self) -> Result<RedisServer, Unavailable> {
        // Between finding a free port and opening it somebody else may take it.
        let mut last = None;
        for _ in 0..5 {
            let own = Own {
                port: free_port()?,
                directory: tempfile::Builder::new().prefix("redis").tempdir().map_err(|error| {
                    Unavailable::broken(format!("no temporary folder: {error}"))
                })?,
                options: self.options.clone(),
                process: Mutex::default(),
            };
            let url = format!("redis://127.0.0.1:{}", own.port);
            match own.start().await {
                Ok(()) => return Ok(RedisServer { own: Some(own), url }),
                Err(error) if error.is_broken() => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Unavailable::broken("redis-server does not start")))
    }
}

impl RedisServer {
    /// The server that `LOCK_TEST_REDIS_URL` names, else one of the test's own.
    ///
    /// # Errors
    ///
    /// As [`RedisServerBuilder::start`].
    pub async fn start() -> Result<Self, Unavailable> {
        match url_from(URL) {
            Some(url) => Ok(Self { own: None, url }),
            None => Self::builder().start().await,
        }
    }

    /// A server of the test's own with options.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// `redis://127.0.0.1:port`, or what the variable says.
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

    /// The Unix socket of the server.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own.
    pub fn socket(&self) -> Result<PathBuf, Unavailable> {
        Ok(self.own()?.directory.path().join("s"))
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

    /// Kills the server if it runs, and starts it again on the same port.
    ///
    /// # Errors
    ///
    /// As [`kill`](Self::kill) and [`RedisServerBuilder::start`].
    pub async fn restart(&self, data: Data) -> Result<(), Unavailable> {
        self.kill()?;
        let own = self.own()?;
        if data == Data::Lose {
            // Redis 7 has a directory, and earlier ones have one file.
            let directory = own.directory.path();
            let (parts, file) = (directory.join("appendonlydir"), directory.join("appendonly.aof"));
            let removed =
                [(std::fs::remove_dir_all(&parts), parts), (std::fs::remove_file(&file), file)];
            for (removed, lost) in removed {
                match removed {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(Unavailable::broken(format!("{}: {error}", lost.display())));
                    }
                    _ => {}
                }
            }
        }
        own.start().await
    }

    fn own(&self) -> Result<&Own, Unavailable> {
        self.own.as_ref().ok_or_else(|| {
            Unavailable::missing(format!("the server of {URL} is not ours to disturb"))
        })
    }
}

#[async_trait]
impl Servers for RedisServer {
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
        Self::restart(self, Data::Keep).await
    }
}

impl fmt::Debug for RedisServer {
    /// The URL may have a password, so only a server of the test's own is named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisServer").field("port", &self.own.as_ref().map(|own| own.port)).finish()
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
            None => Err(Unavailable::broken("the Redis server is not running")),
        }
    }

    async fn start(&self) -> Result<(), Unavailable> {
        let directory = self.directory.path();
        let log = File::options()
            .create(true)
            .append(true)
            .open(directory.join("log"))
            .map_err(|error| Unavailable::broken(format!("no log file: {error}")))?;
        // Wrong options are told on standard error.
        let errors = log
            .try_clone()
            .map_err(|error| Unavailable::broken(format!("no log file: {error}")))?;
        let program = std::env::var_os(BINARY).unwrap_or_else(|| "redis-server".into());
        let mut command = Command::new(program);
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"])
            .args(["--save", "", "--appendonly", "yes", "--appendfsync", "no"])
            .arg("--dir")
            .arg(directory)
            .arg("--unixsocket")
            .arg(directory.join("s"))
            .args(&self.options)
            .stdout(log)
            .stderr(errors);
        let process = Process::start(&mut command, "redis-server")?;
        *self.process() = Some(process);
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.running(|process| Ok(process.ended()))? {
                self.process().take();
                return Err(self.broken(&format!("redis-server ended at once: {status}")));
            }
            if self.answers() {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                self.process().take();
                return Err(self.broken("redis-server does not answer"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whether the server has loaded its data and answers. A password counts as an answer. Asked over
    /// the socket in its own folder, which it opens after its port: on the port another test's server
    /// might answer, if that was faster to take it.
    fn answers(&self) -> bool {
        let ping = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(self.directory.path().join("s"))?;
            stream.set_read_timeout(Some(Duration::from_millis(200)))?;
            stream.write_all(b"PING\r\n")?;
            let mut answer = [0; 64];
            let length = stream.read(&mut answer)?;
            Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
        };
        ping().is_ok_and(|answer| answer.starts_with("+PONG") || answer.starts_with("-NOAUTH"))
    }

    fn broken(&self, what: &str) -> Unavailable {
        broken(what, &self.directory.path().join("log"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    const CHILD: &str = "LOCK_TEST_SERVER_CHILD";

    fn is_there(pid: &str) -> bool {
        // A process that has ended and is not yet waited for does not count.
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.contains(") Z "))
    }

    async fn gone(pid: &str) -> bool {
        for _ in 0..400 {
            if !is_there(pid) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    fn pid(server: &RedisServer) -> String {
        server.own().unwrap().running(|process| Ok(process.id())).unwrap().to_string()
    }

    /// The process that is killed by the next test.
    #[tokio::test]
    #[ignore = "the child process of another test"]
    async fn child() {
        if std::env::var_os(CHILD).is_some() {
            let server = RedisServer::builder().start().await.unwrap();
            server.freeze().unwrap();
            println!("@{}", pid(&server));
            std::future::pending::<()>().await;
        }
    }

    #[tokio::test]
    async fn a_server_does_not_outlive_a_killed_test() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["servers::redis::tests::child", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pid = lines
            .find_map(|line| Some(line.ok()?.split_once('@')?.1.to_owned()))
            .expect("the child has started a server");
        assert!(is_there(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(gone(&pid).await, "redis-server {pid} has outlived its test");
    }

    #[tokio::test]
    async fn a_server_does_not_outlive_a_panic() {
        let server = RedisServer::builder().start().await.unwrap();
        let pid = pid(&server);
        let panicked = tokio::spawn(async move {
            let _server = server;
            panic!("on purpose");
        });
        assert!(panicked.await.is_err());
        assert!(gone(&pid).await);
    }

    #[tokio::test]
    async fn a_missing_binary_names_its_package() {
        let mut command = Command::new("redis-server-that-is-not-there");
        let error = Process::start(&mut command, "redis-server").unwrap_err();
        assert!(!error.is_broken());
        assert!(error.reason().contains("apt-get install"), "{error}");
    }

    #[tokio::test]
    async fn an_option_that_is_wrong_shows_the_log() {
        let error = RedisServer::builder().option("nonsense", "1").start().await.unwrap_err();
        assert!(error.is_broken() && error.reason().contains("nonsense"), "{error}");
    }
}
