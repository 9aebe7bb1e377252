//! Who polls a keeper: its own task, or whoever waits for its answer.
//!
//! Each answer that goes from one task to another may have to wake a thread first, and that often takes
//! longer than the request. So a caller polls its keeper itself, in place of the keeper's task, for one
//! attempt or one release. It need not poll its own future for a while, so for all that may take long,
//! waiting and holding, the keeper goes on in its task.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use tokio::runtime::Handle;
use tokio::sync::oneshot::{self, error::RecvError};
use tokio::task::coop;

/// What an answer costs a task of the budget of 128 after which Tokio lets others run. A task that takes free
/// locks in a loop makes one for each, and with many of them before them others would hardly get a turn.
const COST: usize = 16;

/// All that a keeper does, from its first request to its last.
pub(crate) struct Life {
    runtime: Handle,
    turn: Arc<Turn>,
    state: Mutex<State>,
}

struct State {
    /// `None` once it has ended.
    whole: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    has_task: bool,
    /// Wakes its task, which may have nothing to poll at the moment.
    task: Option<Waker>,
}

/// What a keeper knows of those who poll it. They take turns, so it has one waker for all of them.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Who polled last.
    waker: Mutex<Option<Waker>>,
    /// It is polled in place of its task. Written under the lock of the state.
    in_place: AtomicBool,
    /// The keeper does not want to be polled in place any more.
    is_over: AtomicBool,
}

/// A mutex poisoned by a panic stays in use, and a keeper that has panicked has ended.
impl UnwindSafe for Life {}
impl RefUnwindSafe for Life {}

impl Life {
    /// A life that begins when it is first polled, on `runtime`.
    pub(super) fn new<F>(runtime: Handle, whole: impl FnOnce(Arc<Turn>) -> F) -> Arc<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let turn = Arc::<Turn>::default();
        let whole = Some(Box::pin(whole(Arc::clone(&turn))) as _);
        let state = Mutex::new(State { whole, has_task: false, task: None });
        Arc::new(Self { runtime, turn, state })
    }

    /// What `answer` brings. The keeper is polled with it, from now on; if the caller leaves, it goes on in
    /// its task.
    pub(crate) fn answer<T>(self: &Arc<Self>, answer: oneshot::Receiver<T>) -> Answer<T> {
        let _state = self.state();
        self.turn.in_place.store(true, Relaxed);
        self.turn.is_over.store(false, Relaxed);
        // What is asked next wakes nobody: the caller is about to poll.
        drop(self.turn.waker().take());
        Answer { answer, in_place: Some(InPlace(Arc::clone(self))) }
    }

    /// Whether it has ended: of a hold, that nobody keeps it.
    pub(crate) fn has_ended(&self) -> bool {
        self.state().whole.is_none()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls it for whoever has the lock. A panic ends it, as it ends a task.
    fn poll(&self, mut state: MutexGuard<'_, State>, cx: &Context<'_>) -> Poll<()> {
        let Some(whole) = &mut state.whole else { return Poll::Ready(()) };
        *self.turn.waker() = Some(cx.waker().clone());
        let waker = Waker::from(Arc::clone(&self.turn));
        // Its requests belong to this runtime, wherever the caller is.
        let _runtime = self.runtime.enter();
        let poll = || whole.as_mut().poll(&mut Context::from_waker(&waker));
        if matches!(catch_unwind(AssertUnwindSafe(poll)), Ok(Poll::Pending)) {
            return Poll::Pending;
        }
        let ended = state.whole.take();
        drop(state);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(ended)));
        Poll::Ready(())
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Life").field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl Turn {
    /// Lets the caller go that polls it now. It goes on in its task, or with the next caller.
    pub(super) async fn end(&self) {
        // Whoever polls next does so without being woken.
        let mut was_ended = !self.in_place.load(Relaxed);
        poll_fn(|_| {
            if std::mem::replace(&mut was_ended, true) {
                return Poll::Ready(());
            }
            self.is_over.store(true, Relaxed);
            Poll::Pending
        })
        .await;
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The future of an answer, which polls the keeper that gives it.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    // Dropped in this order: the task then finds that nobody waits.
    answer: oneshot::Receiver<T>,
    in_place: Option<InPlace>,
}

impl<T> Future for Answer<T> {
    type Output = Result<T, RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match self.poll_in_place(cx) {
            Poll::Ready(answer) => answer,
            Poll::Pending => ready!(Pin::new(&mut self.answer).poll(cx)),
        };
        self.in_place = None;
        // If too little is left, the next call waits.
        for _ in 0..COST {
            let Poll::Ready(budget) = coop::poll_proceed(cx) else { break };
            budget.made_progress();
        }
        Poll::Ready(answer)
    }
}

impl<T> Answer<T> {
    /// Polls the keeper, if that is up to the caller; ready if another caller has done so already, and the
    /// answer is here.
    fn poll_in_place(&mut self, cx: &Context<'_>) -> Poll<Result<T, RecvError>> {
        let Some(in_place) = &self.in_place else { return Poll::Pending };
        // An answer that comes while the caller polls must not wake it: a task that is woken while it runs
        // is polled once more for nothing, and Tokio wakes another thread for that.
        let mut nobody = Context::from_waker(Waker::noop());
        if let Poll::Ready(answer) = Pin::new(&mut self.answer).poll(&mut nobody) {
            return Poll::Ready(answer);
        }
        if in_place.poll(cx).is_ready() {
            self.in_place = None;
        }
        Poll::Pending
    }
}

/// The right to poll a keeper in place of its task.
#[derive(Debug)]
struct InPlace(Arc<Life>);

impl InPlace {
    /// Ready when it has ended, or wants to go on in its task.
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        match self.0.poll(self.0.state(), cx) {
            Poll::Pending if !self.0.turn.is_over.load(Relaxed) => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        let mut state = self.0.state();
        self.0.turn.in_place.store(false, Relaxed);
        let is_new = !state.has_task && state.whole.is_some();
        state.has_task |= is_new;
        let task = state.task.take();
        drop(state);
        if is_new {
            drop(self.0.runtime.spawn(Task(Arc::clone(&self.0))));
        } else if let Some(task) = task {
            task.wake();
        }
    }
}

/// The task of a keeper.
struct Task(Arc<Life>);

impl Future for Task {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.state();
        state.task = Some(cx.waker().clone());
        if self.0.turn.in_place.load(Relaxed) && state.whole.is_some() {
            return Poll::Pending;
        }
        self.0.poll(state, cx)
    }
}

/// The runtime ends, and so does the keeper.
impl Drop for Task {
    fn drop(&mut self) {
        let ended = self.0.state().whole.take();
        drop(ended);
    }
}
