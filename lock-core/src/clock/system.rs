//! The system's boot-time clock.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "distlock runs on Linux only: it counts leases on CLOCK_BOOTTIME, which runs on while the machine sleeps, and no such clock has been tested on another system"
);

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use crate::mutex::{Mutex, MutexGuard};
use crate::thread::PerProcess;
use rustix::time::{
    Itimerspec, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};

use super::kernel;
use super::timers::{TimerSleep, TimerSource, Timers};
use super::{Clock, ClockInstant, Sleep};

/// `CLOCK_BOOTTIME`, with one boot-time timer for all sleepers.
///
/// `std::time::Instant` and tokio's timers stand still while a Linux machine is suspended
/// (rust-lang/rust#87906); the store's clock does not, so a lease counted on them would seem valid
/// after the machine has slept through its end.
///
/// The first sleeper starts a thread that waits for the timer, so sleeping depends on no runtime
/// and outlives each. All clocks of a process share this thread, and it ends with the last of them.
/// If no thread or file descriptor is left, tokio's timers are used in slices of a second, which
/// needs a Tokio runtime.
///
/// A process that forks without `exec` has no such thread in its child, so what was made before the fork
/// must not be used there: make the clock, and the [`Locks`](crate::Locks), afterwards.
#[derive(Clone, Debug)]
pub struct SystemClock(Arc<Alarm>);

/// This process's alarm.
static SHARED: PerProcess<Weak<Alarm>> = PerProcess::new(Weak::new());

/// The timers of all sleepers, and what wakes them.
#[derive(Debug, Default)]
struct Alarm {
    timers: Mutex<Timers>,
    driver: Mutex<TimerDriver>,
}

#[derive(Debug, Default)]
struct TimerDriver {
    fd: Option<Arc<OwnedFd>>,
    /// When the kernel's timer fires next. It is moved earlier at once, but never later: firing
    /// once in vain is cheaper than a system call for every cancelled sleep.
    armed: Option<ClockInstant>,
    has_warned: bool,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self(SHARED.with(|shared| {
            let alarm = shared.upgrade().unwrap_or_default();
            *shared = Arc::downgrade(&alarm);
            alarm
        }))
    }
}

impl Clock for SystemClock {
    fn now(&self) -> ClockInstant {
        boot_time()
    }

    fn sleep_until(&self, at: ClockInstant) -> Sleep {
        if at == ClockInstant::FAR_FUTURE {
            Box::pin(std::future::pending())
        } else if self.0.start_driver() {
            Box::pin(TimerSleep::new(Arc::clone(&self.0), at))
        } else {
            Box::pin(sliced_sleep(at))
        }
    }
}

impl TimerSource for Alarm {
    fn now(&self) -> ClockInstant {
        boot_time()
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock()
    }

    fn added(&self, timers: &mut Timers) {
        if let Some(earliest) = timers.earliest() {
            self.driver.lock().arm(earliest);
        }
    }
}

impl Alarm {
    /// Starts the timer and its thread when they are first needed.
    fn start_driver(self: &Arc<Self>) -> bool {
        let mut driver = self.driver.lock();
        if driver.fd.is_some() {
            return true;
        }
        match start_thread(Arc::downgrade(self)) {
            Ok(fd) => {
                driver.fd = Some(fd);
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut driver.has_warned, true) {
                    tracing::warn!(%error, "no boot-time timer: loss after a suspend is noticed up to a second late");
                }
                false
            }
        }
    }

    fn fire(&self) -> Vec<Waker> {
        let mut timers = self.timers();
        let due = timers.take_due(boot_time());
        let mut driver = self.driver.lock();
        driver.armed = None;
        if let Some(earliest) = timers.earliest() {
            driver.arm(earliest);
        }
        due
    }
}

impl TimerDriver {
    fn arm(&mut self, at: ClockInstant) {
        if self.armed.is_some_and(|armed| armed <= at) {
            return;
        }
        if let Some(fd) = &self.fd {
            set_timer(fd, at);
            self.armed = Some(at);
        }
    }
}

/// Ends the thread: the timer fires, and the thread finds no clock left.
impl Drop for Alarm {
    fn drop(&mut self) {
        let driver = self.driver.get_mut();
        if let Some(fd) = &driver.fd {
            set_timer(fd, ClockInstant::from_nanos(1));
        }
    }
}

