//! The connections of one client to a server, in use and idle.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::backoff::Backoff;
use lock_core::{Clock, ClockInstant, Error, ErrorKind, Result, SystemClock, async_trait};
use lock_kit::outage::Outage;
use lock_kit::runtime;
use parking_lot::Mutex;
use sqlx::Connection;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};

use crate::engine::wire::connections::{Connections, StatementClass, StatementLimits};
use crate::engine::wire::driver::{SqlDriver, shielded};
use crate::engine::wire::errors::{Damage, FailureRemedy, StatementFailure, closed};
use crate::engine::wire::statement::{SqlStatement, StatementReply, Values};

/// The pauses between attempts to connect to a server that is down.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// How long a connection may take to open, however short the calls are.
const OPENING: Duration = Duration::from_secs(10);
/// How long the opening goes on at least when its call has ended. The two must not end together: it is the
/// call that says that the server was silent.
const LONGER: Duration = Duration::from_secs(1);
/// How long the failure of an opening is told to a later call: longer than a claim pauses between two tries.
const RECENT: Duration = Duration::from_secs(2);

/// The most statements that are under way at a time: those that renew or check, those that release,
/// and all others.
const TURNS: [u32; 3] = [3, 3, 4];
/// The most connections that are kept: as many as statements can use at a time.
const MOST: usize = (TURNS[0] + TURNS[1] + TURNS[2]) as usize;

/// A server that a pool leads to.
#[async_trait]
pub(crate) trait PooledServer: SqlDriver {
    /// A connection that has not answered for this long is tested before use.
    const FRESH: Duration;
    /// The same for a statement that may take a lock. It is not retried silently, so it should not
    /// be the one to find a dead connection.
    const FRESH_FOR_TRIES: Duration;

    /// A connection with the table in place and checked.
    async fn open(&self) -> Result<Self::Connection, StatementFailure>;
}

/// Connections that are opened as needed.
///
/// Not the driver's pool, which pings each connection when it comes back (`docs/decisions/0018`). A connection is
/// put back only after a complete reply, and closed otherwise.
#[derive(Debug)]
pub(crate) struct ServerPool<S: PooledServer> {
    server: Arc<S>,
    turns: [Semaphore; TURNS.len()],
    resting: Arc<IdleConnections<S::Connection>>,
    /// Whether connections can be opened.
    outage: Outage<StatementFailure>,
    /// When the last opening has failed, and why, if its call had ended by then and that does not pass by itself.
    unheard: Mutex<Option<(ClockInstant, StatementFailure)>>,
    clock: SystemClock,
    closed: watch::Sender<bool>,
}

impl<S: PooledServer> ServerPool<S> {
    pub(crate) fn new(server: Arc<S>, clock: SystemClock) -> Arc<Self> {
        Arc::new(Self {
            server,
            turns: TURNS.map(|most| Semaphore::new(most as usize)),
            resting: IdleConnections::new(clock.clone(), MOST, REST, QUIET),
            outage: Outage::new(BACKOFF),
            unheard: Mutex::default(),
            clock,
            closed: watch::Sender::new(false),
        })
    }

    /// A new connection, for a call that ends at `end`. Its opening goes on if that call has ended, until the
    /// pool is closed: the next call may have no more time for it. While none can be opened, callers try one at
    /// a time.
    async fn open(self: &Arc<Self>, end: ClockInstant) -> Result<S::Connection, StatementFailure> {
        let generation = self.resting.generation();
        let (mut caller, opened) = oneshot::channel();
        let (pool, at) = (Arc::clone(self), &self.server.table().names.at);
        runtime::current(at)?.spawn(async move {
            let limit = opening_ends(end, pool.clock.now());
            let answer = tokio::select! {
                answer = pool.opened(end) => answer,
                () = pool.clock.sleep_until(limit) => return,
                () = pool.needs_no_more(&mut caller) => return,
            };
            pool.hand_over(answer, caller, generation);
        });
        // It ends without an answer with its runtime, or if the driver panics.
        opened.await.unwrap_or_else(|_| match self.is_closed() {
            true => Err(closed()),
            false => {
                let text = format!("opening a connection to {at} was given up");
                Err(Error::new(ErrorKind::Unavailable, text).into())
            }
        })
    }

