//! Permits, readers and writers, and looks, each in turn with an exclusive lock of the same store.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock::LockKey;
use distlock::backend::{LockBackend, LockLayer};
use tokio::time::{Instant, sleep};

use super::contend::{Contest, contend};
use super::{Bench, names};
use crate::Done;
use crate::client::{Client, Lock, LockKind, PERMITS};
use crate::results::Row;
use crate::samples::{Samples, timed};
use crate::stores::far::Far;

/// Of a link, both ways.
const FAR: Duration = Duration::from_millis(3);
/// For so long a lock is held that the next client has begun to wait for, so that it waits in all queues.
const QUIET: Duration = Duration::from_millis(10);
/// How often a step is repeated whose requests are counted.
const COUNTED: u32 = 20;

/// What is measured once.
enum Step {
    /// Acquire and release.
    Pair(Lock),
    /// From the release by the first client to the grant of the second.
    HandOver(Lock, Lock),
    /// Who has these locks.
    Look(Arc<dyn LockBackend>, Vec<LockKey>),
    Inspect(Arc<dyn LockBackend>, LockKey),
}

impl Step {
    async fn once(&self) -> Done<Duration> {
        let took = match self {
            Self::Pair(lock) => timed(async { lock.acquire().await?.release().await }).await?.0,
            Self::HandOver(first, second) => hand_over(first, second.clone()).await?,
            Self::Look(store, keys) => timed(async { Ok(store.look(keys).await?) }).await?.0,
            Self::Inspect(store, key) => {
                let admin = store.admin().ok_or("the store inspects nothing")?;
                timed(async { Ok(admin.inspect(key).await?) }).await?.0
            }
        };
        Ok(took)
    }
}

async fn hand_over(first: &Lock, second: Lock) -> Done<Duration> {
    let held = first.acquire().await?;
    let next = tokio::spawn(async move {
        let hold = second.acquire().await?;
        Done::Ok((Instant::now(), hold))
    });
    sleep(QUIET).await;
    let start = Instant::now();
    held.release().await?;
    let (granted, next) = next.await??;
    next.release().await?;
    Ok(granted.saturating_duration_since(start))
}

pub(super) async fn measure(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    let mut rows = free(bench).await?;
    rows.extend(handed_over(bench).await?);
    rows.extend(looks(bench).await?);
    if !bench.subject.addresses().is_empty() {
        rows.push(far(bench).await?);
    }
    Ok(rows)
}

/// Each taken and released, beside an exclusive lock.
async fn free(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    let client = bench.library.open(&bench.subject.url()).await?;
    let joined = client.lock_of(LockKind::Read, names())?;
    let read = joined.acquire().await?;
    let pair = |kind| Ok::<_, crate::Failure>(Step::Pair(client.lock_of(kind, names())?));
    let cases = [
        ("free permit", pair(LockKind::Permit)?),
        ("free read", pair(LockKind::Read)?),
        ("joined read", Step::Pair(joined)),
        ("free write", pair(LockKind::Write)?),
    ];
    let rows = in_turn(bench, &pair(LockKind::Exclusive)?, &cases).await?;
    read.release().await?;
    client.close().await?;
    Ok(rows)
}

/// Each from client to client, beside an exclusive lock.
async fn handed_over(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    let url = bench.subject.url();
    let (one, other) = (bench.library.open(&url).await?, bench.library.open(&url).await?);
    let hand_over = |first, second| {
        let name = names();
        let (first, second) = (one.lock_of(first, &name)?, other.lock_of(second, &name)?);
        Ok::<_, crate::Failure>((first.clone(), Step::HandOver(first, second)))
    };
    let (permit, of_permit) = hand_over(LockKind::Permit, LockKind::Permit)?;
    // All but one.
    let mut taken = Vec::new();
    for _ in 1..PERMITS {
        taken.push(permit.acquire().await?);
    }
    let cases = [
        ("hand-over of a permit", of_permit),
        ("hand-over of a write", hand_over(LockKind::Write, LockKind::Write)?.1),
        ("hand-over of a read to a writer", hand_over(LockKind::Read, LockKind::Write)?.1),
        ("hand-over of a write to a reader", hand_over(LockKind::Write, LockKind::Read)?.1),
    ];
    let exclusive = hand_over(LockKind::Exclusive, LockKind::Exclusive)?.1;
    let rows = in_turn(bench, &exclusive, &cases).await?;
    for permit in taken {
        permit.release().await?;
    }
    one.close().await?;
    other.close().await?;
    Ok(rows)
}

