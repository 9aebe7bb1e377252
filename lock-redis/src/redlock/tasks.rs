//! Requests to all nodes at once, and what goes on after a call has returned.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;

/// Questions to several nodes, each with the number of its node. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Round<T>(JoinSet<(usize, T)>);

impl<T: Send + 'static> Round<T> {
    pub(crate) fn new<F>(questions: impl IntoIterator<Item = (usize, F)>) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut round = JoinSet::new();
        for (node, question) in questions {
            round.spawn(async move { (node, question.await) });
        }
        Self(round)
    }

    /// The next answer; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        loop {
            if let Ok(answer) = self.0.join_next().await? {
                return Some(answer);
            }
        }
    }
}

/// Tasks that end with their client, or with their runtime. `None` once they are closed.
#[derive(Debug)]
pub(crate) struct Tasks(Mutex<Option<JoinSet<()>>>);

impl Default for Tasks {
    fn default() -> Self {
        Self(Mutex::new(Some(JoinSet::new())))
    }
}

impl Tasks {
    fn set(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `task` apart from any call. Without a runtime, and once closed, it is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut set = self.set();
        match &mut *set {
            Some(tasks) => {
                while tasks.try_join_next().is_some() {}
                tasks.spawn_on(task, &runtime);
            }
            None => {
                drop(set);
                // Without the lock: a task that is dropped may want to spawn another one.
                drop(task);
            }
        }
    }

    /// Waits until there are none, those included that are spawned meanwhile.
    pub(crate) async fn finish(&self) {
        loop {
            let tasks = self.set().as_mut().map(std::mem::take);
            let Some(mut tasks) = tasks.filter(|tasks| !tasks.is_empty()) else { return };
            while tasks.join_next().await.is_some() {}
        }
    }

    /// Ends all tasks, and those to come.
    pub(crate) fn close(&self) {
        let tasks = self.set().take();
        drop(tasks);
    }
}
