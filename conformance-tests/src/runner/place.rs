//! The cases that run in this process at one time, so that one can wait until it has the processors for itself.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct Crowd {
    running: Mutex<usize>,
    fewer: Condvar,
}

static CROWD: Crowd = Crowd { running: Mutex::new(0), fewer: Condvar::new() };

impl Crowd {
    fn running(&self) -> MutexGuard<'_, usize> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self) {
        *self.running() -= 1;
        self.fewer.notify_all();
    }
}

/// The place of one case among those that run.
#[derive(Debug)]
pub(crate) struct Place(&'static Crowd);

impl Place {
    pub(crate) fn enter() -> Self {
        Self::within(&CROWD)
    }

    fn within(crowd: &'static Crowd) -> Self {
        *crowd.running() += 1;
        Self(crowd)
    }

    /// Waits until no other case runs. Those that wait for it as well go on one after the other.
    pub(crate) fn step_aside(&self) {
        self.0.leave();
        let mut running = self.0.running();
        while *running > 0 {
            running = self.0.fewer.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        *running += 1;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use super::*;

    #[test]
    fn those_who_step_aside_go_on_alone() {
        static HERE: Crowd = Crowd { running: Mutex::new(0), fewer: Condvar::new() };
        static ENTERED: AtomicUsize = AtomicUsize::new(0);
        static GONE_ON: AtomicUsize = AtomicUsize::new(0);
        static ALONE: AtomicUsize = AtomicUsize::new(0);
        let busy = Place::within(&HERE);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let place = Place::within(&HERE);
                    ENTERED.fetch_add(1, SeqCst);
                    place.step_aside();
                    GONE_ON.fetch_add(1, SeqCst);
                    assert_eq!(ALONE.fetch_add(1, SeqCst), 0, "two go on at the same time");
                    // Long enough for the others to come in, if they may.
                    for _ in 0..1_000 {
                        thread::yield_now();
                    }
                    ALONE.fetch_sub(1, SeqCst);
                });
            }
            while ENTERED.load(SeqCst) < 4 || *HERE.running() > 1 {
                thread::yield_now();
            }
            assert_eq!(GONE_ON.load(SeqCst), 0, "they wait for the one that runs");
            drop(busy);
        });
        assert_eq!((*HERE.running(), GONE_ON.load(SeqCst)), (0, 4));
    }
}
