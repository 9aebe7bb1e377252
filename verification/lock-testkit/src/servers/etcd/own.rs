//! The test's own cluster: how its members are started.

use std::future::ready;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

use conformance_tests::Unavailable;
use tempfile::TempDir;

use super::member::Member;
use super::peers::{PeerLinks, Peers};
use crate::servers::data;
use crate::servers::process::{START_LIMIT, failed};

/// The variable that names the binary; `etcd` by default.
const BINARY: &str = "LOCK_TEST_ETCD";
/// Whether `etcd` can leave out `fsync`, as newer versions can. What it has written still survives
/// a kill: only a crash of the machine would lose it.
static UNSYNCED: AtomicBool = AtomicBool::new(true);

/// The program, without its arguments. Settings of a system service must not apply here.
pub(super) fn etcd() -> Command {
    let mut command = Command::new(std::env::var_os(BINARY).unwrap_or_else(|| "etcd".into()));
    let is_other = |name: &std::ffi::OsString| !name.to_string_lossy().starts_with("ETCD_");
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_other(name)));
    command
}

#[derive(Debug)]
pub(super) struct Own {
    /// Dropped before their folder is removed, or they would write into it again.
    members: Vec<Member>,
    directory: TempDir,
    options: Vec<String>,
    peers: Arc<Peers>,
    links: PeerLinks,
}

impl Own {
    pub(super) fn new(
        directory: TempDir,
        members: Vec<Member>,
        options: Vec<String>,
        peers: Arc<Peers>,
        links: PeerLinks,
    ) -> Self {
        Self { members, directory, options, peers, links }
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The links between the members, if they can be cut.
    pub(super) fn peers(&self) -> Option<&Peers> {
        self.links.can_be_cut().then_some(&*self.peers)
    }

    /// Starts a new cluster.
    pub(super) async fn start(&self) -> Result<(), Unavailable> {
        let started = self.start_all(false).await;
        let unknown =
            |member: &Member| member.process().log().contains("not defined: -unsafe-no-fsync");
        if started.is_ok() || !self.members.iter().any(unknown) {
            return started;
        }
        UNSYNCED.store(false, Relaxed);
        self.start_all(false).await
    }

    /// Starts all members, maybe `again`, and waits until each answers.
    pub(super) async fn start_all(&self, again: bool) -> Result<(), Unavailable> {
        let (learners, voters): (Vec<_>, Vec<_>) =
            (0..self.members.len()).partition(|at| self.members[*at].is_learner());
        for member in &voters {
            self.spawn(*member)?;
        }
        for member in &voters {
            self.wait_for(*member).await?;
        }
        for member in learners {
            if !again {
                let first = &self.members[0];
                first.process().ready(START_LIMIT, |_| ready(first.knows_version())).await?;
                self.add_learner(&self.members[member])?;
            }
            self.spawn(member)?;
            self.wait_for(member).await?;
        }
        Ok(())
    }

    /// As `etcdctl member add --learner`.
    fn add_learner(&self, learner: &Member) -> Result<(), Unavailable> {
        let body =
            format!("{{\"peerURLs\":[\"http://{}\"],\"isLearner\":true}}", learner.announced());
        let added = self.members[0].post("/v3/cluster/member/add", &body);
        added.map(drop).ok_or_else(|| Unavailable::broken("the cluster takes no learner"))
    }

    /// Starts a member.
    pub(super) fn spawn(&self, at: usize) -> Result<(), Unavailable> {
        let process = self.members[at].process();
        process.spawn(&mut self.command(at))?;
        let mut processes = self.peers.members.lock().unwrap_or_else(PoisonError::into_inner);
        processes.retain(|(_, known)| *known != at);
        processes.push((process.id()?, at));
        Ok(())
    }

    fn command(&self, at: usize) -> Command {
        let member = &self.members[at];
        let (client, peer) = member.listens();
        let members = self.members.iter().enumerate();
        let cluster: Vec<_> = members
            // The initial members do not know of those that join later.
            .filter(|(_, other)| member.joins() || !other.is_learner())
            .map(|(at, member)| format!("m{at}=http://{}", member.announced()))
            .collect();
        let state = if member.joins() { "existing" } else { "new" };
        let mut command = etcd();
        command
            .arg(format!("--name=m{at}"))
            .arg("--data-dir")
            .arg(member.data())
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls=http://{}", member.announced()))
            .arg(format!("--initial-cluster={}", cluster.join(",")))
            .arg(format!("--initial-cluster-state={state}"))
            .args(["--logger=zap", "--log-level=warn"])
            .args(&self.options);
        if UNSYNCED.load(Relaxed) {
            command.arg("--unsafe-no-fsync");
        }
        command
    }

    /// Waits until a member answers.
    pub(super) async fn wait_for(&self, at: usize) -> Result<(), Unavailable> {
        let member = &self.members[at];
        member.process().ready(START_LIMIT, |_| ready(member.is_healthy())).await
    }

    /// Keeps a copy of what the first member has stored.
    pub(super) fn back_up(&self) -> Result<(), Unavailable> {
        let copy = self.copy();
        if copy.exists() {
            std::fs::remove_dir_all(&copy).map_err(|error| failed("an older copy", error))?;
        }
        data::copy(self.members[0].data(), &copy)
    }

    /// Replaces what the first member has stored by the copy.
    pub(super) fn restore(&self) -> Result<(), Unavailable> {
        let data = self.members[0].data();
        std::fs::remove_dir_all(data).map_err(|error| failed("the data", error))?;
        data::copy(&self.copy(), data)
    }

    fn copy(&self) -> PathBuf {
        self.directory.path().join("copy")
    }
}