    /// Gives a call what its opening has led to. The next call gets what this one did not wait for.
    fn hand_over(
        &self,
        opened: Result<(S::Connection, Option<Error>), StatementFailure>,
        caller: oneshot::Sender<Result<S::Connection, StatementFailure>>,
        generation: u64,
    ) {
        let unheard = match opened {
            Ok((connection, late)) => {
                let untaken = match late {
                    Some(late) => {
                        let _ = caller.send(Err(late.into()));
                        Some(connection)
                    }
                    None => caller.send(Ok(connection)).err().and_then(Result::ok),
                };
                untaken.into_iter().for_each(|untaken| self.put_back(untaken, generation));
                None
            }
            Err(failure) => caller.send(Err(failure)).err().and_then(Result::err),
        };
        // What passes by itself may have passed when the next call comes.
        let lasts = unheard.filter(|failure| !failure.error.is_retryable());
        *self.unheard.lock() = lasts.map(|failure| (self.clock.now(), failure));
    }

    /// Tells why the last opening has failed, if its own call did not wait for it: a server that takes longer to refuse
    /// than a call takes would otherwise seem to be silent. Only what does not pass by itself is kept for that.
    fn heard(&self) -> Result<(), StatementFailure> {
        match self.unheard.lock().take() {
            Some((at, failure)) if self.clock.now().since(at) < RECENT => Err(failure),
            _ => Ok(()),
        }
    }

    /// Waits until a new connection is of no use to anybody: neither to the call for which it is opened, nor to
    /// a later one.
    async fn needs_no_more<T>(&self, caller: &mut oneshot::Sender<T>) {
        caller.closed().await;
        // An error would mean that the pool is gone, which is borrowed.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// A new connection, and why a call that ends at `end` does not use it: what is sent over a new connection
    /// is prepared first, which takes about as long as half of the opening.
    async fn opened(
        &self,
        end: ClockInstant,
    ) -> Result<(S::Connection, Option<Error>), StatementFailure> {
        let turn = self.outage.turn().await?;
        let answer = self.open_one(end).await;
        turn.ends(answer.as_ref().err().filter(|failure| {
            !matches!(failure.remedy, FailureRemedy::Contended | FailureRemedy::NoTable)
        }));
        answer
    }

    async fn open_one(
        &self,
        end: ClockInstant,
    ) -> Result<(S::Connection, Option<Error>), StatementFailure> {
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
    }

    /// Adds a connection that was made before the pool.
    pub(crate) fn keep(&self, connection: S::Connection) {
        self.put_back(connection, self.resting.generation());
    }

    fn put_back(&self, connection: S::Connection, generation: u64) {
        // The server has let this one in.
        *self.unheard.lock() = None;
        if !self.is_closed() {
            self.resting.push(connection, generation);
        }
    }

    async fn close_resting(&self) {
        for connection in self.resting.drop_all() {
            // One that has ended already is closed, too.
            let _ = connection.close().await;
        }
    }
}

#[async_trait]
impl<S: PooledServer> Connections for Arc<ServerPool<S>> {
    /// The connection of a statement that does not come to its end is closed: it would give the rest of the
    /// reply to the next one.
    async fn execute(
        &self,
        limits: StatementLimits,
        statement: &SqlStatement,
        values: &Values<'_>,
    ) -> Result<StatementReply, StatementFailure> {
        let turns = match limits.class {
            StatementClass::Keep | StatementClass::Check => 0,
            StatementClass::Release => 1,
            StatementClass::Try | StatementClass::Look => 2,
        };
        if self.resting.is_empty() && !self.is_closed() {
            self.heard()?;
            // Not in a turn, which would be used up by waiting.
            self.outage.over().await?;
        }
        let _turn = self.turns[turns].acquire().await.map_err(|_| closed())?;
        if self.is_closed() {
            return Err(closed());
        }
        let mut generation = self.resting.generation();
        let fresh = if limits.takes { S::FRESH_FOR_TRIES } else { S::FRESH };
        let mut connection = match self.resting.take(fresh).await {
            Some(connection) => connection,
            None => {
                // That of the test that has failed just now, if one has.
                generation = self.resting.generation();
                self.open(limits.end).await?
            }
        };
        let query = self.server.query(statement, values);
        let answer = shielded(self.server.run(&mut connection, query)).await;
        let answer = answer.map_err(|error| self.server.failure(error, true));
        match answer.as_ref().map_or_else(|failure| failure.damage, |_| Damage::Nothing) {
            Damage::Nothing => self.put_back(connection, generation),
            Damage::Connection => {}
            Damage::Server => self.forget(),
        }
        answer
    }

