//! The cases, by topic. A module that is not in the list does not compile, since its list of cases
//! would be dead code.

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

/// A hold that goes from one process to another.
mod handover {
    pub(super) mod processes;
    pub(super) mod resume;
    pub(super) mod tokens;
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
pub(crate) const ALL: &[&[Case]] = &[
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
    fences::register::CASES,
    operators::secrets::CASES,
    doubt::seldom::CASES,
    doubt::controls::CASES,
];
