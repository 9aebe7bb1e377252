//! A picture of a phase: who held which lock when, the faults above, and the losses.

use std::fmt::Write;

use super::PhaseReport;
use crate::fault::Class;
use crate::kind::Kind;

/// A longer phase is drawn up to here.
const SECONDS: f64 = 120.0;
const PIXELS_A_SECOND: f64 = 20.0;
const LEFT: f64 = 150.0;
const FAULTS: f64 = 60.0;
const LANE: f64 = 34.0;
/// One for each worker.
const COLOURS: &[&str] = &["#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377"];

pub(super) fn timeline(kind: Kind, played: &PhaseReport) -> String {
    let last = played.holds.iter().flatten().map(|hold| x(played, hold.end())).fold(LEFT, f64::max);
    let width = last.min(LEFT + SECONDS * PIXELS_A_SECOND) + 20.0;
    let height = FAULTS + LANE * (played.names.len() + 1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"4\" y=\"14\">{kind}, {:?}</text>\n",
        played.phase
    );
    let mut add = |element: std::fmt::Arguments<'_>| {
        let _ = writeln!(svg, "{element}");
    };
    for strike in played.strikes.iter().filter(|strike| x(played, strike.begun) < width) {
        let colour = if strike.class >= Class::F { "#ee667744" } else { "#bbbbbb66" };
        let (from, to) = (x(played, strike.begun), x(played, strike.ended));
        add(format_args!(
            "<g><title>{} {}</title><rect x=\"{from:.1}\" y=\"20\" width=\"{:.1}\" height=\"{:.0}\" fill=\"{colour}\"/>\
             <text x=\"{from:.1}\" y=\"32\">{}</text></g>",
            strike.number,
            strike.name,
            (to - from).max(1.5),
            height - 24.0,
            strike.number
        ));
    }
    for (lane, (name, holds)) in played.names.iter().zip(&played.holds).enumerate() {
        let top = FAULTS + LANE * lane as f64;
        add(format_args!("<text x=\"4\" y=\"{:.0}\">{}</text>", top + 14.0, escaped(name)));
        for hold in holds.iter().filter(|hold| x(played, hold.granted) < width) {
            let client = hold.client as usize;
            let (from, to) = (x(played, hold.granted), x(played, hold.end()));
            // Each worker has a line of its own, so that two holders are seen side by side.
            add(format_args!(
                "<rect x=\"{from:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"6\" fill=\"{}\"/>",
                top + 7.0 * (client % 4) as f64,
                (to - from).max(0.3),
                COLOURS[client % COLOURS.len()]
            ));
        }
    }
    for loss in played.losses.iter().filter(|loss| x(played, loss.at) < width) {
        add(format_args!(
            "<circle cx=\"{:.1}\" cy=\"{:.0}\" r=\"2.5\" fill=\"#cc0000\"><title>{}</title></circle>",
            x(played, loss.at),
            FAULTS + LANE * loss.name as f64 + 30.0,
            loss.reason
        ));
    }
    svg + "</svg>\n"
}

fn x(played: &PhaseReport, moment: u64) -> f64 {
    LEFT + moment.saturating_sub(played.begun) as f64 / 1e9 * PIXELS_A_SECOND
}

/// As text in XML, without the characters that XML does not have.
fn escaped(text: &str) -> String {
    text.chars()
        .filter(|char| !char.is_control())
        .map(|char| match char {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            other => other.to_string(),
        })
        .collect()
}
