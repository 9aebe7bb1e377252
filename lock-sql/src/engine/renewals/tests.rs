//! Batches, on a dialect that only counts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use tokio::task::JoinSet;

use super::*;
use crate::engine::entry::Secret;

#[derive(Debug, Default)]
struct Counting {
    statements: AtomicUsize,
    rows: AtomicUsize,
    /// Names that start with `x` are locked.
    locked: AtomicBool,
    /// Statements never end.
    stuck: AtomicBool,
}

#[async_trait]
impl Renew for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    async fn renew(&self, dues: &[Due<'_>], _limit: Duration) -> Result<Vec<Outcome>> {
        self.statements.fetch_add(1, Relaxed);
        self.rows.fetch_add(dues.len(), Relaxed);
        assert!(dues.is_sorted_by(|a, b| a.entry.name < b.entry.name), "sorted, and none twice");
        tokio::time::sleep(Duration::from_millis(1)).await;
        if self.stuck.load(Relaxed) {
            std::future::pending::<()>().await;
        }
        let locked = self.locked.load(Relaxed);
        let found = |due: &Due<'_>| match due.entry.name.as_bytes()[0] {
            b'x' if locked => Outcome::Locked,
            b'g' => Outcome::Gone,
            _ => Outcome::Renewed,
        };
        Ok(dues.iter().map(found).collect())
    }
}

fn store() -> (Arc<Counting>, Arc<Renewals>) {
    let dialect = Arc::new(Counting::default());
    let renewals = Renewals::new(Arc::clone(&dialect) as Arc<dyn Renew>);
    (dialect, renewals)
}

fn entry(name: &str) -> Arc<Entry> {
    Arc::new(Entry {
        name: name.to_owned(),
        owner: Secret("00".repeat(16)),
        ttl: Duration::from_secs(30),
        call_timeout: Duration::from_secs(5),
        label: None,
        taken_over: None,
        waiter: None,
    })
}

async fn renew(renewals: &Arc<Renewals>, name: &str) -> Result<Renewal> {
    renewals.renew(&entry(name), None).await
}

fn start(
    renewals: &Arc<Renewals>,
    names: impl Iterator<Item = String>,
) -> JoinSet<Result<Renewal>> {
    let mut tasks = JoinSet::new();
    for name in names {
        let renewals = Arc::clone(renewals);
        tasks.spawn(async move { renew(&renewals, &name).await });
    }
    tasks
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_renewals_are_few_statements() {
    let (dialect, renewals) = store();
    let tasks = start(&renewals, (0..10_000).map(|n| format!("a{n}")));
    for renewal in tasks.join_all().await {
        assert!(matches!(renewal.unwrap(), Renewal::Alive { valid_for: Some(_) }));
    }
    assert_eq!(dialect.rows.load(Relaxed), 10_000);
    assert_eq!(dialect.statements.load(Relaxed), 20);
}

#[tokio::test(start_paused = true)]
async fn one_renewal_does_not_wait_for_others() {
    let (dialect, renewals) = store();
    for _ in 0..3 {
        let start = tokio::time::Instant::now();
        renew(&renewals, "a").await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_millis(1), "the time of its statement");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(dialect.statements.load(Relaxed), 3);
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
    // Nobody waits any more, so nobody asks any more.
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

#[tokio::test(start_paused = true)]
async fn who_has_given_up_writes_nothing_and_stops_nobody() {
    let (dialect, renewals) = store();
    renew(&renewals, "a").await.unwrap();
    // In the line, and given up before the batch is sent.
    let dropped = tokio::time::timeout(Duration::from_micros(1), renew(&renewals, "b")).await;
    assert!(dropped.is_err());
    renew(&renewals, "c").await.unwrap();
    assert_eq!(dialect.rows.load(Relaxed), 2, "a and c");

    // Given up while the batch is under way: the others have their answers, or their limit.
    dialect.stuck.store(true, Relaxed);
    let mut stuck = start(&renewals, ["d", "e", "f"].map(str::to_owned).into_iter());
    tokio::time::sleep(Duration::from_millis(10)).await;
    stuck.abort_all();
    while stuck.join_next().await.is_some() {}
    dialect.stuck.store(false, Relaxed);
    assert!(matches!(renew(&renewals, "d").await.unwrap(), Renewal::Alive { .. }));
}

#[test]
fn renewals_do_not_need_the_runtime_that_collects_them() {
    let (_, renewals) = store();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // It has the task that brings renewals together, and is not driven any more.
    let first = runtime();
    first.block_on(renew(&renewals, "a")).unwrap();
    let second = runtime();
    for _ in 0..3 {
        let renewal = second.block_on(renew(&renewals, "b")).unwrap();
        assert!(matches!(renewal, Renewal::Alive { .. }));
    }
    first.block_on(renew(&renewals, "a")).unwrap();
}
