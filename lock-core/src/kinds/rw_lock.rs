//! Readers and writers: many may read at a time, or one may write.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::calls::{busy, each_in_turn, is_polled, look, pause, take};
use super::shared::SharedCall;
use super::slots::{SlotKeys, Slots};
use super::{LockPart, guard, rules, settings};
use crate::keeper::{Client, Patience, STANDSTILL_GRACE, no_answer};
use crate::mutex::Mutex;
use crate::{
    ClockInstant, Error, ErrorKind, FencingToken, Held, Lock, LockGuard, LockState, Locks,
    LostReason, Released, Result, Seen, blocking,
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
/// processes can read at a time; the next one waits until one of them stops. A read with a
/// [`min_hold`](Self::min_hold) keeps its place until then, and later reads do not join one that has ended: 64 short
/// ones within that time keep all other readers out.
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
    slot_keys: Arc<SlotKeys>,
    in_use: Arc<ReadersInUse>,
}

settings!(RwLock);

/// How long a reader waits for one of the slots before it looks at the others again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The slots in which the tasks of one process read one name: one for each of their settings.
#[derive(Debug, Default)]
pub(super) struct ReadersInUse(Mutex<OwnSlots>);

#[derive(Debug, Default)]
struct OwnSlots {
    /// The oldest first.
    held: Vec<OwnSlot>,
    /// The next ones.
    taking: Vec<Weak<SlotInTaking>>,
    /// It is tried first the next time, so processes keep to different ones.
    number: Option<u32>,
}

#[derive(Debug)]
struct OwnSlot {
    hold: Weak<ReadSlot>,
    /// It is left to a writer, though this process may read in it still.
    is_parted: bool,
}

/// A slot that is being taken, for all tasks of this process that want it.
struct SlotInTaking {
    call: SharedCall<Arc<ReadSlot>>,
    /// Its settings.
    lock: Lock,
    /// Cancelled when the store has said that others have all of them.
    is_queued: CancellationToken,
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

impl OwnSlots {
    /// The slot in which readers with the settings of this lock are, or may be again.
    fn usual(&self, lock: &Lock) -> Option<Arc<ReadSlot>> {
        let open = self.held.iter().filter(|held| !held.is_parted);
        open.filter_map(|held| held.hold.upgrade())
            .find(|slot| slot.guard.state() == LockState::Secure && slot.lock.is_kept_as(lock))
    }

    /// The slot that is being taken for readers with these settings.
    fn in_taking(&self, lock: &Lock) -> Option<Arc<SlotInTaking>> {
        let mut others = self.taking.iter().filter_map(Weak::upgrade);
        others.find(|taking| !taking.call.is_over() && taking.lock.is_kept_as(lock))
    }
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
        Ok(RwLock { lock, slot_keys: Arc::default(), in_use })
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
        let search = || {
            let this = self.clone();
            async move {
                // It may have to take the gate, with a mark in front of its label.
                this.gate(false)?.terms()?;
                this.search_read(patience).await
            }
        };
        take(&self.lock, patience, search, ReadGuard::set_min_hold).await
    }

    async fn take_write(&self, patience: Patience) -> Result<WriteGuard> {
        let search = || self.clone().search_write(patience);
        take(&self.lock, patience, search, WriteGuard::set_min_hold).await
    }

    async fn search_read(self, patience: Patience) -> Result<ReadGuard> {
        if let Some(reading) = self.read_beside(patience).await? {
            return Ok(reading);
        }
        loop {
            let gate = match self.gate(false)?.take(patience).await {
                Err(error) if may_be_a_reader(&error, patience) => {
                    let reading = Error::unless_busy(self.read_beside(patience).await)?;
                    return reading.flatten().ok_or(error);
                }
                gate => gate?,
            };
            // It is no writer that has it.
            drop(self.rejoin());
            let slot = tokio::select! {
                biased;
                reason = rules::turn_ends(&gate) => {
                    may_begin_again(reason)?;
                    continue;
                }
                slot = self.slot(patience) => slot?,
            };
            // A writer that gets the gate from now on looks at the slots.
            if let Some(token) = rules::has_gate(&gate)
                && let Some(reading) = self.reading(slot, token)
            {
                return Ok(reading);
            }
        }
    }

