//! A runtime whose workers are threads of shuttle. Like Tokio's, it drops a task that is made after its end where
//! that is made.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use shuttle::sync::Condvar;
use shuttle::thread::{self, JoinHandle as Worker};

use crate::mutex::Mutex;

/// A running one.
pub(crate) struct Runtime {
    handle: Handle,
    workers: Vec<Worker<()>>,
}

#[derive(Clone)]
pub(crate) struct Handle(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: shuttle::sync::Mutex<Queue>,
    something: Condvar,
}

#[derive(Default)]
struct Queue {
    woken: VecDeque<Arc<Task>>,
    tasks: Vec<Arc<Task>>,
    /// Its workers stop when nothing is woken any more.
    is_settling: bool,
    has_ended: bool,
}

struct Task {
    runtime: Handle,
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

pub(crate) struct JoinHandle(Arc<Task>);

impl Runtime {
    pub(crate) fn start(workers: usize) -> Self {
        let handle = Handle(Arc::default());
        let worker = |_| {
            let handle = handle.clone();
            thread::spawn(move || handle.work())
        };
        let workers = (0..workers).map(worker).collect();
        Self { handle, workers }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Polls all that is woken still, and says how many tasks are left.
    pub(crate) fn settle(mut self) -> usize {
        self.handle.0.queue.lock().unwrap().is_settling = true;
        self.handle.0.something.notify_all();
        self.workers.drain(..).for_each(|worker| worker.join().unwrap());
        let tasks = self.handle.0.queue.lock().unwrap().tasks.clone();
        let left = tasks.iter().filter(|task| task.future.lock().is_some()).count();
        self.end();
        left
    }

    /// Drops all tasks, those last that were made first.
    pub(crate) fn end(self) {
        let tasks = {
            let mut queue = self.handle.0.queue.lock().unwrap();
            queue.has_ended = true;
            queue.woken.clear();
            std::mem::take(&mut queue.tasks)
        };
        self.handle.0.something.notify_all();
        self.workers.into_iter().for_each(|worker| worker.join().unwrap());
        tasks.iter().rev().for_each(|task| task.drop_future());
    }
}

impl Handle {
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> JoinHandle {
        let future = Mutex::new(Some(Box::pin(future) as _));
        let task = Arc::new(Task { runtime: self.clone(), future });
        let has_ended = {
            let mut queue = self.0.queue.lock().unwrap();
            if !queue.has_ended {
                queue.tasks.push(Arc::clone(&task));
            }
            queue.has_ended
        };
        if has_ended {
            task.drop_future();
        }
        task.wake_by_ref();
        JoinHandle(task)
    }

    /// The requests of a keeper belong to its runtime. Here nobody looks for it.
    pub(crate) fn enter(&self) -> &Self {
        self
    }

    /// A caller has no runtime: making way is a matter of time, not of what happens.
    pub(crate) fn try_current() -> Result<Self, NoRuntime> {
        Err(NoRuntime)
    }

    /// Polls what was woken, until the end.
    fn work(&self) {
        loop {
            let mut queue = self.0.queue.lock().unwrap();
            let task = loop {
                if queue.has_ended {
                    return;
                }
                match queue.woken.pop_front() {
                    Some(task) => break task,
                    None if queue.is_settling => return,
                    None => queue = self.0.something.wait(queue).unwrap(),
                }
            };
            drop(queue);
            task.poll();
        }
    }
}

#[derive(Debug)]
pub(crate) struct NoRuntime;

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

impl fmt::Debug for JoinHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinHandle")
    }
}

impl JoinHandle {
    pub(crate) fn abort(&self) {
        self.0.drop_future();
    }
}

impl Task {
    fn poll(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut future = self.future.lock();
        let Some(polled) = &mut *future else { return };
        if polled.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            let ended = future.take();
            drop(future);
            drop(ended);
        }
    }

    fn drop_future(&self) {
        let future = self.future.lock().take();
        drop(future);
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut queue = self.runtime.0.queue.lock().unwrap();
        if !queue.has_ended && !queue.woken.iter().any(|woken| Arc::ptr_eq(woken, self)) {
            queue.woken.push_back(Arc::clone(self));
            self.runtime.0.something.notify_one();
        }
    }
}
