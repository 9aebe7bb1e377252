//! What has been seen in one phase: the holds of each lock, and what their holders ran into.

use std::collections::{BTreeMap, HashMap};

use conformance_tests::shared::HoldRecord;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::parts::Parts;
use crate::protocol::{Ended, Say, Seen};

/// A loss, as its holder was told.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Loss {
    pub(crate) name: usize,
    pub(crate) at: u64,
    pub(crate) reason: String,
    /// Nanoseconds after the end of validity.
    pub(crate) late: u64,
    /// For how long the holder itself had not run since then.
    pub(crate) stalled: u64,
}

/// A hold whose end has not been told.
#[derive(Debug)]
struct Open {
    /// The worker that has it; none while it is in the form of a lease token.
    worker: Option<usize>,
    name: usize,
    hold: HoldRecord,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    parts: Parts,
    open: HashMap<u64, Open>,
    /// By name.
    holds: Vec<Vec<HoldRecord>>,
    /// When each name was granted last.
    last_grant: Vec<u64>,
    pub(crate) losses: Vec<Loss>,
    pub(crate) seen: BTreeMap<Seen, u64>,
    /// In microseconds.
    pub(crate) waits: Histogram<u64>,
    pub(crate) grants: u64,
}

impl Ledger {
    pub(crate) fn new(parts: Parts, waits: Histogram<u64>) -> Self {
        let names = parts.reads() + 1;
        Self {
            parts,
            open: HashMap::new(),
            holds: vec![Vec::new(); names],
            last_grant: vec![0; names],
            losses: Vec::new(),
            seen: BTreeMap::new(),
            waits,
            grants: 0,
        }
    }

    /// Takes down what a worker says, as far as it concerns the holds.
    pub(crate) fn note(&mut self, worker: usize, said: &Say) {
        match said {
            Say::Granted { hold, name, invoked, granted, fence, valid_until } => {
                let client = u32::try_from(worker).unwrap_or(u32::MAX);
                let record = HoldRecord::new(client, *invoked, *granted, *fence, *valid_until);
                self.open.insert(*hold, Open { worker: Some(worker), name: *name, hold: record });
                self.granted(*name, *granted);
                self.waits.saturating_record(((granted - invoked) / 1000).max(1));
                self.grants += 1;
            }
            Say::Releasing { hold, at } => {
                if let Some(open) = self.open.get_mut(hold) {
                    open.hold.release_invoked = Some(*at);
                }
            }
            Say::Ended(ended) => self.end(ended),
            Say::Detached { hold, .. } => {
                if let Some(open) = self.open.get_mut(hold) {
                    open.worker = None;
                }
            }
            Say::Saw(seen) => *self.seen.entry(*seen).or_default() += 1,
            _ => {}
        }
    }

    /// A permit is a permit, whichever its slot.
    fn granted(&mut self, name: usize, at: u64) {
        let slots = self.parts.slots();
        let all = if slots.contains(&name) { slots } else { name..name + 1 };
        for last in &mut self.last_grant[all] {
            *last = at.max(*last);
        }
    }

    fn end(&mut self, ended: &Ended) {
        let Some(Open { name, mut hold, .. }) = self.open.remove(&ended.hold) else { return };
        // Not the greater of both: a lock that was taken away has ended before its lease.
        hold.valid_until = ended.valid_until;
        hold.release_invoked = ended.release_invoked;
        hold.released = ended.released;
        if let Some(lost) = &ended.lost {
            hold.lost = Some(lost.at);
            self.losses.push(Loss {
                name,
                at: lost.at,
                reason: lost.reason.clone(),
                late: lost.at.saturating_sub(ended.valid_until),
                stalled: lost.stalled,
            });
        }
        self.holds[name].push(hold);
    }

    /// A worker was killed at this moment: it believes in nothing any more.
    pub(crate) fn died(&mut self, worker: usize, at: u64) {
        let dead = self.open.iter().filter(|(_, open)| open.worker == Some(worker));
        let dead: Vec<_> = dead.map(|(hold, _)| *hold).collect();
        for hold in dead {
            if let Some(Open { name, mut hold, .. }) = self.open.remove(&hold) {
                hold.lost = Some(at);
                self.holds[name].push(hold);
            }
        }
    }

    /// The worker and the name of a hold that has not ended, if there is one.
    pub(crate) fn some_holder(&self, pick: u64) -> Option<(usize, usize)> {
        let mut held: Vec<_> = self.open.iter().collect();
        held.sort_by_key(|(hold, _)| **hold);
        let at = usize::try_from(pick).unwrap_or(0).checked_rem(held.len())?;
        let open = held[at].1;
        Some((open.worker?, open.name))
    }

    /// The name of a plain lock that a worker holds, if there is one.
    pub(crate) fn name_held_by(&self, worker: usize) -> Option<usize> {
        let plain = |open: &&Open| open.worker == Some(worker) && open.name < self.parts.plain;
        let newest = self.open.values().filter(plain);
        newest.max_by_key(|open| open.hold.granted).map(|open| open.name)
    }

    /// The names that were not granted since this moment.
    pub(crate) fn stuck_since(&self, moment: u64) -> Vec<usize> {
        let stuck = self.last_grant.iter().enumerate().filter(|(_, last)| **last < moment);
        stuck.map(|(name, _)| name).collect()
    }

    /// All holds by name. One that nobody has ended lasts as long as its holder could believe.
    pub(crate) fn into_holds(mut self) -> Vec<Vec<HoldRecord>> {
        for (_, Open { name, hold, .. }) in self.open.drain() {
            self.holds[name].push(hold);
        }
        self.holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The store may have granted the lock to the next one before the death of the worker is noticed.
    #[test]
    fn a_worker_that_is_killed_while_it_releases_believes_in_nothing() {
        let mut ledger = Ledger::new(Parts::new(1, 1), Histogram::new(3).unwrap());
        for hold in [1, 2] {
            let (invoked, granted, fence, valid_until) = (hold, hold + 1, hold, 1000);
            ledger.note(0, &Say::Granted { hold, name: 0, invoked, granted, fence, valid_until });
        }
        ledger.note(0, &Say::Releasing { hold: 1, at: 50 });
        ledger.died(0, 90);
        let mut holds = ledger.into_holds().remove(0);
        holds.sort_by_key(|hold| hold.fence);
        assert_eq!([holds[0].end(), holds[1].end()], [50, 90]);
    }
}
