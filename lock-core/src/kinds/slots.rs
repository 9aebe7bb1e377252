//! The parts of a lock of another kind that have numbers: permits, and where processes are marked as readers.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use super::calls::{again, look};
use super::part::LockPart;
use crate::keeper::{Client, Patience};
use crate::{Lock, LockGuard, LockKey, Result, Seen, jitter};

/// All slots of one lock.
#[derive(Debug)]
pub(super) struct Slots<'a> {
    pub(super) whole: &'a Lock,
    pub(super) part: fn(u32) -> LockPart,
    pub(super) all: Range<u32>,
    pub(super) keys: &'a SlotKeys,
}

/// The names of all slots of one lock, once somebody has looked at them.
#[derive(Debug, Default)]
pub(super) struct SlotKeys(OnceLock<Vec<LockKey>>);

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

    /// Takes the first one, or one of the others, without waiting for any.
    pub(super) async fn take_free(
        &self,
        first: Option<u32>,
        mut others: Vec<u32>,
        patience: Patience,
    ) -> Result<Option<(u32, LockGuard)>> {
        let taken = self.attempt_any(first.into_iter().collect(), patience).await?;
        if taken.is_some() || others.is_empty() {
            return Ok(taken);
        }
        if self.client().capabilities.look {
            others = self.look(others, patience).await?.free;
        } else if !matches!(patience, Patience::Try) {
            // Whoever can wait need not ask for each.
            return Ok(None);
        }
        self.attempt_any(others, patience).await
    }

    /// Tries these one after the other, in an order of chance.
    async fn attempt_any(
        &self,
        mut slots: Vec<u32>,
        patience: Patience,
    ) -> Result<Option<(u32, LockGuard)>> {
        while let Some(slot) = self.pick(&mut slots) {
            let lock = self.lock(slot)?;
            let taken = match patience {
                Patience::Try => lock.try_acquire().await,
                _ => again(self.client(), patience, || lock.try_acquire()).await,
            };
            if let Some(guard) = taken? {
                return Ok(Some((slot, guard)));
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
        let all = self.keys()?;
        let keys: Vec<_> = slots.iter().map(|slot| all[*slot as usize].clone()).collect();
        let mut shown = SlotsSeen::default();
        for (slot, seen) in slots.into_iter().zip(look(self.client(), &keys, patience).await?) {
            let is_free = matches!(seen, Seen::Free { .. });
            if is_free { shown.free.push(slot) } else { shown.held.push(slot) }
        }
        Ok(shown)
    }

    fn keys(&self) -> Result<&[LockKey]> {
        if let Some(keys) = self.keys.0.get() {
            return Ok(keys);
        }
        let keys = self.all.clone().map(|slot| (self.part)(slot).key(self.whole.key()));
        let keys = keys.collect::<Result<_>>()?;
        Ok(self.keys.0.get_or_init(|| keys))
    }

    /// Removes one of these by chance, so that clients that look at the same moment try different ones.
    pub(super) fn pick(&self, slots: &mut Vec<u32>) -> Option<u32> {
        let last = slots.len().checked_sub(1)?;
        // A pause of chance, in nanoseconds: uniform, and it needs no second way to draw.
        let drawn = jitter(&*self.client().rng, Duration::from_nanos(slots.len() as u64));
        Some(slots.swap_remove(usize::try_from(drawn.as_nanos()).unwrap_or(last).min(last)))
    }

    fn client(&self) -> &Client {
        self.whole.client()
    }
}
