//! Who polls a keeper: its own task, or whoever waits for its answer.
//!
//! Each answer that goes from one task to another may have to wake a thread first, and that often takes
//! longer than the request. So a caller polls its keeper itself, in place of the keeper's task, for one
//! attempt or one release. It need not poll its own future for a while, so for all that may take long,
//! waiting and holding, the keeper goes on in its task.
//!
//! That task is made by whoever first wakes the keeper after its caller has left: the timer, or the driver of
//! the store. A caller that made it would leave it with its own worker, and no other worker takes it from there
//! while the caller computes.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker, ready};

use crate::mutex::{Mutex, MutexGuard};
use crate::thread;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tokio::task::coop;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// What an answer costs a task of the budget of 128 after which Tokio lets others run. A task that takes free
/// locks in a loop makes one for each, and with many of them before them others would hardly get a poller.
const COST: usize = 16;

thread_local! {
    /// A keeper was woken on this thread.
    static WOKE: Cell<bool> = const { Cell::new(false) };
}

/// All that a keeper does, from its first request to its last.
pub(crate) struct PolledKeeper {
    home: Arc<KeeperRuntime>,
    poller: Arc<Poller>,
    state: Mutex<PolledState>,
}

struct PolledState {
    /// `None` once it has ended.
    whole: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Wakes its task, once that has been polled.
    task: Option<Waker>,
}

/// What a keeper knows of those who poll it. They take turns, so it has one waker for all of them.
#[derive(Debug, Default)]
pub(crate) struct Poller {
    next: Mutex<NextPoller>,
    /// It has a task, or will have one in a moment. Written under the lock of `next`.
    has_task: AtomicBool,
    /// The runtime has taken that task.
    is_spawned: AtomicBool,
    /// It is polled in place of its task. Written under the lock of the state.
    in_place: AtomicBool,
    /// The keeper does not want to be polled in place any more.
    is_over: AtomicBool,
    /// Nobody waits for the answer any more.
    has_left: AtomicBool,
}

/// Who polls a keeper when something has happened.
#[derive(Debug, Default)]
enum NextPoller {
    /// Something has happened since it was polled last: nobody has to be woken any more.
    #[default]
    Due,
    /// Whoever polled it last.
    Again(Waker),
    /// A task that is yet to be made.
    NewTask(Arc<PolledKeeper>),
}

/// A mutex poisoned by a panic stays in use, and a keeper that has panicked has ended.
impl UnwindSafe for PolledKeeper {}
impl RefUnwindSafe for PolledKeeper {}

impl PolledKeeper {
    /// A keeper that begins when it is first polled, on the runtime of `home`.
    pub(super) fn new<F>(
        home: Arc<KeeperRuntime>,
        whole: impl FnOnce(Arc<Poller>) -> F,
    ) -> Arc<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let poller = Arc::<Poller>::default();
        let whole = Some(Box::pin(whole(Arc::clone(&poller))) as _);
        let state = Mutex::new(PolledState { whole, task: None });
        Arc::new(Self { home, poller, state })
    }

    /// What `answer` brings. The keeper is polled with it, from now on; if the caller leaves, it goes on in
    /// its task.
    pub(crate) fn answer<T>(self: &Arc<Self>, answer: oneshot::Receiver<T>) -> Answer<T> {
        let _state = self.state.lock();
        self.poller.in_place.store(true, Relaxed);
        self.poller.is_over.store(false, Relaxed);
        self.poller.has_left.store(false, Relaxed);
        // What is asked next wakes nobody: the caller is about to poll.
        drop(self.poller.replace(NextPoller::Due));
        let poller = Arc::clone(&self.poller);
        let in_place = Some(InPlace(Arc::clone(self)));
        Answer { answer, in_place, poller, _way: WayOfWoken }
    }

    /// Makes its task, where nobody else has.
    fn spawn(self: Arc<Self>) {
        let task = KeeperTask { keeper: Arc::clone(&self), was_polled: false };
        drop(self.home.handle().spawn(task));
        self.poller.is_spawned.store(true, Relaxed);
    }

    /// The runtime has ended, and so does the keeper.
    pub(super) fn end(&self) {
        let ended = self.state.lock().whole.take();
        drop(ended);
    }

    /// Polls it for whoever has the lock. A panic ends it, as it ends a task.
    fn poll(&self, mut state: MutexGuard<'_, PolledState>, cx: &Context<'_>) -> Poll<()> {
        let Some(whole) = &mut state.whole else { return Poll::Ready(()) };
        drop(self.poller.replace(NextPoller::Again(cx.waker().clone())));
        let waker = Waker::from(Arc::clone(&self.poller));
        // Its requests belong to this runtime, wherever the caller is.
        let _runtime = self.home.handle().enter();
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

impl fmt::Debug for PolledKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolledKeeper").field("poller", &self.poller).finish_non_exhaustive()
    }
}

