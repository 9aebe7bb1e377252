//! Compares what those believe who share a name with each other, and with what the store has.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use lock_core::{FenceCheck, FencingToken, Held, LockKey, LockState, OwnerId};

use crate::property::{Property, Violation};
use crate::world::{Time, nanos};

/// What a task has of a name that it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    Permit { slot: u32, permits: u32 },
    Read,
    Write,
}

impl Share {
    /// Whether another task can have that at the same time.
    fn allows(self, other: Self) -> bool {
        match (self, other) {
            (Self::Permit { slot, .. }, Self::Permit { slot: other, .. }) => slot != other,
            (Self::Read, Self::Read) => true,
            (Self::Read | Self::Write, Self::Read | Self::Write) => false,
            // Two locks, which have nothing to do with each other.
            _ => true,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Sharers {
    holds: Vec<Hold>,
    /// The owners of what an operator has taken away.
    taken: HashSet<OwnerId>,
    /// The greatest token of each permit.
    greatest: BTreeMap<(LockKey, u32), FencingToken>,
    /// What is read and written.
    registers: BTreeMap<LockKey, Register>,
    /// Who waits for each name, and for which share of it.
    waiting: Vec<(LockKey, Wish)>,
    /// Since when one of them waits for what nobody has.
    idle_since: BTreeMap<(LockKey, Wish), Time>,
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    Permit { of: u32 },
    ReadOrWrite,
}

/// How long a permit, or a name that nobody reads or writes, may be waited for when there are no faults: several of
/// the longest pauses between two polls, one for each step.
const IDLE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Hold {
    held: Held,
    share: Share,
}

impl Hold {
    fn is_believed(&self) -> bool {
        !matches!(self.held.state(), LockState::Lost(_))
    }
}

/// A resource that checks tokens, and who has shown it which.
#[derive(Debug, Default)]
struct Register {
    check: FenceCheck,
    shown: Vec<(Share, FencingToken)>,
}

impl Register {
    /// Whoever has come later lets nobody in who has come earlier.
    fn admit(&mut self, share: Share, token: FencingToken) -> Result<(), String> {
        admit(&mut self.check, share, token)?;
        for (earlier, shown) in self.shown.iter().filter(|(earlier, _)| !earlier.allows(share)) {
            if admit(&mut self.check.clone(), *earlier, *shown).is_ok() {
                return Err(format!("{earlier:?} {shown} is let in after {share:?} {token}"));
            }
        }
        self.shown.push((share, token));
        Ok(())
    }
}

fn admit(check: &mut FenceCheck, share: Share, token: FencingToken) -> Result<(), String> {
    let admitted = match share {
        Share::Read => check.admit_reader(token),
        _ => check.admit(token),
    };
    admitted.map_err(|error| error.to_string())
}

impl Sharers {
    /// A task has got its share of a name.
    pub(crate) fn granted(
        &mut self,
        held: &Held,
        share: Share,
        is_stored: bool,
    ) -> Result<(), Violation> {
        // Its holder learns of it after the fact.
        if self.taken.contains(&held.owner()) {
            return Ok(());
        }
        let of_the_name = self.holds.iter().filter(|hold| hold.held.key() == held.key());
        let mut others = of_the_name.filter(|hold| !hold.share.allows(share));
        if let Some(other) = others.find(|hold| hold.is_believed()) {
            let what = format!("{:?} and {share:?} are both believed", other.share);
            return Err(Violation::new(Property::Sharing, what));
        }
        if !is_stored {
            let what = format!("{share:?} was granted, and the store no longer has it");
            return Err(Violation::new(Property::ValidNoLonger, what));
        }
        self.has_token(held, share)?;
        self.holds.push(Hold { held: held.clone(), share });
        Ok(())
    }

    fn has_token(&mut self, held: &Held, share: Share) -> Result<(), Violation> {
        let Ok(token) = held.token() else { return Ok(()) };
        if let Share::Permit { slot, permits } = share {
            let before = self.greatest.insert((held.key().clone(), slot), token);
            if slot >= permits {
                let what = format!("there are {permits} permits, and this is number {slot}");
                return Err(Violation::new(Property::Sharing, what));
            }
            if before.is_some_and(|before| before >= token) {
                let what = format!("{token} of permit {slot} was granted after {before:?}");
                return Err(Violation::new(Property::RisingFences, what));
            }
            return Ok(());
        }
        let register = self.registers.entry(held.key().clone()).or_default();
        let admitted = register.admit(share, token);
        admitted.map_err(|what| Violation::new(Property::RisingFences, what))
    }

    /// A task begins to wait.
    pub(crate) fn waits(&mut self, key: &LockKey, wish: Wish) {
        self.waiting.push((key.clone(), wish));
    }

    /// It no longer waits.
    pub(crate) fn waits_no_longer(&mut self, key: &LockKey, wish: Wish) {
        let mut waiting = self.waiting.iter();
        if let Some(at) = waiting.position(|(waiting, other)| waiting == key && *other == wish) {
            self.waiting.swap_remove(at);
        }
    }

    /// Without faults, nobody waits for long for what nobody has.
    pub(crate) fn look_for_starvation(&mut self, now: Time) -> Result<(), Violation> {
        let mut idle_since = std::mem::take(&mut self.idle_since);
        idle_since.retain(|wanted, _| self.waiting.contains(wanted) && self.has_room(wanted));
        for wanted in self.waiting.iter().filter(|wanted| self.has_room(wanted)) {
            let since = *idle_since.entry(wanted.clone()).or_insert(now);
            if now - since > nanos(IDLE) {
                let what = format!("{:?} of {} is waited for and unused", wanted.1, wanted.0);
                return Err(Violation::new(Property::NoStarvation, what));
            }
        }
        self.idle_since = idle_since;
        Ok(())
    }

    fn has_room(&self, (key, wish): &(LockKey, Wish)) -> bool {
        let shares = self.holds.iter().filter(|hold| hold.held.key() == key);
        let is_permit = |hold: &&Hold| matches!(hold.share, Share::Permit { .. });
        match wish {
            Wish::Permit { of } => shares.filter(is_permit).count() < *of as usize,
            Wish::ReadOrWrite => shares.filter(|hold| !is_permit(hold)).count() == 0,
        }
    }

    /// The store has ended the hold of this owner.
    pub(crate) fn ended(&mut self, owner: OwnerId) -> Result<(), Violation> {
        let ended = self.holds.extract_if(.., |hold| hold.held.owner() == owner);
        match ended.filter(Hold::is_believed).last() {
            Some(hold) => {
                let what = format!("{:?} is believed, and the store has ended it", hold.share);
                Err(Violation::new(Property::ValidNoLonger, what))
            }
            None => Ok(()),
        }
    }

    /// An operator takes what this owner has.
    pub(crate) fn taken(&mut self, owner: OwnerId) {
        self.taken.insert(owner);
        self.holds.retain(|hold| hold.held.owner() != owner);
    }
}
