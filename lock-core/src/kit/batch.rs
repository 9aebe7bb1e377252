//! Requests made at about the same time travel as one.
//!
//! A store that can answer many requests at once is asked once for all that coincide: the core
//! aligns the renewals of one `Locks` to a grid, so ten thousand held locks cost a few statements
//! every few seconds.
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
//! Each runtime has its own [line](crate::kit::lines).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::kit::lines::{Line, Lines};
use crate::{Error, ErrorKind, Result};

/// How long requests wait for others. The first one after a quiet period does not wait.
const WINDOW: Duration = Duration::from_millis(2);

/// Batches requests `T`, each of which gets its own answer `A`. Clones share their lines.
pub struct Batches<T, A> {
    limits: Arc<Limits<T>>,
    lines: Lines<Entry<T, A>>,
}

/// The heaviest batch, and what one request weighs.
type Weight<T> = (usize, fn(&T) -> usize);

/// How large a batch may be.
struct Limits<T> {
    most: usize,
    weight: Option<Weight<T>>,
}

/// One request of a batch. If dropped without an answer, it fails.
pub struct Entry<T, A> {
    /// The request.
    pub request: T,
    reply: oneshot::Sender<A>,
}

impl<T, A> Entry<T, A> {
    /// Answers this request. The others in its batch may be answered earlier or later.
    pub fn answer(self, answer: A) {
        // A caller that has left needs no answer.
        let _ = self.reply.send(answer);
    }
}

impl<T: Send + 'static, A: Send + 'static> Batches<T, A> {
    /// Batches of one to `most` requests.
    pub fn of_at_most(most: usize) -> Self {
        Self::new(Limits { most, weight: None })
    }

    /// Batches of one to `most` requests, and of one request or a `weight` of at most `heaviest`.
    pub fn weighing(most: usize, heaviest: usize, weight: fn(&T) -> usize) -> Self {
        Self::new(Limits { most, weight: Some((heaviest, weight)) })
    }

    fn new(limits: Limits<T>) -> Self {
        Self { limits: Arc::new(limits), lines: Lines::default() }
    }

    /// Makes `request` together with the others made on this runtime within 2 ms, or at once if
    /// there were none. It is sent after this call, so the store's promise counts from this call at
    /// the earliest (clause C4). Batches run concurrently.
    ///
    /// `send` gets a batch and answers each of its entries. It should be the same for all requests,
    /// since the first request's `send` also serves later ones; and it should have its own time
    /// limit, since a batch has none. If it panics, only its own batch fails.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable) with an unknown effect if the entry was dropped
    /// without an answer, for instance because the runtime ended.
    ///
    /// # Cancel safety
    ///
    /// If dropped before the batch is sent, the request is not made. If dropped later, it is made
    /// anyway.
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
        let limits = Arc::clone(&self.limits);
        self.lines.push(Entry { request, reply }, |line| limits.serve(line, send));
        answer.await.map_err(|_| {
            Error::new(ErrorKind::Unavailable, "the runtime that served this request has ended")
                .with_unknown_effect()
        })
    }
}

impl<T: Send + 'static> Limits<T> {
    async fn serve<A, S, F>(self: Arc<Self>, mut line: Line<Entry<T, A>>, send: S)
    where
        A: Send + 'static,
        S: Fn(Vec<Entry<T, A>>) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        while let Some(entries) = line.take() {
            for batch in self.split(entries) {
                tokio::spawn(send(batch));
            }
            tokio::time::sleep(WINDOW).await;
        }
    }

    fn split<A>(&self, entries: Vec<Entry<T, A>>) -> Vec<Vec<Entry<T, A>>> {
        let mut batches = Vec::new();
        let (mut batch, mut weight) = (Vec::new(), 0_usize);
        for entry in entries {
            // Nothing is sent for a caller that has left.
            if entry.reply.is_closed() {
                continue;
            }
            let (heaviest, more) = match self.weight {
                Some((heaviest, weight)) => (heaviest, weight(&entry.request)),
                None => (0, 0),
            };
            weight = weight.saturating_add(more);
            if batch.len() == self.most.max(1) || (!batch.is_empty() && weight > heaviest) {
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

impl<T, A> Clone for Batches<T, A> {
    fn clone(&self) -> Self {
        Self { limits: Arc::clone(&self.limits), lines: self.lines.clone() }
    }
}

/// Omits the requests, which may name owners.
impl<T, A> fmt::Debug for Batches<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("most", &self.limits.most).finish_non_exhaustive()
    }
}

impl<T, A> fmt::Debug for Entry<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
