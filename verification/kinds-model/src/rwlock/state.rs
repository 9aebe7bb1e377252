//! The gate, the slots, and where each reader and writer stands.

use crate::store::Lock;

/// How many may read at once.
pub(super) const SLOTS: usize = 2;

/// All of it at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    pub(super) gate: Lock,
    /// Whose the gate is marked as, while it is not free.
    pub(super) mark: Kind,
    /// The last fence of the gate: that of whoever has it, and the floor of a look if it is free.
    pub(super) last: u8,
    pub(super) slots: [Lock; SLOTS],
    /// The last fences of the slots; only where they matter.
    pub(super) slot_fences: [u8; SLOTS],
    pub(super) writers: [Writer; 2],
    pub(super) readers: [Reader; 3],
    pub(super) resource: Marks,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    #[default]
    Reader,
    Writer,
}

impl Kind {
    pub(super) fn conflicts(self, other: Self) -> bool {
        self == Self::Writer || other == Self::Writer
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Writer {
    #[default]
    Absent,
    Idle,
    /// Waits for the gate.
    Wants([Drain; SLOTS]),
    /// Has the gate, and has to see each slot free.
    Drains {
        slots: [Drain; SLOTS],
        has_gate: bool,
    },
    Writes {
        hold: Hold,
        has_gate: bool,
    },
    /// Does not believe in its hold any more; it may not have noticed.
    Late(Hold),
}

/// What a writer knows of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Drain {
    Unseen,
    /// It was busy: the writer waits in its queue.
    Queued,
    /// It is the writer's, to be let go at once.
    Owned,
    /// It was free, or the writer's, since the writer has the gate.
    Seen,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Reader {
    #[default]
    Absent,
    Idle,
    WantsSlot,
    /// Has a slot, and is to look at the gate.
    Looks {
        slot: Option<u8>,
    },
    WantsGate,
    /// Has the gate, and waits for a slot.
    HasGate,
    /// Wrong: takes a slot although it cannot know what has happened since it looked, or had the gate.
    HasLooked {
        token: u8,
    },
    Reads {
        slot: Option<u8>,
        hold: Hold,
        /// Whether it still has the gate, to be let go at once.
        has_gate: bool,
    },
    /// Does not believe in its hold any more; it may not have noticed.
    Late(Hold),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Hold {
    pub(super) token: u8,
    /// Its place in the order of the grants.
    pub(super) born: u8,
    /// Whether a later holder that conflicts has acted.
    pub(super) is_overtaken: bool,
}

/// What a resource remembers: the greatest token of a writer, and of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Marks {
    pub(super) writer: u8,
    pub(super) reader: u8,
}

impl Writer {
    pub(super) fn writes(&self) -> bool {
        matches!(self, Self::Writes { .. })
    }

    pub(super) fn waits(&self) -> bool {
        matches!(self, Self::Wants(_) | Self::Drains { .. })
    }

    pub(super) fn has_gate(&self) -> bool {
        matches!(self, Self::Drains { has_gate: true, .. } | Self::Writes { has_gate: true, .. })
    }

    pub(super) fn owns(&self, slot: usize) -> bool {
        match self {
            Self::Wants(slots) | Self::Drains { slots, .. } => slots[slot] == Drain::Owned,
            _ => false,
        }
    }

    pub(super) fn hold(mut self) -> Option<Hold> {
        self.hold_mut().copied()
    }

    pub(super) fn hold_mut(&mut self) -> Option<&mut Hold> {
        match self {
            Self::Writes { hold, .. } | Self::Late(hold) => Some(hold),
            _ => None,
        }
    }
}

impl Reader {
    pub(super) fn reads(&self) -> bool {
        matches!(self, Self::Reads { .. })
    }

    pub(super) fn waits(&self) -> bool {
        !matches!(self, Self::Absent | Self::Idle | Self::Reads { .. } | Self::Late(_))
    }

    pub(super) fn has_gate(&self) -> bool {
        matches!(self, Self::HasGate | Self::Reads { has_gate: true, .. })
    }

    pub(super) fn slot(&self) -> Option<u8> {
        match self {
            Self::Looks { slot } | Self::Reads { slot, .. } => *slot,
            _ => None,
        }
    }

    pub(super) fn hold(mut self) -> Option<Hold> {
        self.hold_mut().copied()
    }

    pub(super) fn hold_mut(&mut self) -> Option<&mut Hold> {
        match self {
            Self::Reads { hold, .. } | Self::Late(hold) => Some(hold),
            _ => None,
        }
    }
}

impl State {
    /// Every hold that somebody has, or had and may act on.
    pub(super) fn holds_mut(&mut self) -> impl Iterator<Item = (Kind, &mut Hold)> {
        let writers = self.writers.iter_mut().filter_map(Writer::hold_mut);
        let readers = self.readers.iter_mut().filter_map(Reader::hold_mut);
        let writers = writers.map(|hold| (Kind::Writer, hold));
        writers.chain(readers.map(|hold| (Kind::Reader, hold)))
    }

    pub(super) fn holds(mut self) -> Vec<(Kind, Hold)> {
        self.holds_mut().map(|(kind, hold)| (kind, *hold)).collect()
    }

    /// The gate is granted, under a new fence.
    pub(super) fn take_gate(&mut self, mark: Kind) {
        (self.gate, self.mark, self.last) = (Lock::Kept, mark, self.last + 1);
    }

    /// Whether each lock that somebody keeps is that of a reader or a writer.
    pub(super) fn is_owned(&self) -> bool {
        let has_gate =
            self.writers.iter().any(Writer::has_gate) || self.readers.iter().any(Reader::has_gate);
        let is_owned = |slot: usize| {
            let is_slot = |reader: &Reader| reader.slot().map(usize::from) == Some(slot);
            self.readers.iter().any(is_slot) || self.writers.iter().any(|w| w.owns(slot))
        };
        (self.gate != Lock::Kept || has_gate)
            && (0..SLOTS).all(|slot| self.slots[slot] != Lock::Kept || is_owned(slot))
    }

    pub(super) fn reading_on(&self, slot: usize) -> usize {
        let on = |reader: &&Reader| reader.reads() && reader.slot().map(usize::from) == Some(slot);
        self.readers.iter().filter(on).count()
    }
}
