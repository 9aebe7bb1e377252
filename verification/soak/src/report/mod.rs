//! What a run has seen: a text, a JSON file, and a picture of each set-up.

mod svg;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use conformance_tests::shared::HoldRecord;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::fault::{Class, LEFT_OUT, Phase, ROWS, Row, Strike};
use crate::kind::Kind;
use crate::ledger::Loss;
use crate::meter::Sample;
use crate::protocol::Seen;
use crate::stage::Violated;
use crate::verdict::Verdict;

/// Of eight strikes of a row, this many must succeed.
const NEEDED: usize = 5;
/// With so many breaks of exclusion each control loses an update.
const ENOUGH_BREAKS: usize = 10;
/// The grants of a set-up under faults, compared with those without.
const LEAST_RATE: f64 = 0.2;

/// One phase, as it was played.
#[derive(Debug)]
pub(crate) struct PhaseReport {
    pub(crate) phase: Phase,
    pub(crate) begun: u64,
    /// From the first grants to the last fault.
    pub(crate) seconds: f64,
    /// For how many of these the soak did not run.
    pub(crate) stalled: f64,
    /// Grants a second in the rest of that time: the machine may be busier in one phase than in another.
    pub(crate) rate: f64,
    pub(crate) grants: u64,
    pub(crate) healed_in: f64,
    pub(crate) healing_excused: bool,
    pub(crate) left_over: usize,
    pub(crate) strikes: Vec<Strike>,
    pub(crate) verdict: Verdict,
    /// Whether a doctored copy of the history was refused, where that was tried.
    pub(crate) doctored: Option<Result<(), String>>,
    pub(crate) losses: Vec<Loss>,
    pub(crate) seen: BTreeMap<Seen, u64>,
    pub(crate) waits: Histogram<u64>,
    pub(crate) names: Vec<String>,
    pub(crate) holds: Vec<Vec<HoldRecord>>,
    pub(crate) samples: Vec<Sample>,
}

/// One row of the table, at one set-up.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RowReport {
    pub(crate) number: u8,
    pub(crate) name: &'static str,
    pub(crate) class: Class,
    pub(crate) hits: usize,
    /// Strikes that did not succeed, and why the last one did not.
    pub(crate) missed: usize,
    pub(crate) why: Option<String>,
    /// How often exclusion was broken.
    pub(crate) breaks: usize,
}

impl RowReport {
    /// Whether so many strikes were asked for, and too few succeeded.
    fn is_missed(&self, hits: usize) -> bool {
        self.hits < (hits * NEEDED).div_ceil(8)
    }

    /// Whether it should have broken exclusion, and has broken none yet.
    fn is_unproven(&self) -> bool {
        self.class == Class::F && self.breaks == 0
    }
}

/// The phases of one kind, all together.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct PhaseSummary {
    pub(crate) played: usize,
    pub(crate) seconds: f64,
    /// For how many of these the soak did not run.
    pub(crate) stalled: f64,
    pub(crate) grants: u64,
    /// Grants a second in the rest, up to the last fault, on average over the phases.
    pub(crate) rate: f64,
    pub(crate) longest_healing: f64,
    /// Of the workers at the second sample, and at the last one.
    pub(crate) kilobytes: (u64, u64),
    pub(crate) files: (usize, usize),
}

/// One set-up.
#[derive(Debug, Serialize)]
pub(crate) struct SetupReport {
    pub(crate) kind: Kind,
    pub(crate) took: f64,
    pub(crate) phases: BTreeMap<Phase, PhaseSummary>,
    pub(crate) rows: Vec<RowReport>,
    pub(crate) seen: BTreeMap<Seen, u64>,
    /// By phase and reason.
    pub(crate) losses: BTreeMap<Phase, BTreeMap<String, u64>>,
    /// Exclusions that were broken under more than one fault that may have done it.
    pub(crate) ambiguous: usize,
    /// The latest report of a loss, in milliseconds after the end of validity, of processes that ran.
    pub(crate) latest_loss_ms: f64,
    /// Losses that were told late by processes that had not run since the end of validity.
    pub(crate) losses_excused: usize,
    /// For how long the one of them had not run that needed it most.
    pub(crate) longest_standstill_ms: f64,
    /// Phases that took longer than the limit to heal, but not without the time in which the soak did not run.
    pub(crate) healings_excused: usize,
    /// The median, the 99th percentile and the longest, in milliseconds.
    pub(crate) waits_ms: [f64; 3],
    pub(crate) left_over: usize,
    /// Updates that the guarded register has acknowledged.
    pub(crate) acknowledged: usize,
    /// Updates that the register that checks the fence on writes has lost, and the one without.
    pub(crate) lost_by_controls: [usize; 2],
    pub(crate) violations: Vec<Violated>,
    pub(crate) void: Vec<String>,
    #[serde(skip)]
    waits: Histogram<u64>,
    #[serde(skip)]
    pictures: Vec<(String, String)>,
    /// The histories of phases with violations.
    #[serde(skip)]
    histories: Vec<(String, String)>,
}

