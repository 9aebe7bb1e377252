//! Runs the contender of one claim: sends to the nodes what it asks for, and tells it what comes back.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::{ClockInstant, Error, ErrorKind};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::admission::Admission;
use super::contender::{CallOutcome, Contender, ContenderTerms, NodeRequest, Sent, Time};
use super::quorum::answers::{AnswerTally, NodeAnswer};
use super::quorum::{LockKeys, Quorum};

/// A call polls its own requests, which spares them a task each. What it does not wait for to the end, slow
/// nodes and votes that are given back, goes on in one task behind it.
pub(crate) struct ContenderRunner {
    pub(crate) quorum: Arc<Quorum>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) keys: Arc<LockKeys>,
    /// The limit for one call, and for one answer of one node.
    pub(crate) limit: Duration,
    pub(crate) terms: ContenderTerms,
    state: Mutex<RunnerState>,
    /// Tells the call under way that the task behind has told the contender something.
    told: Notify,
    /// Tells the task behind that a call has left something to it.
    left: Notify,
}

struct RunnerState {
    contender: Contender,
    /// When the contender was last told something.
    told_at: Time,
    /// The nodes' answers to the call under way.
    answers: AnswerTally,
    /// When it has to end.
    end: Time,
    /// Requests of calls that have ended, for the task behind.
    left: Vec<RequestInFlight>,
    /// What the call under way is to send for a task behind that has ended with its runtime.
    unsent: Vec<Sent>,
    has_task: bool,
    /// The claim was dropped in the middle of a call: nothing more is sent for it.
    is_cut: bool,
}

impl RunnerState {
    /// Tells the contender what has happened, which is known at `now`.
    fn told(&mut self, now: Time, what: impl FnOnce(&mut Contender) -> Vec<Sent>) -> Vec<Sent> {
        self.told_at = now;
        what(&mut self.contender)
    }

    /// When to tell the contender the time. It may be over already: one that was set by what was told last, and
    /// has come since, would be missed if only those after the present one counted.
    fn wake_at(&self, terms: &ContenderTerms) -> Option<Time> {
        self.contender.wake_at(terms, self.told_at)
    }
}

/// A request without an answer.
struct RequestInFlight {
    sent: Sent,
    answer: Pin<Box<dyn Future<Output = NodeAnswer> + Send>>,
}

impl fmt::Debug for ContenderRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContenderRunner")
            .field("keys", &self.keys)
            .field("contender", &self.state.lock().contender)
            .finish_non_exhaustive()
    }
}

impl ContenderRunner {
    /// With `resumed`, the claim continues a hold with this last fence.
    pub(crate) fn new(
        (quorum, admission): (Arc<Quorum>, Arc<Admission>),
        keys: LockKeys,
        limit: Duration,
        terms: ContenderTerms,
        resumed: Option<u64>,
    ) -> Arc<Self> {
        let state = Mutex::new(RunnerState {
            contender: Contender::new(quorum.len(), resumed),
            told_at: Time::ZERO,
            answers: AnswerTally::default(),
            end: Time::MAX,
            left: Vec::new(),
            unsent: Vec::new(),
            has_task: false,
            is_cut: false,
        });
        let (told, left) = (Notify::new(), Notify::new());
        let keys = Arc::new(keys);
        Arc::new(Self { quorum, admission, keys, limit, terms, state, told, left })
    }

    /// The time as the contender knows it.
    pub(crate) fn time(at: ClockInstant) -> Time {
        Time::from_nanos(at.as_nanos())
    }

    pub(crate) fn now(&self) -> Time {
        Self::time(self.quorum.clock().now())
    }

    /// Whether the claim has been granted, or continues a hold.
    pub(crate) fn has_fence(&self) -> bool {
        self.state.lock().contender.fence.is_some()
    }

    /// Tells the contender something outside of a call.
    pub(crate) fn tell(&self, what: impl FnOnce(&mut Contender)) {
        what(&mut self.state.lock().contender);
    }

    /// The claim is dropped, `in_a_call` or between two. What its calls have left to be given back still is, but
    /// not of one that was under way.
    pub(crate) fn close(&self, in_a_call: bool) {
        let mut state = self.state.lock();
        state.is_cut = in_a_call || state.contender.is_under_way();
        state.contender.close();
        drop(state);
        self.left.notify_one();
    }

    /// Makes one call of the contender, and returns its outcome with what the nodes have said. By `end` every
    /// request has its answer or an error. A claim that is to be woken has `waited` for so long.
    pub(crate) async fn call(
        self: &Arc<Self>,
        end: Time,
        waited: Option<Duration>,
        begin: impl FnOnce(&mut Contender, &ContenderTerms, Time) -> Vec<Sent>,
    ) -> (CallOutcome, AnswerTally) {
        let sent = {
            let mut state = self.state.lock();
            state.answers = AnswerTally::new(self.quorum.len(), self.quorum.needed());
            state.end = end;
            let now = self.now();
            state.told(now, |contender| begin(contender, &self.terms, now))
        };
        let mut flights = Vec::new();
        self.send(sent, waited, &mut flights);
        // Nothing more is added to the answers of a call that has ended.
        let ended = |state: &mut RunnerState| {
            Some((state.contender.outcome()?, std::mem::take(&mut state.answers)))
        };
        loop {
            let ended = ended(&mut self.state.lock());
            if let Some(ended) = ended {
                self.leave(flights);
                return ended;
            }
            self.turn(&mut flights, &self.told).await;
        }
    }

