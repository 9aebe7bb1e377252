//! The parts of a lock of another kind that have numbers: permits, and where processes are marked as readers.

use super::calls::{below, look, shuffled};
use super::part::LockPart;
use crate::keeper::{Client, Patience};
use crate::{Lock, LockGuard, Result, Seen};

/// All slots of one lock.
#[derive(Debug)]
pub(super) struct Slots<'a> {
    pub(super) whole: &'a Lock,
    pub(super) part: fn(u32) -> LockPart,
}

/// Which slots a look has shown to be free, and which to be held.
#[derive(Debug, Default)]
pub(super) struct SlotsSeen {
    pub(super) free: Vec<u32>,
    pub(super) held: Vec<u32>,
}

impl Slots<'_> {
    pub(super) fn lock(&self, slot: u32) -> Result<Lock> {
        self.whole.part((self.part)(slot))
    }

    pub(super) fn locks(&self, slots: impl IntoIterator<Item = u32>) -> Result<Vec<Lock>> {
        slots.into_iter().map(|slot| self.lock(slot)).collect()
    }

    pub(super) async fn attempt(&self, slot: u32) -> Result<Option<(u32, LockGuard)>> {
        Ok(self.lock(slot)?.try_acquire().await?.map(|guard| (slot, guard)))
    }

    /// Tries these one after the other, in an order of chance.
    pub(super) async fn attempt_any(&self, slots: Vec<u32>) -> Result<Option<(u32, LockGuard)>> {
        for slot in shuffled(self.client(), slots) {
            if let Some(taken) = self.attempt(slot).await? {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    pub(super) async fn look(
        &self,
        slots: impl IntoIterator<Item = u32>,
        patience: Patience,
    ) -> Result<SlotsSeen> {
        let slots: Vec<_> = slots.into_iter().collect();
        let key = |slot: &u32| (self.part)(*slot).key(self.whole.key());
        let keys = slots.iter().map(key).collect::<Result<Vec<_>>>()?;
        let mut all = SlotsSeen::default();
        for (slot, seen) in slots.into_iter().zip(look(self.client(), &keys, patience).await?) {
            match seen {
                Seen::Free { .. } => all.free.push(slot),
                Seen::Held { .. } => all.held.push(slot),
            }
        }
        Ok(all)
    }

    /// One of so many, by chance.
    pub(super) fn one_of(&self, count: u32) -> u32 {
        let drawn = below(self.client(), usize::try_from(count).unwrap_or(usize::MAX));
        u32::try_from(drawn).unwrap_or(0)
    }

    fn client(&self) -> &Client {
        self.whole.client()
    }
}