    fn forget(&self) {
        drop(self.resting.drop_all());
    }

    /// If none has answered meanwhile, a new connection may be as silent.
    fn gave_up(&self, since: ClockInstant) {
        self.resting.drop_silent(since);
        if self.resting.is_empty() {
            self.outage.down();
        }
    }

    /// Closes the connections properly: those that rest at once, since the statements under way may take
    /// longer than anybody waits.
    async fn close(&self) -> Result<()> {
        self.closed.send_replace(true);
        self.close_resting().await;
        for (turns, most) in self.turns.iter().zip(TURNS) {
            // An error means that it was closed before.
            let _all = turns.acquire_many(most).await;
            turns.close();
        }
        // One may have been put back at the last moment.
        self.close_resting().await;
        Ok(())
    }
}

/// When an opening is given up that begins now, for a call that ends at `call`.
fn opening_ends(call: ClockInstant, now: ClockInstant) -> ClockInstant {
    (call + LONGER).max(now + OPENING)
}

/// How long a connection stays idle before it is closed. Network devices drop connections that are
/// idle for some minutes, and the server has better uses for them.
pub(super) const REST: Duration = Duration::from_secs(60);
/// How long the connection that is used next goes without a word from the server before it is tested
/// in the background, so that no statement has to wait for a test. Those behind it are tested when they
/// are used.
pub(super) const QUIET: Duration = Duration::from_millis(750);
/// The limit for testing a connection.
const PING: Duration = Duration::from_secs(1);
/// How long a test in the background is waited for: making a connection takes longer than an answer.
const MOMENT: Duration = Duration::from_millis(20);
/// The limit for closing a connection.
const CLOSE: Duration = Duration::from_secs(1);

/// The connections, longest idle first.
#[derive(Debug)]
pub(super) struct IdleConnections<C> {
    line: Mutex<IdleLine<C>>,
    /// Held while the connection that would be used next is tested in the background.
    testing: tokio::sync::Mutex<()>,
    clock: SystemClock,
    /// How many there are at most. More come if some took so long to open that nobody waited for them.
    most: usize,
    rest: Duration,
    quiet: Duration,
}

#[derive(Debug)]
struct IdleLine<C> {
    connections: Vec<IdleConnection<C>>,
    /// Connections from before this number are not used any more.
    generation: u64,
    /// Lives as long as the task that tests them, and closes them in time.
    tended: Weak<()>,
}

#[derive(Debug)]
struct IdleConnection<C> {
    connection: C,
    /// Since when it has been idle.
    since: ClockInstant,
    /// When it last answered.
    heard: ClockInstant,
}

impl<C: Connection + Send + 'static> IdleConnections<C> {
    pub(super) fn new(
        clock: SystemClock,
        most: usize,
        rest: Duration,
        quiet: Duration,
    ) -> Arc<Self> {
        let line = IdleLine { connections: Vec::new(), generation: 0, tended: Weak::new() };
        let testing = tokio::sync::Mutex::default();
        Arc::new(Self { line: Mutex::new(line), testing, clock, most, rest, quiet })
    }

    /// The number of the connections that are made now.
    pub(super) fn generation(&self) -> u64 {
        self.line.lock().generation
    }

