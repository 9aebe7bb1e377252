//! `distlock bench`: how long locks take, beside a bare round trip.

mod picture;

use std::time::Duration;

use distlock::Lock;
use distlock::clock::Clock;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::args::BenchArgs;
use crate::exit::Failure;
use crate::output;
use crate::patience::until_signal;
use crate::store::Store;

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
    fn new(name: &'static str) -> Result<Self, Failure> {
        let times = Histogram::new_with_bounds(1, LONGEST, 3)
            .map_err(|error| Failure::internal(error.to_string()))?;
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

pub(crate) async fn bench(args: BenchArgs) -> Result<u8, Failure> {
    // Two clients, as two processes are: a hand-over inside one would be too fast.
    let opening = async {
        let first = Store::open(&args.store, None).await?;
        Ok((first, Store::open(&args.store, None).await?))
    };
    let (first, second) = until_signal(opening).await?;
    let measured = until_signal(measure(&args, &first, &second)).await;
    second.close().await;
    first.close().await;
    let series = measured?;
    let objects: serde_json::Map<_, _> =
        series.iter().map(|series| (series.name.replace(' ', "_"), series.as_json())).collect();
    let object = json!({ "backend": first.locks.backend_name(), "series": objects });
    output::result(args.store.json, object, &picture::draw(&series))?;
    Ok(0)
}

async fn measure(args: &BenchArgs, first: &Store, second: &Store) -> Result<Vec<Series>, Failure> {
    let name = Store::new_name("bench")?;
    let mut series = vec![Series::new("round trip")?];
    for _ in 0..args.rounds {
        series[0].note(first.describe(first.locks.health().await)?.answered_in);
    }
    series.extend(take_and_release(args.rounds, first, &first.lock(&name, None)?).await?);
    if second.locks.backend_name() != "memory" {
        let (ours, theirs) = (first.lock(&name, None)?, second.lock(&name, None)?);
        series.push(hand_over(args.hand_overs, (first, &ours), (second, &theirs)).await?);
    }
    Ok(series)
}

/// A free lock, taken and released again.
async fn take_and_release(rounds: u32, store: &Store, lock: &Lock) -> Result<[Series; 3], Failure> {
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
    (first, ours): (&Store, &Lock),
    (second, theirs): (&Store, &Lock),
) -> Result<Series, Failure> {
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
