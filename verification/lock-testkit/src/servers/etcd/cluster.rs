//! A cluster, and what tests do with it.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::proxied::Servers;
use lock_core::async_trait;

use super::member::Member;
use super::own::Own;
use super::peers::Peers;
use crate::servers::process::{START_LIMIT, cpu_time};

/// The variable that names a cluster to use instead of a local binary.
pub(super) const URL: &str = "LOCK_TEST_ETCD_URL";

/// How long a leader is asked to hand over.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(5);

/// The test's own etcd cluster, or the one that `LOCK_TEST_ETCD_URL` names.
pub struct EtcdCluster {
    own: Option<Own>,
    url: String,
}

impl EtcdCluster {
    pub(super) fn new(own: Option<Own>, url: String) -> Self {
        Self { own, url }
    }

    /// `etcd://` and the addresses of all members, or the value of the variable.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the test may stop and restart it.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// How many members there are; 0 if the cluster is not the test's own.
    pub fn members(&self) -> usize {
        self.own.as_ref().map_or(0, |own| own.members().len())
    }

    /// Where clients reach a member.
    pub fn address(&self, member: usize) -> Result<SocketAddr, Unavailable> {
        Ok(self.member(member)?.address())
    }

    /// The port on which a member listens for TLS.
    pub fn tls_port(&self, member: usize) -> Result<u16, Unavailable> {
        let port = self.member(member)?.tls_port();
        port.ok_or_else(|| Unavailable::missing("the members of this cluster have no TLS"))
    }

    /// The process id of a member.
    pub fn pid(&self, member: usize) -> Result<u32, Unavailable> {
        self.member(member)?.process().id()
    }

    /// Freezes a member (SIGSTOP): connections stay open, nothing is answered.
    pub fn freeze(&self, member: usize) -> Result<(), Unavailable> {
        self.member(member)?.process().freeze()
    }

    /// Ends [`freeze`](Self::freeze).
    pub fn thaw(&self, member: usize) -> Result<(), Unavailable> {
        self.member(member)?.process().thaw()
    }

    /// The processor time that a member has used.
    pub fn cpu_time(&self, member: usize) -> Result<Duration, Unavailable> {
        cpu_time(self.member(member)?.process())
    }

    /// Kills a member (SIGKILL). Nothing listens on its port until [`restart`](Self::restart).
    pub fn kill(&self, member: usize) -> Result<(), Unavailable> {
        self.member(member)?.process().kill();
        Ok(())
    }

    /// Starts a member again, with its data, and waits until it answers.
    pub async fn restart(&self, member: usize) -> Result<(), Unavailable> {
        self.kill(member)?;
        self.own()?.spawn(member)?;
        self.own()?.wait_for(member).await
    }

    /// Removes a member, and adds another one without data in its place, as with a new machine; waits until it answers.
    pub async fn replace(&self, member: usize) -> Result<(), Unavailable> {
        let (gone, other) = (self.member(member)?, self.member((member + 1) % self.members())?);
        let status = gone.status().ok_or_else(|| Unavailable::broken("it does not answer"))?;
        accepted(other, "remove", &format!("{{\"ID\":\"{}\"}}", status.0)).await?;
        self.kill(member)?;
        gone.begin_anew()
            .map_err(|error| Unavailable::broken(format!("its data stays: {error}")))?;
        let address = gone.announced();
        accepted(other, "add", &format!("{{\"peerURLs\":[\"http://{address}\"]}}")).await?;
        self.restart(member).await
    }

    /// Kills all members, starts them again, and waits until each answers.
    pub async fn restart_all(&self) -> Result<(), Unavailable> {
        for member in 0..self.members() {
            self.kill(member)?;
        }
        self.own()?.start_all(true).await
    }

    /// Keeps a copy of what the only member has stored, for [`restore`](Self::restore). It is restarted.
    pub async fn back_up(&self) -> Result<(), Unavailable> {
        self.kill(0)?;
        self.own()?.back_up()?;
        self.restart(0).await
    }

    /// Replaces what the only member has stored by the copy, as an operator does with an old snapshot.
    pub async fn restore(&self) -> Result<(), Unavailable> {
        self.kill(0)?;
        self.own()?.restore()?;
        self.restart(0).await
    }

    /// Cuts a member off from the others, in both directions; clients still reach it.
    pub fn cut_off(&self, member: usize) -> Result<(), Unavailable> {
        self.cuttable()?.cut_off(member, true);
        Ok(())
    }

    /// Ends [`cut_off`](Self::cut_off).
    pub fn rejoin(&self, member: usize) -> Result<(), Unavailable> {
        self.cuttable()?.cut_off(member, false);
        Ok(())
    }

