//! Calls that concern several exclusive locks at once.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use crate::keeper::schedule::{after_a_busy_look, backoff};
use crate::keeper::{Client, Patience, STANDSTILL_GRACE, closed, no_answer};
use crate::{Error, ErrorKind, Lock, LockGuard, LockKey, Result, Seen, Wake, jitter};

/// Ends when the caller's time is up, even if one of these steps takes no account of it, as a try does on a store
/// that keeps silent. What it has begun is given up in the background.
pub(super) async fn in_time<T>(
    client: &Client,
    patience: Patience,
    steps: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Patience::Until(deadline) = patience else { return steps.await };
    let limit = deadline.since(client.clock.now());
    tokio::select! {
        biased;
        taken = steps => taken,
        // Those that end by themselves say more, so they get a moment.
        () = client.clock.sleep_until(deadline + STANDSTILL_GRACE) => Err(no_answer(limit)),
    }
}

/// Waits for all these locks at once. The first that is granted is taken, and the others are given up.
pub(super) async fn first_of(locks: &[Lock], patience: Patience) -> Result<(usize, LockGuard)> {
    let calls = locks.iter().enumerate();
    any(calls.map(|(number, lock)| async move { Ok((number, lock.take(patience).await?)) })).await
}

/// Waits for each of these locks, and lets each go at once: then each was free at some moment.
pub(super) async fn each_in_turn(locks: &[Lock], patience: Patience) -> Result<()> {
    let mut calls: Vec<_> = locks.iter().map(|lock| Box::pin(lock.take(patience))).collect();
    poll_fn(|cx| {
        let mut failed = None;
        calls.retain_mut(|call| match call.as_mut().poll(cx) {
            Poll::Ready(Ok(guard)) => {
                drop(guard);
                false
            }
            Poll::Ready(Err(error)) => {
                failed.get_or_insert(error);
                false
            }
            Poll::Pending => true,
        });
        match failed {
            Some(error) => Poll::Ready(Err(error)),
            None if calls.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    })
    .await
}

/// Polls all of these, which begin in this order, until each has ended.
pub(super) async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(Box::pin).collect();
    let mut ended: Vec<_> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, output) in running.iter_mut().zip(&mut ended) {
            if output.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *output = Some(value);
            }
        }
        if ended.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    ended.into_iter().flatten().collect()
}

/// Polls all of these until one has ended.
pub(super) async fn any<F: Future>(futures: impl Iterator<Item = F>) -> F::Output {
    let mut running: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|cx| {
        let mut polled = running.iter_mut().map(|future| future.as_mut().poll(cx));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

/// Whether waiters on this store poll. Then one look at all names takes the place of a poll of each.
pub(super) fn is_polled(client: &Client) -> bool {
    client.capabilities.wake == Wake::Poll && client.capabilities.look
}

/// A look, and another one after an error that may pass, for as long as the caller waits.
pub(super) async fn look(
    client: &Client,
    keys: &[LockKey],
    patience: Patience,
) -> Result<Vec<Seen>> {
    let begun = client.clock.now();
    let limit = client.call_limit();
    let until = match patience {
        Patience::Try => begun + limit,
        Patience::Until(_) | Patience::Forever => {
            patience.deadline(begun, limit).min(begun + client.defaults.unavailable_after)
        }
    };
    let mut failures = backoff();
    loop {
        let error = match client.look(keys).await {
            Ok(seen) => return Ok(seen),
            Err(error) => error,
        };
        let pause = failures.failed(&*client.rng);
        if !error.is_retryable() || client.clock.now() + pause >= until {
            return Err(error);
        }
        sleep(client, pause).await?;
    }
}

/// The pauses between looks at locks that others have.
#[derive(Debug)]
pub(super) struct BusyPauses<'a> {
    client: &'a Client,
    patience: Patience,
    looks: u32,
}

impl<'a> BusyPauses<'a> {
    pub(super) fn new(client: &'a Client, patience: Patience) -> Self {
        Self { client, patience, looks: 0 }
    }

    /// A pause.
    ///
    /// # Errors
    ///
    /// If the caller's time is up.
    pub(super) async fn pause(&mut self) -> Result<()> {
        self.looks += 1;
        let now = self.client.clock.now();
        let deadline = self.patience.deadline(now, Duration::ZERO);
        if now >= deadline {
            return Err(busy("other clients hold it"));
        }
        let pause = after_a_busy_look(self.client, self.looks);
        sleep(self.client, pause.min(deadline.since(now))).await
    }
}

/// Others have what was asked for.
pub(super) fn busy(why: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::NotAcquired, why)
}

async fn sleep(client: &Client, pause: Duration) -> Result<()> {
    tokio::select! {
        biased;
        () = client.closing.cancelled() => Err(closed()),
        () = client.clock.sleep(pause) => Ok(()),
    }
}

/// These in an order of chance, so that clients that look at the same moment try different ones.
pub(super) fn shuffled<T>(client: &Client, mut items: Vec<T>) -> Vec<T> {
    for left in (2..=items.len()).rev() {
        items.swap(left - 1, below(client, left));
    }
    items
}

/// A number of chance below `limit`, which is not zero.
pub(super) fn below(client: &Client, limit: usize) -> usize {
    // A pause of chance, in nanoseconds: uniform, and it needs no second way to draw.
    let drawn = jitter(&*client.rng, Duration::from_nanos(limit as u64)).as_nanos();
    usize::try_from(drawn).map_or(0, |drawn| drawn.min(limit - 1))
}
