//! When to sweep, and where.

use std::sync::atomic::AtomicBool;
#[cfg(test)]
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lock_core::ClockInstant;

use super::value::Value;

/// When to sweep, and where the last sweep stopped.
#[derive(Debug)]
pub(crate) struct Sweeper {
    due_at: Mutex<Option<ClockInstant>>,
    pub(super) running: AtomicBool,
    pub(super) swept: AtomicBool,
    last: Mutex<Value>,
}

impl Default for Sweeper {
    fn default() -> Self {
        Self {
            due_at: Mutex::default(),
            running: AtomicBool::new(false),
            swept: AtomicBool::new(false),
            last: Mutex::new(Value::from("")),
        }
    }
}

impl Sweeper {
    pub(super) fn due(&self) -> MutexGuard<'_, Option<ClockInstant>> {
        self.due_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn after(&self) -> MutexGuard<'_, Value> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No sweep begins by itself any more.
    #[cfg(test)]
    pub(crate) fn stop(&self) {
        self.swept.store(true, Ordering::Release);
        self.running.store(true, Ordering::Release);
    }
}

/// What a step of the sweep has seen.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Name and fence of the rows that can go.
    pub(crate) gone: Vec<(Value, i64)>,
    /// The last name, if there may be more.
    pub(super) next: Option<Value>,
}

impl Page {
    pub(crate) fn greatest(&self) -> Option<i64> {
        self.gone.iter().map(|(_, fence)| *fence).max()
    }
}
