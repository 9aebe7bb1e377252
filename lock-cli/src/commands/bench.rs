//! `distlock bench`: how long locks take, beside a bare round trip.

use std::time::Duration;

use distlock::Lock;
use distlock::clock::Clock;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::args::StoreArgs;
use crate::exit::ExitError;
use crate::output;
use crate::signals::until_signal;
use crate::store::OpenStore;

/// How long the waiting client gets to take its place in the store, before the lock is released.
const SETTLE: Duration = Duration::from_millis(50);

/// An hour, in ns. A call that takes longer counts as this.
const LONGEST: u64 = 3_600_000_000_000;

/// The times of one kind of call, in ns.
struct Series {
    name: &'static str,
    times: Histogram<u64>,
}

impl Series {
    fn new(name: &'static str) -> Result<Self, ExitError> {
        let times = Histogram::new_with_bounds(1, LONGEST, 3)
            .map_err(|error| ExitError::internal(error.to_string()))?;
        Ok(Self { name, times })
    }

    fn note(&mut self, took: Duration) {
        self.times.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    fn at(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.times.value_at_quantile(quantile))
    }

    fn as_json(&self) -> Value {
        let us = |time: Duration| u64::try_from(time.as_nanos() / 1000).unwrap_or(u64::MAX);
        json!({
            "count": self.times.len(),
            "min_us": us(Duration::from_nanos(self.times.min())),
            "p50_us": us(self.at(0.5)),
            "p90_us": us(self.at(0.9)),
            "p99_us": us(self.at(0.99)),
            "max_us": us(Duration::from_nanos(self.times.max())),
        })
    }
}

pub(crate) async fn bench(store: StoreArgs, rounds: u32, hand_overs: u32) -> Result<u8, ExitError> {
    // Two clients, as two processes are: a hand-over inside one would be too fast.
    let opening = async {
        let first = OpenStore::open_any(&store).await?;
        Ok((first, OpenStore::open_any(&store).await?))
    };
    let (first, second) = until_signal(opening).await?;
    let measured = until_signal(measure(&first, &second, rounds, hand_overs)).await;
    second.close().await;
    first.close().await;
    let series = measured?;
    let objects: serde_json::Map<_, _> =
        series.iter().map(|series| (series.name.replace(' ', "_"), series.as_json())).collect();
    let object = json!({ "backend": first.locks.backend_name(), "series": objects });
    output::result(store.json, object, &draw(&series))
}

async fn measure(
    first: &OpenStore,
    second: &OpenStore,
    rounds: u32,
    hand_overs: u32,
) -> Result<Vec<Series>, ExitError> {
    let name = OpenStore::new_name("bench")?;
    let mut series = vec![Series::new("round trip")?];
    for _ in 0..rounds {
        series[0].note(first.describe(first.locks.health().await)?.answered_in);
    }
    series.extend(take_and_release(rounds, first, &first.lock(&name, None)?).await?);
    if second.locks.backend_name() != "memory" {
        let (ours, theirs) = (first.lock(&name, None)?, second.lock(&name, None)?);
        series.push(hand_over(hand_overs, (first, &ours), (second, &theirs)).await?);
    }
    Ok(series)
}

/// A free lock, taken and released again.
async fn take_and_release(
    rounds: u32,
    store: &OpenStore,
    lock: &Lock,
) -> Result<[Series; 3], ExitError> {
    let clock = store.locks.clock();
    let mut series =
        [Series::new("acquire")?, Series::new("release")?, Series::new("acquire and release")?];
    for _ in 0..rounds {
        let start = clock.now();
        let guard = store.describe(lock.acquire().await)?;
        let taken = clock.now();
        store.describe(guard.release().await)?;
        let end = clock.now();
        let times = [taken.since(start), end.since(taken), end.since(start)];
        for (series, time) in series.iter_mut().zip(times) {
            series.note(time);
        }
    }
    Ok(series)
}

/// From the release by one client to the grant to another that waits.
async fn hand_over(
    rounds: u32,
    (first, ours): (&OpenStore, &Lock),
    (second, theirs): (&OpenStore, &Lock),
) -> Result<Series, ExitError> {
    let clock = first.locks.clock();
    let mut series = Series::new("hand over")?;
    for _ in 0..rounds {
        let held = first.describe(ours.acquire().await)?;
        let waiting = async {
            let guard = theirs.acquire().await;
            (guard, clock.now())
        };
        let releasing = async {
            clock.sleep(SETTLE).await;
            let released_at = clock.now();
            (held.release().await, released_at)
        };
        let ((taken, taken_at), (released, released_at)) = tokio::join!(waiting, releasing);
        first.describe(released)?;
        series.note(taken_at.since(released_at));
        second.describe(second.describe(taken)?.release().await)?;
    }
    Ok(series)
}

const HEAD: [&str; 7] = ["", "MIN", "P50", "P90", "P99", "MAX", "ROUND TRIPS"];
/// The width of the longest bar, in characters.
const WIDEST: u64 = 40;
/// Each bar covers the times up to this many times those of the one above it.
const RATIO: f64 = 1.25;
/// Bars for parts of a character: an eighth each.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

fn draw(series: &[Series]) -> String {
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
    let steps = series.times.iter_log(series.times.min().max(1), RATIO);
    let steps: Vec<_> =
        steps.map(|step| (step.value_iterated_to(), step.count_since_last_iteration())).collect();
    let is_seen = |(_, count): &(u64, u64)| *count > 0;
    let ends = steps.iter().position(is_seen).zip(steps.iter().rposition(is_seen));
    let Some((begin, end)) = ends else { return String::new() };
    let steps = &steps[begin..=end];
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
