//! The nodes of one quorum, as this client sees them.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{Clock, ClockInstant, Error, ErrorKind, OsRng, OwnerId, Result, Rng, SystemClock};
use redis::Value;
use tokio::task::JoinSet;

use super::answer::{Answer, Marked, text};
use super::ask::{Ask, Renew, Target};
use super::config::RedlockConfig;
use super::rule;
use super::scripts::SCRIPTS;
use super::wake::Hub;
use super::wrong::Wrong;
use crate::node::{Listener, Node, NodeEvent, NodeOptions};

/// The node's own record: its marker and its mark. No lock key can read so (see [`Keys`]).
pub(crate) const NODE_KEY: &str = "distlock\u{1e}quorum";
/// How long closing waits for votes that are being given back: for nodes that answer.
const CLOSING: Duration = Duration::from_millis(300);
/// A node that has just failed is not asked for so long, unless it is needed for a quorum.
const SUSPECT_FOR: Duration = Duration::from_millis(250);

/// The nodes of one quorum.
#[derive(Debug)]
pub(crate) struct Quorum {
    peers: Vec<Peer>,
    pub(crate) config: RedlockConfig,
    /// What the nodes remember of the configuration.
    pub(crate) fingerprint: String,
    /// What a release publishes to, to wake this client.
    channel: String,
    pub(crate) hub: Arc<Hub>,
    /// The greatest mark that any node has shown. The next proposal is above it, or one client whose
    /// clock is ahead would cost all others a second round.
    highest_mark: AtomicU64,
    /// Whether some node has voted, for whomever, while this client looked.
    voted: AtomicBool,
    /// What goes on after a call has returned, and ends with the client: admitting nodes, topping up.
    tasks: Mutex<JoinSet<()>>,
    /// What takes back what is late. Closing waits a moment for it.
    undoing: Mutex<JoinSet<()>>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct Peer {
    node: Node,
    /// Until then the node is asked last, in nanoseconds of the clock.
    suspect_until: AtomicU64,
}

impl Quorum {
    /// Checks the settings. Nothing is sent.
    pub(crate) fn new(config: RedlockConfig) -> Result<Self> {
        config.check()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let hub = Arc::new(Hub::default());
        let channel = format!("distlock:{}", OwnerId::generate(&OsRng)?.to_hex());
        let peers = config.nodes.iter().enumerate().map(|(number, client)| {
            let options = NodeOptions {
                connect_timeout: config.connect_timeout,
                response_timeout: Duration::from_secs(5),
                clock: Arc::clone(&clock),
            };
            let hub = Arc::clone(&hub);
            let listener = Listener {
                channels: vec![channel.clone()],
                on_event: Box::new(move |event| match event {
                    NodeEvent::Message { payload, .. } => hub.published(number, payload),
                    NodeEvent::Up => hub.reconnected(number),
                    NodeEvent::Down => {}
                }),
            };
            let node = Node::new(client, options, Some(listener))?;
            Ok(Peer { node, suspect_until: AtomicU64::new(0) })
        });
        Ok(Self {
            peers: peers.collect::<Result<_>>()?,
            fingerprint: config.fingerprint(),
            config,
            channel,
            hub,
            highest_mark: AtomicU64::new(0),
            voted: AtomicBool::new(false),
            tasks: Mutex::default(),
            undoing: Mutex::default(),
            clock,
        })
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// The number of nodes, reachable or not.
    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    /// How many decide.
    pub(crate) fn needed(&self) -> usize {
        rule::quorum_of(self.peers.len())
    }

    pub(crate) fn is_wrong(&self, wrong: Wrong) -> bool {
        self.config.wrong == Some(wrong)
    }

    pub(crate) fn node(&self, number: usize) -> &Node {
        &self.peers[number].node
    }

    /// After how long a node that has not answered counts as slow.
    pub(crate) fn node_timeout(&self, ttl: Duration, call: Duration) -> Duration {
        let own = self.config.node_timeout.unwrap_or_else(|| (ttl / 20).max(LEAST_NODE_TIMEOUT));
        own.min(call)
    }

    /// A value that is probably above every counter, so that one round is enough.
    pub(crate) fn proposal(&self) -> u64 {
        wall_clock().max(self.highest_mark.load(Relaxed) + 1)
    }

    /// Evenly from `0.0..1.0`. Only spreads load, so a source that fails does no harm.
    pub(crate) fn chance() -> f64 {
        let mut bytes = [0; 4];
        match OsRng.fill(&mut bytes) {
            Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
            Err(_) => 0.5,
        }
    }

    /// The nodes to ask: all, without those that have just failed if the others are a quorum.
    pub(crate) fn asked(&self) -> Vec<usize> {
        let now = self.clock.now();
        let fit: Vec<_> = (0..self.len()).filter(|node| !self.is_suspect(*node, now)).collect();
        if fit.len() >= self.needed() { fit } else { (0..self.len()).collect() }
    }

    fn is_suspect(&self, node: usize, now: ClockInstant) -> bool {
        self.peers[node].suspect_until.load(Relaxed) > now.as_nanos()
    }

    /// These nodes do not answer: they are left out for a while.
    pub(crate) fn suspect(&self, nodes: &[usize]) {
        let until = (self.clock.now() + SUSPECT_FOR).as_nanos();
        nodes.iter().for_each(|node| self.peers[*node].suspect_until.store(until, Relaxed));
    }

    /// Runs `task` apart from any call. It ends with [`close`](Self::close), or with the runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        spawn_on(&self.tasks, task);
    }

