//! The kernel's clock on which leases are counted: it runs on while the machine sleeps.

use rustix::time::{ClockId, TimerfdClockId};

pub(super) const fn clock() -> ClockId {
    ClockId::Boottime
}

/// The same clock, as timers name it.
pub(super) const fn timer() -> TimerfdClockId {
    TimerfdClockId::Boottime
}
