//! A mutex that a panic does not poison: what the core keeps behind one changes in single steps.

use std::sync::PoisonError;

pub(crate) use std::sync::MutexGuard;

/// The standard library's. With that of `parking_lot`, which the stores use, a lock goes from one task to
/// another in half as much time again: the one wakes the other while it still has the mutex, and that one
/// yields its processor instead of trying again.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
