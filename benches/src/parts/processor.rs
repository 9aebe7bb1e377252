//! The processor time of an acquire and a release of a free lock, apart for the client and the servers: it shows where the
//! time of a busy pair goes, also on a machine that does other work.

use std::time::Duration;

use lock_testkit::usage::cpu_time;
use tokio::time::Instant;

use super::{Bench, names};
use crate::Done;
use crate::results::Row;
use crate::stores::Usage;

/// Lock and floor take turns, so that what else happens on the machine is in both.
const TURNS: u32 = 4;

/// What was spent on pairs so far.
#[derive(Default)]
struct Spent {
    pairs: u32,
    client: Duration,
    servers: Option<f64>,
}

impl Spent {
    /// Adds what was spent since `before`.
    async fn add(&mut self, bench: &mut Bench<'_>, pairs: u32, before: (Duration, Usage)) -> Done {
        let (client, servers) = now(bench).await?;
        self.pairs += pairs;
        self.client += client - before.0;
        self.servers = servers.cpu_since(before.1).map(|cpu| cpu + self.servers.unwrap_or(0.0));
        Ok(())
    }

    fn counted(&self, row: Row, whose: &str) -> Row {
        let each = |seconds: f64| seconds * 1e6 / f64::from(self.pairs);
        row.count(&format!("client{whose}, µs"), each(self.client.as_secs_f64()))
            .count_if(&format!("servers{whose}, µs"), self.servers.map(each))
    }
}

pub(super) async fn measure(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    let url = bench.subject.url();
    let client = bench.library.open(&url).await?;
    let mut floor = bench.store.floor(&url).await?;
    let lock = client.lock(names())?;
    let turn = bench.plan.time / (2 * TURNS);
    let (mut ours, mut floors) = (Spent::default(), Spent::default());
    for _ in 0..TURNS {
        let (before, start, mut pairs) = (now(bench).await?, Instant::now(), 0);
        while pairs == 0 || start.elapsed() < turn {
            lock.acquire().await?.release().await?;
            pairs += 1;
        }
        ours.add(bench, pairs, before).await?;
        let (before, start, mut pairs) = (now(bench).await?, Instant::now(), 0);
        while pairs == 0 || start.elapsed() < turn {
            floor.acquire().await?;
            floor.release().await?;
            pairs += 1;
        }
        floors.add(bench, pairs, before).await?;
    }
    client.close().await?;
    let row = ours.counted(bench.row("acquire and release"), "");
    Ok(vec![floors.counted(row, " of the floor")])
}

/// The processor time of this process and of the servers so far.
async fn now(bench: &mut Bench<'_>) -> Done<(Duration, Usage)> {
    let client = cpu_time(std::process::id()).ok_or("no processor time of this process")?;
    Ok((client, bench.subject.usage().await?))
}