    /// Adds one of this generation that has just answered. Outside a runtime it is not closed in time;
    /// the next push within a runtime starts the task that does it.
    pub(super) fn push(self: &Arc<Self>, connection: C, generation: u64) {
        let now = self.clock.now();
        let mut line = self.line.lock();
        if generation != line.generation || line.connections.len() >= self.most {
            return;
        }
        line.connections.push(IdleConnection { connection, since: now, heard: now });
        if line.tended.strong_count() > 0 {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let tending = Arc::new(());
        line.tended = Arc::downgrade(&tending);
        drop(line);
        let (resting, clock) = (Arc::downgrade(self), self.clock.clone());
        runtime.spawn(async move {
            // Its runtime may end before the store.
            let _tending = tending;
            while let Some(next) = tend(&resting).await {
                clock.sleep_until(next).await;
            }
        });
    }

    /// The one that was used last, and so is the least likely to have been cut; `None` if it is not good
    /// any more. It is tested unless it has answered within `fresh`.
    pub(super) async fn take(&self, fresh: Duration) -> Option<C> {
        let next = self.line.lock().connections.pop();
        let mut idle = match next {
            Some(idle) => idle,
            None => {
                // It may be back in a moment. A silent one is not waited for.
                let _ = tokio::time::timeout(MOMENT, self.testing.lock()).await;
                self.line.lock().connections.pop()?
            }
        };
        if self.clock.now().since(idle.heard) < fresh || self.answers(&mut idle.connection).await {
            return Some(idle.connection);
        }
        // The others are as old.
        self.drop_all();
        None
    }

    async fn answers(&self, connection: &mut C) -> bool {
        tokio::select! {
            pong = shielded(connection.ping()) => pong.is_ok(),
            () = self.clock.sleep_until(self.clock.now() + PING) => false,
        }
    }

    /// Those that rest and those in use are not used any more. Returns the former.
    pub(super) fn drop_all(&self) -> Vec<C> {
        let mut line = self.line.lock();
        line.generation += 1;
        let all = std::mem::take(&mut line.connections);
        all.into_iter().map(|idle| idle.connection).collect()
    }

    /// Those that have not answered since `then` are not used any more. The ones in use are if they answer.
    pub(super) fn drop_silent(&self, then: ClockInstant) {
        let silent: Vec<_> = {
            let mut line = self.line.lock();
            line.connections.extract_if(.., |idle| idle.heard < then).collect()
        };
        // Their sockets are closed outside the mutex.
        drop(silent);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.lock().connections.is_empty()
    }

    /// Removes those that have rested long enough.
    fn take_rested(&self) -> Vec<C> {
        let mut line = self.line.lock();
        let now = self.clock.now();
        let rested = |idle: &IdleConnection<C>| now.since(idle.since) >= self.rest;
        let young = line.connections.partition_point(rested);
        line.connections.drain(..young).map(|idle| idle.connection).collect()
    }

    /// Tests the one that is used next if it has been quiet for a while. The server may have ended it
    /// meanwhile, or been started again.
    async fn test_next(&self) {
        let _testing = self.testing.lock().await;
        let (mut idle, generation) = {
            let mut line = self.line.lock();
            let now = self.clock.now();
            let is_quiet = |idle: &mut IdleConnection<C>| now.since(idle.heard) >= self.quiet;
            let Some(idle) = line.connections.pop_if(is_quiet) else { return };
            (idle, line.generation)
        };
        if !self.answers(&mut idle.connection).await {
            self.drop_all();
            return;
        }
        idle.heard = self.clock.now();
        let mut line = self.line.lock();
        if generation == line.generation {
            let at = line.connections.partition_point(|other| other.since <= idle.since);
            line.connections.insert(at, idle);
        }
    }

    /// When to tend to them again; `None` if none is left.
    fn due(&self) -> Option<ClockInstant> {
        let mut line = self.line.lock();
        let (first, last) = (line.connections.first(), line.connections.last());
        let next = first
            .zip(last)
            .map(|(first, last)| (first.since + self.rest).min(last.heard + self.quiet));
        if next.is_none() {
            // The next push starts another task, whether or not this one has ended by then.
            line.tended = Weak::new();
        }
        next
    }
}

/// Closes those that have rested, and tests the next one, but does not keep them alive. Returns when
/// to do it again; `None` if none is left.
async fn tend<C: Connection + Send + 'static>(
    resting: &Weak<IdleConnections<C>>,
) -> Option<ClockInstant> {
    let rested = resting.upgrade()?.take_rested();
    for connection in rested {
        // Only that it ends matters.
        let _ = tokio::time::timeout(CLOSE, connection.close()).await;
    }
    let resting = resting.upgrade()?;
    resting.test_next().await;
    resting.due()
}

