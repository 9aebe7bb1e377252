//! Randomness that can be replayed.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The variable that replays a run.
const SEED: &str = "LOCK_TEST_SEED";

/// The last seed of each test.
static ANNOUNCED: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// How to replay the last run of a test, if it is randomised.
pub(crate) fn replays(what: &str) -> Option<String> {
    let announced = ANNOUNCED.lock().unwrap_or_else(PoisonError::into_inner);
    announced.get(what).map(|seed| format!("{SEED}={seed}"))
}

/// A small generator (SplitMix64, Steele, Lea and Flood, 2014). Good enough to mix up a test.
#[derive(Clone, Debug)]
pub struct Seeded {
    seed: u64,
    state: u64,
}

impl Seeded {
    /// From `LOCK_TEST_SEED`, or else a new one. Prints the seed, so a failure can be replayed.
    pub(crate) fn announced(what: &'static str) -> Self {
        let given = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let mut bytes = [0; 8];
            lock_core::Rng::fill(&lock_core::OsRng, &mut bytes)
                .map_or(1, |()| u64::from_le_bytes(bytes))
        });
        eprintln!("{what}: {SEED}={seed}");
        ANNOUNCED.lock().unwrap_or_else(PoisonError::into_inner).insert(what, seed);
        Self { seed, state: seed }
    }

    /// How to replay this run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `0..limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit.max(1)
    }
}

/// The generator for a part of a test, derived from the seed of the whole.
impl From<u64> for Seeded {
    fn from(seed: u64) -> Self {
        Self { seed, state: seed }
    }
}