impl Poller {
    /// Lets the caller go that polls it now. It goes on in its task, or with the next caller.
    pub(super) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// Whether nobody waits for its answer, even if the keeper cannot know that yet.
    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    /// Says who comes next. What was said before may be dropped only without the lock.
    fn replace(&self, next: NextPoller) -> NextPoller {
        std::mem::replace(&mut self.next.lock(), next)
    }
}

impl Wake for Poller {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut next = self.next.lock();
        let woken = std::mem::take(&mut *next);
        if let NextPoller::NewTask(_) = woken {
            self.has_task.store(true, Relaxed);
        }
        drop(next);
        match woken {
            NextPoller::Due => return,
            NextPoller::Again(waker) => waker.wake(),
            NextPoller::NewTask(keeper) => keeper.spawn(),
        }
        WOKE.set(true);
    }
}

/// Lets other workers take what was woken last on this one, before it goes on with a caller's own code: it
/// waits in a slot from which no other worker takes it, and another task takes its place there.
pub(crate) fn make_way() {
    if let Ok(runtime) = Handle::try_current() {
        drop(runtime.spawn(async {}));
    }
}

/// Makes way for those who were woken on this thread since that was last asked.
fn make_way_for_woken() {
    if WOKE.take() {
        make_way();
    }
}

/// The future of an answer, which polls the keeper that gives it.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    // Dropped in this order: the task then finds that nobody waits.
    answer: oneshot::Receiver<T>,
    in_place: Option<InPlace>,
    poller: Arc<Poller>,
    _way: WayOfWoken,
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.poller.has_left.store(true, Relaxed);
        WOKE.set(false);
    }
}

/// Makes way for those whom the drop of all before it has woken: whoever gives up need not await anything for long.
#[derive(Debug)]
struct WayOfWoken;

impl Drop for WayOfWoken {
    fn drop(&mut self) {
        make_way_for_woken();
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        WOKE.set(false);
        let polled = match self.poll_in_place(cx) {
            Poll::Pending => Pin::new(&mut self.answer).poll(cx),
            ready => ready,
        };
        if polled.is_ready() {
            self.in_place = None;
        }
        // Others who wait for the lock, and the keeper itself. The caller need not await anything for long.
        make_way_for_woken();
        let answer = ready!(polled);
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
    fn poll_in_place(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        let Some(InPlace(keeper)) = &self.in_place else { return Poll::Pending };
        // An answer that comes while the caller polls must not wake it: a task that is woken while it runs
        // is polled once more for nothing, and Tokio wakes another thread for that.
        let mut nobody = Context::from_waker(Waker::noop());
        if let Poll::Ready(answer) = Pin::new(&mut self.answer).poll(&mut nobody) {
            return Poll::Ready(answer);
        }
        // The caller's budget is charged for the answer. If it ended here, the keeper would be left half-way.
        let poll = poll_fn(|cx| keeper.poll(keeper.state.lock(), cx));
        let polled = pin!(coop::unconstrained(poll)).poll(cx);
        // It has ended, or wants to go on in its task.
        if polled.is_ready() || keeper.poller.is_over.load(Relaxed) {
            self.in_place = None;
        }
        Poll::Pending
    }
}

/// The right to poll a keeper in place of its task.
#[derive(Debug)]
struct InPlace(Arc<PolledKeeper>);

/// All that the keeper waits for wakes its task from now on.
impl Drop for InPlace {
    fn drop(&mut self) {
        let (state, poller) = (self.0.state.lock(), &self.0.poller);
        poller.in_place.store(false, Relaxed);
        let (task, has_ended) = (state.task.clone(), state.whole.is_none());
        let mut next = poller.next.lock();
        let is_due = has_ended || matches!(*next, NextPoller::Due);
        let has_task = poller.has_task.load(Relaxed);
        let then = match task {
            Some(task) => NextPoller::Again(task),
            None if !has_task && !has_ended => NextPoller::NewTask(Arc::clone(&self.0)),
            // It has not been polled yet, and will be.
            None => return,
        };
        let before = std::mem::replace(&mut *next, then);
        drop((next, state));
        drop(before);
        if self.0.home.is_over() {
            self.0.end();
        } else if is_due {
            poller.wake_by_ref();
        }
    }
}

/// The task of a keeper.
struct KeeperTask {
    keeper: Arc<PolledKeeper>,
    was_polled: bool,
}

impl Future for KeeperTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.was_polled = true;
        let mut state = self.keeper.state.lock();
        state.task = Some(cx.waker().clone());
        if self.keeper.poller.in_place.load(Relaxed) && state.whole.is_some() {
            return Poll::Pending;
        }
        self.keeper.poll(state, cx)
    }
}

