//! The nodes of one quorum, as this client sees them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{ClaimRequest, Clock, OsRng, OwnerId, Result, Rng, SystemClock};
use lock_kit::tasks::Tasks;

pub(crate) mod answers;
pub(crate) mod fan_out;
#[cfg(test)]
mod fuzz;
pub(crate) mod look;
mod renewals;
pub(crate) mod scripts;
pub(crate) mod waiters;

use self::answers::NodeAnswer;
use self::fan_out::FanOut;
use self::renewals::{NodeRenewal, VoteRenewals};
use self::scripts::{ACQUIRE_VOTE, NODE_KEY, PROBE_NODE, RAISE_VOTE, RELEASE_VOTE};
use self::waiters::QuorumWaiters;
use super::config::RedlockConfig;
use super::contender::{NodeRequest, Sent};
use super::rules;
use crate::names::Keys;
use crate::node::{Listener, Node, Script};

/// How long closing waits for votes that are being given back: for nodes that answer.
const CLOSING: Duration = Duration::from_millis(300);

/// After so long without any answer, the connection to a node is given up.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The nodes of one quorum.
#[derive(Debug)]
pub(crate) struct Quorum {
    nodes: Vec<Arc<Node>>,
    /// In the order of the nodes.
    renewals: Vec<VoteRenewals>,
    pub(crate) config: RedlockConfig,
    /// The part of the configuration that each node remembers.
    pub(crate) fingerprints: Vec<String>,
    /// The channel to which a release publishes to wake this client.
    channel: String,
    pub(crate) waiters: Arc<QuorumWaiters>,
    /// The greatest mark that any node has shown. The next proposal is above it, or one client whose
    /// clock is ahead would cost all others a second round.
    highest_mark: AtomicU64,
    /// Whether this client has seen a node vote, for any client.
    voted: AtomicBool,
    /// Tasks that end with the client: admitting nodes, and requests for held locks.
    pub(crate) tasks: Tasks,
    /// Tasks that give votes back. Closing waits a moment for them.
    pub(crate) undoing: Tasks,
    clock: Arc<dyn Clock>,
}

impl Quorum {
    /// Checks the settings. Nothing is sent.
    pub(crate) fn new(config: RedlockConfig) -> Result<Self> {
        config.check()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let waiters = Arc::new(QuorumWaiters::default());
        let channel = format!("distlock:{}", OwnerId::generate(&OsRng)?.to_hex());
        let nodes = config.nodes.iter().enumerate().map(|(number, address)| {
            let waiters = Arc::clone(&waiters);
            let listener = Listener {
                channel: channel.clone(),
                on_event: Box::new(move |event| waiters.on_event(number, &event)),
            };
            let limits = (config.connect_timeout, RESPONSE_TIMEOUT);
            Node::new(address, limits, Arc::clone(&clock), Some(listener))
        });
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        let fingerprints = config.fingerprints();
        let renewals = nodes
            .iter()
            .zip(&fingerprints)
            .map(|(node, fingerprint)| VoteRenewals::new(Arc::clone(node), fingerprint, &channel));
        Ok(Self {
            renewals: renewals.collect(),
            nodes,
            fingerprints,
            config,
            channel,
            waiters,
            highest_mark: AtomicU64::new(0),
            voted: AtomicBool::new(false),
            tasks: Tasks::default(),
            undoing: Tasks::default(),
            clock,
        })
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// The number of nodes, reachable or not.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// How many nodes make a quorum.
    pub(crate) fn needed(&self) -> usize {
        rules::quorum_of(self.nodes.len())
    }

    /// Sends a request to all nodes.
    pub(crate) fn all<T, F>(&self, ask: impl Fn(Arc<Node>) -> F) -> FanOut<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let nodes = self.nodes.iter().cloned().enumerate();
        FanOut::new(self.len(), nodes.map(|(number, node)| (number, ask(node))))
    }

    pub(crate) fn node(&self, number: usize) -> &Arc<Node> {
        &self.nodes[number]
    }

    /// After how long a node that has not answered counts as slow.
    pub(crate) fn node_timeout(&self, ttl: Duration, call: Duration) -> Duration {
        let own = self.config.node_timeout.unwrap_or_else(|| (ttl / 20).max(LEAST_NODE_TIMEOUT));
        own.min(call)
    }

    /// A value that is probably above every counter, so that one round is enough.
    pub(crate) fn proposal(&self) -> u64 {
        let wall_clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        micros(wall_clock).max(self.highest_mark.load(Relaxed) + 1)
    }

    /// Uniform in `0.0..1.0`. It only spreads load, so a failing random source does no harm.
    pub(crate) fn chance() -> f64 {
        let mut bytes = [0; 4];
        match OsRng.fill(&mut bytes) {
            Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
            Err(_) => 0.5,
        }
    }

