//! `pgbouncer`.

use std::fs::{File, Permissions};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::postgres::unprivileged;
use super::process::{Process, free_port};
use conformance_tests::Unavailable;

const BINARY: &str = "LOCK_TEST_PGBOUNCER";
const START_LIMIT: Duration = Duration::from_secs(10);

/// A PgBouncer that gives each transaction to any of a few connections of a server.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _process: Process,
    _directory: TempDir,
}

impl PgBouncer {
    /// Starts one before the server at `upstream`, in the given pool mode, with at most
    /// `connections` connections to it.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if `pgbouncer` is not installed, with the package that has it;
    /// [`Unavailable::broken`] if it does not start.
    pub async fn start(
        upstream: SocketAddr,
        mode: &str,
        connections: usize,
    ) -> Result<Self, Unavailable> {
        // Between finding a free port and opening it somebody else may take it.
        let mut last = None;
        for _ in 0..5 {
            match Self::start_once(upstream, mode, connections).await {
                Err(error) if error.is_broken() => last = Some(error),
                answer => return answer,
            }
        }
        Err(last.unwrap_or_else(|| Unavailable::broken("pgbouncer does not start")))
    }

    async fn start_once(
        upstream: SocketAddr,
        mode: &str,
        connections: usize,
    ) -> Result<Self, Unavailable> {
        let program = std::env::var_os(BINARY)
            .map_or_else(|| PathBuf::from("/usr/sbin/pgbouncer"), PathBuf::from);
        if !program.is_file() {
            return Err(Unavailable::missing(
                "pgbouncer is not installed: apt-get install --no-install-recommends pgbouncer",
            ));
        }
        let broken = |error: std::io::Error| Unavailable::broken(format!("pgbouncer: {error}"));
        let directory = tempfile::Builder::new().prefix("pgbouncer").tempdir().map_err(broken)?;
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755))
            .map_err(broken)?;
        let port = free_port()?;
        let settings = directory.path().join("ini");
        let text = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {connections}\n\
             max_client_conn = 1000\nserver_lifetime = 3600\nserver_login_retry = 0\n",
            upstream.ip(),
            upstream.port(),
        )
        // Everybody is the superuser of the test's own server.
        .replace("* = host", "* = user=postgres host");
        std::fs::write(&settings, text).map_err(broken)?;
        let log = directory.path().join("log");
        let output = File::create(&log).map_err(broken)?;
        let mut command = unprivileged(&program);
        command.arg(&settings).stdout(output.try_clone().map_err(broken)?).stderr(output);
        let mut process = Process::start(&mut command, "pgbouncer")?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        loop {
            // Somebody else may have got the port since it was found free, and would answer in its place.
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if text.contains(&format!("listening on {address}"))
                && TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
            {
                return Ok(Self { port, _process: process, _directory: directory });
            }
            if process.ended().is_some() || tokio::time::Instant::now() >= deadline {
                return Err(Unavailable::broken(format!("pgbouncer does not start: {text}")));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }
}
