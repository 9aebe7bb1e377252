//! Runs one claim: its contender, and the requests that the contender asks for.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use lock_core::{ClockInstant, Error, ErrorKind};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use super::contender::{Contender, Outcome, Request, Sent, Terms, Time};
use super::quorum::{Quorum, Times};
use super::replies::Replies;
use super::reply::NodeReply;
use super::target::Target;

/// Sends to the nodes what the contender asks for, and tells it what comes back. A call polls its requests,
/// which spares them a task each. They go on in tasks when it ends or is dropped, so that the contender
/// hears what became of them.
pub(super) struct Driver {
    pub(super) quorum: Arc<Quorum>,
    pub(super) target: Arc<Target>,
    pub(super) ttl: Duration,
    /// The limit for one answer of one node.
    pub(super) limit: Duration,
    pub(super) terms: Terms,
    state: Mutex<State>,
    /// Tells the call under way that a reply has come.
    answered: Notify,
    /// For the task that minds the time between calls: there may be less of it.
    retimed: Notify,
}

struct State {
    contender: Contender,
    /// The nodes' replies to the call under way.
    replies: Replies,
    /// Since when the claim waits, if it is to be woken.
    waits_since: Option<ClockInstant>,
    /// A call is under way, which minds the time and polls what is sent.
    is_called: bool,
    /// What it has not polled yet.
    sent: Vec<Flight>,
    /// A task minds the time.
    is_minded: bool,
    /// Ready when the last request to each node has ended, in the order of the nodes.
    ended: Vec<oneshot::Receiver<()>>,
}

/// A request, until its answer has been heard.
type Flight = Pin<Box<dyn Future<Output = ()> + Send>>;

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("target", &self.target)
            .field("contender", &self.state().contender)
            .finish_non_exhaustive()
    }
}

impl Driver {
    pub(super) fn new(
        quorum: Arc<Quorum>,
        target: Target,
        (ttl, limit): (Duration, Duration),
        terms: Terms,
        contender: Contender,
    ) -> Arc<Self> {
        let replies = Replies::new(quorum.len(), quorum.needed());
        let (is_called, is_minded) = (false, false);
        let ended = (0..quorum.len()).map(|_| oneshot::channel().1).collect();
        let (waits_since, sent) = (None, Vec::new());
        let state = State { contender, replies, waits_since, is_called, sent, is_minded, ended };
        let (answered, retimed) = (Notify::new(), Notify::new());
        let (state, target) = (Mutex::new(state), Arc::new(target));
        Arc::new(Self { quorum, target, ttl, limit, terms, state, answered, retimed })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time as the contender knows it.
    pub(super) fn time(at: ClockInstant) -> Time {
        Time::from_nanos(at.as_nanos())
    }

    pub(super) fn now(&self) -> Time {
        Self::time(self.quorum.clock().now())
    }

    /// Whether the claim has been granted, or continues a hold.
    pub(super) fn has_fence(&self) -> bool {
        self.state().contender.fence.is_some()
    }

    /// Since when the claim waits, if it is to be woken.
    pub(super) fn waits_since(&self, since: Option<ClockInstant>) {
        self.state().waits_since = since;
    }

    /// Tells the contender something outside of a call.
    pub(super) fn tell(&self, what: impl FnOnce(&mut Contender)) {
        what(&mut self.state().contender);
    }

    /// Makes one call of the contender, and returns its outcome with what the nodes have said.
    pub(super) async fn call(
        self: &Arc<Self>,
        begin: impl FnOnce(&mut Contender, &Terms, Time) -> Vec<Sent>,
    ) -> (Outcome, Replies) {
        let mut call = Call { driver: self, flights: Vec::new() };
        let sent = {
            let mut state = self.state();
            state.is_called = true;
            state.replies = Replies::new(self.quorum.len(), self.quorum.needed());
            begin(&mut state.contender, &self.terms, self.now())
        };
        self.send(sent);
        loop {
            let at = {
                let mut state = self.state();
                if let Some(outcome) = state.contender.outcome() {
                    return (outcome, state.replies.clone());
                }
                call.flights.append(&mut state.sent);
                state.contender.wake_at(&self.terms, self.now())
            };
            tokio::select! {
                biased;
                () = self.answered.notified() => {}
                () = call.landing() => {}
                () = self.sleep_until(at), if at.is_some() => self.pass_time(),
            }
        }
    }

    async fn sleep_until(&self, at: Option<Time>) {
        let at = at.and_then(|at| u64::try_from(at.as_nanos()).ok());
        let at = at.map_or(ClockInstant::FAR_FUTURE, ClockInstant::from_nanos);
        self.quorum.clock().sleep_until(at).await;
    }

    fn pass_time(self: &Arc<Self>) {
        let sent = self.state().contender.time(&self.terms, self.now());
        self.send(sent);
    }

    fn send(self: &Arc<Self>, sent: Vec<Sent>) {
        for sent in sent {
            let (ends, ended) = oneshot::channel();
            let before = std::mem::replace(&mut self.state().ended[sent.0], ended);
            let driver = Arc::clone(self);
            let request = InFlight { driver, sent, is_answered: false, _ends: ends }.run(before);
            let tasks = match sent.1 {
                Request::Release { .. } => &self.quorum.undoing,
                _ => &self.quorum.tasks,
            };
            let Some(request) = tasks.track(request) else { continue };
            let request: Flight = Box::pin(request);
            let mut state = self.state();
            if state.is_called {
                state.sent.push(request);
            } else {
                drop(state);
                go_on([request]);
            }
        }
    }

    fn hear(self: &Arc<Self>, (node, request): Sent, reply: NodeReply) {
        let sent = {
            let mut state = self.state();
            let brief = reply.brief();
            if state.contender.listens_to(request) {
                state.replies.set(node, reply);
            }
            state.contender.replied(&self.terms, self.now(), (node, request), brief)
        };
        self.send(sent);
        self.answered.notify_one();
        self.mind();
    }

    /// Makes sure that a task minds the time, if there is anything to mind.
    fn mind(self: &Arc<Self>) {
        let mut state = self.state();
        let at = state.contender.wake_at(&self.terms, self.now());
        if state.is_called || at.is_none() {
            return;
        }
        if state.is_minded {
            drop(state);
            return self.retimed.notify_one();
        }
        state.is_minded = true;
        drop(state);
        let minder = Minder { driver: Arc::clone(self), has_ended: false };
        self.quorum.undoing.spawn(minder.run());
    }
}

/// A call is under way until this is dropped.
struct Call<'a> {
    driver: &'a Arc<Driver>,
    /// What it polls.
    flights: Vec<Flight>,
}

