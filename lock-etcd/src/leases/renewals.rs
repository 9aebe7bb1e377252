//! Renewals by keep-alives: one stream carries those of many leases, with one in flight for each
//! lease.
//!
//! A reply names its lease, not its request. With two requests in flight on one stream the reply to
//! the first would be credited to the second, which was sent later, and the lease would be trusted
//! for longer than the server keeps it.
//!
//! A stream does not wait for an answer before it sends the next keep-alive. But a member processes
//! the keep-alives of one stream one after another, and a follower asks the leader for each: with
//! 10 ms between the members and back, that is a hundred a second, and the rest waits in the
//! member. So there are more streams the more keep-alives wait for their answer: few where the
//! leader is near, and as many as it takes where it is far.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use lock_core::ClockInstant;
use lock_kit::attendant::{Attendants, Requests};
use tokio::sync::oneshot;
use tokio_stream::StreamExt;

use crate::error::{EtcdFailure, FailureClass};
use crate::wire::connection::{MemberConnection, Replies, RequestKind};
use crate::wire::exchange;
use crate::wire::messages::KeepAliveAnswer;
use crate::wire::protobuf::{LeaseKeepAliveRequest, LeaseResponse};
use crate::wire::streams::{self, IDLE, StreamService};
use crate::wire::{Cluster, LEAST};

/// The fewest and the most streams, all on one connection. A server may permit no more than 250
/// requests and streams on a connection.
const LANES: (usize, usize) = (4, 64);
/// There is one more for each of so many keep-alives that wait for their answer.
const FOR_EACH: usize = 8;

/// The keep-alives of a client.
#[derive(Debug)]
pub(crate) struct Renewals {
    cluster: Arc<Cluster>,
    lanes: Vec<Attendants<KeepAliveRequest>>,
    /// How many keep-alives wait for their answer.
    waiting: AtomicUsize,
    /// How many were given up.
    given_up: AtomicUsize,
    is_down: Arc<AtomicBool>,
}

/// A keep-alive that waits for its answer.
struct PendingKeepAlive<'a>(&'a AtomicUsize);

impl<'a> PendingKeepAlive<'a> {
    /// Also returns how many there are besides.
    fn begin(count: &'a AtomicUsize) -> (Self, usize) {
        let others = count.fetch_add(1, Relaxed);
        (Self(count), others)
    }
}

impl Drop for PendingKeepAlive<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The stream for a lease, while `others` wait for their answer. A lease keeps its stream, so that
/// it finds a keep-alive that is on its way; but not after one was `given_up`, since one stream may
/// hang while the others work. A second one in flight on another stream does no harm.
fn lane(lease: i64, others: usize, given_up: usize) -> usize {
    let (fewest, most) = LANES;
    let lanes = (fewest + others / FOR_EACH).min(most);
    let lease = usize::try_from(lease.unsigned_abs()).unwrap_or_default();
    lease.wrapping_add(given_up) % lanes
}

/// A requested keep-alive.
struct KeepAliveRequest {
    lease: i64,
    reply: oneshot::Sender<Result<KeepAliveAnswer, EtcdFailure>>,
}

/// The keep-alives that share a stream.
struct KeepAliveStream {
    cluster: Arc<Cluster>,
    line: Requests<KeepAliveRequest>,
    /// Whether no member opens a stream. A server that is down sees the fewest streams then,
    /// however many keep-alives there are.
    is_down: Arc<AtomicBool>,
    /// Leases whose keep-alive is still to be sent.
    queue: VecDeque<i64>,
    flights: HashMap<i64, Flight>,
}

/// The one keep-alive of a lease that is queued or in flight, and its waiters.
#[derive(Default)]
struct Flight {
    sent: Option<ClockInstant>,
    waiters: Vec<oneshot::Sender<Result<KeepAliveAnswer, EtcdFailure>>>,
}

