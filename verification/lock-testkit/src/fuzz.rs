//! Fuzzing on stable Rust: a saved corpus, mutated.
//!
//! What a target returns says which way an input has gone. An input that goes a way that none before it
//! has gone is mutated, too, so the inputs get deeper without instrumentation. One that makes the target
//! panic is saved in the corpus, whose inputs all come first in every run.

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// How many seconds each target gets.
const SECONDS: &str = "LOCK_FUZZ_SECONDS";
/// Longer inputs are cut.
const LONGEST: usize = 4096;
/// An input that takes longer is an attack.
const SLOWEST: Duration = Duration::from_secs(2);

/// A target, and what it is fed with.
#[derive(Clone, Debug)]
pub struct Fuzz {
    /// The folder of its corpus.
    pub corpus: PathBuf,
    /// Pieces that its inputs are made of.
    pub words: &'static [&'static str],
}

impl Fuzz {
    /// The target `name` of the crate in `folder`, which is `env!("CARGO_MANIFEST_DIR")`.
    pub fn new(folder: &str, name: &str, words: &'static [&'static str]) -> Self {
        Self { corpus: [folder, "tests", "corpus", name].iter().collect(), words }
    }

    /// Feeds `target` for one second, or as long as `LOCK_FUZZ_SECONDS` says. It checks the input, and
    /// returns what kind of input it was.
    ///
    /// # Panics
    ///
    /// If the target panics, takes too long, or has no corpus.
    pub fn run<K: Hash>(&self, target: impl Fn(&[u8]) -> K) {
        let seconds = std::env::var(SECONDS).map_or(1, |seconds| seconds.parse().expect(SECONDS));
        let end = SystemTime::now() + Duration::from_secs(seconds);
        let mut chance = Chance(seed());
        println!("{}: begun with {}", self.corpus.display(), chance.0);
        let mut inputs = self.saved();
        let mut ways: HashSet<_> = inputs.iter().map(|input| self.feed(&target, input)).collect();
        let mut fed = 0_u64;
        while SystemTime::now() < end {
            for _ in 0..64 {
                let input = self.mutated(&inputs, &mut chance);
                if ways.insert(self.feed(&target, &input)) && ways.len() < 5_000 {
                    inputs.push(input);
                }
                fed += 1;
            }
        }
        println!("{}: {fed} inputs, {} ways", self.corpus.display(), ways.len());
        assert!(ways.len() > 1, "all inputs go the same way: the target looks at nothing");
    }

    fn saved(&self) -> Vec<Vec<u8>> {
        let files = fs::read_dir(&self.corpus).expect("the corpus is there");
        let inputs = files.map(|file| fs::read(file.expect("a file").path()).expect("an input"));
        let inputs: Vec<_> = inputs.collect();
        assert!(!inputs.is_empty(), "{}: no input", self.corpus.display());
        inputs
    }

    fn feed<K: Hash>(&self, target: &impl Fn(&[u8]) -> K, input: &[u8]) -> u64 {
        let mut defect = "slow";
        // A machine that is busy with others is not slow with the same input each time.
        for _ in 0..3 {
            let begun = SystemTime::now();
            let way = catch_unwind(AssertUnwindSafe(|| hash(&target(input))));
            let was_slow = begun.elapsed().is_ok_and(|took| took > SLOWEST);
            match way {
                Ok(way) if !was_slow => return way,
                Ok(_) => {}
                Err(_) => {
                    defect = "a panic";
                    break;
                }
            }
        }
        let file = self.corpus.join(format!("found-{:016x}", hash(&input)));
        fs::write(&file, input).expect("the input is saved");
        panic!("{defect}; saved as {}: {:?}", file.display(), String::from_utf8_lossy(input));
    }

    fn mutated(&self, inputs: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
        let mut input = inputs[chance.below(inputs.len())].clone();
        for _ in 0..=chance.below(5) {
            let (from, to) = (chance.below(input.len() + 1), chance.below(input.len() + 1));
            let part = from.min(to)..from.max(to);
            match chance.below(8) {
                0 => input.extend(chance.next().to_le_bytes()),
                1 => drop(input.drain(part)),
                2 => drop(input.splice(from..from, input[part].to_vec())),
                3 | 4 if !self.words.is_empty() => {
                    let word = self.words[chance.below(self.words.len())];
                    drop(input.splice(from..from, word.bytes()));
                }
                5 => {
                    let other = &inputs[chance.below(inputs.len())];
                    let at = chance.below(other.len() + 1);
                    drop(input.splice(part, other[at..].iter().copied()));
                }
                _ => {
                    if let Some(byte) = input.get_mut(from) {
                        *byte ^= 1 << chance.below(8);
                    }
                }
            }
        }
        input.truncate(LONGEST);
        input
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    /// With the seed of `LOCK_TEST_SEED`, or a new one.
    pub fn seeded() -> (u64, Self) {
        let seed = seed();
        (seed, Self(seed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % (limit.max(1) as u64)).unwrap_or(0)
    }
}

fn seed() -> u64 {
    let given = std::env::var("LOCK_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| hash(&SystemTime::now()))
}

fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What an error says, without its numbers and quotations: inputs that fail for the same reason go the
/// same way.
pub fn reason(error: &lock_core::Error) -> String {
    let quotes = |c: char| c == '"' || c == '`';
    let plain: Vec<_> = error.message().split(quotes).step_by(2).collect();
    plain.concat().chars().filter(|c| c.is_ascii_alphabetic() || *c == ' ').take(60).collect()
}

/// Reads an input as a sequence of small things.
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'a>(pub &'a [u8]);

impl<'a> Pieces<'a> {
    /// The next byte; zero after the end.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// The next number, small or of any size.
    pub fn number(&mut self) -> i64 {
        let small = i64::from(self.byte().cast_signed());
        if small != i64::from(i8::MIN) {
            return small;
        }
        let (digits, rest) = self.0.split_at(self.0.len().min(8));
        self.0 = rest;
        digits.iter().fold(0, |number, digit| (number << 8) | i64::from(*digit))
    }

    /// The next bytes, up to a zero.
    pub fn bytes(&mut self) -> &'a [u8] {
        let mut parts = self.0.splitn(2, |byte| *byte == 0);
        let part = parts.next().unwrap_or_default();
        self.0 = parts.next().unwrap_or_default();
        part
    }

    /// Whether nothing is left.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}
