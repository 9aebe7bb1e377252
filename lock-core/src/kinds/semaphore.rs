//! Permits: at most so many holders at a time.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::calls::{busy, first_of, is_polled, pause, take};
use super::slots::{SlotKeys, Slots};
use super::{LockPart, guard, rules, settings};
use crate::keeper::{Client, Patience};
use crate::mutex::Mutex;
use crate::{
    Error, ErrorKind, Held, Lock, LockGuard, LockState, Locks, LostReason, Released, Result,
    blocking,
};

/// At most n holders of one name at a time, whatever fails, from
/// [`Locks::semaphore`](crate::Locks::semaphore). Cheap to clone. Creating one sends nothing.
///
/// ```
/// # use lock_core as distlock;
/// use distlock::{Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// let gpus = locks.semaphore("gpu", 4)?;
/// let permit = gpus.acquire().await?;             // waits while all four are taken
/// println!("use GPU number {}", permit.slot());   // from 0 to 3, and nobody else has this one
/// permit.release().await?;
/// # Ok(()) }
/// ```
///
/// # What a permit is
///
/// Each permit is an exclusive lock, and there are as many of these as permits. So it promises what such a
/// lock promises: it is renewed, its loss is [reported](crate::Held::lost) in time, and its [token](crate::Held::token)
/// rises from one holder of the same [slot](Permit::slot) to the next. Tokens of two slots cannot be
/// compared.
///
/// All clients should use the same number of permits. While a new number is being rolled out, each client uses
/// its own: one with fewer permits leaves the higher slots to others. Whoever queues behind it waits until it is served,
/// even if one of those slots is free.
///
/// # Who is next
///
/// A client that finds a permit free takes it. Clients that wait for one form a queue, in the order in which
/// the store serves its waiters. A newcomer in another process can overtake them at the moment when a permit
/// is free; tasks of the same process do not. If the process of the first waiter dies, the others wait for up to three
/// seconds, or for the store's shortest TTL if that is longer, even if a permit is free.
///
/// The first waiter has a place in the queue of every slot, so waiting costs as many requests as there are
/// slots. With more than 16 that is expensive.
///
/// There is no call that takes several permits. Two clients that each have half of what they need would wait for
/// each other forever: take one permit for each piece of work, or use a
/// [set of locks](crate::Locks::all) if the pieces have names.
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until a permit is acquired"]
pub struct Semaphore {
    lock: Lock,
    permits: u32,
    slot_keys: Arc<SlotKeys>,
    in_use: Arc<PermitsInUse>,
}

settings!(Semaphore);

/// What the tasks of one process have of one semaphore.
#[derive(Debug, Default)]
pub(super) struct PermitsInUse {
    /// Who has which slot, for as long as that lasts.
    slots: Mutex<HashMap<u32, Weak<Held>>>,
    /// Each task that waits has one of these: others of its process do not pass it.
    waiters: Arc<()>,
}

impl Locks {
    /// The semaphore with this name, of which at most `permits` are held at a time. Nothing is sent.
    ///
    /// A semaphore and a lock of the same name have nothing to do with each other.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) unless the name has 1 to 506 bytes of UTF-8 without control
    /// characters, and there are 1 to 256 permits.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Semaphore> {
        if !(1..=Semaphore::MOST_PERMITS).contains(&permits) {
            return Err(Error::invalid(format!(
                "a semaphore of {permits} permits is out of range: it must have between 1 and {}",
                Semaphore::MOST_PERMITS
            )));
        }
        let lock = self.whole(name)?;
        let in_use = self.0.kinds.semaphores.of(lock.key());
        Ok(Semaphore { lock, permits, slot_keys: Arc::default(), in_use })
    }
}

impl Semaphore {
    /// The greatest number of permits.
    pub const MOST_PERMITS: u32 = 256;

