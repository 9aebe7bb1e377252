//! Dropping a future at its n-th await.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::runner::check::{Check, Stop};

/// How a future ended that was allowed a limited number of polls.
#[derive(Debug)]
pub enum Cut<T> {
    /// It was ready before the limit.
    Done(T),
    /// It was dropped while it waited.
    Dropped,
}

#[allow(private_bounds, reason = "its only method is for the cases")]
impl<T, E: Into<Stop>> Cut<Result<T, E>> {
    /// Whether the call was done before it was dropped; if so, it must have succeeded.
    pub(crate) fn done(self) -> Check<bool> {
        match self {
            Self::Done(answer) => answer.map(|_| true).map_err(Into::into),
            Self::Dropped => Ok(false),
        }
    }
}

/// Polls `future` up to `polls` times, each time it is woken, then drops it if it is not ready.
pub async fn drop_after<F: Future>(polls: usize, future: F) -> Cut<F::Output> {
    Limited { future: Box::pin(future), left: polls }.await
}

/// Advances paused time before any other task can run, as if the runtime had been blocked.
pub(crate) async fn blocked_runtime(duration: Duration) {
    // The first poll of `advance` moves the clock; it would yield only after that.
    let _ = drop_after(1, tokio::time::advance(duration)).await;
}

struct Limited<F> {
    future: Pin<Box<F>>,
    left: usize,
}

impl<F: Future> Future for Limited<F> {
    type Output = Cut<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(Cut::Dropped);
        }
        self.left -= 1;
        match self.future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Cut::Done(value)),
            // A future that will not be polled again needs no wake-up.
            Poll::Pending if self.left == 0 => Poll::Ready(Cut::Dropped),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_await_is_a_place_to_drop() {
        let work = || async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            7
        };
        assert!(matches!(drop_after(1, work()).await, Cut::Dropped));
        assert!(matches!(drop_after(2, work()).await, Cut::Dropped));
        assert!(matches!(drop_after(3, work()).await, Cut::Done(7)));
    }
}
