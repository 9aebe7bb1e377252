//! The kernel's clock, wrong when its mistake is wanted.

use rustix::time::{ClockId, TimerfdClockId};

use crate::testing::Mutant;

#[path = "../clock/kernel.rs"]
mod right;

pub(super) fn clock() -> ClockId {
    if Mutant::is_wanted("counts_while_awake") { ClockId::Monotonic } else { right::clock() }
}

pub(super) fn timer() -> TimerfdClockId {
    if Mutant::is_wanted("counts_while_awake") || Mutant::is_wanted("wakes_while_awake") {
        TimerfdClockId::Monotonic
    } else {
        right::timer()
    }
}