/// The runtime ends, or has ended: then a task is dropped where it is made, by whoever wakes the keeper. He may
/// hold any lock, and whoever polls the keeper may wait for that one: so there nothing of the keeper is
/// locked, nor dropped.
impl Drop for KeeperTask {
    fn drop(&mut self) {
        let keeper = Arc::clone(&self.keeper);
        if self.was_polled || keeper.poller.is_spawned.load(Relaxed) {
            keeper.end();
        } else if !keeper.home.ends_later(&keeper) {
            // Without a thread it stays as it is.
            let _ = thread::start("distlock-end", move || keeper.end());
        }
    }
}

/// A runtime that is driven by somebody else, and may end.
#[derive(Debug)]
pub(crate) struct KeeperRuntime {
    handle: Handle,
    end: Arc<RuntimeEnd>,
    _task: AbortOnDropHandle<()>,
}

struct RuntimeEnd {
    ended: CancellationToken,
    /// Those that were woken while it ended; `None` when that is over.
    left: Mutex<Option<Vec<Arc<PolledKeeper>>>>,
}

impl KeeperRuntime {
    pub(crate) fn new(handle: Handle, killed: &CancellationToken) -> Arc<Self> {
        let (ended, left) = (killed.child_token(), Mutex::new(Some(Vec::new())));
        let end = Arc::new(RuntimeEnd { ended, left });
        let lives = EndOfRuntime(Arc::clone(&end));
        let task = handle.spawn(async move {
            let _lives = lives;
            std::future::pending().await
        });
        Arc::new(Self { handle, end, _task: AbortOnDropHandle::new(task) })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Cancelled when the runtime has ended, or the backend is being closed: nobody keeps a lock any more.
    pub(super) fn ended(&self) -> &CancellationToken {
        &self.end.ended
    }

    /// Ends `keeper` when this runtime has ended; false if it has.
    pub(super) fn ends_later(&self, keeper: &Arc<PolledKeeper>) -> bool {
        self.end.left.lock().as_mut().map(|left| left.push(Arc::clone(keeper))).is_some()
    }

    /// Whether nobody will end a keeper that is left to this runtime.
    pub(super) fn is_over(&self) -> bool {
        self.end.left.lock().is_none()
    }
}

impl fmt::Debug for RuntimeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeEnd").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// Dropped with the runtime.
struct EndOfRuntime(Arc<RuntimeEnd>);

impl Drop for EndOfRuntime {
    fn drop(&mut self) {
        self.0.ended.cancel();
        let left = self.0.left.lock().take();
        left.into_iter().flatten().for_each(|keeper| keeper.end());
    }
}
