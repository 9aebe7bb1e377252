//! Held locks, while nothing happens but their renewals.

use tokio::time::{Instant, sleep};

use super::Bench;
use crate::Done;
use crate::process::connections;
use crate::results::Row;
use crate::task::Work;
use crate::worker::Worker;

pub(super) async fn measure(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    let mut rows = Vec::new();
    for &locks in bench.plan.held {
        rows.push(hold(bench, locks).await?);
    }
    Ok(rows)
}

/// A process of their own holds them, so that its memory and processor time are theirs.
async fn hold(bench: &mut Bench<'_>, locks: u32) -> Done<Row> {
    let servers = bench.subject.addresses();
    let others = connections(&servers)?;
    let empty = bench.subject.usage().await?;
    let task = bench.task(Work::Hold { locks });
    let (worker, ready) = Worker::start(&task).await?;
    let full = bench.subject.usage().await?;
    let own = connections(&servers)?.saturating_sub(others);
    sleep(bench.plan.settle).await;
    let (before, spent, start) = (bench.subject.usage().await?, worker.cpu()?, Instant::now());
    sleep(bench.plan.time * 3).await;
    let after = bench.subject.usage().await?;
    let client = (worker.cpu()?.saturating_sub(spent)).as_secs_f64();
    let seconds = start.elapsed().as_secs_f64();
    let report = worker.stop().await?;
    let each = |count: f64| count / f64::from(locks);
    let percent = |spent: f64| spent / seconds * 100.0;
    let of_server = full.bytes_since(empty).map(each);
    Ok(bench
        .row(format!("{locks} held"))
        .count("acquired in s", ready.took.as_secs_f64())
        .count_if("requests/s", after.requests_since(before).map(|requests| requests / seconds))
        .count_if("server, % of a core", after.cpu_since(before).map(percent))
        .count("client, % of a core", percent(client))
        .count_if("connections", (!servers.is_empty()).then_some(own as f64))
        .count_if("server bytes each", of_server)
        .count("client bytes each", each(ready.bytes))
        .count("lost", f64::from(report.lost)))
}
