//! Requests that fall together travel as one.
//!
//! A store that can answer many requests at once is asked once for all that fall together: the core
//! brings the renewals of one `Locks` together on a grid, so ten thousand held locks are a few
//! statements every few seconds.
//!
//! ```
//! use lock_core::Result;
//! use lock_core::kit::batch::{Batches, Entry};
//!
//! /// One statement for all of them, in a real store.
//! async fn send(batch: Vec<Entry<String, bool>>) {
//!     for entry in batch {
//!         let alive = entry.request == "ours";
//!         entry.answer(alive);
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
//! let renewals = Batches::of_at_most(500);
//! let (ours, theirs) =
//!     tokio::join!(renewals.ask("ours".to_owned(), send), renewals.ask("theirs".to_owned(), send));
//! assert!(ours? && !theirs?);
//! # Ok(()) }
//! ```
//!
//! # Runtimes
//!
//! A store may be used from several runtimes at a time: each worker of a web server has one, and
//! `block_on` makes one for a moment. Each runtime has a line of its own, and the tasks that serve it
//! run on that runtime. So a runtime that has ended, or that nobody drives at the moment, stops the
//! requests that were made on it and no others.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use crate::{Error, ErrorKind, Result};

/// For how long requests wait for others. The first one after a quiet time does not wait.
const WINDOW: Duration = Duration::from_millis(2);

/// Brings requests `T` together, each of which is answered with an `A` of its own. Clones share their
/// lines.
pub struct Batches<T, A>(Arc<Inner<T, A>>);

struct Inner<T, A> {
    most: usize,
    weight: Option<(usize, fn(&T) -> usize)>,
    /// What waits on each runtime on which a task is about to send it.
    lines: Mutex<HashMap<Id, Vec<Entry<T, A>>>>,
}

/// One request of a batch. Dropped without an answer, it fails.
pub struct Entry<T, A> {
    /// What is asked.
    pub request: T,
    reply: oneshot::Sender<A>,
}

impl<T, A> Entry<T, A> {
    /// Answers this request. The others of its batch may be answered before or later.
    pub fn answer(self, answer: A) {
        // A caller that has gone needs no answer.
        let _ = self.reply.send(answer);
    }
}

impl<T: Send + 'static, A: Send + 'static> Batches<T, A> {
    /// Batches of one to `most` requests.
    pub fn of_at_most(most: usize) -> Self {
        Self::new(most, None)
    }

    /// Batches of one to `most` requests, and of one request or a `weight` of at most `heaviest`.
    pub fn weighing(most: usize, heaviest: usize, weight: fn(&T) -> usize) -> Self {
        Self::new(most, Some((heaviest, weight)))
    }

    fn new(most: usize, weight: Option<(usize, fn(&T) -> usize)>) -> Self {
        Self(Arc::new(Inner { most: most.max(1), weight, lines: Mutex::default() }))
    }

    /// Makes `request` together with what else is asked on this runtime within 2 ms, or at once if
    /// nothing was. It is sent after this call, so what the store promises counts from this call at
    /// least (clause C4). Batches are under way beside each other.
    ///
    /// `send` gets a batch and answers each of its entries. It should be the same for all requests,
    /// since the one of the first request serves those that come after it; and it should keep to a
    /// limit of time, since a batch has none. A panic in it fails its own batch only.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable) with an unknown effect if the entry was dropped without an
    /// answer, as by a runtime that ends.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the batch is sent, the request is not made. Dropped later, it is made all the
    /// same.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with timers.
    pub async fn ask<S, F>(&self, request: T, send: S) -> Result<A>
    where
        S: Fn(Vec<Entry<T, A>>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let entry = Entry { request, reply };
        let runtime = Handle::current().id();
        let is_first = match self.0.lines().entry(runtime) {
            Occupied(mut line) => {
                line.get_mut().push(entry);
                false
            }
            Vacant(line) => {
                line.insert(vec![entry]);
                true
            }
        };
        if is_first {
            // Made before its task, which a runtime that ends drops before it has begun; and spawned
            // without the lock, since that happens right here.
            let line = Line { batches: Arc::clone(&self.0), runtime, is_open: true };
            tokio::spawn(line.serve(send));
        }
        answer.await.map_err(|_| {
            Error::new(ErrorKind::Unavailable, "the runtime that served this request has ended")
                .with_unknown_effect()
        })
    }
}

impl<T, A> Inner<T, A> {
    fn lines(&self) -> MutexGuard<'_, HashMap<Id, Vec<Entry<T, A>>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn split(&self, entries: Vec<Entry<T, A>>) -> Vec<Vec<Entry<T, A>>> {
        let mut batches = Vec::new();
        let (mut batch, mut weight) = (Vec::new(), 0_usize);
        for entry in entries {
            // Nothing is sent for a caller that has gone.
            if entry.reply.is_closed() {
                continue;
            }
            let (heaviest, more) = match self.weight {
                Some((heaviest, weight)) => (heaviest, weight(&entry.request)),
                None => (0, 0),
            };
            weight = weight.saturating_add(more);
            if batch.len() == self.most || (!batch.is_empty() && weight > heaviest) {
                batches.push(std::mem::take(&mut batch));
                weight = more;
            }
            batch.push(entry);
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
        batches
    }
}

/// The task of one runtime that sends what waits there, for as long as something comes.
struct Line<T, A> {
    batches: Arc<Inner<T, A>>,
    runtime: Id,
    is_open: bool,
}

impl<T: Send + 'static, A: Send + 'static> Line<T, A> {
    async fn serve<S, F>(mut self, send: S)
    where
        S: Fn(Vec<Entry<T, A>>) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        while let Some(entries) = self.take() {
            for batch in self.batches.split(entries) {
                tokio::spawn(send(batch));
            }
            tokio::time::sleep(WINDOW).await;
        }
    }

    /// What waits. If nothing does, the line is closed, and the next request makes a new one.
    fn take(&mut self) -> Option<Vec<Entry<T, A>>> {
        let mut lines = self.batches.lines();
        match lines.get_mut(&self.runtime) {
            Some(waiting) if !waiting.is_empty() => Some(std::mem::take(waiting)),
            _ => {
                lines.remove(&self.runtime);
                self.is_open = false;
                None
            }
        }
    }
}

/// The runtime ends: those who wait are told so.
impl<T, A> Drop for Line<T, A> {
    fn drop(&mut self) {
        if self.is_open {
            let waiting = self.batches.lines().remove(&self.runtime);
            // Without the lock: a request may do something when it goes.
            drop(waiting);
        }
    }
}

impl<T, A> Clone for Batches<T, A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Without the requests, which may name owners.
impl<T, A> fmt::Debug for Batches<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("most", &self.0.most).finish_non_exhaustive()
    }
}

impl<T, A> fmt::Debug for Entry<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
