//! The measurements as text: a table, and a histogram of each series.

use std::time::Duration;

use super::Series;
use crate::output;

const HEAD: [&str; 7] = ["", "MIN", "P50", "P90", "P99", "MAX", "ROUND TRIPS"];
/// The width of the longest bar, in characters.
const WIDEST: u64 = 40;
/// Each bar covers the times up to this many times those of the one above it.
const RATIO: f64 = 1.25;
/// Bars for parts of a character: an eighth each.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

pub(super) fn draw(series: &[Series]) -> String {
    let trip = series.first().map_or(Duration::ZERO, |series| series.at(0.5));
    let mut text = output::table(HEAD, series.iter().map(|series| row(series, trip)));
    for series in series {
        text.push_str(&format!(
            "\n\n{}, {} times\n{}",
            series.name,
            series.times.len(),
            bars(series)
        ));
    }
    text
}

/// `ROUND TRIPS`: how many bare round trips the median takes.
fn row(series: &Series, trip: Duration) -> [String; 7] {
    let least = Duration::from_nanos(series.times.min());
    let most = Duration::from_nanos(series.times.max());
    let trips = series.at(0.5).as_secs_f64() / trip.as_secs_f64().max(f64::MIN_POSITIVE);
    let times = [least, series.at(0.5), series.at(0.9), series.at(0.99), most].map(time);
    let [min, p50, p90, p99, max] = times;
    [series.name.to_owned(), min, p50, p90, p99, max, format!("{trips:.1}")]
}

/// Three digits at least, so that a column lines up.
fn time(time: Duration) -> String {
    format!("{time:.2?}")
}

/// One line for each range of times, from the first to the last that was seen.
fn bars(series: &Series) -> String {
    let first = series.times.min().max(1);
    let steps: Vec<_> = series.times.iter_log(first, RATIO).collect();
    let seen = |count: u64| count > 0;
    let begin = steps.iter().position(|step| seen(step.count_since_last_iteration()));
    let end = steps.iter().rposition(|step| seen(step.count_since_last_iteration()));
    let (Some(begin), Some(end)) = (begin, end) else { return String::new() };
    let counts = |step: &hdrhistogram::iterators::IterationValue<u64>| {
        (step.value_iterated_to(), step.count_since_last_iteration())
    };
    let steps: Vec<_> = steps[begin..=end].iter().map(counts).collect();
    let most = steps.iter().map(|(_, count)| *count).max().unwrap_or(1);
    let line = |(up_to, count): &(u64, u64)| {
        let up_to = time(Duration::from_nanos(*up_to));
        format!("{up_to:>10} {} {count}", bar(*count, most)).trim_end().to_owned()
    };
    steps.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn bar(count: u64, most: u64) -> String {
    let eighths = count.saturating_mul(WIDEST * 8).div_ceil(most.max(1));
    let whole = usize::try_from(eighths / 8).unwrap_or(0);
    let part = usize::try_from(eighths % 8).unwrap_or(0);
    format!("{}{}", "█".repeat(whole), EIGHTHS[part])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_as_wide_as_it_may_be_and_no_count_is_invisible() {
        assert_eq!(bar(500, 500), "█".repeat(40));
        assert_eq!(bar(250, 500), "█".repeat(20));
        assert_eq!(bar(1, 1_000_000), "▏");
        assert_eq!(bar(0, 7), "");
    }

    #[test]
    fn every_measurement_is_in_one_bar() {
        let mut series = Series::new("x").unwrap();
        for us in [100, 110, 110, 150, 900] {
            series.note(Duration::from_micros(us));
        }
        let text = bars(&series);
        let counts = text.lines().filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        assert_eq!(counts.sum::<u64>(), 5, "{text}");
        // 100 µs and a quarter more.
        assert!(
            text.starts_with("  124.9") && text.lines().next().unwrap().ends_with(" 3"),
            "{text}"
        );
    }
}