impl SetupReport {
    pub(crate) fn new(kind: Kind, waits: Histogram<u64>) -> Self {
        let rows = ROWS.iter().filter_map(|row| {
            let class = row.class(kind)?;
            let (number, name) = (row.number, row.name);
            Some(RowReport { number, name, class, hits: 0, missed: 0, why: None, breaks: 0 })
        });
        Self {
            kind,
            took: 0.0,
            phases: BTreeMap::new(),
            rows: rows.collect(),
            seen: BTreeMap::new(),
            losses: BTreeMap::new(),
            ambiguous: 0,
            latest_loss_ms: 0.0,
            losses_excused: 0,
            longest_standstill_ms: 0.0,
            healings_excused: 0,
            waits_ms: [0.0; 3],
            left_over: 0,
            acknowledged: 0,
            lost_by_controls: [0; 2],
            violations: Vec::new(),
            void: Vec::new(),
            waits,
            pictures: Vec::new(),
            histories: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, played: PhaseReport) {
        let summary = self.phases.entry(played.phase).or_default();
        let so_far = summary.played as f64;
        summary.rate = (summary.rate * so_far + played.rate) / (so_far + 1.0);
        summary.played += 1;
        summary.seconds += played.seconds;
        summary.stalled += played.stalled;
        summary.grants += played.grants;
        summary.longest_healing = summary.longest_healing.max(played.healed_in);
        if let (Some(first), Some(last)) = (played.samples.get(1), played.samples.last()) {
            summary.kilobytes = (first.kilobytes, last.kilobytes);
            summary.files = (first.files, last.files);
        }
        if summary.played == 1 {
            let name = format!("{}-{:?}", self.kind, played.phase).to_lowercase();
            self.pictures.push((name, svg::timeline(self.kind, &played)));
        }
        if !played.verdict.violations.is_empty() {
            self.keep_history(&played);
        }
        for strike in &played.strikes {
            if let Some(row) = self.row(strike.number, strike.name) {
                match &strike.failed {
                    None => row.hits += 1,
                    Some(why) => (row.missed, row.why) = (row.missed + 1, Some(why.clone())),
                }
            }
        }
        for broken in &played.verdict.broken {
            if let Some(row) = self.row(broken.number, broken.name) {
                row.breaks += 1;
            }
        }
        self.ambiguous += played.verdict.ambiguous;
        for (seen, count) in &played.seen {
            *self.seen.entry(*seen).or_default() += count;
        }
        for loss in &played.losses {
            let of_phase = self.losses.entry(played.phase).or_default();
            *of_phase.entry(loss.reason.clone()).or_default() += 1;
            let late = loss.late.saturating_sub(loss.stalled) as f64 / 1e6;
            self.latest_loss_ms = self.latest_loss_ms.max(late);
        }
        let (losses, longest) = played.verdict.excused;
        self.losses_excused += losses;
        self.longest_standstill_ms = self.longest_standstill_ms.max(longest as f64 / 1e6);
        self.healings_excused += usize::from(played.healing_excused);
        for (sum, lost) in self.lost_by_controls.iter_mut().zip(played.verdict.lost_by_controls) {
            *sum += lost;
        }
        self.acknowledged += played.verdict.acknowledged;
        self.left_over += played.left_over;
        // Both have the same bounds, or none.
        let _ = self.waits.add(&played.waits);
        self.violations.extend(played.verdict.violations);
        if let Some(Err(why)) = played.doctored {
            self.void.push(format!("{}: a doctored history was not refused: {why}", self.kind));
        }
    }

    /// Whether a row of which so many strikes were asked for has to strike once more.
    pub(crate) fn is_open(&self, row: &Row, hits: usize) -> bool {
        let mut rows = self.rows.iter().filter(|it| it.number == row.number && it.name == row.name);
        rows.any(|row| row.is_missed(hits) || row.is_unproven())
    }

    fn row(&mut self, number: u8, name: &str) -> Option<&mut RowReport> {
        self.rows.iter_mut().find(|row| row.number == number && row.name == name)
    }

    fn keep_history(&mut self, played: &PhaseReport) {
        let mut lines = String::new();
        for strike in &played.strikes {
            lines += &serde_json::to_string(strike).unwrap_or_default();
            lines.push('\n');
        }
        for (name, holds) in played.names.iter().zip(&played.holds) {
            for hold in holds {
                lines += &serde_json::to_string(&(name, hold)).unwrap_or_default();
                lines.push('\n');
            }
        }
        let name = format!("{}-{:?}-{}", self.kind, played.phase, self.histories.len() + 1);
        self.histories.push((name.to_lowercase(), lines));
    }

    /// Says what makes the run of this set-up worthless, if something does.
    pub(crate) fn finish(&mut self, hits: usize) {
        let waited = |quantile| self.waits.value_at_quantile(quantile) as f64 / 1000.0;
        self.waits_ms = [waited(0.5), waited(0.99), self.waits.max() as f64 / 1000.0];
        let kind = self.kind;
        for row in &self.rows {
            let RowReport { number, name, hits: seen, .. } = row;
            if row.is_missed(hits) {
                let why = row.why.as_deref().unwrap_or("the run ended before");
                self.void.push(format!("{kind}: row {number}, {name}, struck {seen} times: {why}"));
            } else if row.is_unproven() {
                self.void.push(format!("{kind}: row {number}, {name}, broke nothing"));
            }
        }
        let rate = |phase| self.phases.get(&phase).map_or(0.0, |summary| summary.rate);
        let (calm, storm) = (rate(Phase::Calm), rate(Phase::Storm));
        if storm < calm * LEAST_RATE || calm == 0.0 {
            self.void.push(format!("{kind}: {storm:.0} grants/s under faults, {calm:.0} without"));
        }
        if !self.seen.contains_key(&Seen::Outlasted) {
            self.void.push(format!("{kind}: no hold was renewed for longer than its ttl"));
        }
        let grants: u64 = self.phases.values().map(|summary| summary.grants).sum();
        if (self.acknowledged as u64) < grants / 4 {
            let updates = self.acknowledged;
            self.void.push(format!("{kind}: {updates} guarded updates under {grants} grants"));
        }
    }
}

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) took: f64,
    pub(crate) faults: usize,
    pub(crate) grants: u64,
    pub(crate) setups: Vec<SetupReport>,
    /// What makes the run as a whole worthless.
    pub(crate) void: Vec<String>,
    /// The rows of the matrix that are never struck, and why.
    pub(crate) left_out: &'static [(&'static str, &'static str)],
}

