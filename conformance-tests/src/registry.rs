//! All cases, and the checks that none is missing.

use std::collections::BTreeSet;

use crate::case::Case;
use crate::{cases, matrix};

/// The clauses of the contract and the properties of the library that the suite must cover.
const CLAUSES: std::ops::RangeInclusive<u8> = 1..=17;
const SAFETY: std::ops::RangeInclusive<u8> = 1..=8;
const LIVENESS: std::ops::RangeInclusive<u8> = 1..=5;

/// All cases, in the order of the suite.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> + Clone {
    cases::ALL.iter().copied().flatten()
}

/// Checks that names are unique and name what they check, and that nothing is left unchecked.
pub(crate) fn verify() -> Result<(), String> {
    let mut ids = BTreeSet::new();
    let mut covered = BTreeSet::new();
    let wanted = wanted();
    for case in cases() {
        if !ids.insert(case.id) {
            return Err(format!("two cases are named {}", case.id));
        }
        let Some(rule) = case.id.split('_').next().filter(|rule| wanted.contains(*rule)) else {
            return Err(format!("{} does not begin with a clause or a property", case.id));
        };
        if case.about.is_empty() || case.about.ends_with('.') {
            return Err(format!(
                "{} is not described by one sentence without its full stop",
                case.id
            ));
        }
        covered.insert(rule.to_owned());
    }
    if let Some(rule) = wanted.iter().find(|rule| !covered.contains(*rule)) {
        return Err(format!("no case checks {rule}"));
    }
    matrix::verify(cases())
}

fn wanted() -> BTreeSet<String> {
    let name = |letter: char| move |number: u8| format!("{letter}{number:02}");
    CLAUSES.map(name('c')).chain(SAFETY.map(name('s'))).chain(LIVENESS.map(name('l'))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clause_and_no_property_is_forgotten() {
        verify().unwrap();
    }
}
