//! An etcd cluster as a store of locks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use lock_core::{
    Capabilities, Claim, ClaimRequest, Clock, ErrorKind, Fencing, Hold, LockAdmin, LockBackend,
    Result, SystemClock, Wake, async_trait,
};

use crate::base::Base;
use crate::claim::EtcdClaim;
use crate::config::EtcdConfig;
use crate::keepalive::KeepAlives;
use crate::leases::Leases;
use crate::node::{Node, version_of};
use crate::version;
use crate::wake::Watches;

/// The longest lease that etcd grants.
const LONGEST: Duration = Duration::from_secs(9_000_000_000);

/// The locks of one etcd cluster, as one client of it.
///
/// Clones share the connection: all requests, watches and keep-alives of a backend travel over one,
/// to one member at a time. What is promised, and what breaks it, is on the [crate's page](crate).
#[derive(Clone, Debug)]
pub struct EtcdBackend {
    pub(crate) shared: Arc<Shared>,
    shortest: Duration,
}

/// What all claims of a client share.
pub(crate) struct Shared {
    pub(crate) node: Arc<Node>,
    pub(crate) keeps: Arc<KeepAlives>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) watches: Arc<Watches>,
    /// What comes before the names of all locks.
    pub(crate) folder: String,
    /// What fences count from; `None` if from 0.
    pub(crate) base: Option<Base>,
    /// The limit for one request.
    pub(crate) limit: Duration,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.node.clock()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.node.close();
    }
}

impl EtcdBackend {
    /// Connects to one member, chosen by chance, or to the next one that answers, signs in, and asks for its version and the shortest
    /// lease that it grants. A version with known defects of its leases is used, with a warning; the
    /// versions of the other members are asked for afterwards, in the background.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the settings are wrong,
    /// [`Unsupported`](ErrorKind::Unsupported) if the server is older than 3.4,
    /// [`Unavailable`](ErrorKind::Unavailable) if no member can be reached,
    /// [`Denied`](ErrorKind::Denied) if the credentials are refused.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(config: EtcdConfig) -> Result<Self> {
        config.check()?;
        let limit = config.response_timeout;
        let members = u32::try_from(config.members.len()).unwrap_or(u32::MAX);
        let first = config.connect_timeout.saturating_mul(members) + limit;
        let folder = config.folder.clone();
        let base = (!config.revision_fences).then(|| Base::new(&folder));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let node = Node::new(config.clone(), clock).await?;
        let backend = Self::start(node, folder, base, limit, first).await?;
        if let Some(link) = backend.shared.node.link() {
            tokio::spawn(report_others(config, link.member()));
        }
        Ok(backend)
    }

    /// As [`connect`](Self::connect), over a client that was made elsewhere, with certificates of its
    /// own for example. It has one link: whether another member is asked when one fails is up to the
    /// client. Give it a limit for connecting, and `with_require_leader`: by its defaults a member
    /// that is cut off is never noticed. A client with a user needs no `with_auto_token_refresh`: what
    /// fails since its token has run out, or since the users of the cluster have changed, is repeated
    /// with a new token. The names of all locks are keys of their own, without a prefix.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn from_client(client: Client) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let limit = Duration::from_secs(2);
        let (node, base) = (Node::foreign(client, clock), Some(Base::new("")));
        Self::start(node, String::new(), base, limit, limit * 2).await
    }

    async fn start(
        node: Node,
        folder: String,
        base: Option<Base>,
        limit: Duration,
        first: Duration,
    ) -> Result<Self> {
        let node = Arc::new(node);
        let keeps = Arc::new(KeepAlives::new(Arc::clone(&node)));
        let leases = Arc::new(Leases::new(Arc::clone(&node), Arc::clone(&keeps), limit));
        let watches = Arc::new(Watches::new(Arc::clone(&node)));
        let shared = Arc::new(Shared { node, keeps, leases, watches, folder, base, limit });
        let mut backend = Self { shared, shortest: Duration::from_secs(1) };
        backend.check_version(first).await?;
        let shortest = backend.shared.leases.shortest(limit).await;
        backend.shortest = shortest.map_err(|failed| failed.error)?;
        // All of that is answered to anybody. A read is not, where the cluster asks for a user.
        backend.ping().await?;
        Ok(backend)
    }

    async fn check_version(&self, limit: Duration) -> Result<()> {
        let node = &self.shared.node;
        let status = node.call(limit, |mut client| async move { client.status().await }).await;
        let endpoint = node.link().map(|link| link.endpoint().to_owned()).unwrap_or_default();
        let status = match status {
            Ok(status) => status,
            Err(failed) if failed.error.kind() == ErrorKind::Denied && !failed.is_unknown() => {
                tracing::warn!(target: "distlock", endpoint, "the version of etcd is not shown to this user, so it is not known whether its leases have defects: use 3.4.38, 3.5.23, 3.6.5 or newer");
                return Ok(());
            }
            Err(failed) => return Err(failed.error),
        };
        version::report(status.version(), &endpoint)
    }
}

/// Warns of the versions of the other members. It is the leader that decides on leases, and any of them may
/// become it. Nobody waits for this.
async fn report_others(config: EtcdConfig, known: usize) {
    for member in (0..config.members.len()).filter(|member| *member != known) {
        let endpoint = &config.members[member];
        let reported = match version_of(&config, member).await {
            Ok(version) => version::report(&version, endpoint),
            Err(failed) => Err(failed.error),
        };
        match reported {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::warn!(target: "distlock", endpoint, %error, "this member of etcd cannot be used");
            }
            Err(error) => {
                tracing::debug!(target: "distlock", endpoint, %error, "the version of this member of etcd is not known");
            }
        }
    }
}

#[async_trait]
impl LockBackend for EtcdBackend {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Hold::Lease, Wake::Reliable);
        can.fair = true;
        can.fencing = Fencing::Durable;
        can.detachable = true;
        can.inspect = true;
        can.min_ttl = self.shortest;
        can.ttl_step = Duration::from_secs(1);
        can.max_ttl = Some(LONGEST);
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(EtcdClaim::new(Arc::clone(&self.shared), request)?))
    }

    async fn ping(&self) -> Result<()> {
        let shared = &self.shared;
        let probe = format!("{}\u{1e}ping", shared.folder);
        let probe = probe.as_str();
        let answer = shared
            .node
            .call(shared.limit, |mut client| async move { client.get(probe, None).await })
            .await;
        match answer {
            Ok(_) => Ok(()),
            // The rights to a lock are those to its own key, which a probe cannot know.
            Err(failed) if failed.is_about_a_right() => Ok(()),
            Err(failed) => Err(failed.error),
        }
    }

    async fn close(&self) -> Result<()> {
        if self.shared.node.link().is_none() {
            return Ok(());
        }
        let answer = self.shared.leases.close().await;
        self.shared.node.close();
        answer.map_err(|failed| failed.error)
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}
