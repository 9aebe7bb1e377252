//! The decisions of a run: drawn from a seed, or given, so that a run can be replayed.

use std::time::Duration;

/// A source of decisions that remembers them.
///
/// Each decision is a byte, and zero is always the harmless one: no fault, no delay, the first in
/// line. After the end of the given bytes everything is harmless.
#[derive(Clone, Debug)]
pub struct Choices {
    taken: Vec<u8>,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Seed(u64),
    Given(Vec<u8>),
}

impl Choices {
    /// Drawn from a seed.
    pub fn seeded(seed: u64) -> Self {
        Self { taken: Vec::new(), source: Source::Seed(seed) }
    }

    /// As they were [taken](Self::taken) in an earlier run.
    pub fn given(bytes: Vec<u8>) -> Self {
        Self { taken: Vec::new(), source: Source::Given(bytes) }
    }

    /// What has been decided.
    pub fn taken(self) -> Vec<u8> {
        self.taken
    }

    /// Uniform in `0..limit`, for limits that are far below 256.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        if limit <= 1 { 0 } else { usize::from(self.byte()) % limit }
    }

    /// True once in so many times.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    /// Mostly short, and never longer than `longest`.
    pub(crate) fn duration(&mut self, longest: Duration) -> Duration {
        let part = f64::from(self.byte()) / 255.0;
        longest.mul_f64(part * part * part)
    }

    fn byte(&mut self) -> u8 {
        let byte = match &mut self.source {
            Source::Seed(state) => next(state),
            Source::Given(bytes) => bytes.get(self.taken.len()).copied().unwrap_or(0),
        };
        self.taken.push(byte);
        byte
    }
}

/// One byte of SplitMix64 (Steele, Lea and Flood, 2014).
fn next(state: &mut u64) -> u8 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)).to_le_bytes()[0]
}
