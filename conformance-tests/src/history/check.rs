//! The passes over a history.

use std::fmt;

use super::HoldRecord;

/// What is wrong with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// S1: two holders believed in the lock at the same time.
    Overlap(Box<(HoldRecord, HoldRecord)>),
    /// S2: two holds with one fence.
    SameFence(Box<(HoldRecord, HoldRecord)>),
    /// S2: the order of the fences is not an order in which the holds can have happened.
    Order { before: Option<Box<HoldRecord>>, hold: Box<HoldRecord> },
}

/// Checks the holds of one name in O(n log n).
pub(crate) fn check(holds: &[HoldRecord]) -> Result<(), Violation> {
    overlaps(holds)?;
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
        let ended = granted.max(hold.end());
        if granted > hold.granted || hold.released.is_some_and(|released| ended > released) {
            return Err(wrong());
        }
        last_end = ended;
        before = Some(hold);
    }
    Ok(())
}

/// S1 alone, in order of time: the pass above would find the same, with a poorer message.
fn overlaps(holds: &[HoldRecord]) -> Result<(), Violation> {
    let mut by_time: Vec<_> = holds.iter().filter(|hold| hold.end() > hold.granted).collect();
    by_time.sort_by_key(|hold| hold.granted);
    let mut longest: Option<&HoldRecord> = None;
    for hold in by_time {
        if let Some(longest) = longest.filter(|longest| longest.end() > hold.granted) {
            return Err(Violation::Overlap(Box::new((longest.clone(), hold.clone()))));
        }
        longest = Some(hold);
    }
    Ok(())
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