impl Report {
    pub(crate) fn new(seed: u64, took: f64, mut setups: Vec<SetupReport>) -> Self {
        setups.sort_by_key(|setup| setup.kind);
        let faults = setups.iter().flat_map(|setup| &setup.rows).map(|row| row.hits).sum();
        let grants = setups.iter().flat_map(|setup| setup.phases.values());
        let grants = grants.map(|phase| phase.grants).sum();
        let void = controls_that_lost_nothing(&setups);
        Self { seed, took, faults, grants, setups, void, left_out: LEFT_OUT }
    }

    pub(crate) fn violations(&self) -> usize {
        self.setups.iter().map(|setup| setup.violations.len()).sum()
    }

    /// The set-ups that a busy machine may have been too slow for; none if anything is wrong that this does
    /// not excuse, or that one set-up alone cannot make good.
    pub(crate) fn to_be_judged_again(&self) -> Vec<Kind> {
        let violations = |setup: &SetupReport| !setup.violations.is_empty();
        let grave = |setup: &SetupReport| setup.violations.iter().any(Violated::is_grave);
        if !self.void.is_empty() || self.setups.iter().any(grave) {
            return Vec::new();
        }
        let again = self.setups.iter().filter(|setup| violations(setup) || !setup.void.is_empty());
        again.map(|setup| setup.kind).collect()
    }

