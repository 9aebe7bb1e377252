//! How many claims one session carries.
//!
//! The end of a session is one transaction with the paths of all its nodes. A server that has written one
//! of more than a megabyte cannot read it again, and never starts again (ZOOKEEPER-4306). So a session
//! takes claims up to a fraction of that, and those that follow get a further one.

use std::ops::Deref;
use std::sync::{Arc, MutexGuard, PoisonError};

use lock_core::ClockInstant;

use crate::session::Session;

/// What the claims of one session take.
#[derive(Debug)]
pub(crate) struct Room {
    seats: usize,
    bytes: usize,
    idle_since: ClockInstant,
    /// Nobody gets a seat any more.
    retired: bool,
}

impl Room {
    pub(crate) fn new(now: ClockInstant) -> Self {
        Self { seats: 0, bytes: 0, idle_since: now, retired: false }
    }
}

/// A share in a session, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Seat {
    session: Arc<Session>,
    bytes: usize,
}

impl Deref for Seat {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut room = self.session.room();
        room.seats -= 1;
        room.bytes -= self.bytes;
        room.idle_since = self.session.now();
    }
}

impl Session {
    /// A seat for a claim whose node has a path of `bytes`, without the chroot; none if there is no room.
    pub(crate) fn seat(self: &Arc<Self>, bytes: usize) -> Option<Seat> {
        let bytes = if bytes == 0 { 0 } else { bytes + self.link().chroot_len() };
        let mut room = self.room();
        let is_full = room.seats > 0 && room.bytes + bytes > self.config.path_limit;
        #[cfg(distlock_mutants)]
        let is_full = is_full && !crate::mutants::is("one_session_for_all");
        if is_full || room.retired || self.has_ended() {
            return None;
        }
        room.seats += 1;
        room.bytes += bytes;
        Some(Seat { session: Arc::clone(self), bytes })
    }

    /// Whether this session is over or about to be.
    pub(crate) fn is_leaving(&self) -> bool {
        self.room().retired || self.has_ended()
    }

    /// Whether nobody has had a seat for a while; then nobody gets one any more.
    pub(crate) fn retire_if_idle(&self) -> bool {
        let mut room = self.room();
        let idle = self.now().since(room.idle_since);
        room.retired |= room.seats == 0 && idle >= self.config.idle_limit;
        room.retired
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
