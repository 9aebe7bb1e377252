#![doc = include_str!("../../REDLOCK.md")]
//!
//! # In the source
//!
//! All nodes are asked at once, and a quorum of *all* of them decides. In reading order:
//!
//! - `rules` — what follows from the answers of the nodes, as plain functions: when a lost reply is settled, too
//! - `contender` — a claim as a state machine without any I/O, which the model check in the `redlock-model` crate
//!   runs, in `machine`: what the answers say in `ballot`, what a lost reply leaves to be released in `debts`
//! - `quorum` — the nodes: `answers` reads what they say, `renewals` renews many holds by one request, `look` shows
//!   what stands there, `waiters` is woken, `fan_out` asks all nodes beside locks, `scripts` is what they run
//! - `admission` — who may vote: which steps when in `plan`
//! - `runner` — sends what a contender asks for, and has nodes brought back that do not vote
//! - `claim` — a try, a renewal, a release
//! - `look` — who has which lock, by what a quorum shows
//! - `config` — the settings, and the URL
//! - `admin` — holders, forced release, doctor

mod admin;
mod admission;
mod claim;
mod config;
mod contender;
mod look;
mod quorum;
mod runner;

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Binding, Capabilities, Claim, ClaimRequest, DataLoss, Error, Fencing, LockAdmin, LockBackend,
    LockKey, Result, Seen, Wake, async_trait,
};
use lock_kit::runtime;

use self::admission::Admission;
use self::claim::RedlockClaim;
use self::quorum::Quorum;
use crate::node::Eviction;
use crate::seams::rules;

pub(crate) use self::config::{BOOTSTRAP, DRIFT, MAX_TTL, NODE_TIMEOUT};
pub use self::config::{Bootstrap, REDLOCK_PARAMETERS, REDLOCK_SCHEMES, Recover, RedlockConfig};

/// Connects to the quorum that `url` names: see [`RedlockConfig::from_url`] for its form and its
/// parameters.
///
/// ```no_run
/// # async fn example() -> lock_core::Result<()> {
/// use lock_core::Locks;
///
/// let locks = Locks::new(lock_redis::connect_redlock("redlock://a:6379,b:6379,c:6379").await?);
/// let guard = locks.named("order:42")?.acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// As [`RedlockConfig::from_url`] and [`RedlockBackend::connect`].
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect_redlock(url: &str) -> Result<RedlockBackend> {
    RedlockBackend::connect(RedlockConfig::from_url(url)?).await
}

/// Locks on a quorum of independent Redis nodes (Redlock), with a fencing token.
///
/// For guarantees and limits see the [`redlock`](crate::redlock) module. A clone shares its connections.
#[derive(Clone, Debug)]
pub struct RedlockBackend {
    quorum: Arc<Quorum>,
    pub(super) admission: Arc<Admission>,
}

/// The limit for a ping or a read at one node, when no lock waits for it.
pub(super) const LIMIT: Duration = Duration::from_secs(1);

impl RedlockBackend {
    /// A client of the nodes that `config` names. Until the first call nothing is sent and the
    /// nodes are not checked; see [`connect`](Self::connect).
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if the settings contradict each other.
    pub fn new(config: RedlockConfig) -> Result<Self> {
        let quorum = Arc::new(Quorum::new(config)?);
        let admission = Arc::new(Admission::new(Arc::clone(&quorum)));
        Ok(Self { quorum, admission })
    }

    /// Like [`new`](Self::new), but also checks the nodes: that a quorum answers and grants the
    /// rights that locks need, that they have the same configuration as this client, and that they
    /// do not evict. A new quorum begins to vote here if it need not wait. If it must wait, this
    /// still succeeds, and acquiring fails with an error that names the time.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if a node belongs to another quorum or may evict locks, or
    /// if two of the nodes are one server, [`Denied`](lock_core::ErrorKind::Denied) if so many refuse the credentials or a command (the message
    /// lists them) that no quorum is left, [`Unavailable`](lock_core::ErrorKind::Unavailable) if
    /// fewer than a quorum answer and can write.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(config: RedlockConfig) -> Result<Self> {
        let backend = Self::new(config)?;
        runtime::require("Redlock")?;
        let plan = backend.admission.advance().await?;
        if let Some(wrong) = plan.wrong {
            return Err(Error::config(wrong));
        }
        backend.check_rights().await?;
        if plan.wait.is_some() {
            backend.admission.tend();
        }
        Ok(backend)
    }

    /// Why nodes do not vote yet, as far as this client knows. `None` if every node has reported that it
    /// votes, or if this client has not needed to check; a node that does not answer is reported too. A reason that
    /// does not pass by itself, such as two nodes that are one server, is reported until the client checks again, which
    /// it does when it next hears of a node without a vote.
    pub fn not_voting(&self) -> Option<String> {
        self.admission.why()
    }

    /// Lets the nodes vote again after so many were restarted or lost their data that too few are left to
    /// seed them, in the cases that need an operator: with
    /// [`Recover::Manual`], or if a node does not come back. Call it only
    /// if you are certain that the nodes that respond are the right ones.
    ///
    /// Every lock that may still be held must have ended first, so the first call only begins, and
    /// fails with the time after which to repeat it. The fences begin above every mark and every
    /// clock of the nodes that answer: they increase unless the data *and* the clocks were lost.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](lock_core::ErrorKind::Unavailable) while older locks may be held, and if fewer than a
    /// quorum answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, recovery may have begun: call it again.
    pub async fn recover(&self) -> Result<()> {
        self.admission.recover().await
    }
}

impl RedlockBackend {
    /// Whether a quorum grants what locks need.
    async fn check_rights(&self) -> Result<()> {
        let needed = self.quorum.needed();
        let mut round = self.quorum.probe(LIMIT)?;
        round.collect(needed, needed).await?;
        // A minority is not waited for, but its problems are logged.
        let quorum = Arc::clone(&self.quorum);
        self.quorum.tasks.spawn(async move {
            while let Some((node, probed)) = round.next().await {
                if let Err(error) = probed {
                    let endpoint = quorum.node(node).endpoint();
                    tracing::warn!(target: "distlock", endpoint, %error, "a node of the quorum cannot be used");
                }
            }
        });
        Ok(())
    }
}

#[async_trait]
impl LockBackend for RedlockBackend {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Binding::Lease, Wake::Hint);
        can.fencing = Fencing::Durable;
        can.detachable = true;
        can.inspect = true;
        can.look = true;
        can.min_ttl = Duration::from_millis(50);
        can.fence_block = true;
        can.max_ttl = Some(self.quorum.config.max_ttl);
        if self.quorum.config.eviction == Eviction::Warn {
            can.loses_data_on = &[DataLoss::Eviction];
        }
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        if request.ttl > self.quorum.config.max_ttl {
            return Err(Error::invalid(format!(
                "a TTL of {:?} is longer than lock_max_ttl, {:?}: a node that lost its data votes again after lock_max_ttl",
                request.ttl, self.quorum.config.max_ttl
            )));
        }
        let (quorum, admission) = (Arc::clone(&self.quorum), Arc::clone(&self.admission));
        Ok(Box::new(RedlockClaim::new(quorum, admission, &request)?))
    }

    async fn ping(&self) -> Result<()> {
        let needed = self.quorum.needed();
        let mut round = self.quorum.all(|node| async move { node.ping(LIMIT).await });
        round.collect(needed, needed).await.map(drop)
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        look::look(&self.quorum, &self.admission, keys).await
    }

    async fn close(&self) -> Result<()> {
        self.quorum.close().await;
        Ok(())
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}