    pub(crate) fn is_void(&self) -> bool {
        self.voids().next().is_some()
    }

    /// All that makes the run worthless.
    fn voids(&self) -> impl Iterator<Item = &String> {
        self.setups.iter().flat_map(|setup| &setup.void).chain(&self.void)
    }

    /// Writes all files into a folder. Returns the text.
    pub(crate) fn write(&self, folder: &Path) -> std::io::Result<String> {
        std::fs::create_dir_all(folder)?;
        let text = text::text(self);
        std::fs::write(folder.join("report.txt"), &text)?;
        let json = serde_json::to_string_pretty(self)?;
        std::fs::write(folder.join("report.json"), json + "\n")?;
        let path = |name: &str, end: &str| -> PathBuf { folder.join(format!("{name}.{end}")) };
        for setup in &self.setups {
            for (name, picture) in &setup.pictures {
                std::fs::write(path(name, "svg"), picture)?;
            }
            for (name, history) in &setup.histories {
                std::fs::write(path(name, "jsonl"), history)?;
            }
        }
        Ok(text)
    }
}

/// Both controls have to lose updates somewhere. Where exclusion was seldom broken, as at a slow set-up alone, they need not.
fn controls_that_lost_nothing(setups: &[SetupReport]) -> Vec<String> {
    let breaks = |setup: &SetupReport| {
        setup.ambiguous + setup.rows.iter().map(|row| row.breaks).sum::<usize>()
    };
    if setups.iter().map(breaks).sum::<usize>() < ENOUGH_BREAKS {
        return Vec::new();
    }
    let lost = |at: usize| -> usize { setups.iter().map(|setup| setup.lost_by_controls[at]).sum() };
    let controls = ["checks on writes only", "has no fence"].iter().enumerate();
    let useless = controls.filter(|(at, _)| lost(*at) == 0);
    useless.map(|(_, control)| format!("the register that {control} has lost no update")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(lost_by_controls: [usize; 2]) -> SetupReport {
        let waits = Histogram::new(3).unwrap();
        let ambiguous = ENOUGH_BREAKS;
        SetupReport { lost_by_controls, ambiguous, ..SetupReport::new(Kind::Redis, waits) }
    }

    #[test]
    fn a_control_that_loses_nothing_makes_the_run_void() {
        let is_void = |lost: &[[usize; 2]]| {
            Report::new(1, 1.0, lost.iter().copied().map(setup).collect()).is_void()
        };
        assert!(!is_void(&[[0, 7], [3, 0]]));
        assert!(is_void(&[[0, 7], [0, 1]]));
        assert!(is_void(&[[3, 0], [1, 0]]));
        // Too few breaks for it.
        let seldom = SetupReport { ambiguous: ENOUGH_BREAKS - 1, ..setup([0, 1]) };
        assert!(!Report::new(1, 1.0, vec![seldom]).is_void());
    }

    #[test]
    fn a_row_is_open_until_it_has_struck_and_broken_what_it_must() {
        let mut report = setup([1, 1]);
        let open = |report: &SetupReport, hits| {
            let rows = ROWS.iter().filter(|row| report.is_open(row, hits));
            rows.map(|row| row.number).collect::<Vec<_>>()
        };
        assert_eq!(open(&report, 0), [20, 20, 21, 25, 28, 28]);
        for row in &mut report.rows {
            row.breaks = usize::from(row.number != 25);
            row.hits = if row.number == 15 { 1 } else { 2 };
        }
        assert_eq!(open(&report, 2), [15, 25]);
        assert_eq!(open(&report, 1), [25]);
    }

    #[test]
    fn a_set_up_that_is_judged_again_makes_no_useless_control_good() {
        let slow = |lost| SetupReport { void: vec!["too slow".to_owned()], ..setup(lost) };
        let again = |lost| Report::new(1, 1.0, vec![slow(lost)]).to_be_judged_again().len();
        assert_eq!([again([1, 1]), again([0, 1])], [1, 0]);
    }
}
