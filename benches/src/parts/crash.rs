//! The end of all locks of a client that was killed.

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{Bench, names};
use crate::Done;
use crate::results::Row;
use crate::samples::{Samples, timed};
use crate::task::Work;
use crate::worker::Worker;

/// Another client waits for each of them, and meanwhile acquires and releases a free one.
pub(super) async fn measure(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    let (locks, ttl) = bench.plan.crashed;
    let client = bench.library.open(&bench.subject.url()).await?;
    let free = client.lock(names())?;
    let mut task = bench.task(Work::Hold { locks });
    let more = if task.url.contains('?') { '&' } else { '?' };
    task.url = format!("{}{more}lock_ttl={}s", task.url, ttl.as_secs());
    let prefix = task.prefix.clone();
    let (worker, _) = Worker::start(&task).await?;
    let (granted, mut grants) = mpsc::unbounded_channel();
    let mut waiters = JoinSet::new();
    for n in 0..locks {
        let (lock, granted) = (client.lock(format!("{prefix}{n}"))?, granted.clone());
        waiters.spawn(async move {
            let hold = lock.acquire().await?;
            let _ = granted.send(Instant::now());
            hold.release().await
        });
    }
    drop(granted);
    tokio::time::sleep(bench.plan.settle / 4).await;
    let mut calm = Samples::new();
    let start = Instant::now();
    while start.elapsed() < bench.plan.time / 2 {
        calm.add(timed(async { free.acquire().await?.release().await }).await?.0);
    }
    let (killed, before) = (Instant::now(), bench.subject.usage().await?);
    worker.kill().await?;
    let (mut freed, mut others) = (Samples::new(), Samples::new());
    let limit = ttl * 4 + bench.plan.time;
    while freed.count() < locks.into() && killed.elapsed() < limit {
        others.add(timed(async { free.acquire().await?.release().await }).await?.0);
        while let Ok(at) = grants.try_recv() {
            freed.add(at.saturating_duration_since(killed));
        }
    }
    let took = killed.elapsed().as_secs_f64();
    let after = bench.subject.usage().await?;
    let missing = f64::from(locks) - freed.count() as f64;
    if timeout(limit, async { while waiters.join_next().await.is_some() {} }).await.is_err() {
        waiters.shutdown().await;
    }
    client.close().await?;
    Ok(vec![
        bench
            .row(format!("{locks} locks, ttl {} s: until the next holder", ttl.as_secs()))
            .times(freed.spread(), None)
            .count("not freed in time", missing)
            .count_if("server, % of a core", after.cpu_since(before).map(|cpu| cpu / took * 100.0)),
        // Here the floor is the same pair before the crash.
        bench
            .row("acquire + release of others meanwhile, beside before")
            .times(others.spread(), calm.spread()),
    ])
}
