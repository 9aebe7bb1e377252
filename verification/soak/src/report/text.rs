//! The report for a terminal.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Report, SetupReport};
use crate::fault::Class;

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    for setup in &report.setups {
        text += &of_setup(setup);
    }
    text += &of_all(report);
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{words}");
    };
    line(format_args!("\nrows that are not struck:"));
    for (row, why) in report.left_out {
        line(format_args!("  {row}: {why}"));
    }
    for why in report.voids() {
        line(format_args!("void: {why}"));
    }
    for setup in &report.setups {
        for violated in &setup.violations {
            line(format_args!("violated: {}: {}", violated.promise, violated.what));
        }
    }
    let again: Vec<_> = report.to_be_judged_again().iter().map(ToString::to_string).collect();
    if !again.is_empty() {
        line(format_args!("to be judged again: {}", again.join(",")));
    }
    let verdict = match (report.violations(), report.is_void()) {
        (0, false) => "nothing was violated",
        (0, true) => "nothing was violated, but the run is void",
        _ => "VIOLATED",
    };
    line(format_args!(
        "soak: {} faults, {} grants on {} set-ups in {:.0}s, {} violations, seed {}: {verdict}",
        report.faults,
        report.grants,
        report.setups.len(),
        report.took,
        report.violations(),
        report.seed
    ));
    text
}

/// What a reader wants first: the run as a whole.
fn of_all(report: &Report) -> String {
    let mut text = "\n== all set-ups\n  faults by row:".to_owned();
    let rows = || report.setups.iter().flat_map(|setup| &setup.rows);
    let numbers: BTreeSet<_> = rows().map(|row| row.number).collect();
    for number in numbers {
        let hits: usize = rows().filter(|row| row.number == number).map(|row| row.hits).sum();
        let _ = write!(text, " {number}: {hits}");
    }
    text += "\n  breaks of exclusion by class:";
    for class in [Class::K, Class::U, Class::F, Class::X] {
        let breaks: usize = rows().filter(|row| row.class == class).map(|row| row.breaks).sum();
        let _ = write!(text, " {class:?}: {breaks}");
    }
    let sum = |what: fn(&SetupReport) -> usize| -> usize { report.setups.iter().map(what).sum() };
    let _ = write!(text, "; of more than one fault: {}", sum(|setup| setup.ambiguous));
    let longest =
        |what: fn(&SetupReport) -> f64| report.setups.iter().map(what).fold(0.0, f64::max);
    let _ = write!(
        text,
        "\n  guarded updates: {}; lost by the controls: {} and {}\n  \
         excused by a measured standstill: {} losses told late (the process had not run for up to {:.0} ms since \
         the end of validity), {} phases that healed late\n",
        sum(|setup| setup.acknowledged),
        sum(|setup| setup.lost_by_controls[0]),
        sum(|setup| setup.lost_by_controls[1]),
        sum(|setup| setup.losses_excused),
        longest(|setup| setup.longest_standstill_ms),
        sum(|setup| setup.healings_excused),
    );
    text
}

fn of_setup(setup: &SetupReport) -> String {
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{words}");
    };
    line(format_args!("\n== {} ({:.0}s)", setup.kind, setup.took));
    for (phase, summary) in &setup.phases {
        let (memory, files) = (summary.kilobytes, summary.files);
        line(format_args!(
            "  {phase:?}: {} grants in {:.0}s, {:.0}/s in the time that it ran (all but {:.1}s), healed in {:.1}s; workers {} to {} MB, {} to {} files",
            summary.grants,
            summary.seconds,
            summary.rate,
            summary.stalled,
            summary.longest_healing,
            memory.0 / 1024,
            memory.1 / 1024,
            files.0,
            files.1
        ));
    }
    let [median, p99, longest] = setup.waits_ms;
    line(format_args!("  waits: median {median:.1} ms, p99 {p99:.0} ms, longest {longest:.0} ms"));
    line(format_args!(
        "  losses: {:?}, the latest told {:.1} ms after the end of validity, without standstills; excused by one: \
         {}, of up to {:.0} ms",
        setup.losses, setup.latest_loss_ms, setup.losses_excused, setup.longest_standstill_ms
    ));
    line(format_args!(
        "  seen: {:?}; left in the store: {}; {} guarded updates, and lost by the controls: {:?}",
        setup.seen, setup.left_over, setup.acknowledged, setup.lost_by_controls
    ));
    let mut rows: Vec<_> = setup.rows.iter().collect();
    rows.sort_by_key(|row| row.number);
    for row in rows {
        line(format_args!(
            "  {:>3} {:?} {:>4} hits {:>3} missed {:>4} breaks  {}",
            row.number, row.class, row.hits, row.missed, row.breaks, row.name
        ));
    }
    text
}