impl Renewals {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        let lanes = (0..LANES.1).map(|_| Attendants::default()).collect();
        let (waiting, given_up, is_down) = Default::default();
        Self { cluster, lanes, waiting, given_up, is_down }
    }

    /// Keeps `lease` alive. Joins a request already in flight, so the reply may belong to one sent
    /// before this call. After `limit` without a reply, this counts against the connection.
    pub(crate) async fn renew(
        &self,
        lease: i64,
        limit: Duration,
    ) -> Result<KeepAliveAnswer, EtcdFailure> {
        let (_waiting, others) = PendingKeepAlive::begin(&self.waiting);
        let others = if self.is_down.load(Relaxed) { 0 } else { others };
        let lane = &self.lanes[lane(lease, others, self.given_up.load(Relaxed))];
        let asked = self.cluster.clock().now();
        let Some(connection) = self.cluster.connection() else { return Err(EtcdFailure::closed()) };
        if limit < LEAST {
            return Err(EtcdFailure::timeout(connection.endpoint(), limit).without_effect());
        }
        let (reply, answer) = oneshot::channel();
        lane.ask(KeepAliveRequest { lease, reply }, |line| {
            let (cluster, is_down) = (Arc::clone(&self.cluster), Arc::clone(&self.is_down));
            let (queue, flights) = Default::default();
            streams::serve(
                Arc::clone(&cluster),
                KeepAliveStream { cluster, line, is_down, queue, flights },
            )
        });
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(EtcdFailure::closed())),
            Err(_) => {
                self.given_up.fetch_add(1, Relaxed);
                self.cluster.gave_up(&connection, RequestKind::KeepAlive, asked);
                Err(EtcdFailure::timeout(connection.endpoint(), limit))
            }
        }
    }
}

impl StreamService for KeepAliveStream {
    async fn is_needed(&mut self) -> bool {
        while self.next().is_none() {
            tokio::select! {
                asks = self.line.next(IDLE) => match asks {
                    Some(asks) => self.queue(asks),
                    None => return false,
                },
                () = self.cluster.closed() => return false,
            }
        }
        true
    }

    async fn stream(
        &mut self,
        connection: &MemberConnection,
        heard: &mut bool,
    ) -> Result<(), EtcdFailure> {
        let Some(first) = self.sending() else { return Ok(()) };
        let (requests, mut answers) = connection.open(first).await?;
        self.queue.pop_front();
        loop {
            let next = self.sending();
            tokio::select! {
                biased;
                answer = answers.try_next() => {
                    let answer = answer.map_err(|status| connection.describe(status))?;
                    let answer = answer.ok_or_else(|| connection.hung_up())?;
                    *heard = true;
                    self.is_down.store(false, Relaxed);
                    connection.answered(RequestKind::KeepAlive, self.cluster.clock().now());
                    self.answered(answer.id, answer.ttl);
                }
                // If dropped before it completes, it has sent nothing.
                sent = streams::send(&requests, next), if next.is_some() => {
                    if !sent {
                        return Err(last_words(&mut answers, connection).await);
                    }
                    self.queue.pop_front();
                }
                asks = self.line.next(IDLE), if next.is_none() => match asks {
                    Some(asks) => self.queue(asks),
                    None => return Ok(()),
                },
            }
        }
    }

    /// Requests in flight have an unknown outcome; queued ones are sent on the next stream. If no
    /// member is usable now, all waiters get the error: thousands of leases must not each open a
    /// stream, one after another.
    fn failed(&mut self, failed: &EtcdFailure, is_down: bool) {
        if is_down {
            self.is_down.store(true, Relaxed);
        }
        let all = is_down || failed.why == FailureClass::Refused;
        for (_, flight) in self.flights.extract_if(|_, flight| all || flight.sent.is_some()) {
            for waiter in flight.waiters {
                let _ = waiter.send(Err(failed.clone()));
            }
        }
        self.queue.retain(|lease| self.flights.contains_key(lease));
    }
}

impl KeepAliveStream {
    fn queue(&mut self, asks: Vec<KeepAliveRequest>) {
        for KeepAliveRequest { lease, reply } in asks {
            let flight = self.flights.entry(lease).or_default();
            if flight.waiters.is_empty() {
                self.queue.push_back(lease);
            }
            flight.waiters.push(reply);
        }
    }

