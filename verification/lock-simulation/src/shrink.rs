//! Makes a run that broke a promise short, so that people can read it.

use crate::choices::{Choices, Decisions};
use crate::property::{Property, Variant};
use crate::run::simulate;

/// How many runs are spent on shrinking.
const MOST_RUNS: usize = 3_000;

/// The decisions of a shorter run that breaks the same property: parts are left out, and decisions
/// are replaced by harmless ones, for as long as that helps.
pub fn shrink(
    Decisions { scenario, bytes: mut best }: Decisions,
    variant: Option<Variant>,
    property: Property,
) -> Decisions {
    let mut runs = 0;
    let mut breaks = |bytes: &[u8]| {
        runs += 1;
        let decisions = Decisions { scenario, bytes: bytes.to_vec() };
        let outcome = simulate(Choices::given(decisions), variant);
        let same = outcome.violation.is_some_and(|violation| violation.property == property);
        (runs <= MOST_RUNS && same).then_some(())
    };
    let mut length = best.len();
    while length > 0 {
        let mut at = 0;
        while at < best.len() {
            let end = (at + length).min(best.len());
            let mut without = best.clone();
            without.drain(at..end);
            let mut harmless = best.clone();
            harmless[at..end].fill(0);
            if breaks(&without).is_some() {
                best = without;
            } else if harmless != best && breaks(&harmless).is_some() {
                best = harmless;
                at = end;
            } else {
                at = end;
            }
        }
        length /= 2;
    }
    let used = best.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    best.truncate(used);
    Decisions { scenario, bytes: best }
}
