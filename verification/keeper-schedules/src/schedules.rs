//! A keeper that gets a lock for one caller, holds it, and does what one or two callers tell it, while each of
//! them, the store and the runtime go on as they like.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use real_tokio::sync::oneshot;
use real_tokio_util::sync::CancellationToken;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Condvar;
use shuttle::{future, thread};

use crate::mutex::Mutex;
use crate::polling::{Answer, KeeperRuntime, PolledKeeper, Poller};
use crate::runtime::Runtime;

const SCHEDULES: usize = 5_000;
/// How many of its steps decide, in the schedules that are searched by priorities.
const DEPTH: usize = 3;
/// So often at most a caller polls before it leaves.
const POLLS: usize = 3;

/// What comes to the keeper from outside: the answers of its store, or the commands of its callers. Whoever brings
/// something wakes the keeper while it holds the lock, and the keeper takes the lock when it waits no more,
/// as many drivers do.
struct Inbox<T>(Mutex<InboxState<T>>);

struct InboxState<T> {
    /// `None` once nobody reads it any more.
    here: Option<VecDeque<T>>,
    waiter: Option<Waker>,
}

struct Waiting<'a, T>(&'a Inbox<T>);

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        let waiter = self.0.0.lock().waiter.take();
        drop(waiter);
    }
}

impl<T> Inbox<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(InboxState { here: Some(VecDeque::new()), waiter: None })))
    }

    fn bring(&self, value: T) {
        let mut inbox = self.0.lock();
        let Some(here) = &mut inbox.here else { return };
        here.push_back(value);
        if let Some(waiter) = inbox.waiter.take() {
            waiter.wake();
        }
    }

    fn close(&self) {
        let left = self.0.lock().here.take();
        drop(left);
    }

    async fn next(&self) -> T {
        let waiting = Waiting(self);
        poll_fn(|cx| {
            let mut inbox = waiting.0.0.lock();
            if let Some(value) = inbox.here.as_mut().and_then(VecDeque::pop_front) {
                return Poll::Ready(value);
            }
            let before = inbox.waiter.replace(cx.waker().clone());
            drop(inbox);
            drop(before);
            Poll::Pending
        })
        .await
    }
}

/// How a keeper has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Done,
    Dropped,
}

/// Where a keeper says so.
#[derive(Default)]
struct End {
    how: shuttle::sync::Mutex<Option<Ending>>,
    known: Condvar,
}

impl End {
    fn tell(&self, how: Ending) {
        self.how.lock().unwrap().get_or_insert(how);
        self.known.notify_all();
    }

    /// If it never comes, all threads wait, which shuttle reports.
    fn awaited(&self) -> Ending {
        let mut how = self.how.lock().unwrap();
        loop {
            match *how {
                Some(how) => return how,
                None => how = self.known.wait(how).unwrap(),
            }
        }
    }
}

/// Dropped with the keeper.
struct EndGuard {
    end: Arc<End>,
    commands: Arc<Inbox<Reply>>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.commands.close();
        self.end.tell(Ending::Dropped);
    }
}

type Reply = oneshot::Sender<()>;

/// A keeper, as all see it.
#[derive(Clone)]
struct Scene {
    store: Arc<Inbox<()>>,
    commands: Arc<Inbox<Reply>>,
    end: Arc<End>,
}

impl Scene {
    fn new() -> Self {
        Self { store: Inbox::new(), commands: Inbox::new(), end: Arc::default() }
    }

    /// One attempt, and what so many callers tell it afterwards: each is one request to the store.
    async fn life(self, answer: Reply, poller: Arc<Poller>, commands: usize) {
        self.store.next().await;
        let _ = answer.send(());
        poller.end();
        for _ in 0..commands {
            let reply = self.commands.next().await;
            self.store.next().await;
            let _ = reply.send(());
        }
    }

    /// The whole keeper, as `lock-core` makes it: it ends with its runtime.
    fn keep(
        self,
        home: Arc<KeeperRuntime>,
        life: impl Future<Output = ()>,
    ) -> impl Future<Output = ()> {
        // Dropped also if it is never polled.
        let guard = EndGuard { end: self.end, commands: self.commands };
        async move {
            let mut ended = pin!(home.ended().cancelled());
            let mut life = pin!(life);
            let how = poll_fn(|cx| {
                if ended.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ending::Dropped);
                }
                life.as_mut().poll(cx).map(|()| Ending::Done)
            });
            guard.end.tell(how.await);
        }
    }
}

/// Waits for the answer, or polls it some times and leaves.
fn wait_or_leave(answer: Answer<()>) {
    let mut answer = Box::pin(answer);
    if thread_rng().gen_bool(0.5) {
        // An error: the keeper has ended without it.
        let _ = future::block_on(answer);
        return;
    }
    for _ in 0..thread_rng().gen_range(0..POLLS) {
        if answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        thread::yield_now();
    }
}

/// `callers`: how many tell the keeper something at the same time. `ends`: whether the runtime ends
/// meanwhile.
fn run(workers: usize, callers: usize, ends: bool) {
    let (runtime, killed, scene) =
        (Runtime::start(workers), CancellationToken::new(), Scene::new());
    let home = KeeperRuntime::new(runtime.handle(), &killed);
    let (reply, answer) = oneshot::channel();
    let keeper = PolledKeeper::new(Arc::clone(&home), |poller| {
        let life = scene.clone().life(reply, poller, callers);
        scene.clone().keep(Arc::clone(&home), life)
    });
    let store = thread::spawn({
        let store = Arc::clone(&scene.store);
        move || (0..=callers).for_each(|_| store.bring(()))
    });
    let mut runtime = Some(runtime);
    let ending = runtime.take_if(|_| ends).map(|runtime| thread::spawn(move || runtime.end()));
    wait_or_leave(keeper.answer(answer));
    let tell = |_| {
        let (keeper, commands) = (Arc::clone(&keeper), Arc::clone(&scene.commands));
        thread::spawn(move || {
            let (reply, answer) = oneshot::channel();
            let answer = keeper.answer(answer);
            commands.bring(reply);
            drop(keeper);
            wait_or_leave(answer);
        })
    };
    let told: Vec<_> = (0..callers).map(tell).collect();
    drop(keeper);
    told.into_iter().chain([store]).chain(ending).for_each(|thread| thread.join().unwrap());
    let how = scene.end.awaited();
    assert!(how == Ending::Done || ends, "the keeper has ended before it was done");
    if let Some(runtime) = runtime {
        // With one of `home`.
        assert_eq!(runtime.settle(), 1, "a task of the keeper is left");
    }
    drop(home);
}

/// A schedule that fails is printed; `shuttle::replay` takes it.
fn check(workers: usize, callers: usize, ends: bool) {
    shuttle::check_random(move || run(workers, callers, ends), SCHEDULES);
    shuttle::check_pct(move || run(workers, callers, ends), SCHEDULES, DEPTH);
}

#[test]
fn a_keeper_does_all_that_it_is_told() {
    check(1, 1, false);
}

#[test]
fn callers_that_come_at_once_are_all_answered() {
    check(2, 2, false);
}

#[test]
fn a_keeper_ends_with_its_runtime() {
    check(1, 1, true);
}

#[test]
fn callers_that_come_at_once_hear_of_the_end_of_the_runtime() {
    check(2, 2, true);
}
