//! Keep-alives: one stream carries those of many leases, with one in flight for each lease.
//!
//! An answer names its lease and not its request. With two requests in flight the answer to the first
//! would be credited to the second, which was sent later, and the lease would be believed in for
//! longer than the server keeps it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{LeaseKeepAliveResponse, LeaseKeepAliveStream, LeaseKeeper};
use lock_core::ClockInstant;
use tokio::sync::{Notify, oneshot};

use crate::backoff::BackOff;
use crate::error::{Failed, Why};
use crate::mutants;
use crate::node::{Link, Node};

/// A member works off the keep-alives of one stream one after the other, and a follower asks the
/// leader for each: several streams, on one connection, keep up with many thousand leases.
const LANES: usize = 4;
/// A stream that was not used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// The server's answer to one keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// When the request was sent.
    pub(crate) sent: ClockInstant,
    /// For how long the lease lasts from then on at least; `None` if the server does not know it.
    pub(crate) ttl: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct KeepAlives {
    node: Arc<Node>,
    lanes: Vec<Arc<Lane>>,
}

#[derive(Debug, Default)]
struct Lane {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a task serves this lane.
    served: bool,
    queue: VecDeque<i64>,
    flights: HashMap<i64, Flight>,
}

/// The one keep-alive of a lease that is queued or in flight, and who waits for it.
#[derive(Debug, Default)]
struct Flight {
    sent: Option<ClockInstant>,
    waiters: Vec<oneshot::Sender<Result<Kept, Failed>>>,
}

impl KeepAlives {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self { node, lanes: (0..LANES).map(|_| Arc::default()).collect() }
    }

    /// Keeps `lease` alive. Joins a request that is under way already, and so may answer for one that
    /// was sent before this call. After `limit` without an answer the link is given up.
    pub(crate) async fn renew(&self, lease: i64, limit: Duration) -> Result<Kept, Failed> {
        let lane = &self.lanes[usize::try_from(lease.unsigned_abs()).unwrap_or(0) % LANES];
        let (sender, answer) = oneshot::channel();
        let asked = self.node.clock().now();
        let Some(link) = self.node.link() else { return Err(Failed::closed()) };
        let start_task = {
            let mut state = lane.state();
            let queued = {
                let flight = state.flights.entry(lease).or_default();
                flight.waiters.push(sender);
                (flight.waiters.len() > 1 || flight.sent.is_some())
                    && !mutants::on("two_keep_alives_in_flight")
            };
            if !queued {
                state.queue.push_back(lease);
            }
            !std::mem::replace(&mut state.served, true)
        };
        if start_task {
            tokio::spawn(serve(Arc::clone(&self.node), Arc::clone(lane)));
        }
        lane.wake.notify_one();
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(Failed::closed())),
            Err(_) => {
                self.node.gave_up(&link, asked).await;
                Err(Failed::timeout(link.endpoint(), limit))
            }
        }
    }
}

impl Lane {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next lease whose keep-alive is to be sent. Those that nobody waits for are forgotten.
    fn next(&self) -> Option<i64> {
        let mut state = self.state();
        while let Some(lease) = state.queue.front().copied() {
            let wanted = state
                .flights
                .get(&lease)
                .is_some_and(|flight| flight.waiters.iter().any(|waiter| !waiter.is_closed()));
            if wanted {
                return Some(lease);
            }
            state.queue.pop_front();
            state.flights.remove(&lease);
        }
        None
    }

    /// The keep-alive of `lease` is being sent now.
    fn sending(&self, lease: i64, now: ClockInstant) {
        if let Some(flight) = self.state().flights.get_mut(&lease) {
            flight.sent = Some(now);
        }
    }

    fn sent(&self, lease: i64) {
        let mut state = self.state();
        if state.queue.front() == Some(&lease) {
            state.queue.pop_front();
        }
    }

    fn answered(&self, lease: i64, ttl: i64) {
        let Some(flight) = self.state().flights.remove(&lease) else { return };
        let Some(sent) = flight.sent else { return };
        let ttl = match u64::try_from(ttl) {
            Ok(ttl) if ttl > 0 => Some(Duration::from_secs(ttl)),
            _ if mutants::on("swallows_ttl_0") => Some(Duration::from_secs(60)),
            _ => None,
        };
        for waiter in flight.waiters {
            let _ = waiter.send(Ok(Kept { sent, ttl }));
        }
    }

    /// The stream has failed: what is in flight is unknown, what is queued is sent on the next one.
    fn failed(&self, failed: &Failed, all: bool) {
        let flights: Vec<_> = {
            let mut state = self.state();
            if all {
                state.queue.clear();
            }
            let over: Vec<_> = state
                .flights
                .iter()
                .filter(|(_, flight)| all || flight.sent.is_some())
                .map(|(lease, _)| *lease)
                .collect();
            state.queue.retain(|lease| !over.contains(lease));
            over.iter().filter_map(|lease| state.flights.remove(lease)).collect()
        };
        for waiter in flights.into_iter().flat_map(|flight| flight.waiters) {
            let _ = waiter.send(Err(failed.clone()));
        }
    }
}

