//! How a waiter is woken.
//!
//! SQLite and MySQL cannot push to another process, so their waiters poll: the core does that, with
//! jitter, and what is here tells it when the next look is worth while. A dialect that can push gives
//! each claim an [`Waiter`], and wakes one of them for each message.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Attempt, Error, ErrorKind, Result};
use tokio::sync::{Notify, mpsc, watch};

/// The pause before the next look when somebody else was writing, so that the question whether the
/// lock is free could not even be asked. A write takes as long as the disk needs to sync.
pub(crate) const WHILE_CONTENDED: Duration = Duration::from_millis(5);

/// The answer to a waiter: somebody else has the lock, for `left` unless it is renewed. There is no
/// place in the table that would have to be kept alive (clause C13).
pub(crate) fn busy(left: Option<Duration>) -> Attempt {
    Attempt::Busy { valid_for: None, retry_after: left }
}

/// The waiters of one client, by the name that they listen for.
#[derive(Debug)]
pub(crate) struct Waiters {
    by_name: Mutex<HashMap<Arc<str>, Vec<Arc<Slot>>>>,
    /// Whether messages arrive at present.
    up: watch::Sender<bool>,
    /// Names for which a message has come that no claim wants any more.
    unwanted: mpsc::UnboundedSender<Arc<str>>,
}

/// A claim that is told of changes. Dropped, it hands on a message that it has not followed.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiters: Arc<Waiters>,
    slot: Arc<Slot>,
    waits: bool,
}

#[derive(Debug)]
struct Slot {
    name: Arc<str>,
    role: AtomicU8,
    /// A message that `changed` has not reported yet.
    pending: AtomicBool,
    /// A message that no look has followed yet.
    owes_a_look: AtomicBool,
    /// Somebody is in `changed` at this moment.
    listening: AtomicBool,
    notify: Notify,
}

/// Not waiting.
const ASIDE: u8 = 0;
/// Wants the lock.
const WAITS: u8 = 1;
/// Has it.
const HOLDS: u8 = 2;

impl Waiters {
    /// The second value says for which names a message was in vain.
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Arc<str>>) {
        let (unwanted, receiver) = mpsc::unbounded_channel();
        let waiters = Self { by_name: Mutex::default(), up: watch::Sender::new(false), unwanted };
        (Arc::new(waiters), receiver)
    }

    fn map(&self) -> MutexGuard<'_, HashMap<Arc<str>, Vec<Arc<Slot>>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `waits`: the claim wants to hear when the lock is free, and not only when it was taken away.
    pub(crate) fn register(self: &Arc<Self>, name: &str, waits: bool) -> Waiter {
        let name: Arc<str> = name.into();
        let slot = Arc::new(Slot {
            name: Arc::clone(&name),
            role: AtomicU8::new(ASIDE),
            pending: AtomicBool::new(false),
            owes_a_look: AtomicBool::new(false),
            listening: AtomicBool::new(false),
            notify: Notify::new(),
        });
        self.map().entry(name).or_default().push(Arc::clone(&slot));
        Waiter { waiters: Arc::clone(self), slot, waits }
    }

    /// The lock may be free: one waiter of this client looks. That is the first one that listens at
    /// this moment; if none does, all of them are between two looks, and each looks again.
    pub(crate) fn wake_one(&self, name: &str) {
        let map = self.map();
        let waiters = || {
            let waiters = map.get(name).into_iter().flatten();
            waiters.filter(|waiter| waiter.role.load(SeqCst) == WAITS)
        };
        if let Some(waiter) = waiters().find(|waiter| waiter.listening.load(SeqCst)) {
            return waiter.wake(true);
        }
        let mut any = false;
        for waiter in waiters() {
            any = true;
            waiter.wake(true);
        }
        if !any {
            // An error means that the client is closed.
            let _ = self.unwanted.send(name.into());
        }
    }

    /// Something has happened to the lock: all look.
    pub(crate) fn wake_all(&self, name: &str) {
        self.map().get(name).into_iter().flatten().for_each(|waiter| waiter.wake(false));
    }

    /// Messages arrive again, and those of the meantime are lost: all waiters look. A holder learns
    /// of its loss at its next renewal.
    pub(crate) fn set_up(&self, up: bool) {
        self.up.send_replace(up);
        if up {
            let map = self.map();
            let waiters = map.values().flatten().filter(|waiter| waiter.role.load(SeqCst) == WAITS);
            waiters.for_each(|waiter| waiter.wake(false));
        }
    }
}

