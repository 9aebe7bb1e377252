//! What has been seen of one lock.

use distlock::clock::ClockInstant;
use distlock::{HolderMark, LockInfo};

/// What is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The first look.
    First,
    /// Another hold.
    Taken,
    /// It was held, and is free.
    Freed,
    /// Others began or ceased to wait.
    Queue,
}

impl Change {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Taken => "taken",
            Self::Freed => "freed",
            Self::Queue => "queue",
        }
    }
}

/// What has been seen of one lock so far.
#[derive(Debug)]
pub(super) struct Story {
    name: String,
    info: Option<LockInfo>,
    /// Not before the first look.
    looked: bool,
    changes: u64,
    lost: u64,
    /// Until when the present hold lasts without a renewal, as last seen.
    ends_at: Option<ClockInstant>,
}

impl Story {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            info: None,
            looked: false,
            changes: 0,
            lost: 0,
            ends_at: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn info(&self) -> Option<&LockInfo> {
        self.info.as_ref()
    }

    /// How often the lock has changed hands or become free.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// How many holds ended because nobody renewed them. Others were released, or taken away.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Notes what the store shows at `now`, and says what is new.
    pub(super) fn look(&mut self, info: Option<LockInfo>, now: ClockInstant) -> Option<Change> {
        let before = std::mem::replace(&mut self.info, info);
        let first = !std::mem::replace(&mut self.looked, true);
        let (was, is) = (mark(before.as_ref()), mark(self.info.as_ref()));
        let same_hold = was == is;
        if !same_hold && was.is_some() && self.ends_at.is_some_and(|end| now >= end) {
            self.lost += 1;
        }
        let left = self.info.as_ref().and_then(|info| info.holder.as_ref()?.expires_in);
        self.ends_at = left.map(|left| now + left);
        if first {
            return Some(Change::First);
        }
        if !same_hold {
            self.changes += 1;
            return Some(if is.is_some() { Change::Taken } else { Change::Freed });
        }
        let waiters = |info: Option<&LockInfo>| info.and_then(|info| info.waiters).unwrap_or(0);
        (waiters(before.as_ref()) != waiters(self.info.as_ref())).then_some(Change::Queue)
    }
}

/// What tells one hold from every other.
fn mark(info: Option<&LockInfo>) -> Option<Option<HolderMark>> {
    Some(info?.holder.as_ref()?.mark.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock::{HolderInfo, LockKey, OwnerId};

    use super::*;

    fn held(owner: u8, left: u64, waiters: usize) -> Option<LockInfo> {
        let mut holder = HolderInfo::new(Some(OwnerId::from_bytes([owner; 16])));
        holder.expires_in = Some(Duration::from_secs(left));
        Some(LockInfo::new(LockKey::new("", "a").unwrap(), Some(holder), Some(waiters)))
    }

    #[test]
    fn only_a_hold_whose_lease_has_run_out_counts_as_lost() {
        let at = |seconds: u64| ClockInstant::from_nanos(seconds * 1_000_000_000);
        let mut story = Story::new("a");
        assert_eq!(story.look(None, at(1)), Some(Change::First));
        assert_eq!(story.look(None, at(2)), None);
        assert_eq!(story.look(held(1, 10, 0), at(3)), Some(Change::Taken));
        assert_eq!(story.look(held(1, 10, 1), at(6)), Some(Change::Queue));
        // Released ten seconds early, and handed over.
        assert_eq!(story.look(held(2, 10, 0), at(7)), Some(Change::Taken));
        assert_eq!((story.changes(), story.lost()), (2, 0));
        // Not renewed since.
        assert_eq!(story.look(None, at(17)), Some(Change::Freed));
        assert_eq!((story.changes(), story.lost()), (3, 1));
        assert_eq!(story.look(held(3, 10, 0), at(40)), Some(Change::Taken));
        assert_eq!(story.look(None, at(41)), Some(Change::Freed));
        assert_eq!((story.changes(), story.lost()), (5, 1));
    }
}
