//! One member of a cluster.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::server::{Port, Process};
use serde_json::Value;

use crate::servers::process::from_package;

#[derive(Debug)]
pub(super) struct Member {
    port: Port,
    tls_port: Option<Port>,
    peer_port: Port,
    /// Where the other members reach it.
    announced: SocketAddr,
    /// It follows without a vote, and serves no requests.
    learner: bool,
    /// It was added to a cluster that there was.
    joins: AtomicBool,
    data: PathBuf,
    process: Process,
}

impl Member {
    pub(super) fn new(directory: &Path, at: usize, tls: bool) -> Result<Self, Unavailable> {
        let (port, peer_port) = (Port::reserve()?, Port::reserve()?);
        Ok(Self {
            announced: peer_port.address(),
            port,
            tls_port: if tls { Some(Port::reserve()?) } else { None },
            peer_port,
            learner: false,
            joins: AtomicBool::new(false),
            data: directory.join(format!("m{at}")),
            process: from_package("etcd", "etcd-server", directory.join(format!("log{at}"))),
        })
    }

    pub(super) fn set_learner(&mut self, learner: bool) {
        self.learner = learner;
    }

    /// It begins anew, as a member that was added.
    pub(super) fn begin_anew(&self) -> std::io::Result<()> {
        self.joins.store(true, Relaxed);
        std::fs::remove_dir_all(&self.data)
    }

    /// Whether there was a cluster before it.
    pub(super) fn joins(&self) -> bool {
        self.learner || self.joins.load(Relaxed)
    }

    pub(super) fn announce(&mut self, announced: SocketAddr) {
        self.announced = announced;
    }

    pub(super) fn announced(&self) -> SocketAddr {
        self.announced
    }

    pub(super) fn is_learner(&self) -> bool {
        self.learner
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub(super) fn tls_port(&self) -> Option<u16> {
        self.tls_port.as_ref().map(Port::number)
    }

    /// Where it listens for clients and for other members.
    pub(super) fn listens(&self) -> (String, String) {
        let mut client = format!("http://{}", self.address());
        if let Some(port) = &self.tls_port {
            client.push_str(&format!(",https://127.0.0.1:{port}"));
        }
        (client, format!("http://127.0.0.1:{}", self.peer_port))
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.ask("GET /health HTTP/1.0\r\n\r\n").is_some_and(|answer| answer.contains("\"true\""))
    }

    /// Whether it has learned the version of the cluster: nobody can join before that.
    pub(super) fn knows_version(&self) -> bool {
        let answer = self.ask("GET /version HTTP/1.0\r\n\r\n");
        answer
            .is_some_and(|answer| answer.contains("etcdcluster") && !answer.contains("not_decided"))
    }

    /// The ids of this member and of its leader.
    pub(super) fn status(&self) -> Option<(String, String)> {
        let status = self.post("/v3/maintenance/status", "{}")?;
        let leader = status["leader"].as_str().unwrap_or("0").to_owned();
        Some((status["header"]["member_id"].as_str()?.to_owned(), leader))
    }

    /// A request through the JSON gateway; `None` unless it succeeds.
    pub(super) fn post(&self, path: &str, body: &str) -> Option<Value> {
        let answer = self.ask(&format!(
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.lines().next()?.contains(" 200 ").then(|| serde_json::from_str(body).ok())?
    }

    fn ask(&self, request: &str) -> Option<String> {
        let limit = Duration::from_millis(500);
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&self.address(), limit)?;
            stream.set_read_timeout(Some(limit))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().ok()
    }
}
