//! The cases, by topic. A module that is not in the list does not compile, since its list of cases
//! would be dead code.

use crate::case::Case;

mod again;
mod answers;
mod blocks;
mod cancel_claim;
mod cancel_user;
mod cohort;
mod deadline;
mod detached;
mod doubt;
mod ends;
mod exclusion;
mod fairness;
mod faults_user;
mod fence;
mod forced;
mod handover;
mod holding;
mod identity;
mod inspection;
mod layer;
mod lease;
mod limits;
mod loss;
mod names;
mod place;
mod places;
mod processes;
mod register;
mod release;
mod renewal;
mod resume;
mod secrets;
mod seldom;
mod shown;
mod steps;
mod tools;
mod traffic;
mod unreachable;
mod waiting;

/// All modules.
pub(crate) const ALL: &[&[Case]] = &[
    identity::CASES,
    exclusion::CASES,
    lease::CASES,
    renewal::CASES,
    release::CASES,
    doubt::CASES,
    cancel_claim::CASES,
    cancel_user::CASES,
    waiting::CASES,
    place::CASES,
    deadline::CASES,
    fairness::CASES,
    fence::CASES,
    names::CASES,
    loss::CASES,
    holding::CASES,
    handover::CASES,
    faults_user::CASES,
    resume::CASES,
    ends::CASES,
    inspection::CASES,
    answers::CASES,
    processes::CASES,
    steps::CASES,
    again::CASES,
    forced::CASES,
    blocks::CASES,
    cohort::CASES,
    unreachable::CASES,
    traffic::CASES,
    places::CASES,
    limits::CASES,
    shown::CASES,
    register::CASES,
    secrets::CASES,
    seldom::CASES,
];
