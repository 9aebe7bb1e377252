//! Batches, on a dialect that only counts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use super::*;
use crate::engine::entry::Secret;

#[derive(Debug, Default)]
struct Counting {
    statements: AtomicUsize,
    /// Names that start with `x` are locked.
    locked: AtomicBool,
}

#[async_trait]
impl Renew for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    async fn renew(&self, dues: &[Due<'_>], _limit: Duration) -> Result<Vec<Outcome>> {
        self.statements.fetch_add(1, Relaxed);
        assert!(dues.is_sorted_by(|a, b| a.entry.name < b.entry.name), "sorted, and none twice");
        tokio::time::sleep(Duration::from_millis(1)).await;
        let locked = self.locked.load(Relaxed);
        let found = |due: &Due<'_>| match due.entry.name.as_bytes()[0] {
            b'x' if locked => Outcome::Locked,
            b'g' => Outcome::Gone,
            _ => Outcome::Renewed,
        };
        Ok(dues.iter().map(found).collect())
    }
}

/// What claims share: a store, and its renewals.
type Shared = Arc<(Renewals, Arc<Counting>)>;

fn store() -> (Arc<Counting>, Shared) {
    let dialect = Arc::new(Counting::default());
    (Arc::clone(&dialect), Arc::new((Renewals::default(), dialect)))
}

fn entry(name: &str) -> Arc<Entry> {
    Arc::new(Entry {
        name: name.to_owned(),
        owner: Secret("00".repeat(16)),
        ttl: Duration::from_secs(30),
        call_timeout: Duration::from_secs(5),
        label: None,
        more: 0,
        taken_over: None,
        waiter: None,
        unfinished: TaskTracker::new(),
    })
}

async fn renew(shared: &Shared, name: &str) -> Result<Renewal> {
    shared.0.renew(&shared.1, &entry(name), None).await
}

fn start(shared: &Shared, names: impl Iterator<Item = String>) -> JoinSet<Result<Renewal>> {
    let mut tasks = JoinSet::new();
    for name in names {
        let shared = Arc::clone(shared);
        tasks.spawn(async move { renew(&shared, &name).await });
    }
    tasks
}

#[tokio::test(start_paused = true)]
async fn a_locked_row_stops_nobody_else() {
    let (dialect, renewals) = store();
    dialect.locked.store(true, Relaxed);
    let waiting = start(&renewals, ["x1", "x2"].map(str::to_owned).into_iter());
    let began = tokio::time::Instant::now();
    let others = start(&renewals, (0..600).map(|n| format!("a{n}")));
    for renewal in others.join_all().await {
        assert!(matches!(renewal.unwrap(), Renewal::Alive { .. }));
    }
    assert!(began.elapsed() < AGAIN, "{:?}", began.elapsed());
    dialect.locked.store(false, Relaxed);
    for renewal in waiting.join_all().await {
        assert!(matches!(renewal.unwrap(), Renewal::Alive { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_that_stays_locked_ends_with_the_call() {
    let (dialect, renewals) = store();
    dialect.locked.store(true, Relaxed);
    let tasks = start(&renewals, ["a", "x1", "x2"].map(str::to_owned).into_iter());
    let mut kinds: Vec<_> = tasks
        .join_all()
        .await
        .into_iter()
        .map(|answer| answer.map_err(|e| e.kind()).err())
        .collect();
    kinds.sort_by_key(|kind| kind.is_some());
    assert_eq!(kinds, [None, Some(ErrorKind::NoAnswer), Some(ErrorKind::NoAnswer)]);
    // No caller waits any more, so no more requests are sent.
    tokio::time::sleep(AGAIN * 2).await;
    let statements = dialect.statements.load(Relaxed);
    tokio::time::sleep(AGAIN * 10).await;
    assert_eq!(dialect.statements.load(Relaxed), statements);
}

#[tokio::test(start_paused = true)]
async fn each_claim_has_its_own_answer() {
    let (_, renewals) = store();
    let (alone, gone, twice, again) = tokio::join!(
        renew(&renewals, "a"),
        renew(&renewals, "g"),
        renew(&renewals, "b"),
        renew(&renewals, "b")
    );
    assert!(matches!(gone.unwrap(), Renewal::Lost));
    for renewal in [alone, twice, again] {
        assert!(matches!(renewal.unwrap(), Renewal::Alive { .. }));
    }
}
