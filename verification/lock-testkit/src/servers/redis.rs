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
pub(super) const BINARY: &str = "LOCK_TEST_REDIS_SERVER";

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
    use super::super::process::from_package;
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        let folder = data::folder("missing").unwrap();
        let process = from_package("nothing", "redis-server", folder.path().join("log"));
        let error = process.spawn(&mut Command::new("a-program-that-is-not-there")).unwrap_err();
        assert!(!error.is_broken());
        let remedy = "apt-get install --no-install-recommends redis-server";
        assert!(error.reason().ends_with(remedy), "{error}");
    }

    #[tokio::test]
    async fn an_option_that_is_wrong_shows_the_log() {
        let error = RedisServer::builder().option("nonsense", "1").start().await.unwrap_err();
        assert!(error.is_broken() && error.reason().contains("nonsense"), "{error}");
    }
}
