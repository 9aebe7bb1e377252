//! A call that gives up what it has taken if nobody polls it, although it could go on.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use crate::keeper::{Client, STANDSTILL_GRACE};
use crate::mutex::Mutex;
use crate::{Clock, ClockInstant, Result};

/// How often the watch looks within the time after which a call is left alone. It notices a standstill of the whole process
/// that is longer than the pause between two looks, since the next look comes late.
const LOOKS: u32 = 4;

/// Goes through these steps. Where they could go on, and nobody polls them within `ttl`, they are given up with all that
/// they have taken. Once somebody polls them again, they begin anew.
pub(super) async fn attended<T, F>(
    client: &Client,
    ttl: Duration,
    steps: impl Fn() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>> + Send + 'static,
{
    let clock = Arc::clone(&client.clock);
    let caller = Arc::new(CallingTask { clock: Arc::clone(&clock), called: Mutex::default() });
    let call = Arc::new(AttendedCall { steps: Mutex::new(None), caller });
    let home = client.home()?.handle().clone();
    let mut watched = None;
    poll_fn(|cx| {
        let polled = call.poll(cx, &steps);
        // A call that needs no wait is not left alone.
        if polled.is_pending() {
            let watch = || watch(Arc::downgrade(&call), Arc::clone(&clock), ttl / 2);
            watched.get_or_insert_with(|| AbortOnDropHandle::new(home.spawn(watch())));
        }
        polled
    })
    .await
}

struct AttendedCall<F> {
    /// `None` before it begins, and when it was given up.
    steps: Mutex<Option<Pin<Box<F>>>>,
    caller: Arc<CallingTask>,
}

/// Who polls the call.
struct CallingTask {
    clock: Arc<dyn Clock>,
    called: Mutex<Called>,
}

#[derive(Default)]
struct Called {
    /// Since when the call could go on.
    since: Option<ClockInstant>,
    waker: Option<Waker>,
}

impl<F: Future> AttendedCall<F> {
    fn poll(&self, cx: &Context<'_>, begin: impl Fn() -> F) -> Poll<F::Output> {
        let mut steps = self.steps.lock();
        *self.caller.called.lock() = Called { since: None, waker: Some(cx.waker().clone()) };
        let waker = Waker::from(Arc::clone(&self.caller));
        let steps = steps.get_or_insert_with(|| Box::pin(begin()));
        steps.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// If it could have gone on for so long, and nobody polls it.
    fn give_up(&self, limit: Duration) {
        let mut steps = self.steps.lock();
        let since = self.caller.called.lock().since;
        let is_left_alone = since.is_some_and(|since| self.caller.clock.now() >= since + limit);
        let given_up = steps.take_if(|_| is_left_alone);
        drop(steps);
        drop(given_up);
    }
}

async fn watch<F: Future>(call: Weak<AttendedCall<F>>, clock: Arc<dyn Clock>, limit: Duration) {
    let mut runs_since = clock.now();
    loop {
        let due = clock.now() + limit / LOOKS;
        clock.sleep_until(due).await;
        let Some(call) = call.upgrade() else { return };
        let now = clock.now();
        // If all stood still, the caller has had no time, either.
        if now > due + STANDSTILL_GRACE {
            runs_since = now;
        }
        if now >= runs_since + limit {
            call.give_up(limit);
        }
    }
}

impl Wake for CallingTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut called = self.called.lock();
        called.since.get_or_insert_with(|| self.clock.now());
        let waker = called.waker.take();
        drop(called);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
