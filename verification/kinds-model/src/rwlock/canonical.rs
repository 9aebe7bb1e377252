//! States that differ only in numbers: they are counted once, so that there are finitely many.

use super::state::{Kind, Reader, State};
use super::{RwLock, Wrong};

impl RwLock {
    /// One for all states that differ by the order of tasks, or by fences and grants that no comparison tells apart.
    pub(super) fn canonical(&self, mut state: State) -> State {
        // A wrong rule may count from another number than the last fence: what matters then is how far apart they are.
        let counts =
            [Wrong::SlotFence, Wrong::FloorTooSmall, Wrong::FloorTooLarge].map(|it| self.is(it));
        if counts == [false; 3] {
            state.rank_fences();
        }
        state.rank_births();
        state.writers.sort_unstable();
        let alike = if self.joined { 2 } else { state.readers.len() };
        state.readers[..alike].sort_unstable();
        state
    }
}

impl State {
    /// Only the order of fences matters, since each new one is above them all.
    fn rank_fences(&mut self) {
        let mut live: Vec<_> = self.tokens().map(|token| *token).collect();
        live.push(self.last);
        live.sort_unstable();
        live.dedup();
        let number = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
        let below = |value: u8| number(live.partition_point(|other| *other < value));
        let up_to = |value: u8| number(live.partition_point(|other| *other <= value));
        self.tokens().for_each(|token| *token = 1 + below(*token));
        self.last = 1 + below(self.last);
        // Tokens must be at least the one mark, and above the other.
        self.resource.writer = 1 + below(self.resource.writer);
        self.resource.reader = up_to(self.resource.reader);
    }

    fn tokens(&mut self) -> impl Iterator<Item = &mut u8> {
        let writers =
            self.writers.iter_mut().filter_map(|writer| Some(&mut writer.hold_mut()?.token));
        let readers = self.readers.iter_mut().filter_map(|reader| match reader {
            Reader::HasLooked { token } => Some(token),
            reader => Some(&mut reader.hold_mut()?.token),
        });
        writers.chain(readers)
    }

    /// Between readers the order does not matter.
    fn rank_births(&mut self) {
        let mut holds: Vec<_> = self.holds_mut().collect();
        holds.sort_unstable_by_key(|(kind, hold)| (hold.born, *kind));
        let (mut rank, mut before) = (0, None);
        for (kind, hold) in holds {
            if kind == Kind::Writer || before != Some(Kind::Reader) {
                rank += 1;
            }
            (hold.born, before) = (rank, Some(kind));
        }
    }
}
