//! `mariadbd`, or `mysqld`.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use conformance_tests::Unavailable;
use rustix::process::Signal;
use tempfile::TempDir;

use super::data::{self, Servant};
use super::process::failed;
use super::single::{Kind, Server};

/// The variable that names the binary, which may also be that of MySQL; `mariadbd` by default.
const BINARY: &str = "LOCK_TEST_MARIADBD";
/// The variable that names the program that makes the data folder of a MariaDB server. Those of a newer release
/// are none to an older server.
const INSTALLER: (&str, &str) = ("LOCK_TEST_MARIADB_INSTALL_DB", "mariadb-install-db");
/// The user the server runs as under root.
const USER: &str = "mysql";
/// The database that every server has.
const DATABASE: &str = "locks";
/// The size of the redo log.
const MARIADB_LOG: &str = "--innodb-log-file-size=8M";
const MYSQL_LOG: &str = "--innodb-redo-log-capacity=16M";

/// A MariaDB server, or the MySQL server that the variable names. Its user is `root`, without a password.
pub type MariaDbServer = Server<MariaDb>;

/// The folder of a MariaDB server.
#[derive(Debug)]
pub struct MariaDb {
    directory: TempDir,
    is_mysql: bool,
}

impl Kind for MariaDb {
    const PROGRAM: &'static str = "mariadbd";
    const PACKAGE: &'static str = "mariadb-server";
    const URL: &'static str = "LOCK_TEST_MYSQL_URL";
    const STOP: Signal = Signal::TERM;

    fn prepare() -> Result<Self, Unavailable> {
        let servant = servant()?;
        let version = data::output(Command::new(binary()).arg("--version"), Self::PACKAGE)?;
        let is_mysql = !version.contains("MariaDB");
        let version: String = version
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
            .collect();
        let name = format!("mariadb-{}", version.trim_end_matches('-'));
        let template = data::template(&name, servant, |data| match is_mysql {
            true => install_mysql(data, servant),
            false => install(data, servant),
        })?;
        // A fresh server is 30 MB of files.
        let new = Self { directory: Servant::folder(servant, "mariadb")?, is_mysql };
        data::copy(&template, &new.data())?;
        Ok(new)
    }

    fn folder(&self) -> &Path {
        self.directory.path()
    }

    fn url(address: SocketAddr) -> String {
        format!("mysql://root@{address}/{DATABASE}")
    }

    fn option(name: &str, value: &str) -> Vec<String> {
        vec![format!("--{name}={value}")]
    }

    fn command(&self, port: u16) -> Result<Command, Unavailable> {
        let folder = self.folder();
        let mut command = Command::new(binary());
        command
            .args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve"])
            .arg(format!("--port={port}"))
            .arg(format!("--datadir={}", self.data().display()))
            .arg(format!("--socket={}", folder.join("s").display()))
            .arg(format!("--pid-file={}", folder.join("pid").display()))
            // Several servers would use the same names in a folder that they share.
            .arg(format!("--tmpdir={}", folder.display()))
            // The log is written at each commit, and never synced: a test does not cut the power.
            .args(["--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync"])
            .args(["--skip-log-bin", "--innodb-buffer-pool-size=16M", "--skip-stack-trace"])
            .args(["--performance-schema=off", "--max-connections=500", "--key-buffer-size=1M"])
            .arg("--innodb-fast-shutdown=2");
        match self.is_mysql {
            // Neither a second port nor a folder outside.
            true => command.args(["--mysqlx=OFF", "--secure-file-priv=NULL", MYSQL_LOG]),
            false => command.arg(MARIADB_LOG),
        };
        if servant()?.is_some() {
            command.arg(format!("--user={USER}"));
        }
        Ok(command)
    }

    /// Whether the server has the port, which it shows by writing a file, and greets a client: its
    /// first packet begins with the protocol version.
    fn answers(&self, address: SocketAddr, id: u32) -> bool {
        let greeting = || -> std::io::Result<u8> {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(200))?;
            stream.set_read_timeout(Some(Duration::from_millis(500)))?;
            let mut packet = [0; 5];
            stream.read_exact(&mut packet)?;
            Ok(packet[4])
        };
        let file = std::fs::read_to_string(self.folder().join("pid"));
        file.is_ok_and(|text| text.trim() == id.to_string())
            && greeting().is_ok_and(|version| version == 10)
    }
}

impl MariaDb {
    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }
}

impl Server<MariaDb> {
    /// The URL of the same database of the test's own server at another address: for a proxy.
    pub fn url_by(&self, address: SocketAddr) -> Result<String, Unavailable> {
        self.kind().map(|_| MariaDb::url(address))
    }

    /// Kills the server if it runs, and starts it again on the same port, with the data.
    pub async fn restart(&self) -> Result<(), Unavailable> {
        self.start_again().await
    }
}

fn binary() -> PathBuf {
    std::env::var_os(BINARY).unwrap_or_else(|| MariaDb::PROGRAM.into()).into()
}

fn servant() -> Result<Option<Servant>, Unavailable> {
    Servant::find(&[USER], MariaDb::PACKAGE)
}

/// Makes the data folder of a new MySQL server, with what its first user and our database need.
fn install_mysql(data: &Path, servant: Option<Servant>) -> Result<(), Unavailable> {
    let first = data.with_extension("sql");
    let statements = format!(
        "CREATE DATABASE {DATABASE};\nCREATE USER root@'%' IDENTIFIED BY '';\n\
         GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;\n"
    );
    std::fs::write(&first, statements).map_err(|error| failed("the first statements", error))?;
    Servant::give(servant, &first)?;
    let mut install = Command::new(binary());
    install
        .args(["--no-defaults", "--initialize-insecure", "--innodb-flush-method=nosync", MYSQL_LOG])
        .arg(format!("--init-file={}", first.display()))
        .arg(format!("--datadir={}", data.display()));
    if servant.is_some() {
        install.arg(format!("--user={USER}"));
    }
    data::output(&mut install, MariaDb::PACKAGE).map(drop)
}

/// Makes the data folder of a new MariaDB server.
fn install(data: &Path, servant: Option<Servant>) -> Result<(), Unavailable> {
    let mut install =
        Command::new(std::env::var_os(INSTALLER.0).unwrap_or_else(|| INSTALLER.1.into()));
    install
        .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
        .args([MARIADB_LOG, "--innodb-flush-method=nosync"])
        .arg(format!("--datadir={}", data.display()));
    if let Some(folder) = data.parent() {
        install.env("TMPDIR", folder);
    }
    if servant.is_some() {
        install.arg(format!("--user={USER}"));
    }
    data::output(&mut install, MariaDb::PACKAGE)?;
    // A database is a folder.
    let database = data.join(DATABASE);
    std::fs::create_dir(&database).map_err(|error| failed("the database", error))?;
    Servant::give(servant, &database)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_starts_keeps_its_data_and_ends() {
        let server = MariaDbServer::builder().start().await.unwrap();
        let pid = server.pid().unwrap();
        let directory = server.kind().unwrap().folder().to_owned();
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