    /// A read without the gate. A reader marks itself first, and looks for a writer then. A writer does it the other way
    /// around, so at least one of two sees the other.
    async fn read_beside(&self, patience: Patience) -> Result<Option<ReadGuard>> {
        loop {
            let slot = self.slot(patience).await?;
            match self.look_at_gate(patience).await? {
                Gate::Open(token) => {
                    if self.goes_on_in(&slot) {
                        return Ok(self.reading(slot, token));
                    }
                }
                Gate::NoFloor => return Ok(None),
                // The writer waits for it.
                Gate::Closed => {
                    self.part_with(&slot);
                    if matches!(patience, Patience::Try) {
                        give_back(slot).await;
                        return Err(busy());
                    }
                    return Ok(None);
                }
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
                if rules::passes(&label) =>
            {
                Gate::Open(fence)
            }
            _ => Gate::Closed,
        })
    }

    /// A read in `slot`, unless that was lost: then nobody knows what has happened since it was taken.
    fn reading(&self, slot: Arc<ReadSlot>, token: FencingToken) -> Option<ReadGuard> {
        slot.guard.token().ok()?;
        let held = rules::read_in(&slot.guard, self.key(), token);
        Some(ReadGuard { leaves: Leaves(held.clone()), held, slot })
    }

    /// The slot of this process: the one in which others read already, or a new one.
    async fn slot(&self, patience: Patience) -> Result<Arc<ReadSlot>> {
        let Client { clock, defaults, .. } = self.client();
        let begun = clock.now();
        let deadline = patience.deadline(begun, self.client().call_limit());
        let tries = matches!(patience, Patience::Try);
        loop {
            let joined = clock.now();
            let (taking, is_own) = {
                let mut own = self.in_use.0.lock();
                if let Some(slot) = own.usual(&self.lock) {
                    return Ok(slot);
                }
                match own.in_taking(&self.lock) {
                    // Since it has queued, others may have stopped.
                    Some(taking) if !(tries && taking.is_queued.is_cancelled()) => (taking, false),
                    _ => {
                        let taking = self.take_for_all(patience)?;
                        own.taking.retain(|other| other.strong_count() > 0);
                        own.taking.push(Arc::downgrade(&taking));
                        (taking, true)
                    }
                }
            };
            // Its own ends in time by itself, and says more.
            let limit = if is_own { ClockInstant::FAR_FUTURE } else { deadline };
            let taken = tokio::select! {
                biased;
                taken = taking.call.outcome() => taken,
                () = taking.is_queued.cancelled(), if tries && !is_own => {
                    return Err(busy());
                }
                () = clock.sleep_until(limit) => {
                    let is_queued = taking.is_queued.is_cancelled();
                    return Err(if is_queued { busy() } else { no_answer(deadline.since(begun)) });
                }
            };
            // An attempt ends a little sooner than that: before its last pause.
            let silent_at = joined + defaults.unavailable_after / 4 * 3;
            let is_silent = || !taking.is_queued.is_cancelled() && clock.now() >= silent_at;
            let is_given_up = |error: &Error| error.kind() != ErrorKind::NotAcquired && is_silent();
            match taken {
                Ok(Some(slot)) => return Ok(slot),
                Err(error) if is_own || is_given_up(&error) => return Err(error),
                // Another task has taken it, or has failed with less patience.
                Ok(None) | Err(_) => {}
            }
        }
    }

    /// Nobody joins this slot any more, nor takes it first, until there is no writer: each one who looks at the gate
    /// would keep it for a moment, and with looks that overlap it would never be free. The writer waits for no slot that
    /// is taken from now on.
    fn part_with(&self, slot: &Arc<ReadSlot>) {
        let mut own = self.in_use.0.lock();
        if let Some(held) = own.held.iter_mut().find(|it| it.hold.as_ptr() == Arc::as_ptr(slot)) {
            held.is_parted = true;
            own.number = None;
        }
    }

    /// There is no writer: this process reads on in the slots that were left to one. Else it would have one more for each
    /// writer that gives up. Returns the slot to read in.
    fn rejoin(&self) -> Option<Arc<ReadSlot>> {
        let mut own = self.in_use.0.lock();
        own.held.iter_mut().for_each(|held| held.is_parted = false);
        own.usual(&self.lock)
    }

    /// Whether this process reads on in this slot, and has no other one to join, now that there is no writer.
    fn goes_on_in(&self, slot: &Arc<ReadSlot>) -> bool {
        self.rejoin().is_none_or(|usual| Arc::ptr_eq(&usual, slot))
    }

    fn take_for_all(&self, patience: Patience) -> Result<Arc<SlotInTaking>> {
        let is_queued = CancellationToken::new();
        let (this, queues) = (self.clone(), is_queued.clone());
        let steps = async move { this.next_slot(patience, queues).await };
        let call = SharedCall::new(self.client().home()?, steps);
        Ok(Arc::new(SlotInTaking { call, lock: self.lock.clone(), is_queued }))
    }