    /// As [`spawn`](Self::spawn), for what gives a vote back.
    pub(crate) fn spawn_undo(&self, task: impl Future<Output = ()> + Send + 'static) {
        spawn_on(&self.undoing, task);
    }

    /// Ends all tasks and connections. What is still being given back gets a moment: a vote that is
    /// kept stands in the way of others for a ttl.
    pub(crate) async fn close(&self) {
        drop(std::mem::take(&mut *lock(&self.tasks)));
        let mut undoing = std::mem::take(&mut *lock(&self.undoing));
        let all = async { while undoing.join_next().await.is_some() {} };
        tokio::select! {
            () = all => {}
            () = self.clock.sleep(CLOSING) => {}
        }
        self.peers.iter().for_each(|peer| peer.node.close());
    }

    pub(crate) fn note_mark(&self, mark: u64) {
        self.highest_mark.fetch_max(mark, Relaxed);
    }

    pub(crate) fn note_vote(&self) {
        self.voted.store(true, Relaxed);
    }

    /// Whether the quorum has voted while this client looked, so that it is not new.
    pub(crate) fn has_voted(&self) -> bool {
        self.voted.load(Relaxed)
    }

    fn marked(&self, (answer, mark): Marked) -> Answer {
        if answer.is_vote() {
            self.note_vote();
        }
        self.note_mark(mark.max(answer.counter().unwrap_or(0)));
        answer
    }

    pub(crate) async fn acquire(self: Arc<Self>, node: usize, to: Arc<Target>, ask: Ask) -> Answer {
        let waited = ask.waited.map(|waited| waited.as_micros().to_string()).unwrap_or_default();
        let call = SCRIPTS
            .acquire
            .call()
            .key(NODE_KEY)
            .keys([&to.lock, &to.vote, &to.waiters])
            .arg(&self.fingerprint)
            .arg(&to.owner)
            .number(u64::from(ask.attempt))
            .number(millis(ask.ttl))
            .number(ask.proposal)
            .arg(&self.channel)
            .arg(&waited)
            .arg(&to.label);
        let answer = self.run(node, call, ask.limit).await;
        self.marked(Answer::from_acquire(answer))
    }

    pub(crate) async fn raise(
        self: Arc<Self>,
        node: usize,
        to: Arc<Target>,
        value: u64,
        limit: Duration,
    ) -> Answer {
        let call = SCRIPTS
            .raise
            .call()
            .key(NODE_KEY)
            .keys([&to.lock, &to.vote])
            .arg(&self.fingerprint)
            .arg(&to.owner)
            .number(value);
        let answer = self.run(node, call, limit).await;
        self.marked(Answer::from_raise(answer))
    }