    /// Returns when a request was answered, a time has come that the contender waits for, or there are `news`.
    async fn turn(&self, flights: &mut Vec<RequestInFlight>, news: &Notify) {
        let (unsent, at) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.unsent), state.wake_at(&self.terms))
        };
        self.send(unsent, None, flights);
        let landing = poll_fn(|context| {
            for at in 0..flights.len() {
                if let Poll::Ready(answer) = flights[at].answer.as_mut().poll(context) {
                    return Poll::Ready((flights.swap_remove(at).sent, answer));
                }
            }
            Poll::Pending
        });
        let sent = tokio::select! {
            biased;
            () = news.notified() => return,
            (sent, answer) = landing => self.hear(sent, answer),
            () = self.sleep_until(at), if at.is_some() => {
                let mut state = self.state.lock();
                let now = self.now();
                state.told(now, |contender| contender.time(&self.terms, now))
            }
        };
        self.send(sent, None, flights);
    }

    async fn sleep_until(&self, at: Option<Time>) {
        let at = at.and_then(|at| u64::try_from(at.as_nanos()).ok());
        let at = at.map_or(ClockInstant::FAR_FUTURE, ClockInstant::from_nanos);
        self.quorum.clock().sleep_until(at).await;
    }

    /// What a call waits for ends with it, also where the task behind sends it.
    fn send(&self, sent: Vec<Sent>, waited: Option<Duration>, flights: &mut Vec<RequestInFlight>) {
        let end = {
            let state = self.state.lock();
            if state.contender.is_under_way() { state.end } else { Time::MAX }
        };
        let left = end.saturating_sub(self.now()).min(self.limit);
        flights.extend(sent.into_iter().map(|sent| {
            let limit = match sent.1 {
                // What a try gives back when its time is over gets a moment all the same.
                NodeRequest::Release { .. } => left.max(self.limit / 10),
                // No call waits for a node that joins.
                NodeRequest::Acquire { joins: true, .. } => self.limit,
                _ => left,
            };
            let (quorum, keys) = (Arc::clone(&self.quorum), Arc::clone(&self.keys));
            let answer = Box::pin(async move { quorum.ask(sent, &keys, waited, limit).await });
            RequestInFlight { sent, answer }
        }));
    }

    /// A node that does not vote is brought back, also if its answer decides nothing: it needs longer for it than
    /// those that vote.
    fn hear(&self, (node, request): Sent, answer: NodeAnswer) -> Vec<Sent> {
        if answer.lacks_admission() {
            self.admission.tend();
        }
        let mut state = self.state.lock();
        let brief = answer.brief();
        if state.contender.listens_to(request) {
            state.answers.set(node, answer);
        }
        let now = self.now();
        state.told(now, |contender| contender.replied(&self.terms, now, (node, request), brief))
    }

    /// Leaves to the task behind what a call has not waited for.
    fn leave(self: &Arc<Self>, mut flights: Vec<RequestInFlight>) {
        let mut state = self.state.lock();
        state.left.append(&mut flights);
        if state.left.is_empty() && state.wake_at(&self.terms).is_none() {
            return;
        }
        if std::mem::replace(&mut state.has_task, true) {
            return self.left.notify_one();
        }
        drop(state);
        let task = TaskBehind { runner: Arc::clone(self), flights: Vec::new(), is_done: false };
        self.quorum.undoing.spawn(task.run());
    }
}

/// The task behind the calls of one claim. It may be dropped with its runtime or its client.
struct TaskBehind {
    runner: Arc<ContenderRunner>,
    flights: Vec<RequestInFlight>,
    is_done: bool,
}

impl TaskBehind {
    async fn run(mut self) {
        let runner = Arc::clone(&self.runner);
        loop {
            self.is_done = {
                let mut state = runner.state.lock();
                self.flights.append(&mut state.left);
                let waits = state.wake_at(&runner.terms).is_some();
                state.has_task = !state.is_cut && (waits || !self.flights.is_empty());
                !state.has_task
            };
            if self.is_done {
                return;
            }
            runner.turn(&mut self.flights, &runner.left).await;
            runner.told.notify_one();
        }
    }
}

impl Drop for TaskBehind {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        self.flights.append(&mut self.runner.state.lock().left);
        for flight in self.flights.drain(..) {
            let ended = Error::new(ErrorKind::Unavailable, "the client was closed, or its runtime");
            let answer = NodeAnswer::Failed(ended.with_unknown_effect());
            let follows = self.runner.hear(flight.sent, answer);
            self.runner.state.lock().unsent.extend(follows);
        }
        self.runner.state.lock().has_task = false;
        self.runner.told.notify_one();
    }
}
