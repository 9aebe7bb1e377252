//! Idle connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::{Clock, ClockInstant, SystemClock};
use sqlx::Connection;
use tokio::runtime::Handle;

/// How long a connection stays idle before it is closed. Network devices drop connections that are
/// idle for some minutes, and the server has better uses for them.
pub(super) const REST: Duration = Duration::from_secs(60);
/// The limit for closing a connection.
const CLOSE: Duration = Duration::from_secs(1);

/// The connections, longest idle first.
#[derive(Debug)]
pub(super) struct Resting<C> {
    line: Mutex<Line<C>>,
    clock: SystemClock,
    rest: Duration,
}

#[derive(Debug)]
struct Line<C> {
    connections: Vec<(C, ClockInstant)>,
    /// Lives as long as the task that closes them in time.
    tended: Weak<()>,
}

impl<C: Connection + Send + 'static> Resting<C> {
    pub(super) fn new(clock: SystemClock, rest: Duration) -> Arc<Self> {
        let line = Line { connections: Vec::new(), tended: Weak::new() };
        Arc::new(Self { line: Mutex::new(line), clock, rest })
    }

    fn line(&self) -> MutexGuard<'_, Line<C>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Outside a runtime it is not closed in time; the next push within a runtime starts that task.
    pub(super) fn push(self: &Arc<Self>, connection: C) {
        let mut line = self.line();
        line.connections.push((connection, self.clock.now()));
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
            while let Some(next) = close_rested(&resting).await {
                clock.sleep_until(next).await;
            }
        });
    }

    /// The one that was used last, and since when it has been idle.
    pub(super) fn pop(&self) -> Option<(C, ClockInstant)> {
        self.line().connections.pop()
    }

    pub(super) fn take(&self) -> Vec<C> {
        let all = std::mem::take(&mut self.line().connections);
        all.into_iter().map(|(connection, _)| connection).collect()
    }
}

/// Closes those that have rested, but does not keep them alive. Returns when to check again; `None`
/// if none is left.
async fn close_rested<C: Connection + Send + 'static>(
    resting: &Weak<Resting<C>>,
) -> Option<ClockInstant> {
    let rested: Vec<_> = {
        let resting = resting.upgrade()?;
        let mut line = resting.line();
        let now = resting.clock.now();
        let rested = |since: ClockInstant| now.since(since) >= resting.rest;
        let young = line.connections.partition_point(|(_, since)| rested(*since));
        line.connections.drain(..young).collect()
    };
    for (connection, _) in rested {
        // Only that it ends matters.
        let _ = tokio::time::timeout(CLOSE, connection.close()).await;
    }
    let resting = resting.upgrade()?;
    let mut line = resting.line();
    let next = line.connections.first().map(|(_, since)| *since + resting.rest);
    if next.is_none() {
        // The next push starts another task, whether or not this one has ended by then.
        line.tended = Weak::new();
    }
    next
}

#[cfg(test)]
#[cfg(feature = "postgres")]
mod tests {
    use lock_testkit::servers::PostgresServer;

    use sqlx::PgConnection;

    use super::*;

    async fn until_closed(resting: &Resting<PgConnection>) {
        let closed = async {
            while !resting.line().connections.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), closed).await.unwrap();
    }

    #[test]
    fn connections_rest_for_a_while_also_after_the_end_of_a_runtime() {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (first, second) = (runtime(), runtime());
        let server = first.block_on(PostgresServer::builder().start()).unwrap();
        let connect = || PgConnection::connect(server.url());
        let rest = Duration::from_millis(200);
        let resting = Resting::new(SystemClock::default(), rest);
        first.block_on(async {
            let start = resting.clock.now();
            resting.push(connect().await.unwrap());
            until_closed(&resting).await;
            assert!(resting.clock.now().since(start) >= rest);
            resting.push(connect().await.unwrap());
        });
        // The task that would have closed it ends here.
        drop(first);
        second.block_on(async {
            resting.push(connect().await.unwrap());
            until_closed(&resting).await;
        });
    }
}
