//! Readers and writers: many may read at a time, or one may write.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::calls::{BusyPauses, busy, each_in_turn, in_time, is_polled, look};
use super::slots::Slots;
use super::{LockPart, guard, settings};
use crate::keeper::{Client, Patience};
use crate::{
    Error, FencingToken, Held, HolderInfo, Lock, LockGuard, LockState, Locks, LostReason,
    Operation, Released, Result, Seen, blocking,
};

/// Many may read at a time, or one may write, from [`Locks::rw_lock`](crate::Locks::rw_lock). Cheap to
/// clone. Creating one sends nothing.
///
/// ```
/// # use lock_core as distlock;
/// use distlock::{Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// let prices = locks.rw_lock("prices")?;
/// let (one, another) = (prices.read().await?, prices.read().await?);  // side by side
/// assert!(prices.try_write().await?.is_none());
/// one.release().await?;
/// another.release().await?;
/// prices.write().await?.release().await?;                             // alone
/// # Ok(()) }
/// ```
///
/// # Who waits for whom
///
/// A writer waits for the readers that there are. Whoever comes after it waits for the writer, readers
/// too, so neither side waits for ever. A task that reads, and reads again while a writer waits, waits for that
/// writer, which waits for the task: share one guard instead. There is no way from a read to a write for
/// the same reason: release the read, take the write, and look again at what was read.
///
/// # What it costs
///
/// The tasks of one process that read with the same settings share one hold in the store: the first takes it,
/// and each later one costs one look. A write costs one exclusive lock and one look. Up to 64
/// processes can read at a time; the next one waits until one of them stops.
///
/// # What the tokens promise
///
/// A writer's [token](crate::Held::token) is above those of all writers and readers before it; a reader's is not
/// below that of any writer before it. Readers may have equal tokens. So a resource that serves both has to
/// remember two numbers: [`FenceCheck::admit`](crate::FenceCheck::admit) is for writers, and
/// [`FenceCheck::admit_reader`](crate::FenceCheck::admit_reader) for readers.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is taken"]
pub struct RwLock {
    lock: Lock,
    in_use: Arc<ReadersInUse>,
}

settings!(RwLock);

/// What the tasks of one process share that read one name.
#[derive(Debug, Default)]
pub(super) struct ReadersInUse {
    /// The slot in which they read. Locked by the one that takes it, for the others to join.
    slot: tokio::sync::Mutex<Weak<ReadSlot>>,
    /// The number of the last one, and one: it is tried first, so processes keep to different ones.
    usual: AtomicU32,
}

/// What the first reader has not finished is begun anew by the next one.
impl UnwindSafe for ReadersInUse {}
impl RefUnwindSafe for ReadersInUse {}

/// How many processes can read at a time.
pub(super) const READER_SLOTS: u32 = 64;

/// What the label of those begins with who have the gate to read, and to write.
const READS: &str = "~r:";
const WRITES: &str = "~w:";

/// Whether it has the gate to read. Its label is the user's own from then on.
pub(super) fn reads_at_gate(holder: &mut HolderInfo) -> bool {
    let label = holder.label.take().unwrap_or_default();
    let read = label.strip_prefix(READS);
    let own = read.or_else(|| label.strip_prefix(WRITES)).unwrap_or(&label);
    holder.label = (!own.is_empty()).then(|| own.to_owned());
    read.is_some()
}

/// What a look at the gate shows a reader.
enum Gate {
    /// No writer has it, so this is the token of the read.
    Open(FencingToken),
    /// Nobody has it, and there is no floor, since nobody has ever had it: the reader takes it to get a token.
    NoFloor,
    /// A writer has it.
    Closed,
}

impl Locks {
    /// The readers–writer lock with this name. Nothing is sent.
    ///
    /// It has nothing to do with a lock of the same name.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) unless the name has 1 to 506 bytes of UTF-8 without control
    /// characters; [`Unsupported`](crate::ErrorKind::Unsupported) if the store cannot
    /// [look](crate::Capabilities::look) at its locks.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> Result<RwLock> {
        let lock = self.whole(name)?;
        if !self.0.capabilities.look {
            let store = self.backend_name();
            return Err(Error::unsupported(format!(
                "{store} cannot show who has a lock at this moment, which readers and writers need: use another store, or an exclusive lock"
            ))
            .on_backend(store));
        }
        let in_use = self.0.kinds.rw_locks.of(lock.key());
        Ok(RwLock { lock, in_use })
    }
}

