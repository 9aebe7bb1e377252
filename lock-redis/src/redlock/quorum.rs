//! The nodes of one quorum, as this client sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::kit::tasks::Tasks;
use lock_core::{Clock, OsRng, OwnerId, Result, Rng, SystemClock};

use super::config::RedlockConfig;
use super::contender::{Request, Sent, rule};
use super::renewals::{Item, Renewals, Sender};
use super::reply::NodeReply;
use super::round::Round;
use super::scripts::{ACQUIRE_VOTE, NODE_KEY, PROBE_NODE, RAISE_VOTE, RELEASE_VOTE};
use super::target::Target;
use super::wake::Waiters;
use crate::node::{Listener, Node, NodeOptions, Script};

/// How long closing waits for votes that are being given back: for nodes that answer.
const CLOSING: Duration = Duration::from_millis(300);

/// The nodes of one quorum.
#[derive(Debug)]
pub(crate) struct Quorum {
    nodes: Vec<Node>,
    /// In the order of the nodes.
    renewals: Vec<Renewals>,
    pub(crate) config: RedlockConfig,
    /// The part of the configuration that the nodes remember.
    pub(crate) fingerprint: String,
    /// The channel to which a release publishes to wake this client.
    channel: String,
    pub(crate) waiters: Arc<Waiters>,
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

/// The times of a request to a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) ttl: Duration,
    /// For how long the claim has waited, if it is to be woken.
    pub(crate) waited: Option<Duration>,
    /// The limit for the answer.
    pub(crate) limit: Duration,
}

impl Quorum {
    /// Checks the settings. Nothing is sent.
    pub(crate) fn new(config: RedlockConfig) -> Result<Self> {
        config.check()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let waiters = Arc::new(Waiters::default());
        let channel = format!("distlock:{}", OwnerId::generate(&OsRng)?.to_hex());
        let nodes = config.nodes.iter().enumerate().map(|(number, client)| {
            let options = NodeOptions {
                connect_timeout: config.connect_timeout,
                response_timeout: Duration::from_secs(5),
                clock: Arc::clone(&clock),
            };
            let waiters = Arc::clone(&waiters);
            let listener = Listener {
                channels: vec![channel.clone()],
                on_event: Box::new(move |event| waiters.on_event(number, &event)),
            };
            Node::new(client, options, Some(listener))
        });
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        let fingerprint = config.fingerprint();
        let renewals = nodes.iter().map(|node| {
            let (fingerprint, channel) = (fingerprint.clone(), channel.clone());
            let failed = config.rules.failed;
            Renewals::new(Sender { node: node.clone(), fingerprint, channel, failed })
        });
        Ok(Self {
            renewals: renewals.collect(),
            nodes,
            fingerprint,
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
        rule::quorum_of(self.nodes.len())
    }

    /// Sends a request to all nodes.
    pub(crate) fn all<T, F>(&self, ask: impl Fn(Node) -> F) -> Round<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let nodes = self.nodes.iter().cloned().enumerate();
        Round::new(self.len(), nodes.map(|(number, node)| (number, ask(node))))
    }

    pub(crate) fn node(&self, number: usize) -> &Node {
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
        self.nodes.iter().for_each(Node::close);
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

    /// Asks a node about the lock that `to` names.
    pub(crate) async fn ask(
        &self,
        (node, request): Sent,
        to: &Arc<Target>,
        times: Times,
    ) -> NodeReply {
        let ttl_ms = millis(times.ttl);
        let about = |script: &'static Script| {
            let call = script.call().key(NODE_KEY).key(&to.lock).key(&to.vote);
            call.arg(&self.fingerprint).arg(&to.owner)
        };
        let run = |call| self.nodes[node].run(call, times.limit);
        let (reply, mark) = match request {
            Request::Acquire { attempt, proposal, fences, .. } => {
                let call = about(&ACQUIRE_VOTE).key(&to.waiters);
                let call = call.number(attempt.into()).number(ttl_ms).number(proposal);
                let call = call.arg(&self.channel).maybe(times.waited.map(micros)).arg(&to.label);
                let call = call.number(fences.into());
                NodeReply::from_script(run(call).await)
            }
            Request::Raise { value, .. } => {
                let call = about(&RAISE_VOTE).number(value);
                NodeReply::from_script(run(call).await)
            }
            Request::Renew { fence, adopt, prolongs, .. } => {
                let (target, limit) = (Arc::clone(to), times.limit);
                let ttl_ms = if prolongs { ttl_ms } else { 0 };
                self.renewals[node].ask(Item { target, fence, adopt, ttl_ms, limit }).await
            }
            Request::Release { attempt, fence, leaves, .. } => {
                let call = about(&RELEASE_VOTE).key(&to.waiters);
                // A vote that is given back wakes no waiter: the winner holds the other nodes.
                let call = call.maybe(attempt.map(u64::from)).flag(attempt.is_none()).arg(&to.lock);
                let call = call.arg(if leaves { self.channel.as_str() } else { "" });
                let call = call.maybe(fence).number(to.fences.into());
                (NodeReply::from_release(run(call).await), 0)
            }
        };
        if reply.brief().is_vote() {
            self.note_vote();
        }
        self.note_mark(mark);
        reply
    }

    /// Checks on all nodes that the commands that locks need are allowed.
    pub(crate) fn probe(&self, limit: Duration) -> Result<Round<Result<()>>> {
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
        self.nodes.iter().for_each(Node::close);
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