/// Ends the service of a lane, in whatever way the task ends.
struct Served<'a>(Option<&'a Lane>);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.0 {
            lane.state().served = false;
            lane.failed(&Failed::closed(), true);
        }
    }
}

async fn serve(node: Arc<Node>, lane: Arc<Lane>) {
    let mut served = Served(Some(&lane));
    let mut links = node.links();
    let mut back_off = BackOff::default();
    loop {
        let Some(link) = links.borrow_and_update().clone() else { return };
        if lane.next().is_none() {
            tokio::select! {
                () = lane.wake.notified() => {}
                () = node.closed() => return,
                () = tokio::time::sleep(IDLE) => {
                    let mut state = lane.state();
                    if state.queue.is_empty() {
                        state.served = false;
                        // Under the lock: the next keep-alive starts another task.
                        served.0 = None;
                        return;
                    }
                }
            }
            continue;
        }
        let (token, opened, mut heard) = (link.token(), node.clock().now(), false);
        let ended = tokio::select! {
            ended = stream(&node, &lane, &link, &mut heard) => ended.map_err(|failed| (failed, true)),
            _ = links.changed() => Err((Failed::moved(), false)),
        };
        let Err((failed, is_a_failure)) = ended else { continue };
        if failed.why == Why::StaleToken {
            // Should that fail too, the next stream says so.
            let _ = link.renew_token(token).await;
        }
        if failed.is_about_the_member() {
            node.leave(&link).await;
        }
        let lasted = if heard { node.clock().now().since(opened) } else { Duration::ZERO };
        let pause = if is_a_failure { back_off.failed(lasted, node.members()) } else { None };
        // No member is of any use now, so whoever waits is told: thousands of leases must not open a
        // stream each, one after the other.
        lane.failed(&failed, pause.is_some() || failed.why == Why::Refused);
        if let Some(pause) = pause {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = node.closed() => return,
            }
        }
    }
}

/// Serves the lane by one stream, until it fails or is not used any more.
async fn stream(node: &Node, lane: &Lane, link: &Link, heard: &mut bool) -> Result<(), Failed> {
    let Some((mut keeper, mut stream)) = open(node, lane, link).await? else { return Ok(()) };
    loop {
        let next = lane.next();
        tokio::select! {
            biased;
            answer = stream.message() => match answer.map_err(|error| link.describe(error))? {
                Some(answer) => {
                    *heard = true;
                    link.answered(node.clock().now());
                    lane.read(&answer);
                }
                None => return Err(broken(link)),
            },
            sent = send(node, lane, &mut keeper, next.unwrap_or_default()), if next.is_some() => {
                if !sent {
                    return Err(last_words(&mut stream, link).await);
                }
            }
            () = lane.wake.notified(), if next.is_none() => {}
            () = tokio::time::sleep(IDLE), if next.is_none() => return Ok(()),
        }
    }
}

impl Lane {
    fn read(&self, answer: &LeaseKeepAliveResponse) {
        self.answered(answer.id(), answer.ttl());
    }
}

/// Opens a stream by the keep-alive of the next lease. The driver does not tell its answer, so the
/// same is sent again.
async fn open(
    node: &Node,
    lane: &Lane,
    link: &Link,
) -> Result<Option<(LeaseKeeper, LeaseKeepAliveStream)>, Failed> {
    let Some(lease) = lane.next() else { return Ok(None) };
    lane.sending(lease, node.clock().now());
    let mut client = link.client().await?;
    match client.lease_keep_alive(lease).await.map_err(|error| link.describe(error)) {
        Ok(opened) => Ok(Some(opened)),
        Err(failed) if failed.why == Why::LeaseGone => {
            lane.sent(lease);
            lane.answered(lease, 0);
            Ok(None)
        }
        Err(failed) => Err(failed),
    }
}

/// Sends one keep-alive; false if the stream takes no more. Cancel-safe: then nothing was sent.
async fn send(node: &Node, lane: &Lane, keeper: &mut LeaseKeeper, lease: i64) -> bool {
    lane.sending(lease, node.clock().now());
    keeper.id = lease;
    let sent = keeper.keep_alive().await.is_ok();
    if sent {
        lane.sent(lease);
    }
    sent
}

/// Why a stream takes no more.
async fn last_words(stream: &mut LeaseKeepAliveStream, link: &Link) -> Failed {
    match tokio::time::timeout(Duration::from_millis(100), stream.message()).await {
        Ok(Err(error)) => link.describe(error),
        _ => broken(link),
    }
}

fn broken(link: &Link) -> Failed {
    link.describe(etcd_client::Error::LeaseKeepAliveError("the stream has ended".to_owned()))
}