impl RwLock {
    /// Waits until nobody writes, and reads.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn read(&self) -> Result<ReadGuard> {
        self.take_read(Patience::Forever).await
    }

    /// Waits until nobody else reads or writes, and writes.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire);
    /// [`Lost`](crate::ErrorKind::Lost) if the readers took longer than [`max_hold`](Self::max_hold), which counts
    /// from when the writer is the next one.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn write(&self) -> Result<WriteGuard> {
        self.take_write(Patience::Forever).await
    }

    /// [`read`](Self::read), waiting for at most `limit`; with a limit of zero, only if nobody writes.
    ///
    /// # Errors
    ///
    /// [`NotAcquired`](crate::ErrorKind::NotAcquired) if the time ran out; otherwise as
    /// [`Lock::acquire_timeout`](crate::Lock::acquire_timeout).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn read_timeout(&self, limit: Duration) -> Result<ReadGuard> {
        self.take_read(self.client().patience(limit)).await
    }

    /// [`write`](Self::write), waiting for at most `limit`; with a limit of zero, only if nobody reads or
    /// writes.
    ///
    /// # Errors
    ///
    /// As [`read_timeout`](Self::read_timeout) and [`write`](Self::write).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn write_timeout(&self, limit: Duration) -> Result<WriteGuard> {
        self.take_write(self.client().patience(limit)).await
    }

    /// Reads if nobody writes, or waits to write; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`](crate::Lock::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn try_read(&self) -> Result<Option<ReadGuard>> {
        Error::unless_busy(self.take_read(Patience::Try).await)
    }

    /// Writes if nobody reads or writes; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`](crate::Lock::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        Error::unless_busy(self.take_write(Patience::Try).await)
    }

    /// [`read`](Self::read) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read) and
    /// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
    pub fn read_blocking(&self) -> Result<ReadGuard> {
        blocking::wait(self.client(), self.read())
    }

    /// [`write`](Self::write) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write) and
    /// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
    pub fn write_blocking(&self) -> Result<WriteGuard> {
        blocking::wait(self.client(), self.write())
    }

    /// [`read_timeout`](Self::read_timeout) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// As [`read_timeout`](Self::read_timeout) and
    /// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
    pub fn read_timeout_blocking(&self, limit: Duration) -> Result<ReadGuard> {
        blocking::wait(self.client(), self.read_timeout(limit))
    }

    /// [`write_timeout`](Self::write_timeout) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// As [`write_timeout`](Self::write_timeout) and
    /// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
    pub fn write_timeout_blocking(&self, limit: Duration) -> Result<WriteGuard> {
        blocking::wait(self.client(), self.write_timeout(limit))
    }

    /// [`try_read`](Self::try_read) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// As [`try_read`](Self::try_read) and
    /// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
    pub fn try_read_blocking(&self) -> Result<Option<ReadGuard>> {
        blocking::wait(self.client(), self.try_read())
    }

    /// [`try_write`](Self::try_write) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// As [`try_write`](Self::try_write) and
    /// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
    pub fn try_write_blocking(&self) -> Result<Option<WriteGuard>> {
        blocking::wait(self.client(), self.try_write())
    }

    async fn take_read(&self, patience: Patience) -> Result<ReadGuard> {
        let reading = async {
            let least = self.lock.terms()?.min_hold;
            let guard = in_time(self.client(), patience, self.search_read(patience)).await?;
            guard.set_min_hold(least);
            Ok(guard)
        };
        reading.await.map_err(|error| self.described(error))
    }

    async fn take_write(&self, patience: Patience) -> Result<WriteGuard> {
        let writing = async {
            let least = self.lock.terms()?.min_hold;
            let guard = in_time(self.client(), patience, self.search_write(patience)).await?;
            guard.set_min_hold(least);
            Ok(guard)
        };
        writing.await.map_err(|error| self.described(error))
    }

    fn described(&self, mut error: Error) -> Error {
        if let Some(mut holder) = error.holder().cloned() {
            reads_at_gate(&mut holder);
            error = error.held_by(holder);
        }
        self.client().describe(error.renamed(self.key()), Operation::Acquire, self.key())
    }

    /// A reader marks itself first, and looks for a writer then. A writer does it the other way around, so at least
    /// one of two sees the other.
    async fn search_read(&self, patience: Patience) -> Result<ReadGuard> {
        let slot = self.slot(patience).await?;
        match self.look_at_gate(patience).await? {
            Gate::Open(token) => {
                if let Some(reading) = self.reading(slot, token) {
                    return Ok(reading);
                }
            }
            Gate::NoFloor => drop(slot),
            Gate::Closed if matches!(patience, Patience::Try) => {
                give_back(slot).await;
                return Err(busy("a writer has it, or waits for it"));
            }
            // The writer waits for it.
            Gate::Closed => drop(slot),
        }
        loop {
            let gate = self.gate(READS)?.take(patience).await?;
            let slot = tokio::select! {
                biased;
                reason = gate.lost() => {
                    may_begin_again(reason)?;
                    continue;
                }
                slot = self.slot(patience) => slot?,
            };
            // A writer that gets the gate from now on looks at the slots.
            if let Ok(token) = gate.token()
                && let Some(reading) = self.reading(slot, token)
            {
                return Ok(reading);
            }
        }
    }

    async fn look_at_gate(&self, patience: Patience) -> Result<Gate> {
        let key = LockPart::Gate.key(self.key())?;
        let seen = look(self.client(), &[key], patience).await?;
        Ok(match seen.into_iter().next() {
            Some(Seen::Free { floor }) => floor.map_or(Gate::NoFloor, Gate::Open),
            // A reader on its way.
            Some(Seen::Held { fence: Some(fence), label: Some(label) })
                if label.starts_with(READS) =>
            {
                Gate::Open(fence)
            }
            _ => Gate::Closed,
        })
    }

    /// A read in `slot`, unless that was lost: then nobody knows what has happened since it was taken.
    fn reading(&self, slot: Arc<ReadSlot>, token: FencingToken) -> Option<ReadGuard> {
        slot.guard.token().ok()?;
        let held = slot.guard.held().used_as(self.key().clone(), token);
        Some(ReadGuard { leaves: Leaves(held.clone()), held, slot })
    }

    /// The slot of this process: the one in which others read already, or a new one.
    async fn slot(&self, patience: Patience) -> Result<Arc<ReadSlot>> {
        let Client { clock, .. } = self.client();
        let deadline = patience.deadline(clock.now(), self.client().call_limit());
        let mut shared = tokio::select! {
            biased;
            shared = self.in_use.slot.lock() => shared,
            () = clock.sleep_until(deadline) => {
                return Err(busy("another task of this process is about to read"));
            }
        };
        if let Some(slot) = shared.upgrade()
            && slot.guard.state() == LockState::Secure
            && slot.lock.is_kept_as(&self.lock)
        {
            return Ok(slot);
        }
        let guard = self.new_slot(patience).await?;
        let slot = Arc::new(ReadSlot { guard, lock: self.lock.clone() });
        *shared = Arc::downgrade(&slot);
        Ok(slot)
    }

    async fn new_slot(&self, patience: Patience) -> Result<LockGuard> {
        let slots = self.slots();
        let usual = self.in_use.usual.load(Relaxed);
        let first = if usual == 0 { slots.one_of(READER_SLOTS) } else { usual - 1 };
        let mut taken = slots.attempt(first).await?;
        if taken.is_none() {
            let free = slots.look(0..READER_SLOTS, patience).await?.free;
            taken = slots.attempt_any(free).await?;
        }
        if let Some((slot, guard)) = taken {
            self.in_use.usual.store(slot + 1, Relaxed);
            return Ok(guard);
        }
        if matches!(patience, Patience::Try) {
            return Err(busy(format!("{READER_SLOTS} other processes read already")));
        }
        slots.lock(slots.one_of(READER_SLOTS))?.take(patience).await
    }

    async fn search_write(&self, patience: Patience) -> Result<WriteGuard> {
        loop {
            let gate = self.gate(WRITES)?.take(patience).await?;
            tokio::select! {
                biased;
                reason = gate.lost() => may_begin_again(reason)?,
                done = self.readers_leave(patience) => {
                    if let Err(error) = done {
                        // Whoever tries again finds nothing of this attempt.
                        let _ = gate.release().await;
                        return Err(error);
                    }
                    if let Ok(token) = gate.token() {
                        let held = gate.held().used_as(self.key().clone(), token);
                        return Ok(WriteGuard { held, gate });
                    }
                }
            }
        }
    }

    /// Waits until each slot was free at some moment since this was called.
    async fn readers_leave(&self, patience: Patience) -> Result<()> {
        let slots = self.slots();
        let mut held = slots.look(0..READER_SLOTS, patience).await?.held;
        if !held.is_empty() && matches!(patience, Patience::Try) {
            return Err(busy("others read"));
        }
        if !is_polled(self.client()) {
            return each_in_turn(&slots.locks(held)?, patience).await;
        }
        let mut pauses = BusyPauses::new(self.client(), patience);
        while !held.is_empty() {
            pauses.pause().await?;
            held = slots.look(held, patience).await?.held;
        }
        Ok(())
    }

    fn slots(&self) -> Slots<'_> {
        Slots { whole: &self.lock, part: LockPart::Slot }
    }

    fn gate(&self, mark: &str) -> Result<Lock> {
        Ok(self.lock.part(LockPart::Gate)?.marked(mark))
    }

    fn client(&self) -> &Client {
        self.lock.client()
    }
}

