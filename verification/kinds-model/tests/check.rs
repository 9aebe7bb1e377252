//! Runs the model check: the right rules hold, and each wrong rule is found out.
//!
//! `cargo test -p kinds-model -- --nocapture --test-threads=1` prints how many states there are, and the shortest way to
//! what each wrong rule breaks. All of it takes some fifteen seconds of processor time.

use std::time::SystemTime;

use kinds_model::{Fact, Model, Quorum, RwLock, Semaphore, explore, quorum, rwlock, semaphore};

/// Explores every reachable state, of which there are at least so many.
fn holds<M: Model>(what: &str, model: &M, properties: &[Fact], states: usize) {
    let started = SystemTime::now();
    let explored = explore(model, properties);
    let took = started.elapsed().unwrap_or_default();
    let (reached, depth) = (explored.states, explored.depth);
    println!("{what}: {reached} states, up to {depth} steps deep, after {took:.0?}");
    assert_eq!(explored.found, None, "{what}");
    assert!(reached >= states, "{what}: {reached} states, not {states}");
}

/// Explores until this is reached.
fn reaches<M: Model>(what: &str, model: &M, fact: Fact) {
    let explored = explore(model, &[fact]);
    let Some((_, way)) = explored.found else {
        panic!("{what}: not reached in {} states: {fact}", explored.states);
    };
    let (states, steps) = (explored.states, way.len());
    println!("{what}: {fact:?} after {steps} steps, {states} states: {}", way.join(", "));
}

#[test]
fn readers_and_writers_hold() {
    let model = RwLock::default();
    holds("two writers, two readers", &model, &RwLock::PROPERTIES, 46_404);
    RwLock::POSSIBLE.iter().for_each(|fact| reaches("two writers, two readers", &model, fact));
}

#[test]
fn joined_readers_hold() {
    let model = RwLock { joined: true, ..RwLock::default() };
    holds("two writers, two joined readers", &model, &RwLock::PROPERTIES, 47_833);
    reaches("two writers, two joined readers", &model, RwLock::SHARED);
    let model = RwLock { readers: 3, ..model };
    let what = "two writers, two joined readers, one more";
    holds(what, &model, &RwLock::PROPERTIES, 670_802);
}

#[test]
fn each_wrong_rule_of_readers_and_writers_is_found() {
    use rwlock::Wrong;

    let joined = RwLock { joined: true, ..RwLock::default() };
    let wrong = [
        (Wrong::LooksBeforeSlot, RwLock::EXCLUSION),
        (Wrong::LooksBeforeGate, RwLock::EXCLUSION),
        (Wrong::LeavesSlotOut, RwLock::EXCLUSION),
        (Wrong::DrainsWithoutGate, RwLock::EXCLUSION),
        (Wrong::KeepsWhatItSaw, RwLock::EXCLUSION),
        (Wrong::PassesWriter, RwLock::EXCLUSION),
        (Wrong::PassesGateOn, RwLock::EXCLUSION),
        (Wrong::SlotFence, RwLock::ORDER),
        (Wrong::FloorTooSmall, RwLock::ORDER),
        (Wrong::FloorTooLarge, RwLock::ORDER),
        (Wrong::SlotAfterGate, RwLock::EXCLUSION),
        (Wrong::SlotWithoutGate, RwLock::EXCLUSION),
        (Wrong::KeepsSlot, RwLock::WRITES),
        (Wrong::JoinsBlindly, RwLock::PRECEDENCE),
        (Wrong::JoinsWhatIsLost, RwLock::EXCLUSION),
        (Wrong::OneMark, RwLock::ADMISSION),
        (Wrong::OneMark, RwLock::REFUSAL),
        (Wrong::AdmitsEqual, RwLock::REFUSAL),
    ];
    for (wrong, broken) in wrong {
        let model = match wrong {
            Wrong::JoinsBlindly | Wrong::JoinsWhatIsLost => joined,
            _ => RwLock::default(),
        };
        reaches(&format!("{wrong:?}"), &RwLock { wrong: Some(wrong), ..model }, broken);
    }
}

#[test]
fn a_semaphore_holds() {
    let model = Semaphore::default();
    holds("three contenders for two slots", &model, &Semaphore::PROPERTIES, 213);
    Semaphore::POSSIBLE.iter().for_each(|fact| reaches("a semaphore", &model, fact));
}

#[test]
fn each_wrong_rule_of_a_semaphore_is_found() {
    use semaphore::Wrong;

    for (wrong, broken) in [
        (Wrong::KeepsTurn, Semaphore::GRANTS),
        (Wrong::KeepsSecond, Semaphore::OWNED),
        (Wrong::SearchesWithoutTurn, Semaphore::ORDER),
        (Wrong::GrantsTwice, Semaphore::DISTINCT),
        (Wrong::BelievesOn, Semaphore::LIMIT),
    ] {
        reaches(&format!("{wrong:?}"), &Semaphore { wrong: Some(wrong) }, broken);
    }
}

#[test]
fn looks_at_a_quorum_hold() {
    let three = Quorum { nodes: 3, loses: true, wrong: None };
    holds("two parties, three nodes", &three, &[Quorum::EXCLUSION], 14_905);
    Quorum::POSSIBLE.iter().for_each(|fact| reaches("two parties, three nodes", &three, fact));
    let five = Quorum { nodes: 5, loses: false, wrong: None };
    holds("two parties, five nodes that keep their data", &five, &[Quorum::EXCLUSION], 55_098);
}

#[test]
fn each_wrong_rule_of_a_quorum_is_found() {
    use quorum::Wrong;

    for wrong in [
        Wrong::LooksFirst,
        Wrong::TooFewVotes,
        Wrong::TooFewAnswers,
        Wrong::SilenceIsFree,
        Wrong::ShowsInQuarantine,
        Wrong::NoQuarantine,
    ] {
        let model = Quorum { nodes: 3, loses: true, wrong: Some(wrong) };
        reaches(&format!("{wrong:?}"), &model, Quorum::EXCLUSION);
    }
}