    /// The member that leads, as some member sees it; waits for an election if there is none.
    pub async fn leader(&self) -> Result<usize, Unavailable> {
        let own = self.own()?;
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        loop {
            let statuses: Vec<_> = own.members().iter().map(Member::status).collect();
            let named = statuses.iter().flatten().map(|(_, leader)| leader).find(|l| *l != "0");
            let at = named.and_then(|leader| {
                statuses.iter().position(|s| s.as_ref().is_some_and(|(id, _)| id == leader))
            });
            match at {
                // It says so itself, so it has not been deposed.
                Some(at) if statuses[at].as_ref().is_some_and(|(id, leader)| id == leader) => {
                    return Ok(at);
                }
                _ if tokio::time::Instant::now() >= deadline => {
                    return Err(Unavailable::broken("etcd has elected no leader"));
                }
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Transfers the leadership to another member. A leader refuses while that one is behind, so it is
    /// asked again for some seconds.
    pub async fn move_leader(&self, to: usize) -> Result<(), Unavailable> {
        let deadline = tokio::time::Instant::now() + HAND_OVER_LIMIT;
        loop {
            let leader = self.leader().await?;
            if leader == to || self.asked_to_hand_over(leader, to)? {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(Unavailable::broken("the leader does not hand over"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn asked_to_hand_over(&self, leader: usize, to: usize) -> Result<bool, Unavailable> {
        let (id, _) = self
            .member(to)?
            .status()
            .ok_or_else(|| Unavailable::broken("the member that should lead does not answer"))?;
        let body = format!("{{\"targetID\":\"{id}\"}}");
        Ok(self.member(leader)?.post("/v3/maintenance/transfer-leadership", &body).is_some())
    }

    fn own(&self) -> Result<&Own, Unavailable> {
        self.own.as_ref().ok_or_else(|| {
            Unavailable::missing(format!("the cluster of {URL} is not ours to disturb"))
        })
    }

    fn member(&self, member: usize) -> Result<&Member, Unavailable> {
        let members = self.own()?.members();
        members.get(member).ok_or_else(|| Unavailable::broken(format!("no member {member}")))
    }

    fn cuttable(&self) -> Result<&Peers, Unavailable> {
        self.own()?
            .peers()
            .ok_or_else(|| Unavailable::missing("the members of this cluster are linked directly"))
    }
}

#[async_trait]
impl Servers for EtcdCluster {
    fn foreign(&self) -> Option<&str> {
        self.own.is_none().then_some(&self.url)
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.own.iter().flat_map(|own| own.members().iter().map(Member::address)).collect()
    }

    fn freeze(&self) -> Result<(), Unavailable> {
        self.own()?;
        (0..self.members()).try_for_each(|member| Self::freeze(self, member))
    }

    fn thaw(&self) -> Result<(), Unavailable> {
        self.own()?;
        (0..self.members()).try_for_each(|member| Self::thaw(self, member))
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        self.restart_all().await
    }
}

impl fmt::Debug for EtcdCluster {
    /// The URL may contain a password, so only the test's own members are named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self
            .own
            .as_ref()
            .map(|own| own.members().iter().map(Member::address).collect::<Vec<_>>());
        f.debug_struct("EtcdCluster").field("addresses", &addresses).finish_non_exhaustive()
    }
}

/// Asks until a change of the members is accepted: a cluster is healthy when they have been connected for a while.
async fn accepted(member: &Member, change: &str, body: &str) -> Result<(), Unavailable> {
    let deadline = tokio::time::Instant::now() + START_LIMIT;
    while member.post(&format!("/v3/cluster/member/{change}"), body).is_none() {
        if tokio::time::Instant::now() >= deadline {
            return Err(Unavailable::broken(format!("etcd refuses to {change} a member")));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cluster_elects_moves_and_loses_its_leader() {
        let cluster = EtcdCluster::builder().members(3).cuttable().start().await.unwrap();
        let first = cluster.leader().await.unwrap();
        let next = (first + 1) % 3;
        cluster.move_leader(next).await.unwrap();
        assert_eq!(cluster.leader().await.unwrap(), next);
        cluster.cut_off(next).unwrap();
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        while cluster.member(first).unwrap().status().is_none_or(|(_, leader)| {
            leader == "0"
                || Some(leader) == cluster.member(next).unwrap().status().map(|(id, _)| id)
        }) {
            assert!(tokio::time::Instant::now() < deadline, "the others elect no leader");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.rejoin(next).unwrap();
        cluster.kill(first).unwrap();
        assert_ne!(cluster.leader().await.unwrap(), first);
        cluster.restart(first).await.unwrap();
    }

    #[tokio::test]
    async fn an_option_that_is_wrong_shows_the_log() {
        let error = EtcdCluster::builder().option("nonsense", "1").start().await.unwrap_err();
        assert!(error.is_broken() && error.reason().contains("nonsense"), "{error}");
    }
}
