//! The decisions of a run: drawn from a seed, or given, so that a run can be replayed.

use std::fmt;
use std::ops::BitOr;
use std::str::FromStr;
use std::time::Duration;

/// What a run has besides the ordinary: a set.
///
/// It is no decision but stands before them, and what it leaves out decides nothing. So the decisions
/// of an old run keep their meaning when something is added here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scenario(u8);

impl Scenario {
    /// Nothing besides the ordinary.
    pub const ORDINARY: Self = Self(0);
    /// Tasks of one process pass a hold on.
    pub const COHORTS: Self = Self(1);
    /// Some calls are neither polled nor dropped for longer than a lock lasts.
    pub const LEFT_ALONE: Self = Self(2);
    /// Leases are so long that nothing ends by itself: what is left behind stays.
    pub const LONG_TTL: Self = Self(4);
    /// More than a thousand tasks wait for one lock.
    pub const CROWD: Self = Self(8);
    /// The tasks take permits, read and write, in place of exclusive locks.
    pub const KINDS: Self = Self(16);
    /// Where the tasks would take permits, read and write, they take several locks at a time.
    pub const SETS: Self = Self(32);
    /// The two together.
    pub const SETS_OF_LOCKS: Self = Self(16 | 32);
    /// Where they would take permits, read and write, and no sets, they campaign, lead, and watch who leads.
    pub const ELECTIONS: Self = Self(64);
    /// Elections in place of permits, reads and writes.
    pub const ELECTIONS_OF_LEADERS: Self = Self(16 | 64);

    /// Whether all of the `other` is in it.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Each of these, but for the crowd, once in four seeds.
    fn seeded(seed: u64) -> Self {
        let mut state = !seed;
        let drawn = u16::from_le_bytes([next(&mut state), next(&mut state)]);
        let all = [
            Self::COHORTS,
            Self::LEFT_ALONE,
            Self::LONG_TTL,
            Self::KINDS,
            Self::SETS,
            Self::ELECTIONS,
        ];
        let wanted = (0..).step_by(2).zip(all).filter(|(shift, _)| (drawn >> shift) & 3 == 3);
        wanted.fold(Self::default(), |scenario, (_, one)| scenario | one)
    }
}

impl BitOr for Scenario {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What was decided in a run, to replay it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// What the run has besides the ordinary.
    pub scenario: Scenario,
    /// A byte for each decision.
    pub bytes: Vec<u8>,
}

/// In hexadecimal digits, after the number of the scenario and a colon.
impl fmt::Display for Decisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scenario.0)?;
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Without a number it is an ordinary run.
impl FromStr for Decisions {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scenario, digits) = text.trim().split_once(':').unwrap_or(("0", text.trim()));
        let pairs = (0..digits.len()).step_by(2);
        let bytes = pairs.map(|at| u8::from_str_radix(digits.get(at..at + 2).unwrap_or(""), 16));
        Ok(Self { scenario: Scenario(scenario.parse()?), bytes: bytes.collect::<Result<_, _>>()? })
    }
}

/// A source of decisions that remembers them.
///
/// Each decision is a byte, and zero is always the harmless one: no fault, no delay, the first in
/// line. After the end of the given bytes everything is harmless.
#[derive(Clone, Debug)]
pub struct Choices {
    taken: Decisions,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Seed(u64),
    Given(Vec<u8>),
}

impl Choices {
    /// Drawn from a seed, the scenario too.
    pub fn seeded(seed: u64) -> Self {
        Self::seeded_in(Scenario::seeded(seed), seed)
    }

    /// Drawn from a seed, for a run with this besides the ordinary.
    pub fn seeded_in(scenario: Scenario, seed: u64) -> Self {
        Self::of(scenario, Source::Seed(seed))
    }

    /// As [`seeded`](Self::seeded), with more than a thousand waiters.
    pub fn of_a_crowd(seed: u64) -> Self {
        Self::seeded_in(Scenario::seeded(seed) | Scenario::CROWD, seed)
    }

    /// As they were [taken](Self::taken) in an earlier run.
    pub fn given(Decisions { scenario, bytes }: Decisions) -> Self {
        Self::of(scenario, Source::Given(bytes))
    }

    fn of(scenario: Scenario, source: Source) -> Self {
        Self { taken: Decisions { scenario, bytes: Vec::new() }, source }
    }

    /// What has been decided.
    pub fn taken(self) -> Decisions {
        self.taken
    }

    pub(crate) fn scenario(&self) -> Scenario {
        self.taken.scenario
    }

    /// Uniform in `0..limit`, for limits that are far below 256, or 65 536.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        match limit {
            0 | 1 => 0,
            2..=255 => usize::from(self.byte()) % limit,
            _ => usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % limit,
        }
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
            Source::Given(bytes) => bytes.get(self.taken.bytes.len()).copied().unwrap_or(0),
        };
        self.taken.bytes.push(byte);
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
