//! The nodes of one quorum, as this client sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::kit::tasks::Tasks;
use lock_core::{Clock, OsRng, OwnerId, Result, Rng, SystemClock};

use super::config::RedlockConfig;
use super::contender::{Request, rule};
use super::reply::NodeReply;
use super::round::Round;
use super::scripts::{ACQUIRE_VOTE, PROBE_NODE, RAISE_VOTE, RELEASE_VOTE, RENEW_VOTE};
use super::target::Target;
use super::wake::Hub;
use crate::node::{Call, Listener, Node, NodeOptions, Script};

/// The node's own record: its marker and its mark. No lock key can read so (see [`Keys`]).
pub(crate) const NODE_KEY: &str = "distlock\u{1e}quorum";
/// How long closing waits for votes that are being given back: for nodes that answer.
const CLOSING: Duration = Duration::from_millis(300);

/// The nodes of one quorum.
#[derive(Debug)]
pub(crate) struct Quorum {
    nodes: Vec<Node>,
    pub(crate) config: RedlockConfig,
    /// The part of the configuration that the nodes remember.
    pub(crate) fingerprint: String,
    /// The channel to which a release publishes to wake this client.
    channel: String,
    pub(crate) hub: Arc<Hub>,
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
        let hub = Arc::new(Hub::default());
        let channel = format!("distlock:{}", OwnerId::generate(&OsRng)?.to_hex());
        let nodes = config.nodes.iter().enumerate().map(|(number, client)| {
            let options = NodeOptions {
                connect_timeout: config.connect_timeout,
                response_timeout: Duration::from_secs(5),
                clock: Arc::clone(&clock),
            };
            let hub = Arc::clone(&hub);
            let listener = Listener {
                channels: vec![channel.clone()],
                on_event: Box::new(move |event| hub.on_event(number, &event)),
            };
            Node::new(client, options, Some(listener))
        });
        Ok(Self {
            nodes: nodes.collect::<Result<_>>()?,
            fingerprint: config.fingerprint(),
            config,
            channel,
            hub,
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

    /// What is asked of a node about the lock that `to` names, with this `ttl`. `waited` is for how long
    /// the claim has waited, if it is to be woken.
    pub(crate) fn call<'a>(
        &'a self,
        to: &'a Target,
        request: Request,
        (ttl, waited): (Duration, Option<Duration>),
    ) -> Call<'a> {
        let about = |script: &'a Script, keys: &[&'a String]| {
            let call = script.call().key(NODE_KEY).keys(keys.iter().copied());
            call.arg(&self.fingerprint).arg(&to.owner)
        };
        match request {
            Request::Acquire { attempt, proposal, .. } => {
                let call = about(&ACQUIRE_VOTE, &[&to.lock, &to.vote, &to.waiters]);
                let call = call.number(attempt.into()).number(millis(ttl)).number(proposal);
                call.arg(&self.channel).maybe(waited.map(micros)).arg(&to.label)
            }
            Request::Raise { value, .. } => about(&RAISE_VOTE, &[&to.lock, &to.vote]).number(value),
            Request::Renew { fence, adopt, prolongs, .. } => {
                let ttl = if prolongs { ttl } else { Duration::ZERO };
                let call = about(&RENEW_VOTE, &[&to.lock, &to.vote]).maybe(fence).maybe(adopt);
                call.number(millis(ttl)).arg(&self.channel)
            }
            Request::Release { attempt, fence, leaves, .. } => {
                let call = about(&RELEASE_VOTE, &[&to.lock, &to.vote, &to.waiters]);
                // A vote that is given back wakes no waiter: the winner holds the other nodes.
                let call = call.maybe(attempt.map(u64::from)).flag(attempt.is_none()).arg(&to.lock);
                call.arg(if leaves { self.channel.as_str() } else { "" }).maybe(fence)
            }
        }
    }

    /// Notes what a reply shows about the node, beside its answer.
    pub(crate) fn note(&self, reply: &NodeReply, mark: u64) {
        if reply.brief().is_vote() {
            self.note_vote();
        }
        self.note_mark(mark);
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
