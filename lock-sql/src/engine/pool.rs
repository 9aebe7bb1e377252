//! The connections of one client to a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::kit::backoff::Backoff;
use lock_core::kit::outage::Outage;
use lock_core::{Clock, ClockInstant, Error, ErrorKind, Result, SystemClock, async_trait};
use sqlx::Connection;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::task::TaskTracker;

use super::driver::Driver;
use super::error::{Failure, Left, Means, closed};
use super::links::{Links, Turn, Want};
use super::resting::{QUIET, REST, Resting};
use super::shield::shielded;
use super::statement::Query;
use super::unfinished::Finished;
use super::value::Reply;

/// The pauses between attempts to connect to a server that is down.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// How long a connection may take to open, however short the calls are.
const OPENING: Duration = Duration::from_secs(10);

/// The most statements that are under way at a time: those that renew or check, those that release,
/// and all others.
const TURNS: [u32; 3] = [3, 3, 4];
/// The most connections that are kept: as many as statements can use at a time.
const MOST: usize = (TURNS[0] + TURNS[1] + TURNS[2]) as usize;

/// A server that a pool leads to.
#[async_trait]
pub(crate) trait Server: Driver {
    /// A connection that has not answered for this long is tested before use.
    const FRESH: Duration;
    /// The same for a statement that may take a lock. It is not retried silently, so it should not
    /// be the one to find a dead connection.
    const FRESH_FOR_TRIES: Duration;

    /// A connection with the table in place and checked.
    async fn open(&self) -> Result<Self::Connection, Failure>;
}

/// Connections that are opened as needed.
///
/// Not the driver's pool, for three reasons: renewals and releases must not wait behind attempts to
/// acquire; a pool tests the connection before *every* statement; and it keeps a connection whose
/// statement was dropped half-way, so the next statement reads the rest of the old reply. Here a
/// connection is put back only after a complete reply, and closed otherwise.
#[derive(Debug)]
pub(crate) struct Pool<S: Server> {
    server: Arc<S>,
    turns: [Arc<Semaphore>; TURNS.len()],
    resting: Arc<Resting<S::Connection>>,
    /// Whether connections can be opened.
    outage: Outage<Failure>,
    clock: SystemClock,
    closed: AtomicBool,
}

impl<S: Server> Pool<S> {
    pub(crate) fn new(server: Arc<S>, clock: SystemClock) -> Arc<Self> {
        Arc::new(Self {
            server,
            turns: TURNS.map(|most| Arc::new(Semaphore::new(most as usize))),
            resting: Resting::new(clock.clone(), MOST, REST, QUIET),
            outage: Outage::new(BACKOFF),
            clock,
            closed: AtomicBool::new(false),
        })
    }

    /// A new connection, for a call that ends at `end`. Its opening goes on if that call has ended: the next
    /// one may have no more time for it. While none can be opened, callers try one at a time.
    async fn open(self: &Arc<Self>, end: ClockInstant) -> Result<S::Connection, Failure> {
        let generation = self.resting.generation();
        let (caller, opened) = oneshot::channel();
        let pool = Arc::clone(self);
        let work = async move {
            let answer = pool.opened(end).await;
            let answer = answer.and_then(|(connection, late)| match late {
                Some(late) => {
                    pool.put_back(connection, generation);
                    Err(late.into())
                }
                None => Ok(connection),
            });
            if let Err(Ok(connection)) = caller.send(answer) {
                pool.put_back(connection, generation);
            }
        };
        let work = Some(Box::pin(work) as _);
        let (clock, tracker) = (self.clock.clone(), TaskTracker::new());
        let end = clock.now() + OPENING;
        Finished { work, clock, end, tracker }.await;
        opened.await.map_err(|_| closed())?
    }

