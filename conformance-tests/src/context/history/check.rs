//! The passes over a history.

use std::fmt;

use super::HoldRecord;
use super::kinds::conflicts;

/// What is wrong with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// S1: two holders believed in the lock at the same time.
    Overlap(Box<(HoldRecord, HoldRecord)>),
    /// S2: two holds with one fence.
    SameFence(Box<(HoldRecord, HoldRecord)>),
    /// S2: the order of the fences is not an order in which the holds can have happened.
    Order {
        /// The hold with the next smaller fence.
        before: Option<Box<HoldRecord>>,
        /// The one that cannot come after it.
        hold: Box<HoldRecord>,
    },
}

/// Checks the holds of one name: in O(n log n), unless many were believed in at the same time.
///
/// # Errors
///
/// The first violation.
pub fn check(holds: &[HoldRecord]) -> Result<(), Violation> {
    match overlaps(holds).into_iter().next() {
        Some(overlap) => Err(Violation::Overlap(Box::new(overlap))),
        None => place(holds, HoldRecord::end),
    }
}

/// S2 alone, for a store that may have broken S1: whatever the holders believed, the fences must be
/// distinct and rise in an order in which the holds can have been granted.
///
/// # Errors
///
/// The first violation.
pub fn check_fences(holds: &[HoldRecord]) -> Result<(), Violation> {
    place(holds, |_| 0)
}

/// Puts the holds one after the other in the order of their fences. A hold lasts at least until the
/// moment that `end` returns for it.
fn place(holds: &[HoldRecord], end: impl Fn(&HoldRecord) -> u64) -> Result<(), Violation> {
    let mut by_fence: Vec<_> = holds.iter().collect();
    by_fence.sort_by_key(|hold| hold.fence);
    let mut last_end = 0;
    let mut before: Option<&HoldRecord> = None;
    for hold in by_fence {
        if let Some(before) = before.filter(|before| before.fence == hold.fence) {
            return Err(Violation::SameFence(Box::new((before.clone(), hold.clone()))));
        }
        let wrong = || Violation::Order {
            before: before.map(|before| Box::new(before.clone())),
            hold: Box::new(hold.clone()),
        };
        // The earliest moment at which the store can have granted it, and ended it.
        let granted = hold.invoked.max(last_end);
        let ended = granted.max(end(hold));
        if granted > hold.granted || hold.released.is_some_and(|released| ended > released) {
            return Err(wrong());
        }
        last_end = ended;
        before = Some(hold);
    }
    Ok(())
}

/// S1 alone, in order of time: each pair of holds of which one was granted while the holder of the other, which was granted
/// before, still believed in it. The earlier one is first.
pub fn overlaps(holds: &[HoldRecord]) -> Vec<(HoldRecord, HoldRecord)> {
    conflicts(&[], holds)
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap(pair) => {
                let (first, second) = &**pair;
                let by = first.end().min(second.end()) - second.granted;
                write!(f, "two holders at once for {by} ns: {first} and {second}")
            }
            Self::SameFence(pair) => {
                write!(f, "one fencing token was given twice: {} and {}", pair.0, pair.1)
            }
            Self::Order { before: Some(before), hold } => {
                write!(
                    f,
                    "the fences do not rise in the order of the holds: {before} before {hold}"
                )
            }
            Self::Order { before: None, hold } => write!(f, "a hold that cannot be: {hold}"),
        }
    }
}

impl fmt::Display for HoldRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "client {} with fence {} (asked at {}, granted at {}, believed until {})",
            self.client,
            self.fence,
            self.invoked,
            self.granted,
            self.end()
        )
    }
}
