//! Tests of the tests: stores and guards that are wrong on purpose.
//!
//! Each mutant makes one mistake that has been made before, around a correct memory store. The
//! suite must fail each one, in the case named by [`killed_by`](lock_core::testing::Mutant::killed_by); a suite that lets one live
//! proves nothing about the rule that it breaks. Store authors can run them to see what a failure
//! looks like.

mod backend;
mod bug;
mod claim;
mod guard;
mod habit;
mod hasty;
mod later;
mod look;
mod past;
mod place;
mod side;
mod view;

use std::sync::Arc;

use lock_core::testing::TokioClock;
use lock_core::{Clock, LockBackend, LocksBuilder};

use self::backend::WrongBackend;
use self::bug::{Bug, Flavour};
use self::guard::{ConstantRng, SlowClock, StoppedClock, TimersNeverFire};
use self::habit::WrongHabit;
use self::hasty::HastyBackend;
use self::later::WrongLater;
use self::look::WrongLook;
use self::past::WrongPast;
use self::side::Side;
use self::view::WrongView;
use crate::MemoryHarness;

pub use self::bug::{SuiteMutant, mutants};

/// The password with which the stores of the mutants are opened: some of them print it.
pub const PASSWORD: &str = "s3cr3t-of-the-mutants";

impl SuiteMutant {
    /// Makes this mistake around the clients of one correct store, whichever it is: for mistakes
    /// that are not the memory store's alone, such as two requests where one is right.
    pub fn wrap(&self) -> impl Fn(Arc<dyn LockBackend>) -> Arc<dyn LockBackend> + use<> {
        let (bug, side) = (self.bug, Arc::new(Side::new(TokioClock::default())));
        move |right| {
            let hasty = HastyBackend::new(bug, right, Arc::clone(&side));
            let wrong = WrongBackend::new(bug, Arc::new(hasty), Arc::clone(&side));
            let habit = WrongHabit::new(bug, Arc::new(wrong), Arc::clone(&side));
            let view = WrongView::new(bug, Arc::new(habit), Arc::clone(&side));
            let past = WrongPast::new(bug, Arc::new(view), Arc::clone(&side));
            let look = WrongLook::new(bug, Arc::new(past), Arc::clone(&side));
            Arc::new(WrongLater::new(bug, Arc::new(look), Arc::clone(&side)))
        }
    }

    /// The harness with which [`run`](crate::run) tests this mutant.
    pub fn harness(&self) -> MemoryHarness {
        let bug = self.bug;
        let right = match self.flavour {
            Flavour::Queued => MemoryHarness::queued(),
            Flavour::PollOnly => MemoryHarness::poll_only(),
        };
        let name = format!("mutant-{}", self.mutant.name);
        right
            .wrapped(name, self.wrap())
            .configured(move |builder| wrong_guard(bug, builder))
            .opened_with(PASSWORD)
    }
}

/// The mistakes made outside the store.
fn wrong_guard(bug: Bug, builder: LocksBuilder) -> LocksBuilder {
    let right = TokioClock::default();
    match bug {
        Bug::TimersNeverFire => builder.clock(TimersNeverFire(right)),
        Bug::SlowClock => builder.clock(SlowClock { right, origin: right.now() }),
        Bug::ClockStopsInSuspend => builder.clock(StoppedClock::new(right)),
        Bug::ConstantRng => builder.rng(ConstantRng),
        _ => builder,
    }
}
