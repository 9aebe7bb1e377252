//! The settings of the test's own cluster.

use std::sync::Arc;
use std::time::Duration;

use conformance_tests::Unavailable;

use super::cluster::{EtcdCluster, URL};
use super::member::Member;
use super::own::Own;
use super::peers::{PeerLinks, Peers};
use crate::servers::data;
use crate::servers::process::url_from;

/// Settings for the test's own cluster.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct EtcdClusterBuilder {
    /// Besides the first one.
    more_members: usize,
    learner: bool,
    options: Vec<String>,
    cuttable: bool,
    apart: Option<Duration>,
    election: Option<Duration>,
    tls: bool,
}

impl EtcdClusterBuilder {
    /// The number of members; 1 by default.
    pub fn members(mut self, members: usize) -> Self {
        self.more_members = members.saturating_sub(1);
        self
    }

    /// Adds one more member, the last one, as a learner: it has no vote, and refuses requests.
    pub fn learner(mut self) -> Self {
        self.learner = true;
        self
    }

    /// One more option of the command line, such as `("auth-token-ttl", "2")`.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push(format!("--{name}={value}"));
        self
    }

    /// How long without a leader before the others elect one. By default 100 ms for one member,
    /// which is then up sooner, and 1 s for several, since a busy machine would depose their
    /// leader.
    pub fn election_timeout(mut self, timeout: Duration) -> Self {
        self.election = Some(timeout);
        self
    }

    /// Makes each member listen for TLS too, on a separate port. The options for its certificates,
    /// such as `cert-file`, are up to the test.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Lets the test cut members off from each other. On Linux only.
    pub fn cuttable(mut self) -> Self {
        self.cuttable = true;
        self
    }

    /// Puts the members this far apart: each message from one to another takes that long.
    pub fn apart(mut self, distance: Duration) -> Self {
        self.apart = Some(distance);
        self
    }

    /// Starts the cluster and waits until every member answers. Never uses the one of
    /// `LOCK_TEST_ETCD_URL`.
    pub async fn start(self) -> Result<EtcdCluster, Unavailable> {
        let own = self.prepare().await?;
        own.start().await?;
        let members: Vec<_> =
            own.members().iter().map(|member| member.address().to_string()).collect();
        Ok(EtcdCluster::new(Some(own), format!("etcd://{}", members.join(","))))
    }

    async fn prepare(&self) -> Result<Own, Unavailable> {
        let directory = data::folder("etcd")?;
        let election = self.election.unwrap_or(Duration::from_millis(match self.more_members {
            0 => 100,
            _ => 1000,
        }));
        let mut options = self.options.clone();
        options.push(format!("--election-timeout={}", election.as_millis()));
        options.push(format!("--heartbeat-interval={}", (election / 10).as_millis()));
        let peers = Arc::<Peers>::default();
        let (mut members, mut links) = (Vec::new(), PeerLinks::default());
        for at in 0..=self.more_members + usize::from(self.learner) {
            let mut member = Member::new(directory.path(), at, self.tls)?;
            member.set_learner(at > self.more_members);
            if let Some(distance) = self.apart {
                member.announce(links.add_far(member.announced(), distance).await?);
            }
            if self.cuttable {
                member.announce(links.add(&peers, at, member.announced())?);
            }
            members.push(member);
        }
        Ok(Own::new(directory, members, options, peers, links))
    }
}

impl EtcdCluster {
    /// The cluster that `LOCK_TEST_ETCD_URL` names, or else one member of the test's own.
    pub async fn start() -> Result<Self, Unavailable> {
        match url_from(URL) {
            Some(url) => Ok(Self::new(None, url)),
            None => Self::builder().start().await,
        }
    }

    /// The test's own cluster, with options.
    pub fn builder() -> EtcdClusterBuilder {
        EtcdClusterBuilder::default()
    }
}
