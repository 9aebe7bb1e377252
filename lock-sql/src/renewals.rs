//! Renewals that fall together travel as one statement. The same for every dialect.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, Renewal, Result};
use tokio::sync::oneshot;

use crate::dialect::{Dialect, Due, Entry, Found};
use crate::error::no_answer;

/// For how long renewals wait for others. The core brings renewals of one client together on a grid.
/// The first one after a quiet time does not wait at all.
const COLLECT: Duration = Duration::from_millis(2);
/// The most rows of one statement: it is short then, and a deadlock undoes no more than these.
pub(crate) const BATCH: usize = 500;
/// When a renewal that nobody has sent is sent by whoever waits for it. The task that collects may be on
/// a runtime that is not driven at the moment, as one between two calls of `block_on` is.
const LATE: Duration = Duration::from_millis(20);
/// When a row that somebody else had locked is asked for again.
const AGAIN: Duration = Duration::from_millis(20);

/// The renewals of one store.
#[derive(Debug)]
pub(crate) struct Renewals {
    dialect: Arc<dyn Dialect>,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    /// A collector is about to take what waits.
    collecting: bool,
    /// How often what waited was taken.
    flushes: u64,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    entry: Arc<Entry>,
    fence: Option<FencingToken>,
    reply: oneshot::Sender<Result<Renewal>>,
}

impl Renewals {
    pub(crate) fn new(dialect: Arc<dyn Dialect>) -> Arc<Self> {
        Arc::new(Self { dialect, line: Mutex::default() })
    }

    /// Renews one lease, together with whatever else is due at this moment. The statement is always
    /// sent after this call, so what it promises counts from this call at least (clause C4).
    ///
    /// Dropped, it may be executed all the same.
    pub(crate) async fn renew(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        fence: Option<FencingToken>,
    ) -> Result<Renewal> {
        let renewal = async {
            match self.join(entry, fence) {
                None => self.alone(entry, fence).await,
                Some((answer, flushes)) => self.answered(answer, flushes).await,
            }
        };
        let limit = entry.call_timeout;
        tokio::time::timeout(limit, renewal)
            .await
            .unwrap_or_else(|_| Err(no_answer(self.dialect.name(), limit)))
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answered(
        self: &Arc<Self>,
        mut answer: oneshot::Receiver<Result<Renewal>>,
        flushes: u64,
    ) -> Result<Renewal> {
        let answered = match tokio::time::timeout(LATE, &mut answer).await {
            Ok(answered) => answered,
            Err(_) => {
                if self.line().flushes == flushes {
                    self.flush();
                }
                answer.await
            }
        };
        answered.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the runtime of the renewals has ended")
                .with_unknown_effect())
        })
    }

    /// `None` if nothing was due a moment ago: then the caller does not wait for others. Else where the
    /// answer comes, and how often what waited was taken before.
    fn join(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        fence: Option<FencingToken>,
    ) -> Option<(oneshot::Receiver<Result<Renewal>>, u64)> {
        let mut line = self.line();
        if line.collecting {
            let (reply, answer) = oneshot::channel();
            line.waiting.push(Waiting { entry: Arc::clone(entry), fence, reply });
            return Some((answer, line.flushes));
        }
        line.collecting = true;
        drop(line);
        self.collect();
        None
    }

    /// Only without the lock on the line: a runtime that is ending drops the task here.
    fn collect(self: &Arc<Self>) {
        tokio::spawn(Collector { renewals: Arc::clone(self), done: false }.run());
    }

    async fn alone(&self, entry: &Entry, fence: Option<FencingToken>) -> Result<Renewal> {
        loop {
            let due = [Due { entry, fence }];
            let found = self.dialect.renew(&due, entry.call_timeout).await?;
            match found.first() {
                Some(Found::Renewed) => return Ok(alive(entry)),
                Some(Found::Gone) => return Ok(Renewal::Lost),
                Some(Found::Locked) => tokio::time::sleep(AGAIN).await,
                None => return Err(wrong_answer()),
            }
        }
    }

    /// Sends all that waits, in batches that are under way at the same time. False if nothing waited.
    fn flush(self: &Arc<Self>) -> bool {
        let mut waiting = {
            let mut line = self.line();
            // Whoever has given up writes nothing.
            line.waiting.retain(|waiting| !waiting.reply.is_closed());
            line.collecting = !line.waiting.is_empty();
            line.flushes += 1;
            std::mem::take(&mut line.waiting)
        };
        if waiting.is_empty() {
            return false;
        }
        // Locking the rows of all batches in one order avoids deadlocks between them.
        waiting.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
        // Two holds of one name, of which at most one is alive, or one hold that is known twice: a
        // statement changes a row once.
        let mut names = HashSet::new();
        let (batch, twice): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|waiting| names.insert(waiting.entry.name.clone()));
        self.line().waiting.extend(twice);
        let mut batch = batch.into_iter().peekable();
        while batch.peek().is_some() {
            let part: Vec<_> = batch.by_ref().take(BATCH).collect();
            tokio::spawn(Arc::clone(self).send(part));
        }
        true
    }

    /// Sends one batch. A row that is locked by somebody else goes back into the line after a pause,
    /// for as long as its caller waits: it stops nobody else.
    async fn send(self: Arc<Self>, batch: Vec<Waiting>) {
        let limit = batch.iter().map(|waiting| waiting.entry.call_timeout).max();
        let dues: Vec<_> = batch
            .iter()
            .map(|waiting| Due { entry: &waiting.entry, fence: waiting.fence })
            .collect();
        let answer = self.dialect.renew(&dues, limit.unwrap_or_default()).await;
        let answer = answer.and_then(|found| match found.len() == batch.len() {
            true => Ok(found),
            false => Err(wrong_answer()),
        });
        let mut locked = Vec::new();
        for (at, waiting) in batch.into_iter().enumerate() {
            let renewal = match &answer {
                Ok(found) => match found[at] {
                    Found::Renewed => Ok(alive(&waiting.entry)),
                    Found::Gone => Ok(Renewal::Lost),
                    Found::Locked => {
                        locked.push(waiting);
                        continue;
                    }
                },
                Err(error) => Err(error.clone()),
            };
            // A caller that has gone needs no answer.
            let _ = waiting.reply.send(renewal);
        }
        if !locked.is_empty() {
            tokio::time::sleep(AGAIN).await;
            let collect = {
                let mut line = self.line();
                line.waiting.extend(locked);
                !std::mem::replace(&mut line.collecting, true)
            };
            if collect {
                self.collect();
            }
        }
    }
}

fn alive(entry: &Entry) -> Renewal {
    Renewal::Alive { valid_for: Some(entry.ttl) }
}

fn wrong_answer() -> Error {
    Error::new(ErrorKind::Internal, "BUG: the answer to a batch of renewals has the wrong length")
        .with_unknown_effect()
}

/// Collects for as long as something comes.
struct Collector {
    renewals: Arc<Renewals>,
    done: bool,
}

impl Collector {
    async fn run(mut self) {
        while !self.done {
            tokio::time::sleep(COLLECT).await;
            self.done = !self.renewals.flush();
        }
    }
}

/// Its runtime may end before it: whoever waits is told so, and the next renewal starts another.
impl Drop for Collector {
    fn drop(&mut self) {
        if !self.done {
            let mut line = self.renewals.line();
            line.collecting = false;
            line.waiting.clear();
        }
    }
}

#[cfg(test)]
mod tests;
