//! What is sent to the servers, by their own counters.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Bench, names};
use crate::Done;
use crate::client::Client;
use crate::results::Row;
use crate::task;

pub(super) async fn measure(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    const LOCKS: u32 = 100;
    let client = bench.library.open(&bench.subject.url()).await?;
    let prefix = names();
    // What is asked once is not a cost of a lock.
    client.lock(&prefix)?.acquire().await?.release().await?;
    let start = bench.subject.usage().await?;
    let held = task::hold(&client, &prefix, LOCKS).await?;
    let acquired = bench.subject.usage().await?;
    for hold in held {
        hold.release().await?;
    }
    let released = bench.subject.usage().await?;
    let each = |count: Option<f64>| count.map(|count| count / f64::from(LOCKS));
    let mut rows = vec![
        bench.row("acquire").count_if("requests each", each(acquired.requests_since(start))),
        bench.row("release").count_if("requests each", each(released.requests_since(acquired))),
    ];
    rows.push(renewals(bench, &client).await?);
    rows.push(waiting(bench, &client).await?);
    client.close().await?;
    Ok(rows)
}

/// One lock alone: those of many are renewed together.
async fn renewals(bench: &mut Bench<'_>, client: &Client) -> Done<Row> {
    const RENEWALS: u32 = 10;
    let locks = client.ours().ok_or("only ours are renewed as often as is wished")?;
    let every = (bench.plan.time / RENEWALS).max(Duration::from_millis(20));
    let guard = locks.named(names())?.renew_every(every).acquire().await?;
    sleep(every).await;
    let before = bench.subject.usage().await?;
    sleep(every * RENEWALS).await;
    let requests = bench.subject.usage().await?.requests_since(before);
    guard.release().await?;
    let each = requests.map(|requests| requests / f64::from(RENEWALS));
    Ok(bench.row("renewal of one lock").count_if("requests each", each))
}

/// What it costs to wait while nothing happens.
async fn waiting(bench: &mut Bench<'_>, client: &Client) -> Done<Row> {
    const WAITERS: u32 = 100;
    let lock = client.lock(names())?;
    let hold = lock.acquire().await?;
    let mut waiters = JoinSet::new();
    for _ in 0..WAITERS {
        let lock = lock.clone();
        waiters.spawn(async move { lock.acquire().await });
    }
    sleep(bench.plan.settle / 4).await;
    let before = bench.subject.usage().await?;
    sleep(bench.plan.time).await;
    let requests = bench.subject.usage().await?.requests_since(before);
    waiters.shutdown().await;
    hold.release().await?;
    let rate = requests.map(|requests| requests / bench.plan.time.as_secs_f64());
    Ok(bench.row(format!("{WAITERS} waiting in one process")).count_if("requests/s", rate))
}
