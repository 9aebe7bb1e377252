//! The cases, by topic, and the checks that none is missing. A module that is not in the list does not compile,
//! since its list of cases would be dead code.

use std::collections::BTreeSet;

use crate::matrix;
use crate::runner::case::Case;

/// One holder at a time, for as long as was promised.
mod hold {
    pub(super) mod ends;
    pub(super) mod exclusion;
    pub(super) mod holding;
    pub(super) mod lease;
    pub(super) mod loss;
    pub(super) mod release;
    pub(super) mod renewal;
}

/// What is lost, late, dropped or out of reach.
mod doubt {
    pub(super) mod controls;
    pub(super) mod deadline;
    pub(super) mod dropped_claim;
    pub(super) mod late_answers;
    pub(super) mod seldom;
    pub(super) mod unknown;
    pub(super) mod unreachable;
    pub(super) mod user_drops;
    pub(super) mod user_faults;
}

/// Who waits, and who is next.
mod queue {
    pub(super) mod fairness;
    pub(super) mod forced;
    pub(super) mod place;
    pub(super) mod traffic;
    pub(super) mod waiting;
}

/// The tokens that rise.
mod fences {
    pub(super) mod blocks;
    pub(super) mod cohort;
    pub(super) mod register;
    pub(super) mod rising;
}

/// Whose entry it is, and of which lock.
mod identity {
    pub(super) mod limits;
    pub(super) mod names;
    pub(super) mod owners;
}

/// Who has a lock at this moment, and which tokens are still to come.
mod look {
    pub(super) mod effects;
    pub(super) mod faults;
    pub(super) mod floors;
    pub(super) mod holders;
    pub(super) mod order;
}

/// A hold that goes from one process to another.
mod handover {
    pub(super) mod processes;
    pub(super) mod resume;
    pub(super) mod tokens;
}

/// Locks that are made of several.
mod kinds {
    pub(super) mod gone;
    pub(super) mod permits;
    pub(super) mod readers;
    pub(super) mod under_faults;
}

/// What is shown, and what must not be.
mod operators {
    pub(super) mod answers;
    pub(super) mod inspection;
    pub(super) mod secrets;
    pub(super) mod shown;
}

mod tools;

/// All modules, in the order of the suite.
const ALL: &[&[Case]] = &[
    identity::owners::CASES,
    hold::exclusion::CASES,
    hold::lease::CASES,
    hold::renewal::CASES,
    hold::release::CASES,
    doubt::unknown::CASES,
    doubt::dropped_claim::CASES,
    doubt::user_drops::CASES,
    queue::waiting::CASES,
    queue::place::CASES,
    doubt::deadline::CASES,
    queue::fairness::CASES,
    fences::rising::CASES,
    identity::names::CASES,
    hold::loss::CASES,
    hold::holding::CASES,
    handover::tokens::CASES,
    doubt::user_faults::CASES,
    handover::resume::CASES,
    hold::ends::CASES,
    operators::inspection::CASES,
    operators::answers::CASES,
    handover::processes::CASES,
    doubt::late_answers::CASES,
    queue::forced::CASES,
    fences::blocks::CASES,
    fences::cohort::CASES,
    doubt::unreachable::CASES,
    queue::traffic::CASES,
    identity::limits::CASES,
    operators::shown::CASES,
    look::holders::CASES,
    look::floors::CASES,
    look::order::CASES,
    look::effects::CASES,
    look::faults::CASES,
    kinds::permits::CASES,
    kinds::readers::CASES,
    kinds::under_faults::CASES,
    kinds::gone::CASES,
    fences::register::CASES,
    operators::secrets::CASES,
    doubt::seldom::CASES,
    doubt::controls::CASES,
];

/// The clauses of the contract and the properties of the library that the suite must cover.
const CLAUSES: std::ops::RangeInclusive<u8> = 1..=18;
const SAFETY: std::ops::RangeInclusive<u8> = 1..=8;
const LIVENESS: std::ops::RangeInclusive<u8> = 1..=5;

/// All cases, in the order of the suite.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> + Clone {
    ALL.iter().copied().flatten()
}

/// Checks that names are unique and name what they check, and that nothing is left unchecked.
pub(crate) fn verify() -> Result<(), String> {
    let mut ids = BTreeSet::new();
    let mut covered = BTreeSet::new();
    let wanted = wanted();
    for case in all() {
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
    let covers = all().map(|case| (case.id, case.covers));
    matrix::verify(covers, all().map(|case| (case.id, case.guards)))
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