fn start_thread(clock: Weak<Alarm>) -> std::io::Result<Arc<OwnedFd>> {
    let fd = Arc::new(timerfd_create(kernel::timer(), TimerfdFlags::CLOEXEC)?);
    let timer = Arc::clone(&fd);
    std::thread::Builder::new()
        .name("distlock-timer".to_owned())
        .stack_size(128 * 1024)
        .spawn(move || drive(&clock, &timer))?;
    Ok(fd)
}

fn drive(clock: &Weak<Alarm>, timer: &OwnedFd) {
    loop {
        let mut count = [0; 8];
        // It fails only when a signal interrupts it: one check in vain does no harm.
        let _ = rustix::io::read(timer, &mut count);
        let Some(clock) = clock.upgrade() else { return };
        let due = clock.fire();
        drop(clock);
        for waker in due {
            // A waker of a foreign executor may panic; all others of the process depend on this thread.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// Tokio's timer in short slices, each followed by a reading of the boot-time clock.
async fn sliced_sleep(at: ClockInstant) {
    const SLICE: Duration = Duration::from_secs(1);
    loop {
        let left = at.since(boot_time());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(SLICE)).await;
    }
}

fn set_timer(fd: &OwnedFd, at: ClockInstant) {
    // Zero would disarm the timer; no one sleeps until the origin of the clock.
    let nanos = at.as_nanos().max(1);
    let value = Timespec {
        tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
    };
    let timer = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
    timerfd_settime(fd, TimerfdTimerFlags::ABSTIME, &timer).expect(
        "BUG: the timer and its value are valid, and timerfd_settime(2) has no other error",
    );
}

fn boot_time() -> ClockInstant {
    let time = clock_gettime(kernel::clock());
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    ClockInstant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sleepers_wake_in_order_and_in_time() {
        // Its own alarm: other tests sleep, too.
        let clock = SystemClock(Arc::default());
        let start = clock.now();
        let (late, early) =
            (clock.sleep(Duration::from_millis(60)), clock.sleep(Duration::from_millis(20)));
        early.await;
        assert!(clock.now().since(start) >= Duration::from_millis(20));
        late.await;
        assert!(clock.now().since(start) >= Duration::from_millis(60));
        assert!(clock.0.timers().earliest().is_none());
    }

    #[tokio::test]
    async fn an_earlier_sleeper_that_comes_later_is_not_held_up() {
        let clock = SystemClock::default();
        let long = tokio::spawn(clock.sleep(Duration::from_secs(600)));
        tokio::task::yield_now().await;
        let start = clock.now();
        clock.sleep(Duration::from_millis(10)).await;
        assert!(clock.now().since(start) < Duration::from_secs(60));
        long.abort();
    }

    /// A waker of an executor that is gone.
    struct Panics;

    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }

    #[tokio::test]
    async fn a_waker_that_panics_holds_nobody_up() {
        let clock = SystemClock(Arc::default());
        let mut sleep = clock.sleep(Duration::from_millis(10));
        let waker = Waker::from(Arc::new(Panics));
        assert!(sleep.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        clock.sleep(Duration::from_millis(10)).await;
        clock.sleep(Duration::from_millis(10)).await;
    }

    #[tokio::test]
    async fn the_past_is_over_at_once() {
        let clock = SystemClock::default();
        clock.sleep_until(ClockInstant::from_nanos(5)).await;
        clock.sleep(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn without_a_timer_a_sleep_is_no_shorter() {
        let end = boot_time() + Duration::from_millis(5);
        sliced_sleep(end).await;
        assert!(boot_time() >= end);
    }

    #[test]
    fn the_thread_ends_with_its_clock() {
        let clock = SystemClock(Arc::default());
        assert!(clock.0.start_driver());
        let fd = Arc::downgrade(clock.0.driver.lock().fd.as_ref().unwrap());
        drop(clock);
        // The thread holds the other reference to the timer.
        let patience = SystemClock::default();
        let end = patience.now() + Duration::from_secs(60);
        while fd.strong_count() > 0 {
            assert!(patience.now() < end, "the thread lives on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn all_clocks_of_a_process_share_their_thread() {
        let (one, other) = (SystemClock::default(), SystemClock::default());
        assert!(Arc::ptr_eq(&one.0, &other.0));
    }
}