#[cfg(test)]
#[cfg(feature = "postgres")]
mod tests {
    use lock_testkit::servers::PostgresServer;
    use sqlx::{Executor, PgConnection};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::runtime::Builder;

    use super::*;
    use crate::engine::store::SqlStore;
    use crate::engine::table::lock_table::StatementName;
    use crate::engine::table::settings::Settings;
    use crate::postgres::PostgresTarget;
    use crate::postgres::server;

    type Pool = Arc<ServerPool<server::PostgresServer>>;

    /// A pool for a server that accepts connections and says nothing.
    async fn of_a_silent_one() -> (TcpListener, Pool) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://u@{}/d?sslmode=disable", listener.local_addr().unwrap());
        let target = crate::engine::tests::read(&url, PostgresTarget::from_url);
        let server = server::PostgresServer::new(&target, &Settings::default()).unwrap();
        (listener, ServerPool::new(Arc::new(server), SystemClock::default()))
    }

    /// Begins to open a connection for a call of 100 ms, which ends without one.
    async fn in_vain(listener: &TcpListener, pool: &Pool) -> TcpStream {
        let call = Duration::from_millis(100);
        let opening = pool.open(pool.clock.now() + call);
        let (opened, accepted) =
            tokio::join!(tokio::time::timeout(call, opening), listener.accept());
        assert!(opened.is_err());
        accepted.unwrap().0
    }

    /// Whether the client ends the connection within `limit`.
    async fn ends(mut server: TcpStream, limit: Duration) -> bool {
        let end = async { while server.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {} };
        tokio::time::timeout(limit, end).await.is_ok()
    }

    #[tokio::test]
    async fn an_opening_outlives_its_call_but_not_the_pool() {
        let (listener, pool) = of_a_silent_one().await;
        let server = in_vain(&listener, &pool).await;
        assert!(!ends(server, Duration::from_millis(300)).await, "it may serve the next call");
        let server = in_vain(&listener, &pool).await;
        pool.close().await.unwrap();
        assert!(ends(server, OPENING / 2).await);
    }

    /// A store whose server refuses the password of all connections, but refuses the first one for this reason.
    /// That takes longer than short calls, and than anybody waits for the opening of another.
    async fn of_a_slow_refusal(first: &'static str) -> SqlStore<server::PostgresServer> {
        const PASSWORD: &str = "28P01";
        let (listener, pool) = of_a_silent_one().await;
        tokio::spawn(async move {
            let mut code = first;
            while let Ok((mut client, _)) = listener.accept().await {
                let refusal = format!("E\0\0\0\x1cSFATAL\0C{code}\0Mrefused\0\0");
                code = PASSWORD;
                tokio::spawn(async move {
                    let _ = client.read(&mut [0; 1024]).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(700)).await;
                    client.write_all(refusal.as_bytes()).await.unwrap();
                });
            }
        });
        let (dialect, clock) = (Arc::clone(&pool.server), pool.clock.clone());
        SqlStore { dialect, connections: Arc::new(pool), clock }
    }

    /// What a call is told that may last so long, and is not made twice.
    async fn told(store: &SqlStore<server::PostgresServer>, call: Duration) -> ErrorKind {
        let limits = store.limits(StatementClass::Try, call).taking();
        let statement = store.statement(StatementName::Look);
        store.patiently(limits, statement, &Values::default()).await.unwrap_err().kind()
    }

    #[tokio::test]
    async fn a_slow_refusal_is_told_to_a_later_call() {
        let store = of_a_slow_refusal("28P01").await;
        let mut kinds = Vec::new();
        while kinds.len() < 30 && !kinds.contains(&ErrorKind::Denied) {
            kinds.push(told(&store, Duration::from_millis(100)).await);
        }
        let (last, before) = kinds.split_last().unwrap();
        assert_eq!(*last, ErrorKind::Denied, "nobody is told why: {before:?}");
        assert!(before.contains(&ErrorKind::NoAnswer), "it is not slow: {before:?}");
    }

    /// A server that was starting has started by the next call.
    #[tokio::test]
    async fn a_slow_refusal_that_passes_is_told_to_nobody() {
        let store = of_a_slow_refusal("57P03").await;
        assert_eq!(told(&store, Duration::from_millis(100)).await, ErrorKind::NoAnswer);
        tokio::time::sleep(RECENT / 2).await;
        assert_eq!(told(&store, OPENING).await, ErrorKind::Denied, "the server was not asked");
    }

    #[test]
    fn a_silent_server_is_noticed_by_the_call_before_the_opening_ends() {
        let now = SystemClock::default().now();
        for call in [Duration::ZERO, OPENING, OPENING * 3] {
            assert!(opening_ends(now + call, now) >= now + call + LONGER);
        }
    }

    #[test]
    fn an_opening_that_ends_with_its_runtime_says_nothing_of_the_pool() {
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let (first, second) = (runtime(), runtime());
        let (_listener, pool) = first.block_on(of_a_silent_one());
        let mut opening = Box::pin(pool.open(pool.clock.now() + OPENING));
        let begun = first.block_on(std::future::poll_fn(|context| {
            std::task::Poll::Ready(opening.as_mut().poll(context).is_pending())
        }));
        assert!(begun);
        drop(first);
        let error = Error::from(second.block_on(opening).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable());
    }

    async fn until_gone(resting: &IdleConnections<PgConnection>) {
        let gone = async {
            // One that is tested is not in the line.
            while resting.testing.try_lock().is_err() || !resting.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
    }

    #[test]
    fn connections_rest_for_a_while_also_after_the_end_of_a_runtime() {
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let (first, second) = (runtime(), runtime());
        let server = first.block_on(PostgresServer::builder().start()).unwrap();
        let connect = || PgConnection::connect(server.url());
        let rest = Duration::from_millis(200);
        // Tests do not prolong the rest.
        let resting = IdleConnections::new(SystemClock::default(), 2, rest, rest / 4);
        first.block_on(async {
            let start = resting.clock.now();
            resting.push(connect().await.unwrap(), 0);
            until_gone(&resting).await;
            assert!(resting.clock.now().since(start) >= rest);
            assert_eq!(resting.generation(), 0, "the server has answered");
            resting.push(connect().await.unwrap(), 0);
        });
        // The task that would have closed it ends here.
        drop(first);
        second.block_on(async {
            resting.push(connect().await.unwrap(), 0);
            until_gone(&resting).await;
        });
    }

    #[tokio::test]
    async fn one_that_has_ended_takes_the_others_with_it_before_it_is_used() {
        let server = PostgresServer::builder().start().await.unwrap();
        let resting =
            IdleConnections::new(SystemClock::default(), 2, REST, Duration::from_millis(50));
        for _ in 0..2 {
            resting.push(PgConnection::connect(server.url()).await.unwrap(), 0);
        }
        let mut other = PgConnection::connect(server.url()).await.unwrap();
        let heard = async || {
            let _testing = resting.testing.lock().await;
            let line = resting.line.lock();
            [0, 1].map(|at| line.connections[at].heard > line.connections[at].since)
        };
        let tested = async {
            while heard().await == [false, false] {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(REST, tested).await.expect("the next one is tested");
        assert_eq!(heard().await, [false, true], "the next one is tested, and it alone");
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        other.execute(end).await.unwrap();
        until_gone(&resting).await;
        assert_eq!(resting.generation(), 1);
        resting.push(other, 0);
        assert!(resting.take(REST).await.is_none(), "it is as old as they are");
    }

    #[tokio::test]
    async fn what_has_answered_meanwhile_outlives_a_call_without_an_answer() {
        let server = PostgresServer::builder().start().await.unwrap();
        let resting = IdleConnections::new(SystemClock::default(), 2, REST, REST);
        let connect = || PgConnection::connect(server.url());
        resting.push(connect().await.unwrap(), 0);
        let begun = resting.clock.now();
        resting.push(connect().await.unwrap(), 0);
        resting.drop_silent(begun);
        assert!(resting.take(REST).await.is_some());
        assert!(resting.is_empty(), "the other one may be as silent as that call");
        assert_eq!(resting.generation(), 0, "one that is in use may come back");
    }
}
