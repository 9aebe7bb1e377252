//! Calls that concern several exclusive locks at once.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use super::attended::attended;
use super::rules;
use crate::keeper::schedule::{after_a_busy_look, backoff, has_stood_still};
use crate::keeper::{Client, Patience, STANDSTILL_GRACE, closed, no_answer};
use crate::{
    ClockInstant, Error, ErrorKind, HolderInfo, Lock, LockGuard, LockKey, Operation, Result, Seen,
    Wake,
};

/// Takes what is made of `whole` by these steps, and then has it kept for its least time; what goes wrong is told of
/// the whole. It ends when the caller's time is up, even if a step takes no account of it, as a try does on a store that
/// keeps silent. What it has begun is given up in the background.
pub(super) async fn take<T, F>(
    whole: &Lock,
    patience: Patience,
    steps: impl Fn() -> F,
    keep: fn(&T, Duration),
) -> Result<T>
where
    F: Future<Output = Result<T>> + Send + 'static,
{
    let client = whole.client();
    let steps = async {
        let terms = whole.terms()?;
        let taken = attended(client, terms.ttl, steps).await;
        taken.inspect(|taken| keep(taken, terms.min_hold))
    };
    let begun = client.clock.now();
    let deadline = match patience {
        Patience::Until(deadline) => deadline,
        Patience::Try | Patience::Forever => ClockInstant::FAR_FUTURE,
    };
    let taken = tokio::select! {
        biased;
        taken = steps => taken,
        // Those that end by themselves say more, so they get a moment.
        () = client.clock.sleep_until(deadline + STANDSTILL_GRACE) => {
            Err(no_answer(deadline.since(begun)))
        }
    };
    taken.map_err(|error| {
        let error = unmarked(error).renamed(whole.key());
        client.describe(error, Operation::Acquire, whole.key())
    })
}

/// Who has the gate is shown without the mark in front of the label.
fn unmarked(error: Error) -> Error {
    match error.holder().cloned().map(without_mark) {
        Some(holder) => error.held_by(holder),
        None => error,
    }
}

/// Who has the gate, with the label of its own.
pub(super) fn without_mark(mut holder: HolderInfo) -> HolderInfo {
    let label = holder.label.take().unwrap_or_default();
    let mut marks = [true, false].into_iter().map(rules::mark);
    let own = marks.find_map(|mark| label.strip_prefix(mark)).unwrap_or(&label);
    holder.label = (!own.is_empty()).then(|| own.to_owned());
    holder
}

/// Waits for all these locks at once. The first that is granted is taken, and the others are given up.
pub(super) async fn first_of(locks: &[Lock], patience: Patience) -> Result<(usize, LockGuard)> {
    let calls = locks.iter().enumerate();
    let calls = calls.map(|(number, lock)| async move { Ok((number, lock.take(patience).await?)) });
    all(calls, |_| true).await.pop().unwrap_or_else(|| Err(busy()))
}

/// Waits for each of these locks, and lets each go at once: then each was free at some moment.
pub(super) async fn each_in_turn(locks: &[Lock], patience: Patience) -> Result<()> {
    let calls = locks.iter().map(|lock| async move { lock.take(patience).await.map(drop) });
    all(calls, Result::is_err).await.into_iter().collect()
}

/// Polls all of these, which begin in this order, until each has ended, or one with what `is_enough`.
pub(super) async fn all<F: Future>(
    futures: impl Iterator<Item = F>,
    is_enough: fn(&F::Output) -> bool,
) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|cx| {
        let mut is_over = true;
        for (future, output) in &mut running {
            if output.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(cx)
                && is_enough(output.insert(value))
            {
                return Poll::Ready(());
            }
            is_over &= output.is_some();
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, output)| output).collect()
}

/// Whether waiters on this store poll. Then one look at all names takes the place of a poll of each.
pub(super) fn is_polled(client: &Client) -> bool {
    client.capabilities.wake == Wake::Poll && client.capabilities.look
}

pub(super) async fn look(
    client: &Client,
    keys: &[LockKey],
    patience: Patience,
) -> Result<Vec<Seen>> {
    again(client, patience, || client.look(keys)).await
}

/// Makes a call, and makes it again after an error that may pass, for as long as the caller waits.
pub(super) async fn again<T, F: Future<Output = Result<T>>>(
    client: &Client,
    patience: Patience,
    call: impl Fn() -> F,
) -> Result<T> {
    let (begun, patient) = (client.clock.now(), client.defaults.unavailable_after);
    let deadline = patience.deadline(begun, client.call_limit());
    let mut silent_from = begun;
    let mut failures = backoff();
    loop {
        let due = client.clock.now() + client.call_limit();
        let error = match call().await {
            Err(error) if error.is_retryable() => error,
            answer => return answer,
        };
        let now = client.clock.now();
        if has_stood_still(due, now, patient) {
            silent_from = now;
        }
        let end = now + failures.failed(&*client.rng);
        if end >= deadline.min(silent_from + patient) {
            return Err(error);
        }
        sleep_until(client, end).await?;
    }
}

/// The pause before the next look, after so many at locks that others have.
///
/// # Errors
///
/// If the caller's time is up.
pub(super) async fn pause(client: &Client, patience: Patience, looks: u32) -> Result<()> {
    let now = client.clock.now();
    let deadline = patience.deadline(now, Duration::ZERO);
    if now >= deadline {
        return Err(busy());
    }
    sleep_until(client, deadline.min(now + after_a_busy_look(client, looks))).await
}

/// Others have what was asked for.
pub(super) fn busy() -> Error {
    Error::new(ErrorKind::NotAcquired, "other clients have it, or wait for it")
}

async fn sleep_until(client: &Client, end: ClockInstant) -> Result<()> {
    tokio::select! {
        biased;
        () = client.closing.cancelled() => Err(closed()),
        () = client.clock.sleep_until(end) => Ok(()),
    }
}
