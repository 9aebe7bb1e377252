//! What wrong variants of the store do to the parts of which a lock of another kind is made.

use lock_core::{FencingToken, LockKey, Seen};

use super::READS;
use crate::property::Variant;
use crate::world::World;

/// What is shown in place of what was `seen`.
pub(super) fn look(world: &World, key: &LockKey, seen: Seen) -> Seen {
    let Some((_, part)) = key.name().rsplit_once("~~") else { return look_at_leader(world, seen) };
    let slot = part.strip_prefix('r').and_then(|number| number.parse::<u32>().ok());
    let is_wrong = |variant| world.is_wrong(variant);
    match (slot, seen) {
        (Some(_), Seen::Held { fence, .. }) if is_wrong(Variant::SeesNoReader) => {
            Seen::Free { floor: fence }
        }
        (Some(slot), Seen::Held { fence, .. })
            if is_wrong(Variant::SeesSomeReaders) && slot % 2 == 1 =>
        {
            Seen::Free { floor: fence }
        }
        (Some(_), Seen::Free { floor: Some(fence) }) if is_wrong(Variant::SeesGoneReaders) => {
            Seen::Held { fence: Some(fence), label: None }
        }
        (None, Seen::Held { fence, .. }) if is_wrong(Variant::SeesNoWriter) => {
            Seen::Free { floor: fence }
        }
        (None, Seen::Held { fence, .. }) if is_wrong(Variant::MistakesWriters) => {
            Seen::Held { fence, label: Some(READS.to_owned()) }
        }
        (None, Seen::Free { floor: Some(fence) })
            if is_wrong(Variant::SeesGonePermits) && part.starts_with('p') =>
        {
            Seen::Held { fence: Some(fence), label: None }
        }
        (None, Seen::Held { fence: Some(fence), label: Some(label) })
            if is_wrong(Variant::PassingFenceTooHigh) && label.starts_with(READS) =>
        {
            Seen::Held { fence: FencingToken::new(fence.get() + 1).ok(), label: Some(label) }
        }
        (None, Seen::Free { floor: Some(fence) }) if is_wrong(Variant::FloorTooLow) => {
            Seen::Free { floor: FencingToken::new(fence.get() - 1).ok() }
        }
        (None, Seen::Free { floor: Some(fence) }) if is_wrong(Variant::FloorTooHigh) => {
            Seen::Free { floor: FencingToken::new(fence.get() + 1).ok() }
        }
        (_, seen) => seen,
    }
}

fn look_at_leader(world: &World, seen: Seen) -> Seen {
    match seen {
        Seen::Held { fence, .. } if world.is_wrong(Variant::SeesNoLeader) => {
            Seen::Free { floor: fence }
        }
        Seen::Held { fence: Some(fence), label } if world.is_wrong(Variant::SeesTermBefore) => {
            Seen::Held { fence: FencingToken::new(fence.get() - 1).ok(), label }
        }
        seen => seen,
    }
}

/// Whether the one with this label is a reader that goes on without the gate: its turn ends at once, and it does
/// not hear of that.
pub(super) fn is_unaware(world: &World, label: Option<&str>) -> bool {
    world.is_wrong(Variant::EndsReadersTurns) && label.is_some_and(|label| label.starts_with(READS))
}

/// Whether this is a part that is kept after its release.
pub(super) fn keeps(world: &World, key: &LockKey) -> bool {
    let Some((_, part)) = key.name().rsplit_once("~~") else { return false };
    match part.as_bytes() {
        b"pt" => world.is_wrong(Variant::KeepsTurns),
        b"g" => world.is_wrong(Variant::KeepsGates),
        [b'r', ..] => world.is_wrong(Variant::KeepsSlots),
        _ => false,
    }
}
