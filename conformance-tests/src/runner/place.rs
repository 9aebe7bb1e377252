//! The cases that run in this process at one time, so that one can wait until it has the processors for itself.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct Crowd {
    count: Mutex<Count>,
    changed: Condvar,
}

#[derive(Debug)]
struct Count {
    running: usize,
    /// How many wait until no other case runs, or run alone after that.
    aside: usize,
    /// Nobody enters until no one stands aside.
    is_closed: bool,
}

/// A few stand aside until all others are through. So many would keep most threads from their work.
const MANY: usize = 4;

static CROWD: Crowd = Crowd::new();

impl Crowd {
    const fn new() -> Self {
        let count = Count { running: 0, aside: 0, is_closed: false };
        Self { count: Mutex::new(count), changed: Condvar::new() }
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more that runs, as soon as it may.
    fn join(&self, mut count: MutexGuard<'_, Count>, may: impl Fn(&Count) -> bool) {
        while !may(&count) {
            count = self.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
        count.running += 1;
    }
}

/// The place of one case among those that run.
#[derive(Debug)]
pub(crate) struct Place {
    crowd: &'static Crowd,
    is_aside: Cell<bool>,
}

impl Place {
    pub(crate) fn enter() -> Self {
        Self::within(&CROWD)
    }

    fn within(crowd: &'static Crowd) -> Self {
        crowd.join(crowd.count(), |count| !count.is_closed);
        Self { crowd, is_aside: Cell::new(false) }
    }

    /// Waits until no other case runs. Those that wait for it as well go on one after the other.
    pub(crate) fn step_aside(&self) {
        let mut count = self.crowd.count();
        count.running -= 1;
        count.aside += usize::from(!self.is_aside.replace(true));
        count.is_closed |= count.aside >= MANY;
        self.crowd.changed.notify_all();
        self.crowd.join(count, |count| count.running == 0);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut count = self.crowd.count();
        count.running -= 1;
        count.aside -= usize::from(self.is_aside.get());
        count.is_closed &= count.aside > 0;
        self.crowd.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use super::*;

    fn gives_way() {
        // Long enough for the others to come in, if they may.
        for _ in 0..1_000 {
            thread::yield_now();
        }
    }

    #[test]
    fn those_who_step_aside_go_on_alone() {
        static HERE: Crowd = Crowd::new();
        static ASIDE: AtomicUsize = AtomicUsize::new(0);
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        let alone = || {
            assert_eq!(RUNNING.fetch_add(1, SeqCst), 0, "two go on at the same time");
            gives_way();
            RUNNING.fetch_sub(1, SeqCst);
        };
        let busy = Place::within(&HERE);
        thread::scope(|scope| {
            for _ in 0..MANY {
                scope.spawn(|| {
                    let place = Place::within(&HERE);
                    for _ in 0..2 {
                        place.step_aside();
                        alone();
                        ASIDE.fetch_add(1, SeqCst);
                    }
                });
            }
            while !HERE.count().is_closed {
                thread::yield_now();
            }
            let late = scope.spawn(|| {
                let _place = Place::within(&HERE);
                assert_eq!(ASIDE.load(SeqCst), 2 * MANY, "nobody enters before they are through");
            });
            gives_way();
            assert_eq!(ASIDE.load(SeqCst), 0, "they wait for the one that runs");
            drop(busy);
            late.join().unwrap();
        });
        let count = HERE.count();
        assert_eq!((count.running, count.aside, count.is_closed), (0, 0, false));
    }

    #[test]
    fn others_enter_while_few_stand_aside() {
        static HERE: Crowd = Crowd::new();
        let busy = Place::within(&HERE);
        thread::scope(|scope| {
            let aside = scope.spawn(|| Place::within(&HERE).step_aside());
            while HERE.count().aside == 0 {
                thread::yield_now();
            }
            drop(Place::within(&HERE));
            assert!(!aside.is_finished(), "one runs");
            drop(busy);
        });
    }
}