    /// How many permits there are.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Takes a permit, waiting for as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn acquire(&self) -> Result<Permit> {
        self.take(Patience::Forever).await
    }

    /// Takes a permit, waiting for at most `limit`; with a limit of zero, only if one is free.
    ///
    /// # Errors
    ///
    /// [`NotAcquired`](ErrorKind::NotAcquired) if all permits were taken; otherwise as
    /// [`Lock::acquire_timeout`](crate::Lock::acquire_timeout).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Permit> {
        self.take(self.client().patience(limit)).await
    }

    /// Takes a permit if one is free and no other task of this process waits for one; `None` otherwise.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let imports = locks.semaphore("imports", 2)?;
    /// let (first, second) = (imports.try_acquire().await?, imports.try_acquire().await?);
    /// assert!(first.is_some() && second.is_some());
    /// assert!(imports.try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`](crate::Lock::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Permit>> {
        Error::unless_busy(self.take(Patience::Try).await)
    }

    /// Takes a permit, runs `body` under it, then releases it. If the permit is lost, the body is dropped at
    /// its next await.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire) and [`Permit::run`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body, and releases the permit in the background.
    pub async fn run<T, F>(&self, body: F) -> Result<T>
    where
        F: AsyncFnOnce(Held) -> T,
    {
        self.acquire().await?.run(body).await
    }

    /// [`acquire`](Self::acquire) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire) and
    /// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
    pub fn acquire_blocking(&self) -> Result<Permit> {
        blocking::wait(self.client(), self.acquire())
    }

    /// [`acquire_timeout`](Self::acquire_timeout) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](Self::acquire_timeout) and
    /// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
    pub fn acquire_timeout_blocking(&self, limit: Duration) -> Result<Permit> {
        blocking::wait(self.client(), self.acquire_timeout(limit))
    }

    /// [`try_acquire`](Self::try_acquire) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire) and
    /// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
    pub fn try_acquire_blocking(&self) -> Result<Option<Permit>> {
        blocking::wait(self.client(), self.try_acquire())
    }

    async fn take(&self, patience: Patience) -> Result<Permit> {
        let search = || self.clone().search(patience);
        take(&self.lock, patience, search, Permit::set_min_hold).await
    }

    async fn search(self, patience: Patience) -> Result<Permit> {
        self.try_or_queue(patience).await.map_err(|error| match error.kind() {
            // Who has the turnstile, or one of the slots, is nobody's concern.
            ErrorKind::NotAcquired => {
                Error::new(error.kind(), format!("all {} permits are taken", self.permits))
            }
            _ => error,
        })
    }

    async fn try_or_queue(&self, patience: Patience) -> Result<Permit> {
        if rules::may_try(Arc::strong_count(&self.in_use.waiters) - 1)
            && let Some(permit) = self.free_one(patience).await?
        {
            return Ok(permit);
        }
        if matches!(patience, Patience::Try) {
            return Err(busy());
        }
        let _waits = Arc::clone(&self.in_use.waiters);
        loop {
            // It gives an order to those who wait, and only the first of them asks for permits.
            let turn = self.turnstile()?.take(patience).await?;
            tokio::select! {
                biased;
                // Another one may be the first now: this one gives up its places.
                _ = rules::turn_ends(&turn) => {}
                permit = self.next_one(patience) => return permit,
            }
        }
    }

    /// A permit that nobody has, without waiting for one.
    async fn free_one(&self, patience: Patience) -> Result<Option<Permit>> {
        let (slots, mut others) = (self.slots(), self.slots_of_others());
        let first = slots.pick(&mut others);
        let taken = slots.take_free(first, others, patience).await?;
        Ok(taken.map(|taken| self.permit(taken)))
    }

    /// Waits for the next permit that is free.
    async fn next_one(&self, patience: Patience) -> Result<Permit> {
        let slots = self.slots();
        if !is_polled(self.client()) {
            let (at, guard) = first_of(&slots.locks(slots.all.clone())?, patience).await?;
            return Ok(self.permit((u32::try_from(at).unwrap_or(u32::MAX), guard)));
        }
        for looks in 1.. {
            let taken = slots.take_free(None, slots.all.clone().collect(), patience).await?;
            if let Some(taken) = taken {
                return Ok(self.permit(taken));
            }
            pause(self.client(), patience, looks).await?;
        }
        Err(busy())
    }

    /// The slots that no task of this process has.
    fn slots_of_others(&self) -> Vec<u32> {
        let ours = self.in_use.slots.lock();
        let is_ours = |slot: &u32| {
            let held = ours.get(slot).and_then(Weak::upgrade);
            // While one is released, the store has not answered yet. One that was lost may be another's.
            match held.map(|held| held.state()) {
                Some(LockState::Lost(reason)) => reason == LostReason::Released,
                state => state.is_some(),
            }
        };
        rules::permits(self.permits).filter(|slot| !is_ours(slot)).collect()
    }

    fn permit(&self, (slot, guard): (u32, LockGuard)) -> Permit {
        let held = Arc::new(guard.held().used_as(self.key().clone(), guard.held().fence()));
        self.in_use.slots.lock().insert(slot, Arc::downgrade(&held));
        Permit { held, guard, slot }
    }

    fn slots(&self) -> Slots<'_> {
        let (part, all) = (LockPart::Permit, rules::permits(self.permits));
        Slots { whole: &self.lock, part, all, keys: &self.slot_keys }
    }

    fn turnstile(&self) -> Result<Lock> {
        Ok(self.lock.part(LockPart::Turnstile)?.for_a_turn(rules::longest_turn()))
    }

    fn client(&self) -> &Client {
        self.lock.client()
    }
}

/// One permit of a [`Semaphore`], renewed in the background until it is released or dropped. It dereferences to
/// [`Held`](crate::Held).
///
/// ```
/// # use lock_core::{LockState, Locks, testing::MemoryBackend};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// let permit = locks.semaphore("gpu", 4)?.acquire().await?;
/// assert!(permit.slot() < 4 && permit.state() == LockState::Secure);
/// let done = permit.run(async |held| held.token().is_ok()).await?;
/// assert!(done);
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping the permit releases it"]
pub struct Permit {
    /// It also marks the slot as one of this process, until the store has answered to the release.
    held: Arc<Held>,
    guard: LockGuard,
    slot: u32,
}

guard!(Permit);

impl Permit {
    /// Which of the permits this is, from 0. Nobody else has it: it can name a device, or a worker.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Releases the permit and waits for the store's answer.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`](crate::LockGuard::release).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the permit is released in the background.
    pub async fn release(self) -> Result<Released> {
        let Self { held, guard, .. } = self;
        guard.release().await.map_err(|error| error.renamed(held.key()))
    }

    fn lock(&self) -> &LockGuard {
        &self.guard
    }
}
