//! One call for all tasks that want what it brings.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker};

use crate::keeper::KeeperRuntime;
use crate::mutex::Mutex;
use crate::{Error, Result};

/// Whoever waits for it polls it. So it goes on while one of them is polled, however many are left alone, and it is
/// given up with the last of them.
pub(super) struct SharedCall<T> {
    /// That of the task that has begun it: what it begins does not end with one that has joined.
    home: Arc<KeeperRuntime>,
    progress: Mutex<CallProgress<T>>,
    is_over: AtomicBool,
    waiting: Arc<Waiting>,
}

struct CallProgress<T> {
    /// `None` once it is over.
    steps: Option<Pin<Box<dyn Future<Output = Result<T>> + Send>>>,
    error: Option<Error>,
}

impl<T> SharedCall<T> {
    pub(super) fn new(
        home: Arc<KeeperRuntime>,
        steps: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Self {
        let progress = Mutex::new(CallProgress { steps: Some(Box::pin(steps)), error: None });
        Self { home, progress, is_over: AtomicBool::new(false), waiting: Arc::default() }
    }

    /// Whether it brings nothing any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// What it brings: one of those who wait has it, and the others have `None`. All of them have its error.
    pub(super) async fn outcome(&self) -> Result<Option<T>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Result<Option<T>>> {
        let mut progress = self.progress.lock();
        let Some(mut steps) = progress.steps.take() else {
            return Poll::Ready(progress.error.clone().map_or(Ok(None), Err));
        };
        self.waiting.add(cx.waker());
        let all = Waker::from(Arc::clone(&self.waiting));
        let polled = {
            let _inside = self.home.handle().enter();
            let poll = || steps.as_mut().poll(&mut Context::from_waker(&all));
            catch_unwind(AssertUnwindSafe(poll))
        };
        if let Ok(Poll::Pending) = polled {
            progress.steps = Some(steps);
            return Poll::Pending;
        }
        if let Ok(Poll::Ready(Err(error))) = &polled {
            progress.error = Some(error.clone());
        }
        self.is_over.store(true, Relaxed);
        drop(progress);
        drop(steps);
        // After a panic, too: then one of the others begins anew.
        self.waiting.wake_by_ref();
        polled.map_or_else(|panic| resume_unwind(panic), |answer| answer.map_ok(Some))
    }
}

/// All who wait. Any of them may be left alone, so each is woken.
#[derive(Default)]
struct Waiting(Mutex<Vec<Waker>>);

impl Waiting {
    fn add(&self, waker: &Waker) {
        let mut wakers = self.0.lock();
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}