    /// A slot that nobody has, or the one in which this process reads by then.
    async fn next_slot(
        &self,
        patience: Patience,
        is_queued: CancellationToken,
    ) -> Result<Arc<ReadSlot>> {
        let slots = self.slots();
        let mut others = slots.all.clone().collect();
        let usual = self.in_use.0.lock().number;
        let first = usual.or_else(|| slots.pick(&mut others));
        if let Some(taken) = slots.take_free(first, others, patience).await? {
            return Ok(self.own_slot(taken));
        }
        // As many processes read as there are slots.
        is_queued.cancel();
        let waits_for = slots.pick(&mut slots.all.clone().collect());
        let Some(slot) = waits_for.filter(|_| !matches!(patience, Patience::Try)) else {
            return Err(busy());
        };
        let lock = slots.lock(slot)?;
        tokio::select! {
            biased;
            guard = lock.take(patience) => Ok(self.own_slot((slot, guard?))),
            // Who has that slot may read for long, while others have stopped.
            slot = self.slot_of_another(&slots, patience) => Ok(slot),
        }
    }

    /// Waits until there is one that is free, or that this process has by then, beside a place in the queue of one.
    async fn slot_of_another(&self, slots: &Slots<'_>, patience: Patience) -> Arc<ReadSlot> {
        loop {
            self.client().clock.sleep(LOOK_AGAIN).await;
            if let Some(slot) = self.in_use.0.lock().usual(&self.lock) {
                return slot;
            }
            // What goes wrong is told by the wait beside this.
            let taken = slots.take_free(None, slots.all.clone().collect(), patience).await;
            if let Ok(Some(taken)) = taken {
                return self.own_slot(taken);
            }
        }
    }

    fn own_slot(&self, (number, guard): (u32, LockGuard)) -> Arc<ReadSlot> {
        let (lock, in_use) = (self.lock.clone(), Arc::clone(&self.in_use));
        let slot = Arc::new(ReadSlot { guard, lock, _in_use: in_use });
        let mut own = self.in_use.0.lock();
        own.number = Some(number);
        own.held.retain(|held| held.hold.strong_count() > 0);
        own.held.push(OwnSlot { hold: Arc::downgrade(&slot), is_parted: false });
        slot
    }

    async fn search_write(self, patience: Patience) -> Result<WriteGuard> {
        loop {
            let gate = self.gate(true)?.take(patience).await?;
            tokio::select! {
                biased;
                reason = rules::turn_ends(&gate) => may_begin_again(reason)?,
                done = self.readers_leave(patience) => {
                    if let Err(error) = done {
                        self.give_up(gate, patience).await;
                        return Err(error);
                    }
                    if let Some(token) = rules::has_gate(&gate) {
                        let held = gate.held().used_as(self.key().clone(), token);
                        return Ok(WriteGuard { held, gate });
                    }
                }
            }
        }
    }

    /// Whoever tries again finds nothing of this attempt, unless the store takes longer than the caller has.
    async fn give_up(&self, gate: LockGuard, patience: Patience) {
        let Client { clock, .. } = self.client();
        let deadline = patience.deadline(clock.now(), self.client().call_limit());
        tokio::select! {
            biased;
            // An error is repeated in the background.
            _ = gate.release() => {}
            // Before the caller is cut off, which would say less.
            () = clock.sleep_until(deadline + STANDSTILL_GRACE / 2) => {}
        }
    }

    /// Waits until each slot was free at some moment since this was called.
    async fn readers_leave(&self, patience: Patience) -> Result<()> {
        let slots = self.slots();
        let mut held = slots.look(rules::slots_to_see(), patience).await?.held;
        if !held.is_empty() && matches!(patience, Patience::Try) {
            return Err(busy());
        }
        if !is_polled(self.client()) {
            return each_in_turn(&slots.locks(held)?, patience).await;
        }
        let mut looks = 0;
        while !held.is_empty() {
            looks += 1;
            pause(self.client(), patience, looks).await?;
            held = slots.look(held, patience).await?.held;
        }
        Ok(())
    }

    fn slots(&self) -> Slots<'_> {
        let (part, all) = (LockPart::Slot, rules::read_slots());
        Slots { whole: &self.lock, part, all, keys: &self.slot_keys }
    }

    fn gate(&self, writes: bool) -> Result<Lock> {
        Ok(self.lock.part(LockPart::Gate)?.marked(rules::mark(writes)))
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

/// Whether a try has met somebody at the gate who may be another reader, where both had found that nobody has ever had it.
fn may_be_a_reader(error: &Error, patience: Patience) -> bool {
    matches!(patience, Patience::Try) && error.kind() == ErrorKind::NotAcquired
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
    /// As long as somebody reads, all others of this process find the slot.
    _in_use: Arc<ReadersInUse>,
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
