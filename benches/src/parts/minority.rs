//! The others, while one of a quorum is stopped.

use tokio::time::{Instant, sleep};

use super::{Bench, names};
use crate::Done;
use crate::client::{Client, Lock};
use crate::results::Row;
use crate::samples::{Samples, timed};

pub(super) async fn measure(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    let client = bench.library.open(&bench.subject.url()).await?;
    let mut rows = vec![sampled(bench, &client, "all serve").await?];
    let mut done = Vec::new();
    for (member, name) in bench.subject.members().await?.into_iter().enumerate() {
        // One of a kind.
        if done.contains(&name) {
            continue;
        }
        done.push(name);
        bench.subject.freeze(member, true)?;
        let stopped = sampled(bench, &client, &format!("{name} is stopped")).await;
        bench.subject.freeze(member, false)?;
        rows.push(stopped?);
        sleep(bench.plan.settle / 4).await;
    }
    // It is not closed: a request that was in doubt is cleaned up until its ttl is over.
    Ok(rows)
}

/// Acquires and releases free locks, from the moment of the change on.
async fn sampled(bench: &Bench<'_>, client: &Client, case: &str) -> Done<Row> {
    let (lock, mut samples, mut failed) = (client.lock(names())?, Samples::new(), 0);
    let start = Instant::now();
    while start.elapsed() < bench.plan.time {
        match timed(pair(&lock)).await {
            Ok((took, ())) => samples.add(took),
            Err(_) => failed += 1,
        }
    }
    let times = samples.spread();
    Ok(bench.row(case).times(times, None).count("failed", f64::from(failed)))
}

async fn pair(lock: &Lock) -> Done {
    lock.acquire().await?.release().await
}
