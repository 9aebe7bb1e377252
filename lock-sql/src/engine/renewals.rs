//! Renewals that are due together go out as one statement. The same for every dialect.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, Renewal, Result, async_trait};
use lock_kit::batch::{self, Batches};
use tokio::sync::Semaphore;

use crate::engine::table::row::{DueRenewal, OwnRow, RenewalOutcome};
use crate::engine::table::settings::BATCH;
use crate::engine::wire::errors::no_answer;

/// The pause before a row that another client had locked is retried.
const AGAIN: Duration = Duration::from_millis(20);

/// What renewals are sent to.
#[async_trait]
pub(crate) trait RenewalSender: Debug + Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// Renews all of `dues` in one statement, or as few as the database needs: one answer for each,
    /// in their order. There are 1 to [`BATCH`] of them, sorted by name, and no
    /// name comes twice. A row that another client has locked must not delay the others.
    async fn renew_batch(
        &self,
        dues: &[DueRenewal<'_>],
        limit: Duration,
    ) -> Result<Vec<RenewalOutcome>>;

    /// Renews one that may wait for its row. The answer is never [`Doubtful`](RenewalOutcome::Doubtful).
    async fn renew_alone(&self, due: DueRenewal<'_>, limit: Duration) -> Result<RenewalOutcome>;
}

/// The renewals of one store.
#[derive(Debug)]
pub(crate) struct Renewals<S> {
    store: Arc<S>,
    batches: Batches<LeaseToRenew, Result<RenewalOutcome>>,
    /// Those in doubt go one at a time, since each may occupy a connection while it waits.
    alone: Semaphore,
    /// How many were in doubt only because all rows of a batch were locked.
    turns: AtomicUsize,
}

/// One lease to renew, and its token where it is known.
type LeaseToRenew = (Arc<OwnRow>, Option<FencingToken>);
type Batch = Vec<batch::Entry<LeaseToRenew, Result<RenewalOutcome>>>;

impl<S: RenewalSender> Renewals<S> {
    pub(crate) fn new(store: Arc<S>) -> Self {
        let (batches, alone) = (Batches::of_at_most(BATCH), Semaphore::new(1));
        Self { store, batches, alone, turns: AtomicUsize::new(0) }
    }

    /// Renews one lease, together with all others due at this moment. The statement is always sent
    /// after this call, so the lease runs from this call at the earliest (clause C4).
    ///
    /// It ends within `limit`, and may still be executed if it has no answer then.
    pub(crate) async fn renew(
        self: &Arc<Self>,
        entry: &Arc<OwnRow>,
        fence: Option<FencingToken>,
        limit: Duration,
    ) -> Result<Renewal> {
        let renewal = async {
            loop {
                let this = Arc::clone(self);
                let send = move |batch| Arc::clone(&this).send(batch);
                let mut outcome = self.batches.ask((Arc::clone(entry), fence), send).await??;
                if outcome == RenewalOutcome::Doubtful {
                    let _turn = self.alone.acquire().await;
                    let due = DueRenewal { entry, fence };
                    outcome = self.store.renew_alone(due, entry.call_timeout).await?;
                }
                match outcome {
                    RenewalOutcome::Renewed => {
                        return Ok(Renewal::Alive { valid_for: Some(entry.ttl) });
                    }
                    RenewalOutcome::Gone => return Ok(Renewal::Lost),
                    // Retried as long as the caller waits, without holding up other renewals.
                    RenewalOutcome::Locked | RenewalOutcome::Doubtful => {
                        tokio::time::sleep(AGAIN).await
                    }
                }
            }
        };
        tokio::time::timeout(limit, renewal)
            .await
            .unwrap_or_else(|_| Err(no_answer(self.store.name(), limit)))
    }

    async fn send(self: Arc<Self>, mut batch: Batch) {
        // Locking the rows of all batches in one order avoids deadlocks between them.
        batch.sort_by(|a, b| a.request.0.name.cmp(&b.request.0.name));
        // Two holds of one name, of which at most one is alive, or one hold that is known twice: a statement
        // changes a row once. The second is asked for again, unless its caller has left meanwhile.
        let mut names = HashSet::new();
        let (once, twice): (Batch, Batch) =
            batch.into_iter().partition(|one| names.insert(one.request.0.name.clone()));
        let answer = self.outcomes(&once).await;
        for (at, one) in once.into_iter().enumerate() {
            one.answer(match &answer {
                Ok(found) => Ok(found[at]),
                Err(error) => Err(error.clone()),
            });
        }
        for one in twice {
            one.answer(Ok(RenewalOutcome::Locked));
        }
    }

    /// One for each of the batch.
    async fn outcomes(&self, batch: &Batch) -> Result<Vec<RenewalOutcome>> {
        let leases = || batch.iter().map(|one| &one.request);
        let limit = leases().map(|(entry, _)| entry.call_timeout).max().unwrap_or_default();
        let dues: Vec<_> =
            leases().map(|(entry, fence)| DueRenewal { entry, fence: *fence }).collect();
        let mut found = self.store.renew_batch(&dues, limit).await?;
        if found.len() != batch.len() {
            let bug = "BUG: the answer to a batch of renewals has the wrong length";
            return Err(Error::new(ErrorKind::Internal, bug).with_unknown_effect());
        }
        // Rows that are locked again and again, as in a storm of tries, may never be found free by a
        // statement that skips them: each waits for its row in its turn.
        if found.iter().all(|outcome| *outcome == RenewalOutcome::Locked)
            && self.alone.available_permits() > 0
        {
            let at = self.turns.fetch_add(1, Ordering::Relaxed) % found.len();
            found[at] = RenewalOutcome::Doubtful;
        }
        Ok(found)
    }
}

/// Batches, on a dialect that only counts.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::table::row::OwnerSecret;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use tokio::task::JoinSet;

    /// How long a lease in doubt takes alone.
    const SLOW: Duration = Duration::from_secs(1);

    #[derive(Debug, Default)]
    struct Counting {
        statements: AtomicUsize,
        /// Names that start with `x` are locked.
        locked: AtomicBool,
    }

    #[async_trait]
    impl RenewalSender for Counting {
        fn name(&self) -> &'static str {
            "counting"
        }

        async fn renew_alone(
            &self,
            due: DueRenewal<'_>,
            limit: Duration,
        ) -> Result<RenewalOutcome> {
            Ok(self.renew_batch(&[due], limit).await?[0])
        }

        async fn renew_batch(
            &self,
            dues: &[DueRenewal<'_>],
            _limit: Duration,
        ) -> Result<Vec<RenewalOutcome>> {
            self.statements.fetch_add(1, Relaxed);
            assert!(
                dues.is_sorted_by(|a, b| a.entry.name < b.entry.name),
                "sorted, and none twice"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
            let locked = self.locked.load(Relaxed);
            if let [DueRenewal { entry, .. }] = dues
                && entry.name.starts_with('d')
            {
                // It waits for its row.
                tokio::time::sleep(SLOW).await;
            }
            let found = |due: &DueRenewal<'_>| match due.entry.name.as_bytes()[0] {
                b'x' if locked => RenewalOutcome::Locked,
                b'g' => RenewalOutcome::Gone,
                b'd' if dues.len() > 1 => RenewalOutcome::Doubtful,
                _ => RenewalOutcome::Renewed,
            };
            Ok(dues.iter().map(found).collect())
        }
    }

    /// What claims share.
    type Shared = Arc<Renewals<Counting>>;

    fn store() -> (Arc<Counting>, Shared) {
        let dialect = Arc::new(Counting::default());
        (Arc::clone(&dialect), Arc::new(Renewals::new(dialect)))
    }

    fn entry(name: &str) -> Arc<OwnRow> {
        Arc::new(OwnRow {
            name: name.to_owned(),
            owner: OwnerSecret("00".repeat(16)),
            ttl: Duration::from_secs(30),
            call_timeout: Duration::from_secs(5),
            label: None,
            more: 0,
            taken_over: None,
            waiter: None,
        })
    }

    async fn renew(shared: &Shared, name: &str) -> Result<Renewal> {
        let entry = entry(name);
        shared.renew(&entry, None, entry.call_timeout).await
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
    async fn a_lease_in_doubt_is_renewed_alone_and_keeps_nobody_waiting() {
        let (_, renewals) = store();
        let began = tokio::time::Instant::now();
        let first = start(&renewals, ["a".to_owned()].into_iter());
        let doubtful = start(&renewals, ["d1", "d2"].map(str::to_owned).into_iter());
        for renewal in start(&renewals, (0..9).map(|n| format!("b{n}"))).join_all().await {
            assert!(matches!(renewal.unwrap(), Renewal::Alive { .. }));
        }
        assert!(began.elapsed() < SLOW, "{:?}", began.elapsed());
        for renewal in doubtful.join_all().await.into_iter().chain(first.join_all().await) {
            assert!(matches!(renewal.unwrap(), Renewal::Alive { .. }));
        }
        assert!(began.elapsed() > SLOW * 2, "one after the other: {:?}", began.elapsed());
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
    async fn the_second_hold_of_a_name_is_renewed_only_if_somebody_waits_for_it() {
        for (second_waits, statements) in [(true, 2), (false, 1)] {
            let (dialect, renewals) = store();
            let limit = if second_waits { SLOW * 3 } else { SLOW / 2 };
            let second = tokio::time::timeout(limit, renew(&renewals, "d"));
            let (first, second) = tokio::join!(renew(&renewals, "d"), second);
            assert!(matches!(first.unwrap(), Renewal::Alive { .. }));
            assert_eq!(second.is_ok_and(|renewal| renewal.is_ok()), second_waits);
            tokio::time::sleep(SLOW * 2).await;
            assert_eq!(dialect.statements.load(Relaxed), statements);
        }
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
}
