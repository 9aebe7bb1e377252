//! A Tokio runtime that runs only while it is driven.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use tokio::runtime::{Builder, Handle, Runtime};

use crate::world::Time;

#[derive(Debug)]
pub(crate) struct Driven {
    /// `None` once it has ended.
    runtime: Option<Runtime>,
    idle: Arc<Idle>,
    pub(crate) stands_until: Time,
    /// Something has happened since it was driven.
    pub(crate) is_stirred: bool,
}

#[derive(Debug, Default)]
struct Idle {
    is_parked: AtomicBool,
    root: Mutex<Option<Waker>>,
}

impl Driven {
    pub(crate) fn new() -> io::Result<Self> {
        let idle = Arc::new(Idle::default());
        let parks = Arc::clone(&idle);
        let runtime = Builder::new_current_thread()
            .on_thread_park(move || {
                parks.is_parked.store(true, Relaxed);
                if let Some(root) = &*parks.root.lock().unwrap_or_else(PoisonError::into_inner) {
                    root.wake_by_ref();
                }
            })
            .build()?;
        Ok(Self { runtime: Some(runtime), idle, stands_until: 0, is_stirred: false })
    }

    pub(crate) fn handle(&self) -> Option<Handle> {
        self.runtime.as_ref().map(|runtime| runtime.handle().clone())
    }

    /// Runs its tasks until none is ready.
    pub(crate) fn drive(&self) {
        let Some(runtime) = &self.runtime else { return };
        self.idle.is_parked.store(false, Relaxed);
        runtime.block_on(poll_fn(|cx| {
            if self.idle.is_parked.load(Relaxed) {
                return Poll::Ready(());
            }
            let mut root = self.idle.root.lock().unwrap_or_else(PoisonError::into_inner);
            *root = Some(cx.waker().clone());
            Poll::Pending
        }));
    }

    /// Ends it, with all its tasks.
    pub(crate) fn end(&mut self) {
        self.runtime = None;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.runtime.is_none()
    }
}
