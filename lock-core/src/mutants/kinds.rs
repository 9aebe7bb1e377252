//! The rules by which locks of other kinds are made, each wrong when its mistake is made.

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use crate::{FencingToken, Held, Lock, LockGuard, LockKey, LostReason, Released, Result};

#[path = "../kinds/rules.rs"]
mod right;

/// A mistake in how a lock of another kind is made of exclusive ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindMistake {
    /// A part goes from one task to another without the store, to whoever waits: the gate of a reader to a writer.
    PassesPartsOn,
    /// The lease of the turnstile is as long as that of the lock.
    LongTurns,
    /// A semaphore has one slot more than it has permits.
    OneTooMany,
    /// A task tries to get a permit at once while others of its process wait.
    PassesItsOwn,
    /// The first waiter goes on when its turn is lost, up to its grant.
    IgnoresLostTurns,
    /// A writer does not look at the last slot, of four.
    LeavesOneOut,
    /// A writer has the gate with the mark of a reader.
    MarksWritersAsReaders,
    /// A reader takes another one on its way for a writer.
    WaitsForReaders,
    /// A reader goes on with the fence of a gate that it has lost.
    ReadsWithoutGate,
    /// The token of a read is the fence of its slot.
    TokenOfSlot,
    /// A set takes its locks in the order in which they were named.
    OrderOfCaller,
    /// A set takes a lock twice that was named twice.
    CountsDoubles,
    /// A set counts as held while its first lock does.
    OneLossIsNone,
    /// The term of a leader is not the fence by which others know it.
    TermIsNoFence,
    /// A leader goes on after the loss of its term, up to the end of its work.
    LeadsOn,
    /// Whoever resigns keeps the lock.
    KeepsTerms,
    /// An observer shows a term after a greater one.
    ShowsPastTerms,
}

thread_local! {
    static MADE: Cell<Option<KindMistake>> = const { Cell::new(None) };
}

/// From now on this thread makes this mistake, or none.
pub fn make(mistake: Option<KindMistake>) {
    MADE.set(mistake);
}

pub(crate) fn makes(mistake: KindMistake) -> bool {
    MADE.get() == Some(mistake)
}

pub(crate) fn cohort() -> u32 {
    if makes(KindMistake::PassesPartsOn) { 8 } else { right::cohort() }
}

pub(crate) fn longest_turn() -> Duration {
    let day = Duration::from_secs(24 * 3600);
    if makes(KindMistake::LongTurns) { day } else { right::longest_turn() }
}

pub(crate) fn permits(count: u32) -> Range<u32> {
    right::permits(count + u32::from(makes(KindMistake::OneTooMany)))
}

pub(crate) fn may_try(waiters: usize) -> bool {
    makes(KindMistake::PassesItsOwn) || right::may_try(waiters)
}

pub(crate) fn read_slots() -> Range<u32> {
    if makes(KindMistake::LeavesOneOut) { 0..4 } else { right::read_slots() }
}

pub(crate) fn slots_to_see() -> Range<u32> {
    if makes(KindMistake::LeavesOneOut) { 0..3 } else { right::slots_to_see() }
}

pub(crate) fn mark(writes: bool) -> &'static str {
    right::mark(writes && !makes(KindMistake::MarksWritersAsReaders))
}

pub(crate) fn passes(label: &str) -> bool {
    !makes(KindMistake::WaitsForReaders) && right::passes(label)
}

pub(crate) async fn turn_ends(turn: &LockGuard) -> LostReason {
    let is_gate = turn.key().name().ends_with('g');
    let ignored =
        if is_gate { KindMistake::ReadsWithoutGate } else { KindMistake::IgnoresLostTurns };
    if makes(ignored) {
        return std::future::pending().await;
    }
    right::turn_ends(turn).await
}

pub(crate) fn has_gate(gate: &LockGuard) -> Option<FencingToken> {
    if makes(KindMistake::ReadsWithoutGate) {
        return Some(gate.held().fence());
    }
    right::has_gate(gate)
}

pub(crate) fn read_in(slot: &LockGuard, whole: &LockKey, token: FencingToken) -> Held {
    let is_of_slot = makes(KindMistake::TokenOfSlot);
    right::read_in(slot, whole, if is_of_slot { slot.held().fence() } else { token })
}

pub(crate) fn in_order(mut locks: Vec<Lock>) -> Vec<Lock> {
    match MADE.get() {
        Some(KindMistake::OrderOfCaller) => locks.dedup_by(|one, other| one.key() == other.key()),
        Some(KindMistake::CountsDoubles) => locks.sort_by(|one, other| one.key().cmp(other.key())),
        _ => return right::in_order(locks),
    }
    locks
}

pub(crate) fn first_loss(set: &[Held]) -> Option<(&Held, LostReason)> {
    let counted = if makes(KindMistake::OneLossIsNone) { set.len().min(1) } else { set.len() };
    right::first_loss(&set[..counted])
}

pub(crate) fn term_of(leads: &LockGuard) -> Result<FencingToken> {
    let term = right::term_of(leads)?;
    if makes(KindMistake::TermIsNoFence) { FencingToken::new(term.get() + 1) } else { Ok(term) }
}

pub(crate) async fn lead<T>(leads: LockGuard, body: impl AsyncFnOnce(Held) -> T) -> Result<T> {
    if makes(KindMistake::LeadsOn) {
        let done = body(leads.held().clone()).await;
        return leads.release().await.map(|_| done);
    }
    right::lead(leads, body).await
}

pub(crate) async fn resign(leads: LockGuard) -> Result<Released> {
    if makes(KindMistake::KeepsTerms) {
        std::mem::forget(leads);
        return Ok(Released::Freed);
    }
    right::resign(leads).await
}

pub(crate) fn is_past(term: Option<FencingToken>, last: Option<FencingToken>) -> bool {
    !makes(KindMistake::ShowsPastTerms) && right::is_past(term, last)
}