/// Ends a read that was not granted, so that whoever tries again finds nothing of it.
async fn give_back(slot: Arc<ReadSlot>) {
    if let Some(slot) = Arc::into_inner(slot) {
        // An error is repeated in the background.
        let _ = slot.guard.release().await;
    }
}

/// Whether it is worth while to queue for the gate again after its loss.
fn may_begin_again(reason: LostReason) -> Result<()> {
    match reason {
        LostReason::MaxHold => Err(Error::lost(reason)),
        _ => Ok(()),
    }
}

/// A read, which others of this process may share, renewed in the background until all of them are released or
/// dropped. It dereferences to [`Held`](crate::Held).
#[derive(Debug)]
#[must_use = "dropping the guard ends the read"]
pub struct ReadGuard {
    held: Held,
    // Dropped in this order: the last one releases the slot.
    leaves: Leaves,
    slot: Arc<ReadSlot>,
}

guard!(ReadGuard);

/// The hold in which tasks of this process read.
#[derive(Debug)]
pub(super) struct ReadSlot {
    guard: LockGuard,
    /// Its settings.
    lock: Lock,
}

/// Marks one of several users of a hold as gone.
#[derive(Debug)]
struct Leaves(Held);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl ReadGuard {
    /// Ends the read. If no other task of this process shares it, this waits for the store's answer.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`](crate::LockGuard::release).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it is released in the background.
    pub async fn release(self) -> Result<Released> {
        let Self { held, leaves, slot } = self;
        let before = held.token();
        drop(leaves);
        let released = match Arc::into_inner(slot) {
            Some(slot) => slot.guard.release().await,
            None => before.map(|_| Released::Freed),
        };
        released.map_err(|error| error.renamed(held.key()))
    }

    fn lock(&self) -> &LockGuard {
        &self.slot.guard
    }
}

/// A write, renewed in the background until it is released or dropped. It dereferences to
/// [`Held`](crate::Held).
#[derive(Debug)]
#[must_use = "dropping the guard ends the write"]
pub struct WriteGuard {
    held: Held,
    gate: LockGuard,
}

guard!(WriteGuard);

impl WriteGuard {
    /// Ends the write and waits for the store's answer.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`](crate::LockGuard::release).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it is released in the background.
    pub async fn release(self) -> Result<Released> {
        let Self { held, gate } = self;
        gate.release().await.map_err(|error| error.renamed(held.key()))
    }

    fn lock(&self) -> &LockGuard {
        &self.gate
    }
}
