//! Idle connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::{Clock, ClockInstant, SystemClock};
use sqlx::Connection;
use tokio::runtime::Handle;

use super::shield::shielded;

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
pub(super) struct Resting<C> {
    line: Mutex<Line<C>>,
    /// Held while the connection that would be used next is tested in the background.
    testing: tokio::sync::Mutex<()>,
    clock: SystemClock,
    /// How many there are at most. More come if some took so long to open that nobody waited for them.
    most: usize,
    rest: Duration,
    quiet: Duration,
}

#[derive(Debug)]
struct Line<C> {
    connections: Vec<Idle<C>>,
    /// Connections from before this number are not used any more.
    generation: u64,
    /// Lives as long as the task that tests them, and closes them in time.
    tended: Weak<()>,
}

#[derive(Debug)]
struct Idle<C> {
    connection: C,
    /// Since when it has been idle.
    since: ClockInstant,
    /// When it last answered.
    heard: ClockInstant,
}

impl<C: Connection + Send + 'static> Resting<C> {
    pub(super) fn new(
        clock: SystemClock,
        most: usize,
        rest: Duration,
        quiet: Duration,
    ) -> Arc<Self> {
        let line = Line { connections: Vec::new(), generation: 0, tended: Weak::new() };
        let testing = tokio::sync::Mutex::default();
        Arc::new(Self { line: Mutex::new(line), testing, clock, most, rest, quiet })
    }

    fn line(&self) -> MutexGuard<'_, Line<C>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the connections that are made now.
    pub(super) fn generation(&self) -> u64 {
        self.line().generation
    }

    /// Adds one of this generation that has just answered. Outside a runtime it is not closed in time;
    /// the next push within a runtime starts the task that does it.
    pub(super) fn push(self: &Arc<Self>, connection: C, generation: u64) {
        let now = self.clock.now();
        let mut line = self.line();
        if generation != line.generation || line.connections.len() >= self.most {
            return;
        }
        line.connections.push(Idle { connection, since: now, heard: now });
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
        let next = self.line().connections.pop();
        let mut idle = match next {
            Some(idle) => idle,
            None => {
                // It may be back in a moment. A silent one is not waited for.
                let _ = tokio::time::timeout(MOMENT, self.testing.lock()).await;
                self.line().connections.pop()?
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
        let mut line = self.line();
        line.generation += 1;
        let all = std::mem::take(&mut line.connections);
        all.into_iter().map(|idle| idle.connection).collect()
    }

    /// Those that have not answered since `then` are not used any more. The ones in use are if they answer.
    pub(super) fn drop_silent(&self, then: ClockInstant) {
        let silent: Vec<_> = {
            let mut line = self.line();
            line.connections.extract_if(.., |idle| idle.heard < then).collect()
        };
        // Their sockets are closed outside the mutex.
        drop(silent);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line().connections.is_empty()
    }

    /// Removes those that have rested long enough.
    fn take_rested(&self) -> Vec<C> {
        let mut line = self.line();
        let now = self.clock.now();
        let rested = |idle: &Idle<C>| now.since(idle.since) >= self.rest;
        let young = line.connections.partition_point(rested);
        line.connections.drain(..young).map(|idle| idle.connection).collect()
    }

    /// Tests the one that is used next if it has been quiet for a while. The server may have ended it
    /// meanwhile, or been started again.
    async fn test_next(&self) {
        let _testing = self.testing.lock().await;
        let (mut idle, generation) = {
            let mut line = self.line();
            let now = self.clock.now();
            let is_quiet = |idle: &mut Idle<C>| now.since(idle.heard) >= self.quiet;
            let Some(idle) = line.connections.pop_if(is_quiet) else { return };
            (idle, line.generation)
        };
        if !self.answers(&mut idle.connection).await {
            self.drop_all();
            return;
        }
        idle.heard = self.clock.now();
        let mut line = self.line();
        if generation == line.generation {
            let at = line.connections.partition_point(|other| other.since <= idle.since);
            line.connections.insert(at, idle);
        }
    }

    /// When to tend to them again; `None` if none is left.
    fn due(&self) -> Option<ClockInstant> {
        let mut line = self.line();
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
async fn tend<C: Connection + Send + 'static>(resting: &Weak<Resting<C>>) -> Option<ClockInstant> {
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

    use super::*;

    async fn until_gone(resting: &Resting<PgConnection>) {
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
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (first, second) = (runtime(), runtime());
        let server = first.block_on(PostgresServer::builder().start()).unwrap();
        let connect = || PgConnection::connect(server.url());
        let rest = Duration::from_millis(200);
        // Tests do not prolong the rest.
        let resting = Resting::new(SystemClock::default(), 2, rest, rest / 4);
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
        let resting = Resting::new(SystemClock::default(), 2, REST, Duration::from_millis(50));
        for _ in 0..2 {
            resting.push(PgConnection::connect(server.url()).await.unwrap(), 0);
        }
        let mut other = PgConnection::connect(server.url()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        {
            let _testing = resting.testing.lock().await;
            let line = resting.line();
            let heard = |at: usize| line.connections[at].heard > line.connections[at].since;
            assert_eq!((heard(0), heard(1)), (false, true), "the next one is tested, and it alone");
        }
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
        let resting = Resting::new(SystemClock::default(), 2, REST, REST);
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
