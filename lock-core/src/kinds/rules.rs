//! The rules by which a lock of another kind is made of exclusive ones.

use std::ops::Range;
use std::time::Duration;

use crate::{FencingToken, Held, Lock, LockGuard, LockKey, LostReason, Released, Result};

/// How many tasks may pass a part on without the store: none, since others look at the label and the fence with which
/// it was taken.
pub(crate) fn cohort() -> u32 {
    1
}

/// The longest lease of the turnstile: if the first waiter dies, the others wait for so long.
pub(crate) fn longest_turn() -> Duration {
    Duration::from_secs(3)
}

/// The slots of a semaphore of so many permits.
pub(crate) fn permits(count: u32) -> Range<u32> {
    0..count
}

/// Whether a task may try to get a permit at once, if so many of its process wait for one.
pub(crate) fn may_try(waiters: usize) -> bool {
    waiters == 0
}

/// The slots of readers: so many processes can read at a time.
pub(crate) fn read_slots() -> Range<u32> {
    0..64
}

/// Those at which a writer looks: all of them.
pub(crate) fn slots_to_see() -> Range<u32> {
    read_slots()
}

/// What the label of those begins with who have the gate, to read or to write.
pub(crate) fn mark(writes: bool) -> &'static str {
    if writes { "~w:" } else { "~r:" }
}

/// Whether a reader passes who has the gate with this label: another reader, on its way.
pub(crate) fn passes(label: &str) -> bool {
    label.starts_with(mark(false))
}

/// Ends when the turnstile or the gate is lost, and with it what is done meanwhile.
pub(crate) async fn turn_ends(turn: &LockGuard) -> LostReason {
    turn.lost().await
}

/// The fence of the gate, unless it is lost.
pub(crate) fn has_gate(gate: &LockGuard) -> Option<FencingToken> {
    gate.token().ok()
}

/// A read in this slot. Its token is of the gate, since fences of two names cannot be compared.
pub(crate) fn read_in(slot: &LockGuard, whole: &LockKey, token: FencingToken) -> Held {
    slot.held().used_as(whole.clone(), token)
}

/// The locks of a set in the order in which everybody takes them, each once.
pub(crate) fn in_order(mut locks: Vec<Lock>) -> Vec<Lock> {
    locks.sort_by(|one, other| one.key().cmp(other.key()));
    locks.dedup_by(|one, other| one.key() == other.key());
    locks
}

/// Which of several locks was lost first: then all count as lost. Those that are still held are released at the very
/// moment at which the guard is.
pub(crate) fn first_loss(set: &[Held]) -> Option<(&Held, LostReason)> {
    let lost = set.iter().filter_map(|held| Some((held, held.lost().reason()?)));
    lost.min_by_key(|(held, reason)| (held.valid_until(), *reason == LostReason::Released))
}

/// The term of whoever leads by this lock.
pub(crate) fn term_of(leads: &LockGuard) -> Result<FencingToken> {
    leads.token()
}

/// Does what is done in one term.
pub(crate) async fn lead<T>(leads: LockGuard, body: impl AsyncFnOnce(Held) -> T) -> Result<T> {
    leads.run(body).await
}

/// Ends a term.
pub(crate) async fn resign(leads: LockGuard) -> Result<Released> {
    leads.release().await
}

/// Whether a look shows a term before the last one.
pub(crate) fn is_past(term: Option<FencingToken>, last: Option<FencingToken>) -> bool {
    term.is_some() && term < last
}
