//! `etcd grpc-proxy`.

use std::future::ready;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::server::{Port, Process};
use tempfile::TempDir;

use super::own::etcd;
use crate::servers::data;
use crate::servers::process::{START_LIMIT, from_package};

/// A gRPC proxy of etcd in front of one member.
#[derive(Debug)]
pub struct GrpcProxy {
    _process: Process,
    _directory: TempDir,
    port: Port,
}

impl GrpcProxy {
    /// Starts one in front of the member at `upstream`.
    pub async fn start(upstream: SocketAddr) -> Result<Self, Unavailable> {
        let (directory, port) = (data::folder("grpc-proxy")?, Port::reserve()?);
        let process = from_package("etcd", "etcd-server", directory.path().join("log"));
        let mut command = etcd();
        command
            .args(["grpc-proxy", "start"])
            .arg(format!("--endpoints=http://{upstream}"))
            .arg(format!("--listen-addr={}", port.address()))
            .arg("--data-dir")
            .arg(directory.path().join("data"));
        process.spawn(&mut command)?;
        let look = Duration::from_millis(200);
        let listens = |_| ready(TcpStream::connect_timeout(&port.address(), look).is_ok());
        process.ready(START_LIMIT, listens).await?;
        Ok(Self { _process: process, _directory: directory, port })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }
}
