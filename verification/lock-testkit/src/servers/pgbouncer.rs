//! `pgbouncer`.

use std::future::ready;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::server::{Port, Process};
use tempfile::TempDir;

use super::data::Servant;
use super::postgres::servant;
use super::process::{START_LIMIT, failed, from_package, not_installed};

const BINARY: &str = "LOCK_TEST_PGBOUNCER";

/// A PgBouncer that runs each transaction on any of a few server connections.
#[derive(Debug)]
pub struct PgBouncer {
    _process: Process,
    _directory: TempDir,
    port: Port,
}

impl PgBouncer {
    /// Starts one in front of the server at `upstream`, in the given pool mode, with at most
    /// `connections` connections to it.
    pub async fn start(
        upstream: SocketAddr,
        mode: &str,
        connections: usize,
    ) -> Result<Self, Unavailable> {
        let program = std::env::var_os(BINARY)
            .map_or_else(|| PathBuf::from("/usr/sbin/pgbouncer"), PathBuf::from);
        if !program.is_file() {
            return Err(not_installed("pgbouncer", "pgbouncer"));
        }
        let servant = servant()?;
        let directory = Servant::folder(servant, "pgbouncer")?;
        let port = Port::reserve()?;
        let settings = directory.path().join("ini");
        let (host, upstream) = (upstream.ip(), upstream.port());
        // Every client is the superuser of the test's own server.
        let text = format!(
            "[databases]\n* = user=postgres host={host} port={upstream}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {connections}\n\
             max_client_conn = 1000\nserver_lifetime = 3600\nserver_login_retry = 0\n",
        );
        std::fs::write(&settings, text).map_err(|error| failed("no settings", error))?;
        let mut command = Servant::command(servant, &program);
        command.arg(&settings);
        let process = from_package("pgbouncer", "pgbouncer", directory.path().join("log"));
        process.spawn(&mut command)?;
        let address = port.address();
        let listens = |_| {
            let says_so = process.log().contains(&format!("listening on {address}"));
            let look = Duration::from_millis(200);
            ready(says_so && TcpStream::connect_timeout(&address, look).is_ok())
        };
        process.ready(START_LIMIT, listens).await?;
        Ok(Self { _process: process, _directory: directory, port })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }
}