/// Keeps the store below the locks, which itself can be asked for looks.
#[derive(Clone, Default)]
struct Below(Arc<OnceLock<Arc<dyn LockBackend>>>);

impl LockLayer for Below {
    fn layer(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> {
        let _ = self.0.set(Arc::clone(&inner));
        inner
    }
}

/// What readers and writers ask, beside an inspection of a lock that is held.
async fn looks(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    let below = Below::default();
    let layered = distlock::builder(bench.subject.url()).layer(below.clone());
    let client = Client::Distlock(layered.connect().await?);
    let store = Arc::clone(below.0.get().ok_or("BUG: a layer that was not asked")?);
    let name = names();
    let held = client.lock(&name)?.acquire().await?;
    let key = LockKey::new("", &*name)?;
    let slots = (0..64).map(|slot| LockKey::new("", format!("{name}{slot}")));
    let slots = slots.collect::<Result<Vec<_>, _>>()?;
    let cases = [
        ("look at one held name", Step::Look(Arc::clone(&store), vec![key.clone()])),
        ("look at 64 free names", Step::Look(Arc::clone(&store), slots)),
    ];
    let rows = in_turn(bench, &Step::Inspect(store, key), &cases).await?;
    held.release().await?;
    client.close().await?;
    Ok(rows)
}

/// One of each after the other, again and again; then the requests of each.
async fn in_turn(
    bench: &mut Bench<'_>,
    floor: &Step,
    cases: &[(&'static str, Step)],
) -> Done<Vec<Row>> {
    let mut floors = Samples::new();
    let mut all: Vec<_> = cases.iter().map(|_| Samples::new()).collect();
    let (start, warm) = (Instant::now(), bench.plan.time / 5);
    // On a busy machine the first ones may take all the time.
    while start.elapsed() < warm + bench.plan.time || floors.count() == 0 {
        let is_warm = start.elapsed() >= warm;
        let add = |samples: &mut Samples, took| {
            if is_warm {
                samples.add(took);
            }
        };
        add(&mut floors, floor.once().await?);
        for ((_, step), samples) in cases.iter().zip(&mut all) {
            add(samples, step.once().await?);
        }
    }
    let of_floor = requests(bench, floor).await?;
    let mut rows = Vec::new();
    for ((case, step), samples) in cases.iter().zip(all) {
        let row = bench.row(*case).times(samples.spread(), floors.spread());
        let row = row.count_if("requests each", requests(bench, step).await?);
        rows.push(row.count_if("requests of the floor", of_floor));
    }
    Ok(rows)
}

async fn requests(bench: &mut Bench<'_>, step: &Step) -> Done<Option<f64>> {
    let before = bench.subject.usage().await?;
    for _ in 0..COUNTED {
        step.once().await?;
    }
    let requests = bench.subject.usage().await?.requests_since(before);
    Ok(requests.map(|requests| requests / f64::from(COUNTED)))
}

/// How often processes far from the store read one name, and how often they lock it.
async fn far(bench: &mut Bench<'_>) -> Done<Row> {
    let readers = bench.plan.readers;
    let case = format!("{readers} processes, {} ms away", FAR.as_millis());
    let row = bench.row(case);
    let mut subject = Far::from(&mut *bench.subject, FAR).await?;
    let Bench { part, store, library, plan, .. } = *bench;
    let mut far = Bench { part, store, library, plan, subject: &mut subject };
    let (mut reads, mut locks) = (0.0, 0.0);
    for _ in 0..2 {
        for (kind, rate) in [(LockKind::Exclusive, &mut locks), (LockKind::Read, &mut reads)] {
            let (processes, contenders) = (readers, readers);
            let contest = Contest { processes, contenders, names: 1, kind, floor: false };
            *rate += contend(&mut far, contest).await?.rate() / 2.0;
        }
    }
    Ok(row.count("reads/s", reads).count("locks/s", locks).count("reads for a lock", reads / locks))
}
