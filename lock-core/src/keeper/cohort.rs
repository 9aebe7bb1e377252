//! A hold that the tasks of this process may pass on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Keeper;
use super::gate::{Gates, Opened};
use super::terms::Terms;
use crate::contract::Block;
use crate::locks::held::lead;
use crate::mutants::rules;
use crate::{ClockInstant, FencingToken, LockKey, LostReason};

/// How long after its grant a hold may be passed on: whoever waits elsewhere waits for one cohort at
/// most.
const LONGEST: Duration = Duration::from_millis(50);

/// The right to pass one hold on. While there is one, no task of this process asks the store.
#[derive(Debug)]
pub(super) struct Cohort {
    opened: Opened,
    pub(super) block: Block,
    /// How many tasks have had the hold.
    holders: u32,
    pub(super) until: ClockInstant,
}

/// A hold on its way to the next task.
pub(crate) struct Pass {
    pub(super) keeper: Keeper,
    pub(super) cohort: Cohort,
    pub(super) token: FencingToken,
    /// The end of its validity, but for the next holder's `max_hold`.
    pub(super) until: ClockInstant,
}

/// When a hold may be passed on, and with which fence. The tests replace single lines by mistakes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) longest: Duration,
    /// Whether there is a fence for one more.
    pub(crate) has_room: fn(holders: u32, fences: u32) -> bool,
    /// The next fence of a block that begins with `first`.
    pub(crate) fence: fn(first: u64, holders: u32) -> u64,
    /// Whether the hold has ended by the will of its holder.
    pub(crate) is_given_up: fn(LostReason) -> bool,
    /// Whether enough is left of it.
    pub(crate) is_valid: fn(until: ClockInstant, now: ClockInstant) -> bool,
    /// Whether the store has said nothing that was not looked at, and its last answer was a good one.
    pub(crate) is_quiet: fn(bool) -> bool,
    /// Whether a task that waits on `theirs` can have a hold on `ours`.
    pub(crate) joins: fn(ours: &Terms, theirs: &Terms) -> bool,
}

impl Rules {
    pub(crate) const REAL: Self = Self {
        longest: LONGEST,
        has_room: |holders, fences| holders < fences,
        fence: |first, holders| first + u64::from(holders),
        is_given_up: |ended| ended == LostReason::Released,
        is_valid: |until, now| until > now,
        is_quiet: |quiet| quiet,
        joins: |ours, theirs| ours == theirs,
    };
}

impl Cohort {
    /// Of a hold that was granted `now` with the fences of `block`.
    pub(super) fn open(gates: &Gates, key: &LockKey, block: Block, now: ClockInstant) -> Self {
        let until = now + rules().longest;
        Self { opened: gates.open(key, until), block, holders: 1, until }
    }

    /// Whether the hold was passed on at least once.
    pub(super) fn was_passed_on(&self) -> bool {
        self.holders > 1
    }

    /// Passes the hold of `keeper` on, which is valid until then. If that is not possible, the cohort
    /// ends, and the keeper is returned.
    pub(super) fn pass(mut self, keeper: Keeper, until: ClockInstant) -> Option<Keeper> {
        let (rules, clock) = (rules(), Arc::clone(&keeper.client.clock));
        let is_valid = (rules.is_valid)(until.minus(lead(keeper.terms.ttl)), clock.now());
        let fence = (rules.fence)(self.block.first.get(), self.holders);
        match FencingToken::new(fence) {
            Ok(token) if is_valid && (rules.has_room)(self.holders, self.block.fences) => {
                self.holders += 1;
                let pass = Box::new(Pass { keeper, cohort: self, token, until });
                Opened::pass(pass, &*clock).err().map(|pass| pass.keeper)
            }
            _ => Some(keeper),
        }
    }
}

impl Pass {
    /// What allows it to be passed on.
    pub(super) fn opened(&self) -> &Opened {
        &self.cohort.opened
    }

    /// Whether a task that waits on these terms can take the hold.
    pub(super) fn suits(&self, terms: &Terms) -> bool {
        (rules().joins)(&self.keeper.terms, terms)
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("token", &self.token).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_that_ends_at_this_moment_is_not_passed_on() {
        let now = ClockInstant::from_nanos(5);
        assert!(!(Rules::REAL.is_valid)(now, now));
        assert!((Rules::REAL.is_valid)(ClockInstant::from_nanos(6), now));
    }
}
