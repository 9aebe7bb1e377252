//! A task of the [runtime](crate::runtime).

pub(crate) use real_tokio::task::coop;

use std::marker::PhantomData;

use crate::runtime::JoinHandle;

/// Ends its task when it is dropped. All tasks return nothing.
#[derive(Debug)]
pub(crate) struct AbortOnDropHandle<T>(JoinHandle, PhantomData<T>);

impl AbortOnDropHandle<()> {
    pub(crate) fn new(task: JoinHandle) -> Self {
        Self(task, PhantomData)
    }
}

impl<T> Drop for AbortOnDropHandle<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