    /// Prolongs the lock at a node that holds it with this fence, or that is adopted now.
    pub(crate) async fn renew(
        self: Arc<Self>,
        node: usize,
        to: Arc<Target>,
        ask: Renew,
        limit: Duration,
    ) -> Answer {
        let text = |number: Option<u64>| number.map(|n| n.to_string()).unwrap_or_default();
        let (fence, adopt) = (text(ask.fence), text(ask.adopt));
        let call = SCRIPTS
            .renew
            .call()
            .key(NODE_KEY)
            .keys([&to.lock, &to.vote])
            .arg(&self.fingerprint)
            .arg(&to.owner)
            .arg(&fence)
            .arg(&adopt)
            .number(millis(ask.ttl))
            .arg(&self.channel);
        Answer::from_renew(self.run(node, call, limit).await)
    }

    /// Gives the lock up at a node: what the try `attempt` has made, or with `None` what any has, and
    /// with `fence` only a hold with that fence.
    /// Answers whether there was anything.
    pub(crate) async fn release(
        self: Arc<Self>,
        node: usize,
        to: Arc<Target>,
        attempt: Option<u32>,
        fence: Option<u64>,
        leave: bool,
        limit: Duration,
    ) -> Result<bool> {
        let text = |number: Option<u64>| number.map(|n| n.to_string()).unwrap_or_default();
        let (attempt_text, fence) = (text(attempt.map(u64::from)), text(fence));
        let call = SCRIPTS
            .release
            .call()
            .key(NODE_KEY)
            .keys([&to.lock, &to.vote, &to.waiters])
            .arg(&self.fingerprint)
            .arg(&to.owner)
            .arg(&attempt_text)
            // A vote that is given back wakes nobody: whoever wins holds the other nodes.
            .flag(attempt.is_none())
            .arg(&to.lock)
            .arg(if leave { self.channel.as_str() } else { "" })
            .arg(&fence);
        match self.run(node, call, limit).await? {
            Value::Int(freed) => Ok(freed == 1),
            other => Err(crate::error::unexpected("a release", &other)),
        }
    }

    /// Tries at one node whether all commands are allowed that locks need.
    pub(crate) async fn probe(&self, node: usize, limit: Duration) -> Result<()> {
        let id = OwnerId::generate(&OsRng)?.to_hex();
        let keys = ["string", "hash", "set"].map(|kind| format!("{NODE_KEY}:probe:{id}:{kind}"));
        let call = SCRIPTS.probe.call().key(NODE_KEY).keys(&keys).arg(&self.channel);
        let answer = self.run(node, call, limit).await?;
        let Value::Array(refused) = &answer else {
            return Err(crate::error::unexpected("a check of the rights", &answer));
        };
        if refused.is_empty() {
            return Ok(());
        }
        let refused: Vec<_> = (0..refused.len()).map(|place| text(refused, place)).collect();
        let page = "REDLOCK.md of lock-redis lists the rights";
        Err(crate::error::refusal(self.node(node).endpoint(), &refused, page))
    }

    /// Runs a script at one node, and remembers whether the node fails.
    pub(crate) async fn run(
        &self,
        node: usize,
        call: crate::node::Call<'_>,
        limit: Duration,
    ) -> Result<Value> {
        let peer = &self.peers[node];
        let answer = peer.node.run(call, limit).await;
        let failed = match &answer {
            Err(error) => matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable),
            Ok(_) => false,
        };
        let until = if failed { (self.clock.now() + SUSPECT_FOR).as_nanos() } else { 0 };
        peer.suspect_until.store(until, Relaxed);
        answer
    }

    /// What was asked of a node that was left out.
    pub(crate) fn left_out(&self, node: usize) -> Answer {
        Answer::Failed(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the Redis server at {} has just failed, and is asked again in a moment",
                self.node(node).endpoint()
            ),
        ))
    }
}

impl Drop for Quorum {
    /// The connections' own tasks would keep them open.
    fn drop(&mut self) {
        self.peers.iter().for_each(|peer| peer.node.close());
    }
}

/// Below this a busy machine would look like a node that is down.
const LEAST_NODE_TIMEOUT: Duration = Duration::from_millis(100);

fn lock(tasks: &Mutex<JoinSet<()>>) -> MutexGuard<'_, JoinSet<()>> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn_on(tasks: &Mutex<JoinSet<()>>, task: impl Future<Output = ()> + Send + 'static) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let mut tasks = lock(tasks);
    while tasks.try_join_next().is_some() {}
    tasks.spawn_on(task, &runtime);
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Microseconds of the wall clock: a proposal, never more.
pub(crate) fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(0)
}