    /// The next lease whose keep-alive is to be sent. Those without waiters are dropped.
    fn next(&mut self) -> Option<i64> {
        while let Some(lease) = self.queue.front().copied() {
            let flight = self.flights.get(&lease);
            if flight.is_some_and(|flight| flight.waiters.iter().any(|waiter| !waiter.is_closed()))
            {
                return Some(lease);
            }
            self.queue.pop_front();
            self.flights.remove(&lease);
        }
        None
    }

    /// The next keep-alive, which is being sent now.
    fn sending(&mut self) -> Option<LeaseKeepAliveRequest> {
        let id = self.next()?;
        if let Some(flight) = self.flights.get_mut(&id) {
            flight.sent = Some(self.cluster.clock().now());
        }
        Some(LeaseKeepAliveRequest { id })
    }

    fn answered(&mut self, lease: i64, ttl: i64) {
        let Some(Flight { sent: Some(sent), waiters }) = self.flights.remove(&lease) else {
            return;
        };
        let renewed = exchange::keep_alive_answer(sent, ttl);
        for waiter in waiters {
            let _ = waiter.send(Ok(renewed));
        }
    }
}

/// Why a stream accepts no more requests.
async fn last_words(
    answers: &mut Replies<LeaseResponse>,
    connection: &MemberConnection,
) -> EtcdFailure {
    match tokio::time::timeout(Duration::from_millis(100), answers.try_next()).await {
        Ok(Err(status)) => connection.describe(status),
        _ => connection.hung_up(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EtcdConfig;
    use lock_core::SystemClock;
    use std::collections::HashSet;

    fn used(others: usize) -> usize {
        (1..1000).map(|lease| lane(lease, others, 0)).collect::<HashSet<_>>().len()
    }

    #[test]
    fn the_more_wait_the_more_streams_there_are() {
        let streams: Vec<_> = [0, 7, 8, 100, 480, 10_000].into_iter().map(used).collect();
        assert_eq!(streams, [4, 4, 5, 16, 64, 64]);
    }

    #[test]
    fn a_lease_leaves_a_stream_on_which_it_was_given_up() {
        for (lease, others) in [(1, 0), (7, 30), (i64::MAX, 10_000)] {
            assert_eq!(lane(lease, others, 3), lane(lease, others, 3));
            assert_ne!(lane(lease, others, 3), lane(lease, others, 4));
        }
    }

    #[test]
    fn what_is_answered_or_dropped_waits_no_more() {
        let count = AtomicUsize::new(0);
        let (first, others) = PendingKeepAlive::begin(&count);
        assert_eq!(others, 0);
        let (second, others) = PendingKeepAlive::begin(&count);
        assert_eq!(others, 1);
        drop((first, second));
        assert_eq!(PendingKeepAlive::begin(&count).1, 0);
    }

    /// A member that hangs up on everybody, as the address of a cluster that is down may, and how
    /// often it was connected to.
    async fn useless() -> (Arc<AtomicUsize>, Arc<Cluster>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = EtcdConfig::new([listener.local_addr().unwrap().to_string()]).unwrap();
        let opened = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&opened);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                count.fetch_add(1, Relaxed);
                drop(connection);
            }
        });
        (opened, Arc::new(Cluster::open(config, Arc::new(SystemClock::default())).unwrap()))
    }

    #[tokio::test]
    async fn a_member_that_is_down_sees_few_streams() {
        let (opened, cluster) = useless().await;
        let renewals = Arc::new(Renewals::new(cluster));
        let pause = Duration::from_millis(100);
        // The first failures show that nobody answers.
        while !renewals.is_down.load(Relaxed) {
            let _ = renewals.renew(1, pause).await;
        }
        let before = opened.load(Relaxed);
        let mut tasks = tokio::task::JoinSet::new();
        for lease in 1..=500 {
            let renewals = Arc::clone(&renewals);
            tasks.spawn(async move {
                for _ in 0..10 {
                    assert!(renewals.renew(lease, 10 * pause).await.is_err());
                    tokio::time::sleep(pause).await;
                }
            });
        }
        tasks.join_all().await;
        // Each of the few streams is tried less often each time. With 64 there would be hundreds.
        let seen = opened.load(Relaxed) - before;
        assert!(seen <= 100, "{seen} connections");
    }
}