impl Call<'_> {
    /// Ready when a request has ended.
    async fn landing(&mut self) {
        poll_fn(|context| {
            let before = self.flights.len();
            self.flights.retain_mut(|flight| flight.as_mut().poll(context).is_pending());
            if self.flights.len() < before { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut state = self.driver.state();
        state.is_called = false;
        state.contender.abandon();
        self.flights.append(&mut state.sent);
        drop(state);
        go_on(self.flights.drain(..));
        self.driver.mind();
    }
}

/// Lets requests go on in the background. Without a runtime they are dropped, which answers them.
fn go_on(flights: impl IntoIterator<Item = Flight>) {
    let runtime = Handle::try_current();
    for flight in flights {
        match &runtime {
            Ok(runtime) => drop(runtime.spawn(flight)),
            Err(_) => drop(flight),
        }
    }
}

/// The task that minds the time between calls. It may be dropped with its runtime.
struct Minder {
    driver: Arc<Driver>,
    has_ended: bool,
}

impl Minder {
    async fn run(mut self) {
        let driver = Arc::clone(&self.driver);
        loop {
            let at = {
                let mut state = driver.state();
                let at = state.contender.wake_at(&driver.terms, driver.now());
                if at.is_none() {
                    state.is_minded = false;
                    self.has_ended = true;
                    return;
                }
                at
            };
            tokio::select! {
                () = driver.retimed.notified() => {}
                () = driver.sleep_until(at) => driver.pass_time(),
            }
        }
    }
}

impl Drop for Minder {
    fn drop(&mut self) {
        if !self.has_ended {
            self.driver.state().is_minded = false;
        }
    }
}

/// A request without an answer. It is dropped with its runtime or its client.
struct InFlight {
    driver: Arc<Driver>,
    sent: Sent,
    is_answered: bool,
    _ends: oneshot::Sender<()>,
}

impl InFlight {
    /// `before` is ready when the last request to the same node has ended.
    async fn run(mut self, before: oneshot::Receiver<()>) {
        let (driver, (_, request)) = (&self.driver, self.sent);
        if let Request::Release { .. } = request {
            // Where the connection is new or a script is not loaded yet, a release can overtake the
            // acquire of a dropped call. It would find nothing, and would have to be repeated.
            let patience = driver.now() + driver.terms.slow_after;
            tokio::select! {
                _ = before => {}
                () = driver.sleep_until(Some(patience)) => {}
            }
        }
        let since = match request {
            Request::Acquire { joins: false, .. } => driver.state().waits_since,
            _ => None,
        };
        let waited = since.map(|since| driver.quorum.clock().now().since(since));
        let times = Times { ttl: driver.ttl, waited, limit: driver.limit };
        let reply = driver.quorum.ask(self.sent, &driver.target, times).await;
        self.is_answered = true;
        driver.hear(self.sent, reply);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.is_answered {
            let ended = Error::new(ErrorKind::Unavailable, "the client was closed, or its runtime");
            self.driver.hear(self.sent, NodeReply::Failed(ended.with_unknown_effect()));
        }
    }
}