    /// A new connection, and why a call that ends at `end` does not use it: what is sent over a new connection
    /// is prepared first, which takes about as long as half of the opening.
    async fn opened(&self, end: ClockInstant) -> Result<(S::Connection, Option<Error>), Failure> {
        let is_down =
            |failure: &Failure| !matches!(failure.means, Means::Contended | Means::NoTable);
        let open = || async {
            let (begun, table) = (self.clock.now(), self.server.table());
            // The first one also looks at the table, which takes long and says nothing about the next.
            let is_first = !table.checked.load(Ordering::Acquire);
            let connection = self.server.open().await?;
            let (now, at) = (self.clock.now(), &table.names.at);
            let took = now.since(begun);
            let late = (!is_first && end.since(now) < took).then(|| {
                let text = format!("opening a connection to {at} took {took:.1?}, and less is left of this call: the next one uses it");
                Error::new(ErrorKind::Unavailable, text)
            });
            Ok((connection, late))
        };
        self.outage.ask(open, is_down).await.flatten()
    }

    /// Adds a connection that was made before the pool.
    pub(crate) fn keep(&self, connection: S::Connection) {
        self.put_back(connection, self.resting.generation());
    }

    fn put_back(&self, connection: S::Connection, generation: u64) {
        if !self.closed.load(Ordering::Acquire) {
            self.resting.push(connection, generation);
        }
    }

    /// Stops using the present connections: their server has ended, or is now a different one.
    fn drop_resting(&self) {
        drop(self.resting.drop_all());
    }
}

#[async_trait]
impl<S: Server> Links for Arc<Pool<S>> {
    /// A call dropped before the statement is sent does not send it. If dropped later, it goes on
    /// in the background until `end`: the connection gets its complete reply, and a release can
    /// wait for it.
    async fn execute(
        &self,
        want: Want<'_>,
        make: &(dyn Fn() -> Query + Send + Sync),
    ) -> Result<Reply, Failure> {
        let turns = match want.turn {
            Turn::Keep | Turn::Check => 0,
            Turn::Release => 1,
            Turn::Try | Turn::Look => 2,
        };
        if self.resting.is_empty() {
            // Not in a turn, which would be used up by waiting.
            self.outage.over().await?;
        }
        let turn = Arc::clone(&self.turns[turns]).acquire_owned().await.map_err(|_| closed())?;
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let mut generation = self.resting.generation();
        let fresh = if want.taker.is_some() { S::FRESH_FOR_TRIES } else { S::FRESH };
        let mut connection = match self.resting.take(fresh).await {
            Some(connection) => connection,
            None => {
                // That of the test that has failed just now, if one has.
                generation = self.resting.generation();
                self.open(want.end).await?
            }
        };
        let (pool, query) = (Self::clone(self), make());
        let statement = async move {
            let answer = shielded(pool.server.run(&mut connection, query)).await;
            let answer = answer.map_err(|error| pool.server.failure(error, true));
            match answer.as_ref().map_or_else(|failure| failure.left, |_| Left::Usable) {
                Left::Usable => pool.put_back(connection, generation),
                Left::Broken => {}
                Left::AllBroken => pool.drop_resting(),
            }
            drop(turn);
            answer
        };
        let tracker = want.taker.map(|entry| entry.unfinished.clone()).unwrap_or_default();
        let work = Some(Box::pin(statement) as _);
        Finished { work, clock: self.clock.clone(), end: want.end, tracker }.await
    }

    fn forget(&self) {
        self.drop_resting();
    }

    /// If none has answered meanwhile, a new connection may be as silent.
    fn gave_up(&self, since: ClockInstant) {
        self.resting.drop_silent(since);
        if self.resting.is_empty() {
            self.outage.down();
        }
    }

    /// Waits for the statements under way and closes the connections properly.
    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        for (turns, most) in self.turns.iter().zip(TURNS) {
            // An error means that it was closed before.
            let _all = turns.acquire_many(most).await;
            turns.close();
        }
        for connection in self.resting.drop_all() {
            // One that has ended already is closed, too.
            let _ = connection.close().await;
        }
        Ok(())
    }
}
