//! Renewals by keep-alives: one stream carries those of many leases, with one in flight for each
//! lease.
//!
//! A reply names its lease, not its request. With two requests in flight the reply to the first
//! would be credited to the second, which was sent later, and the lease would be trusted for longer
//! than the server keeps it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lock_core::ClockInstant;
use lock_core::kit::lines::{Line, Lines};
use tokio::sync::oneshot;
use tonic::Streaming;

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::error::{Failed, Why};
use crate::mutants;
use crate::proto::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use crate::streams::{self, IDLE, Streamed};
use crate::wire::Renewed;

/// A member processes the keep-alives of one stream one after another, and a follower asks the
/// leader for each: several streams, on one connection, keep up with many thousands of leases.
const LANES: usize = 4;

/// The keep-alives of a client.
#[derive(Debug)]
pub(crate) struct Renewals {
    cluster: Arc<Cluster>,
    lanes: [Lines<Ask>; LANES],
}

/// A requested keep-alive.
struct Ask {
    lease: i64,
    reply: oneshot::Sender<Result<Renewed, Failed>>,
}

/// The keep-alives that share a stream.
struct Lane {
    cluster: Arc<Cluster>,
    line: Line<Ask>,
    /// Leases whose keep-alive is still to be sent.
    queue: VecDeque<i64>,
    flights: HashMap<i64, Flight>,
}

/// The one keep-alive of a lease that is queued or in flight, and its waiters.
#[derive(Default)]
struct Flight {
    sent: Option<ClockInstant>,
    waiters: Vec<oneshot::Sender<Result<Renewed, Failed>>>,
}

impl Renewals {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, lanes: Default::default() }
    }

    /// Keeps `lease` alive. Joins a request already in flight, so the reply may belong to one sent
    /// before this call. After `limit` without a reply, this counts against the connection.
    pub(crate) async fn renew(&self, lease: i64, limit: Duration) -> Result<Renewed, Failed> {
        let lane = &self.lanes[usize::try_from(lease.unsigned_abs()).unwrap_or(0) % LANES];
        let asked = self.cluster.clock().now();
        let Some(connection) = self.cluster.connection() else { return Err(Failed::closed()) };
        let (reply, answer) = oneshot::channel();
        lane.push(Ask { lease, reply }, |line| {
            let (cluster, queue, flights) =
                (Arc::clone(&self.cluster), VecDeque::new(), HashMap::new());
            streams::serve(Arc::clone(&cluster), Lane { cluster, line, queue, flights })
        });
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(Failed::closed())),
            Err(_) => {
                self.cluster.gave_up(&connection, asked).await;
                Err(Failed::timeout(connection.endpoint(), limit))
            }
        }
    }
}

impl Streamed for Lane {
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

    async fn stream(&mut self, connection: &Connection, heard: &mut bool) -> Result<(), Failed> {
        let Some(first) = self.sending() else { return Ok(()) };
        let (requests, mut answers) = connection.open(first).await?;
        self.queue.pop_front();
        loop {
            let next = self.sending();
            tokio::select! {
                biased;
                answer = answers.message() => {
                    let answer = answer.map_err(|status| connection.describe(status))?;
                    let answer = answer.ok_or_else(|| connection.hung_up())?;
                    *heard = true;
                    connection.answered(self.cluster.clock().now());
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
    fn failed(&mut self, failed: &Failed, is_down: bool) {
        let all = is_down || failed.why == Why::Refused;
        for (_, flight) in self.flights.extract_if(|_, flight| all || flight.sent.is_some()) {
            for waiter in flight.waiters {
                let _ = waiter.send(Err(failed.clone()));
            }
        }
        self.queue.retain(|lease| self.flights.contains_key(lease));
    }
}

impl Lane {
    fn queue(&mut self, asks: Vec<Ask>) {
        for Ask { lease, reply } in asks {
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
        let renewed = mutants::renewed(Renewed::read(sent, ttl), &**self.cluster.clock());
        for waiter in waiters {
            let _ = waiter.send(Ok(renewed));
        }
    }
}

/// Why a stream accepts no more requests.
async fn last_words(
    answers: &mut Streaming<LeaseKeepAliveResponse>,
    connection: &Connection,
) -> Failed {
    match tokio::time::timeout(Duration::from_millis(100), answers.message()).await {
        Ok(Err(status)) => connection.describe(status),
        _ => connection.hung_up(),
    }
}
