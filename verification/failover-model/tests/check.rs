//! Runs the model check: the right rules hold, and each wrong rule is found out.
//!
//! `cargo test -p failover-model -- --nocapture --test-threads=1` prints how many states there are, and the shortest way
//! to what each wrong rule breaks.

use std::time::SystemTime;

use failover_model::{Failover, Marker, Wrong};
use stateright::{Checker, HasDiscoveries, Model};

/// Explores every reachable state, of which there are at least so many.
fn holds(what: &str, model: Failover, least: usize) {
    let started = SystemTime::now();
    let checker = model.checker().threads(1).spawn_bfs().join();
    let took = started.elapsed().unwrap_or_default();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{what}: {states} states, up to {depth} steps deep, after {took:.0?}");
    checker.assert_properties();
    assert!(states >= least, "{what}: {states} states, not {least}");
}

/// Explores until the property is broken, which takes so many steps.
fn breaks(what: &str, property: &'static str, (model, expected): (Failover, usize)) {
    let builder = model.checker().threads(1).finish_when(HasDiscoveries::AnyOf([property].into()));
    let checker = builder.spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(property);
    let steps = path.unwrap_or_else(|| panic!("{what}: found right in {states} states"));
    let steps = steps.into_actions();
    println!("{what}: {property:?} after {} steps, {states} states: {steps:?}", steps.len());
    assert_eq!(steps.len(), expected, "{what}: {steps:?}");
}

/// The lag is two ticks.
fn longer() -> Failover {
    Failover { ttl: 3, lag: 2, wait: 5, ..Failover::default() }
}

#[test]
fn one_client_believes() {
    let right = Failover::default();
    holds("two failovers", right, 200_696);
    holds("three failovers", Failover { failovers: 3, ..right }, 426_751);
    holds("two releases", Failover { releases: 2, ..right }, 496_814);
    holds("a longer lag", longer(), 1_046_205);
}

/// If no master is demoted unseen, it is enough that the marker names the process.
#[test]
fn a_marker_of_the_process_would_do_where_each_master_is_seen() {
    let seen = Failover { marker: Marker::Process, sees_first: true, ..Failover::default() };
    holds("a marker of the process", seen, 92_896);
}

#[test]
fn fences_rise_though_clocks_differ() {
    let fences = Failover { fences: true, delays: false, failovers: 1, ..Failover::default() };
    for skew in [-1, 0, 1] {
        holds("fences", Failover { skew, ..fences }, 100_000);
    }
}

/// What is not built.
#[test]
fn renewals_could_be_answered_from_the_lag_on() {
    for right in [Failover::default(), longer()] {
        let cure = Failover { renews_after: Some(right.lag), ..right };
        holds("renewals after the lag", cure, 200_000);
    }
}

#[test]
fn each_wrong_rule_is_found() {
    let right = Failover::default();
    let wrong = |wrong| Failover { wrong: Some(wrong), ..right };
    let exclusion = [
        ("no wait", wrong(Wrong::NoWait), 6),
        ("a wait without the lag", Failover { wait: right.ttl, ..right }, 9),
        ("a master that goes on", wrong(Wrong::GoesOn), 10),
        ("renewals at once", Failover { renews_after: Some(0), ..right }, 12),
        ("renewals before the lag", Failover { renews_after: Some(1), ..longer() }, 13),
        ("the own entry", wrong(Wrong::OwnEntryIsGrant), 11),
        ("a wait from the last write", wrong(Wrong::WaitsFromLastWrite), 10),
        ("a marker of nothing", Failover { marker: Marker::Nothing, ..right }, 6),
        ("a marker of the process", Failover { marker: Marker::Process, ..right }, 9),
    ];
    for (what, model, steps) in exclusion {
        breaks(what, Failover::EXCLUSION, (model, steps));
    }
    let revives = Failover { skew: -1, renews_after: Some(1), ..wrong(Wrong::Revives) };
    breaks("a renewal after the end", Failover::EXCLUSION, (revives, 12));
    let fences = Failover { fences: true, delays: false, ..right };
    let no_clock = Failover { wrong: Some(Wrong::NoClock), ..fences };
    breaks("no clock", Failover::ORDER, (no_clock, 10));
    breaks("clocks that differ", Failover::ORDER, (Failover { skew: -2, ..fences }, 13));
    breaks("a lead", Failover::ORDER, (Failover { lead: 2, ..fences }, 13));
}