    /// Ends all tasks and connections. Votes that are being given back get a moment to finish: a
    /// vote that is kept blocks other clients for a ttl.
    pub(crate) async fn close(&self) {
        self.tasks.close(Duration::ZERO).await;
        self.undoing.close(CLOSING).await;
        self.nodes.iter().for_each(|node| node.close());
    }

    pub(crate) fn note_mark(&self, mark: u64) {
        self.highest_mark.fetch_max(mark, Relaxed);
    }

    pub(crate) fn note_vote(&self) {
        self.voted.store(true, Relaxed);
    }

    /// Whether this client has seen the quorum vote: then it is not new.
    pub(crate) fn has_voted(&self) -> bool {
        self.voted.load(Relaxed)
    }

    /// Asks a node about the lock that `to` names, for an answer within `limit`. A claim that is to be woken has
    /// `waited` for so long.
    pub(crate) async fn ask(
        &self,
        (node, request): Sent,
        to: &Arc<LockKeys>,
        waited: Option<Duration>,
        limit: Duration,
    ) -> NodeAnswer {
        let ttl_ms = millis(to.ttl);
        let about = |script: &'static Script| {
            let call = script.call().key(NODE_KEY).key(&to.lock);
            call.arg(&self.fingerprints[node]).arg(&to.owner)
        };
        let asked = &self.nodes[node];
        let answer = match request {
            NodeRequest::Acquire { attempt, proposal, fences, .. } => {
                let call = about(&ACQUIRE_VOTE).key(&to.waiters);
                let call = call.number(attempt.into()).number(ttl_ms).number(proposal);
                let call = call.arg(&self.channel).maybe(waited.map(micros)).arg(&to.label);
                let lead = rules::lead(self.config.max_ttl);
                let call = call.number(fences.into()).number(micros(lead)).of_process();
                asked.ask(call, limit, NodeAnswer::of_a_lock).await
            }
            NodeRequest::Raise { value, .. } => {
                let call = about(&RAISE_VOTE).number(value).of_process();
                asked.ask(call, limit, NodeAnswer::of_a_lock).await
            }
            NodeRequest::Renew { fence, adopt, prolongs, .. } => {
                let ttl_ms = if prolongs { ttl_ms } else { 0 };
                let keys = Arc::clone(to);
                self.renewals[node].ask(NodeRenewal { keys, fence, adopt, ttl_ms, limit }).await
            }
            NodeRequest::Release { attempt, fence, leaves, .. } => {
                let call = RELEASE_VOTE.call().key(&to.lock).key(&to.waiters).arg(&to.owner);
                // A vote that is given back wakes no waiter: the winner holds the other nodes.
                let call = call.maybe(attempt.map(u64::from)).flag(attempt.is_none());
                let call = call.arg(if leaves { self.channel.as_str() } else { "" });
                let call = call.maybe(fence).number(to.fences.into());
                asked.ask(call, limit, NodeAnswer::of_a_release).await
            }
        };
        let (answer, mark) = answer.unwrap_or_else(|error| (NodeAnswer::Failed(error), 0));
        if answer.brief().is_vote() {
            self.note_vote();
        }
        self.note_mark(mark);
        answer
    }

    /// Checks on all nodes that the commands that locks need are allowed.
    pub(crate) fn probe(&self, limit: Duration) -> Result<FanOut<Result<()>>> {
        let id = OwnerId::generate(&OsRng)?.to_hex();
        let channel = self.channel.clone();
        Ok(self.all(|node| {
            let keys =
                ["string", "hash", "set"].map(|kind| format!("{NODE_KEY}:probe:{id}:{kind}"));
            let channel = channel.clone();
            async move {
                let call = PROBE_NODE.call().key(NODE_KEY).keys(&keys).arg(&channel);
                node.probe(call, "REDLOCK.md of lock-redis", limit).await
            }
        }))
    }
}

impl Drop for Quorum {
    /// The connections' own tasks would keep them open.
    fn drop(&mut self) {
        self.nodes.iter().for_each(|node| node.close());
    }
}

/// Below this a busy machine would look like a node that is down.
const LEAST_NODE_TIMEOUT: Duration = Duration::from_millis(100);

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The lock that a claim is about, as the nodes know it.
pub(crate) struct LockKeys {
    pub(crate) lock: String,
    pub(crate) waiters: String,
    pub(crate) owner: String,
    /// How many fences the hold has, or is to have.
    pub(crate) fences: u32,
    pub(crate) ttl: Duration,
    pub(crate) label: String,
}

/// Without the owner, which is the holder's secret.
impl fmt::Debug for LockKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockKeys").field("lock", &self.lock).finish_non_exhaustive()
    }
}

impl LockKeys {
    pub(crate) fn new(request: &ClaimRequest) -> Self {
        let keys = Keys::new(&request.key);
        let waiters = keys.part("channels");
        let label = request.label.clone().unwrap_or_default();
        let (owner, fences, ttl) = (request.owner.to_hex(), request.fences, request.ttl);
        Self { lock: keys.lock, waiters, owner, fences, ttl, label }
    }
}