impl Slot {
    fn wake(&self, owes_a_look: bool) {
        if owes_a_look {
            self.owes_a_look.store(true, SeqCst);
        }
        self.pending.store(true, SeqCst);
        self.notify.notify_one();
    }
}

impl Waiter {
    /// Whether to be on the list of those who wait: messages arrive, and the claim wants them.
    pub(crate) fn waits(&self) -> bool {
        self.waits && *self.waiters.up.borrow()
    }

    /// Whether another claim of this client waits for the same lock.
    pub(crate) fn has_company(&self) -> bool {
        let map = self.waiters.map();
        let mut others = map.get(&self.slot.name).into_iter().flatten();
        others.any(|waiter| !Arc::ptr_eq(waiter, &self.slot) && waiter.role.load(SeqCst) == WAITS)
    }

    /// A look is about to be made, which sees everything that was told before. Dropped without an
    /// answer, the look has not been made.
    pub(crate) fn look(&self) -> Look<'_> {
        if self.waits {
            self.slot.role.store(WAITS, SeqCst);
        }
        self.slot.pending.store(false, SeqCst);
        Look { waiter: self, owed: self.slot.owes_a_look.swap(false, SeqCst) }
    }

    /// Clause C5: what was told since the last look began is not missed.
    pub(crate) async fn changed(&self) -> Result<()> {
        let _listening = Listening::new(&self.slot.listening);
        let mut up = self.waiters.up.subscribe();
        loop {
            // The permit of `notify` is kept, so nothing is missed between the check and the wait.
            if self.slot.pending.swap(false, SeqCst) {
                return Ok(());
            }
            tokio::select! {
                () = self.slot.notify.notified() => {}
                // The sender is in `waiters`.
                _ = up.wait_for(|up| !up) => {
                    return Err(Error::new(ErrorKind::Unavailable, "the connection for notifications is down"));
                }
            }
        }
    }

    /// The claim waits no more. What it was told and has not followed is handed on. True if it was
    /// waiting, and no other claim of this client waits for the lock.
    pub(crate) fn leave(&self) -> bool {
        let waited = self.slot.role.swap(ASIDE, SeqCst) == WAITS;
        if self.slot.owes_a_look.swap(false, SeqCst) && waited {
            self.waiters.wake_one(&self.slot.name);
        }
        waited && !self.has_company()
    }

    /// Whoever else of this client waits for the lock looks again.
    pub(crate) fn alert_company(&self) {
        if self.has_company() {
            self.waiters.wake_one(&self.slot.name);
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut map = self.waiters.map();
        if let Some(waiters) = map.get_mut(&self.slot.name) {
            waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.slot));
            if waiters.is_empty() {
                map.remove(&self.slot.name);
            }
        }
        drop(map);
        self.leave();
    }
}

/// A look under way.
#[must_use]
#[derive(Debug)]
pub(crate) struct Look<'a> {
    waiter: &'a Waiter,
    owed: bool,
}

impl Look<'_> {
    /// The answer to the look: whether the lock is ours now.
    pub(crate) fn answered(mut self, granted: bool) {
        self.owed = false;
        if granted {
            let slot = &self.waiter.slot;
            slot.role.store(HOLDS, SeqCst);
            // What has come during the look was about the lock before it was ours.
            slot.owes_a_look.store(false, SeqCst);
            slot.pending.store(false, SeqCst);
        }
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        if self.owed {
            self.waiter.slot.owes_a_look.store(true, SeqCst);
        }
    }
}

struct Listening<'a>(&'a AtomicBool);

impl<'a> Listening<'a> {
    fn new(flag: &'a AtomicBool) -> Self {
        flag.store(true, SeqCst);
        Self(flag)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

#[cfg(test)]
mod tests;
