//! Acquire and release of a free lock.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Bench, names};
use crate::Done;
use crate::client::{Client, Lock};
use crate::results::Row;
use crate::samples::{Samples, timed};
use crate::stores::Floor;

/// Times of one kind of steps: acquire, release, and both.
struct Steps([Samples; 3]);

impl Steps {
    fn new() -> Self {
        Self([(); 3].map(|()| Samples::new()))
    }

    fn add(&mut self, acquire: Duration, release: Duration) {
        for (samples, time) in self.0.iter_mut().zip([acquire, release, acquire + release]) {
            samples.add(time);
        }
    }
}

pub(super) async fn measure(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    let url = bench.subject.url();
    let client = bench.library.open(&url).await?;
    let mut floor = bench.store.floor(&url).await?;
    let mut rows = busy(bench, &client, &mut *floor).await?;
    rows.extend(paced(bench, &client, &mut *floor).await?);
    client.close().await?;
    Ok(rows)
}

/// One after the other without a pause, each in turn with the floor.
async fn busy(bench: &Bench<'_>, client: &Client, floor: &mut dyn Floor) -> Done<Vec<Row>> {
    let prefix = names();
    let lock = client.lock(&prefix)?;
    let (mut floors, mut known, mut new) = (Steps::new(), Steps::new(), Steps::new());
    let start = Instant::now();
    let warm = bench.plan.time / 5;
    for round in 0_u64.. {
        let elapsed = start.elapsed();
        // On a busy machine the first one may take all the time.
        if elapsed >= warm + bench.plan.time && floors.0[0].count() > 0 {
            break;
        }
        let (acquire, ()) = timed(floor.acquire()).await?;
        let (release, ()) = timed(floor.release()).await?;
        let lasts = [pair(&lock).await?, pair(&client.lock(format!("{prefix}{round}"))?).await?];
        if elapsed >= warm {
            floors.add(acquire, release);
            for (steps, (acquire, release)) in [&mut known, &mut new].into_iter().zip(lasts) {
                steps.add(acquire, release);
            }
        }
    }
    let mut rows = rows(bench, "busy", &known, &floors);
    let spreads = (new.0[2].spread(), floors.0[2].spread());
    rows.push(bench.row("busy, a new name: both").times(spreads.0, spreads.1));
    if let Some(locks) = client.ours() {
        let guard = locks.named(names())?.acquire().await?;
        let mut samples = Samples::new();
        for _ in 0..1000 {
            const CALLS: u32 = 100;
            let start = Instant::now();
            for _ in 0..CALLS {
                std::hint::black_box(guard.state());
            }
            samples.add(start.elapsed() / CALLS);
        }
        guard.release().await?;
        rows.push(bench.row("`state()` of a held lock").times(samples.spread(), None));
    }
    Ok(rows)
}

async fn pair(lock: &Lock) -> Done<(Duration, Duration)> {
    let (acquire, hold) = timed(lock.acquire()).await?;
    let (release, ()) = timed(hold.release()).await?;
    Ok((acquire, release))
}

/// Each call after a rest of its connection. The floor has its calls in the middle of the rests of
/// the lock.
async fn paced(bench: &Bench<'_>, client: &Client, floor: &mut dyn Floor) -> Done<Vec<Row>> {
    let lock = client.lock(names())?;
    let half = bench.plan.rest / 2;
    let (mut floors, mut steps) = (Steps::new(), Steps::new());
    let start = Instant::now();
    while start.elapsed() < bench.plan.paced {
        sleep(half).await;
        let (floor_acquire, ()) = timed(floor.acquire()).await?;
        sleep(half).await;
        let (acquire, hold) = timed(lock.acquire()).await?;
        sleep(half).await;
        let (floor_release, ()) = timed(floor.release()).await?;
        sleep(half).await;
        let (release, ()) = timed(hold.release()).await?;
        floors.add(floor_acquire, floor_release);
        steps.add(acquire, release);
    }
    Ok(rows(bench, "paced", &steps, &floors))
}

fn rows(bench: &Bench<'_>, pace: &str, steps: &Steps, floors: &Steps) -> Vec<Row> {
    let cases = ["acquire", "release", "both"].iter().zip(&steps.0).zip(&floors.0);
    let row = |((step, samples), floors): ((&&str, &Samples), &Samples)| {
        bench.row(format!("{pace}: {step}")).times(samples.spread(), floors.spread())
    };
    cases.map(row).collect()
}
