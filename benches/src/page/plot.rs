//! A plot of times on a logarithmic scale: a line for each row, from its median to its longest,
//! beside the median of its floor.

use std::fmt::Write;

use super::table::unit;
use crate::results::Row;

const LABELS: f64 = 400.0;
const WIDTH: f64 = 900.0;
const MARGIN: f64 = 30.0;
const HEIGHT: f64 = 16.0;
const TOP: f64 = 54.0;

/// An SVG; `None` if no row has a time.
pub(super) fn of(title: &str, rows: &[&Row]) -> Option<String> {
    let rows: Vec<_> = rows.iter().filter_map(|row| Some((row, row.time?))).collect();
    let times = rows.iter().flat_map(|(row, time)| {
        [Some(time.p50), Some(time.max), row.floor.map(|floor| floor.p50)].into_iter().flatten()
    });
    let logs: Vec<f64> = times.map(|time| (time.max(1) as f64).log10()).collect();
    let first = logs.iter().copied().reduce(f64::min)?.floor();
    let last = logs.iter().copied().reduce(f64::max)?.ceil().max(first + 1.0);
    let at = |nanos: u64| {
        let share = ((nanos.max(1) as f64).log10() - first) / (last - first);
        LABELS + share * (WIDTH - LABELS - MARGIN)
    };
    let bottom = TOP + HEIGHT * rows.len() as f64;
    let mut svg = String::new();
    let mut add = |element: String| {
        // Writing to a string does not fail.
        let _ = writeln!(svg, "{element}");
    };
    add(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"11\">",
        bottom + MARGIN
    ));
    add("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>".to_owned());
    add(format!("<text x=\"8\" y=\"18\" font-size=\"14\">{}</text>", escaped(title)));
    add("<text x=\"8\" y=\"36\" fill=\"#555\">circle: p50 · bar: p99 · line: to the longest · tick: p50 of the floor</text>".to_owned());
    let mut decade = first;
    while decade <= last {
        let nanos = 10_f64.powf(decade);
        let (unit, size) = unit(nanos * 1.000_001);
        let x = LABELS + (decade - first) / (last - first) * (WIDTH - LABELS - MARGIN);
        add(format!(
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#ddd\"/>"
        ));
        add(format!(
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{:.0} {unit}</text>",
            bottom + 16.0,
            nanos / size
        ));
        decade += 1.0;
    }
    for (number, (row, time)) in rows.iter().enumerate() {
        let y = TOP + HEIGHT * (number as f64 + 0.5);
        let label = format!("{}, {}: {}", row.store.name(), row.library, row.case);
        let (p50, p99, max) = (at(time.p50), at(time.p99), at(time.max));
        add(format!("<text x=\"8\" y=\"{:.1}\">{}</text>", y + 4.0, escaped(&label)));
        add(format!(
            "<line x1=\"{p50:.1}\" x2=\"{max:.1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#1f77b4\"/>"
        ));
        add(format!(
            "<line x1=\"{p99:.1}\" x2=\"{p99:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#1f77b4\" stroke-width=\"2\"/>",
            y - 4.0,
            y + 4.0
        ));
        add(format!("<circle cx=\"{p50:.1}\" cy=\"{y}\" r=\"3.5\" fill=\"#1f77b4\"/>"));
        if let Some(floor) = row.floor {
            let x = at(floor.p50);
            add(format!(
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#d62728\" stroke-width=\"2\"/>",
                y - 6.0,
                y + 6.0
            ));
        }
    }
    add("</svg>".to_owned());
    Some(svg)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Part;
    use crate::samples::Spread;
    use crate::stores::Store;

    #[test]
    fn each_row_with_a_time_has_its_line() {
        let spread = |p50| Some(Spread { count: 9, p50, p99: 2 * p50, max: 5 * p50 });
        let row =
            Row::new(Part::Pair, Store::Redis, "a & b", "busy").times(spread(2_000), spread(1_000));
        let none = Row::new(Part::Pair, Store::Redis, "none", "busy");
        let svg = of("Title", &[&row, &none]).unwrap();
        assert!(svg.contains("Redis, a &amp; b: busy") && !svg.contains("none"));
        assert_eq!(svg.matches("<circle").count(), 1);
        assert!(svg.contains(">1 µs<") && svg.contains(">10 µs<"));
        assert_eq!(of("Title", &[&none]), None);
    }
}
