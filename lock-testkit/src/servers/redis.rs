//! `redis-server`.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use conformance_tests::Unavailable;
use rustix::process::Signal;
use tempfile::TempDir;

use super::data;
use super::process::failed;
use super::single::{Kind, Server};

/// The variable that names the binary; `redis-server` by default.
const BINARY: &str = "LOCK_TEST_REDIS_SERVER";

/// A Redis server. Its own server keeps an append-only file, which is written before a reply is sent.
pub type RedisServer = Server<Redis>;

/// The folder of a Redis server.
#[derive(Debug)]
pub struct Redis(TempDir);

/// What a restarted server still knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Everything it had acknowledged.
    Keep,
    /// Nothing.
    Lose,
}

impl Kind for Redis {
    const PROGRAM: &'static str = "redis-server";
    const PACKAGE: &'static str = "redis-server";
    const URL: &'static str = "LOCK_TEST_REDIS_URL";
    const START_LIMIT: Duration = Duration::from_secs(10);
    const STOP: Signal = Signal::TERM;

    fn prepare() -> Result<Self, Unavailable> {
        Ok(Self(data::folder("redis")?))
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn url(address: SocketAddr) -> String {
        format!("redis://{address}")
    }

    fn option(name: &str, value: &str) -> Vec<String> {
        vec![format!("--{name}"), value.to_owned()]
    }

    fn command(&self, port: u16) -> Result<Command, Unavailable> {
        let program = std::env::var_os(BINARY).unwrap_or_else(|| Self::PROGRAM.into());
        let mut command = Command::new(program);
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"])
            .args(["--save", "", "--appendonly", "yes", "--appendfsync", "no"])
            .arg("--dir")
            .arg(self.folder())
            .arg("--unixsocket")
            .arg(self.socket());
        Ok(command)
    }

    /// Whether the server has loaded its data and answers. A password counts as an answer. Asked
    /// over the socket in its own folder, which it opens after its port: on the port another test's
    /// server might answer, if that took it first.
    fn answers(&self, _: SocketAddr, _: u32) -> bool {
        let ping = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(self.socket())?;
            stream.set_read_timeout(Some(Duration::from_millis(200)))?;
            stream.write_all(b"PING\r\n")?;
            let mut answer = [0; 64];
            let length = stream.read(&mut answer)?;
            Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
        };
        ping().is_ok_and(|answer| answer.starts_with("+PONG") || answer.starts_with("-NOAUTH"))
    }
}

impl Redis {
    fn socket(&self) -> PathBuf {
        self.folder().join("s")
    }

    /// Redis 7 has a directory, and earlier ones have one file.
    fn lose_data(&self) -> Result<(), Unavailable> {
        let (parts, file) =
            (self.folder().join("appendonlydir"), self.folder().join("appendonly.aof"));
        for removed in [std::fs::remove_dir_all(parts), std::fs::remove_file(file)] {
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed("the data cannot be removed", error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Server<Redis> {
    /// The Unix socket of the server.
    pub fn socket(&self) -> Result<PathBuf, Unavailable> {
        Ok(self.kind()?.socket())
    }

    /// Kills the server if it runs, and starts it again on the same port.
    pub async fn restart(&self, data: Data) -> Result<(), Unavailable> {
        self.kill()?;
        if data == Data::Lose {
            self.kind()?.lose_data()?;
        }
        self.start_again().await
    }
}

#[cfg(test)]
mod tests {
    use super::super::process::Process;
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    const CHILD: &str = "LOCK_TEST_SERVER_CHILD";

    fn is_there(pid: &str) -> bool {
        // A zombie does not count.
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
        server.pid().unwrap().to_string()
    }

    /// The process killed by the next test.
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
