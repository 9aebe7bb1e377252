//! What each dialect must do by a clock that the test sets. What shows without one is in the
//! conformance suite.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, ErrorKind, FencingToken, HolderMark, LockAdmin as _, LockKey, OsRng, OwnerId,
    Released, Result, Seen, Victim, async_trait,
};
use lock_kit::url::Params;
use tokio::time::Instant;

use crate::engine::backend::DialectBackend;
use crate::engine::renewals::RenewalSender;
use crate::engine::store::{Dialect, SqlStore};
use crate::engine::table::row::{DueRenewal, OwnRow, OwnerSecret, RenewalOutcome};
use crate::engine::table::sweep::Sweeper;
use crate::engine::waiters::{WHILE_CONTENDED, busy};
use crate::engine::wire::connections::StatementClass;
use crate::engine::wire::statement::SqlValue;

pub(crate) const TTL: Duration = Duration::from_secs(10);
/// What a clock shows at first, in seconds since 1970, or since the machine was started.
pub(crate) const START: i64 = 1_000_000;

/// A database, and its clock.
#[async_trait]
pub(crate) trait Bench: Sized {
    type Of: Dialect;
    /// Whether the first try in vain names the holder.
    const NAMES_AT_ONCE: bool = true;

    async fn start() -> Self;
    /// A store for which the clock stands still at so many µs.
    async fn at(&self, micros: i64) -> Arc<SqlStore<Self::Of>>;
    async fn run(&self, sql: &str);
    /// The names of all rows but the mark.
    async fn names(&self) -> Vec<String>;
}

/// The tests of this module, for one database.
macro_rules! shared {
    ($bench:ty) => {
        crate::engine::tests::shared! {
            $bench:
            a_lease_ends_by_the_clock,
            a_try_in_vain_names_the_holder,
            a_clock_that_goes_back,
            no_request_of_a_hold_shortens_its_lease,
            used_up_fences_are_an_error_and_not_a_grant,
            each_lease_of_a_batch_has_its_own_answer,
            a_forced_release_ends_the_hold_that_was_shown,
            the_sweep_removes_what_is_old_and_keeps_the_greatest_fence,
            the_sweep_judges_each_row_anew,
            a_look_shows_the_holder_or_what_later_fences_exceed,
            a_look_answers_for_each_name_in_its_place,
            fences_rise_while_two_stores_sweep_all_the_time,
        }
    };
    ($bench:ty: $($test:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            crate::engine::tests::$test(&<$bench>::start().await).await;
        }
    )*};
}
pub(crate) use shared;

/// What a dialect reads in a URL.
pub(crate) fn read<T>(url: &str, from_url: impl FnOnce(&str, &mut Params) -> Result<T>) -> T {
    let (location, mut params) = Params::split(url.split_once(':').unwrap().1).unwrap();
    from_url(location, &mut params).unwrap()
}

pub(crate) fn entry(name: &str) -> OwnRow {
    OwnRow {
        name: LockKey::new("", name).unwrap().encode(),
        owner: OwnerSecret(OwnerId::generate(&OsRng).unwrap().to_hex()),
        ttl: TTL,
        call_timeout: Duration::from_secs(5),
        label: Some("somebody".into()),
        more: 0,
        taken_over: None,
        waiter: None,
    }
}

pub(crate) fn granted(attempt: Result<Attempt>) -> FencingToken {
    match attempt.unwrap() {
        Attempt::Granted { token, valid_for: Some(_) } => token,
        other => panic!("not granted: {other:?}"),
    }
}

/// One try of a claim.
pub(crate) async fn acquire<D: Dialect>(
    store: &SqlStore<D>,
    entry: &OwnRow,
    polling: bool,
) -> Result<Attempt> {
    let attempt = D::acquire(store, entry, polling).await?;
    Ok(attempt.unwrap_or_else(|| busy(Some(WHILE_CONTENDED))))
}

/// The rest of another client's lease, in whole ms.
pub(crate) fn held(attempt: Result<Attempt>) -> u128 {
    match attempt.unwrap() {
        Attempt::Busy(busy) => busy.retry_after.unwrap().as_millis(),
        other => panic!("not busy: {other:?}"),
    }
}

/// What is left of our own, in whole ms.
pub(crate) async fn left<D: Dialect>(
    store: &SqlStore<D>,
    entry: &OwnRow,
    fence: Option<FencingToken>,
) -> Option<u128> {
    let lease = store.look(store.limits(StatementClass::Check, TTL), &entry.name).await.unwrap();
    let left = lease.and_then(|lease| lease.left_of(&entry.owner.0, fence));
    left.map(|left| left.as_millis())
}

pub(crate) async fn release<D: Dialect>(store: &SqlStore<D>, entry: &OwnRow) -> Result<Released> {
    let limits = store.limits(StatementClass::Release, entry.call_timeout);
    store.release(limits, entry).await
}

pub(crate) async fn renew<D: Dialect>(
    store: &SqlStore<D>,
    entry: &OwnRow,
    fence: Option<FencingToken>,
) -> RenewalOutcome {
    D::renew_batch(store, &[DueRenewal { entry, fence }], TTL).await.unwrap()[0]
}

/// All together, and those in doubt alone.
pub(crate) async fn renew_all<D: Dialect>(
    store: &SqlStore<D>,
    dues: &[DueRenewal<'_>],
) -> Vec<RenewalOutcome> {
    let mut found = D::renew_batch(store, dues, TTL).await.unwrap();
    for (due, outcome) in dues.iter().zip(&mut found) {
        if *outcome == RenewalOutcome::Doubtful {
            *outcome = store.renew_alone(*due, TTL).await.unwrap();
        }
    }
    found
}

fn seconds(seconds: i64) -> i64 {
    (START + seconds) * 1_000_000
}

pub(crate) async fn a_lease_ends_by_the_clock(bench: &impl Bench) {
    let before = bench.at(seconds(0)).await;
    let (old, new) = (entry("x"), entry("x"));
    let first = granted(acquire(&before, &old, false).await);
    assert_eq!(first.as_i64(), seconds(0), "the clock in µs");
    for polling in [false, true] {
        assert_eq!(held(acquire(&before, &new, polling).await), TTL.as_millis());
    }
    let later = bench.at(seconds(9)).await;
    assert_eq!(held(acquire(&later, &new, false).await), 1000);
    assert_eq!(left(&later, &old, Some(first)).await, Some(1000));
    let end = bench.at(seconds(10) + 1).await;
    // Over by the clock: not prolonged any more, although no other client has taken it.
    assert_eq!(renew(&end, &old, Some(first)).await, RenewalOutcome::Gone);
    assert_eq!(left(&end, &old, Some(first)).await, None);
    let second = granted(acquire(&end, &new, true).await);
    assert!(second > first);
    assert_eq!(renew(&end, &old, None).await, RenewalOutcome::Gone);
    assert_eq!(release(&end, &old).await.unwrap(), Released::AlreadyGone);
    assert_eq!(renew(&end, &new, Some(second)).await, RenewalOutcome::Renewed);
    let over = bench.at(seconds(21)).await;
    assert_eq!(release(&over, &new).await.unwrap(), Released::AlreadyGone, "it had ended");
}

pub(crate) async fn a_try_in_vain_names_the_holder<B: Bench>(bench: &B) {
    let store = bench.at(seconds(0)).await;
    let mine = entry("x");
    let fence = granted(acquire(&store, &mine, false).await);
    let later = bench.at(seconds(4)).await;
    for polling in [false, true] {
        let Attempt::Busy(busy) = acquire(&later, &entry("x"), polling).await.unwrap() else {
            panic!("two holders of one lock");
        };
        assert_eq!(busy.retry_after.map(|left| left.as_millis()), Some(6000));
        let Some(holder) = busy.holder else {
            assert!(!polling && !B::NAMES_AT_ONCE, "nobody is named");
            continue;
        };
        assert_eq!(holder.owner.map(|owner| owner.to_hex()), Some(mine.owner.0.clone()));
        assert_eq!((holder.fence, holder.label.as_deref()), (Some(fence), Some("somebody")));
        assert_eq!(holder.expires_in, busy.retry_after);
        assert_eq!(holder.held_for, Some(Duration::from_secs(4)));
    }
}

/// No fence falls and no lease ends early.
pub(crate) async fn a_clock_that_goes_back<B: Bench>(bench: &B) {
    let before = bench.at(seconds(0)).await;
    let (mine, free) = (entry("held"), entry("free"));
    let first = granted(acquire(&before, &mine, false).await);
    let second = granted(acquire(&before, &free, false).await);
    assert_eq!(release(&before, &free).await.unwrap(), Released::Freed);
    let after = bench.at(seconds(-1000)).await;
    held(acquire(&after, &entry("held"), false).await);
    let next = entry("free");
    let third = granted(acquire(&after, &next, false).await);
    assert_eq!(third.as_i64(), second.as_i64() + 1, "free at once");
    assert_eq!(release(&after, &next).await.unwrap(), Released::Freed);
    assert_eq!(renew(&after, &mine, Some(first)).await, RenewalOutcome::Renewed);
    assert_eq!(granted(acquire(&after, &mine, false).await), first);
    let later = bench.at(seconds(9)).await;
    assert_eq!(held(acquire(&later, &entry("held"), false).await), 1000);
}

/// What was promised stands: a request that was late, and a holder who asks for less, cut nothing.
pub(crate) async fn no_request_of_a_hold_shortens_its_lease(bench: &impl Bench) {
    let store = bench.at(seconds(0)).await;
    let holds = [entry("x"), entry("y")];
    let mut fences = Vec::new();
    for hold in &holds {
        fences.push(granted(acquire(&store, hold, false).await));
    }
    let asking = |at: usize, ttl, taken_over| OwnRow {
        owner: OwnerSecret(holds[at].owner.0.clone()),
        ttl,
        taken_over,
        name: holds[at].name.clone(),
        ..entry("x")
    };
    for taken_over in [false, true] {
        for ttl in [TTL / 2, Duration::from_millis(10)] {
            let less = [0, 1].map(|at| asking(at, ttl, taken_over.then_some(fences[at])));
            for (entry, fence) in less.iter().zip(&fences) {
                assert_eq!(granted(acquire(&store, entry, false).await), *fence, "a repeated try");
                assert_eq!(left(&store, entry, Some(*fence)).await, Some(10_000));
                assert_eq!(renew(&store, entry, Some(*fence)).await, RenewalOutcome::Renewed);
                assert_eq!(left(&store, entry, Some(*fence)).await, Some(10_000));
            }
            let due = |at: usize| DueRenewal { entry: &less[at], fence: Some(fences[at]) };
            let both = store.renew_batch(&[due(0), due(1)], TTL).await.unwrap();
            assert_eq!(both, [RenewalOutcome::Renewed; 2]);
            for (entry, fence) in less.iter().zip(&fences) {
                assert_eq!(left(&store, entry, Some(*fence)).await, Some(10_000));
            }
        }
    }
    let more = asking(0, TTL * 2, Some(fences[0]));
    assert_eq!(renew(&store, &more, Some(fences[0])).await, RenewalOutcome::Renewed);
    assert_eq!(left(&store, &more, Some(fences[0])).await, Some(20_000));
}

pub(crate) async fn used_up_fences_are_an_error_and_not_a_grant(bench: &impl Bench) {
    let store = bench.at(seconds(0)).await;
    let mine = entry("x");
    granted(acquire(&store, &mine, false).await);
    release(&store, &mine).await.unwrap();
    bench.run("UPDATE distlock SET fence = 9223372036854775807 WHERE name = 'x'").await;
    let error = acquire(&store, &entry("x"), false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    assert!(error.to_string().contains("used up"), "{error}");
}

/// Also one of another program, whose owner can be anything, and the same again.
pub(crate) async fn a_forced_release_ends_the_hold_that_was_shown(bench: &impl Bench) {
    let store = bench.at(seconds(0)).await;
    let (admin, key) =
        (DialectBackend::new(Arc::clone(&store), TTL), LockKey::new("", "x").unwrap());
    let shown = async || {
        let holder = admin.inspect(&key).await.unwrap().unwrap().holder.unwrap();
        (holder.owner.is_some(), Victim::Shown(holder.mark))
    };
    let foreign = "UPDATE distlock SET owner = 'worker-7' WHERE name = 'x'";
    let mine = entry("x");
    granted(acquire(&store, &mine, false).await);
    bench.run(foreign).await;
    let (is_ours, worker) = shown().await;
    assert!(!is_ours);
    release(&store, &OwnRow { owner: OwnerSecret("worker-7".into()), ..entry("x") }).await.unwrap();
    granted(acquire(&store, &mine, false).await);
    let (is_ours, own) = shown().await;
    assert!(is_ours);
    assert_eq!(admin.force_release(&key, &worker).await.unwrap(), Released::AlreadyGone);
    assert!(left(&store, &mine, None).await.is_some(), "taken from a later holder");
    // The other program holds it again, under the same name.
    bench.run(foreign).await;
    for other in [&worker, &own, &Victim::Shown(HolderMark::new("worker-7"))] {
        assert_eq!(admin.force_release(&key, other).await.unwrap(), Released::AlreadyGone);
    }
    let (_, again) = shown().await;
    assert_eq!(admin.force_release(&key, &again).await.unwrap(), Released::Freed);
}

pub(crate) async fn each_lease_of_a_batch_has_its_own_answer(bench: &impl Bench) {
    let store = bench.at(seconds(0)).await;
    let names = ["\"", "A", "[\"", "\\u0041", "a", "a\"b", "a\\", "x", "x ", "ü🔒"];
    let mut leases = Vec::new();
    for (at, name) in names.into_iter().enumerate() {
        let entry = OwnRow { ttl: TTL * (1 + u32::try_from(at).unwrap() % 2), ..entry(name) };
        let fence = granted(acquire(&store, &entry, false).await);
        leases.push((entry, Some(fence)));
    }
    // Released; taken away and taken by another client, and by the same owner again; another fence,
    // none.
    release(&store, &leases[0].0).await.unwrap();
    for at in [1, 2] {
        store.free_by_force(&leases[at].0.name, &Victim::Anybody).await.unwrap();
    }
    granted(acquire(&store, &entry(names[1]), false).await);
    granted(acquire(&store, &leases[2].0, false).await);
    leases[3].1 = FencingToken::new(leases[3].1.unwrap().get() + 1).ok();
    leases[4].1 = None;
    let later = bench.at(seconds(5)).await;
    let dues: Vec<_> =
        leases.iter().map(|(entry, fence)| DueRenewal { entry, fence: *fence }).collect();
    let found = renew_all(&later, &dues).await;
    let wanted = |at| if at < 4 { RenewalOutcome::Gone } else { RenewalOutcome::Renewed };
    assert_eq!(found, (0..dues.len()).map(wanted).collect::<Vec<_>>());
    for (entry, fence) in &leases[4..] {
        assert_eq!(left(&later, entry, *fence).await, Some(entry.ttl.as_millis()));
    }
}

fn sweeper<D: Dialect>(store: &Arc<SqlStore<D>>, retention: Duration) -> Sweeper<D> {
    Sweeper::new(Arc::clone(store), retention)
}

pub(crate) async fn the_sweep_removes_what_is_old_and_keeps_the_greatest_fence(bench: &impl Bench) {
    let retention = Duration::from_secs(60);
    let store = bench.at(seconds(0)).await;
    // More than one page: released and abandoned ones.
    for n in 0..550 {
        let mine = entry(&format!("n{n:03}"));
        granted(acquire(&store, &mine, false).await);
        if n % 2 == 0 {
            assert_eq!(release(&store, &mine).await.unwrap(), Released::Freed);
        }
    }
    bench.run("UPDATE distlock SET fence = fence + 5000 WHERE name = 'n011'").await;
    let later = bench.at(seconds(69)).await;
    assert!(sweeper(&later, retention).sweep(Duration::ZERO).await.unwrap());
    assert_eq!(bench.names().await.len(), 275, "the abandoned ones are not past the retention");
    let last = bench.at(seconds(70) + 1).await;
    let mine = entry("held");
    let fence = granted(acquire(&last, &mine, false).await);
    assert!(sweeper(&last, retention).sweep(Duration::ZERO).await.unwrap());
    assert_eq!(bench.names().await, ["held"]);
    // The clock has gone back: only the mark can carry the fence.
    let back = bench.at(seconds(-1000)).await;
    let again = granted(acquire(&back, &entry("n000"), false).await);
    assert_eq!(again.as_i64(), seconds(0) + 5001);
    assert_eq!(granted(acquire(&back, &mine, false).await), fence);
}

pub(crate) async fn the_sweep_judges_each_row_anew(bench: &impl Bench) {
    let retention = Duration::from_secs(1);
    let store = bench.at(seconds(0)).await;
    for name in ["held", "used", "old"] {
        let mine = entry(name);
        granted(acquire(&store, &mine, false).await);
        release(&store, &mine).await.unwrap();
    }
    let store = bench.at(seconds(2)).await;
    let sweeping = sweeper(&store, retention);
    let page = sweeping.sweep_page(SqlValue::from("")).await.unwrap();
    assert_eq!(page.gone.len(), 3);
    sweeping.sweep_fold(page.greatest).await.unwrap();
    // Before the deletion one of them is taken, and another taken and released.
    let (mine, used) = (entry("held"), entry("used"));
    granted(acquire(&store, &mine, false).await);
    let greater = granted(acquire(&store, &used, false).await);
    release(&store, &used).await.unwrap();
    sweeping.sweep_delete(&page).await.unwrap();
    assert_eq!(bench.names().await, ["held", "used"]);
    assert_eq!(renew(&store, &mine, None).await, RenewalOutcome::Renewed);
    // Past the retention, but with a fence that was not folded.
    let hasty = bench.at(seconds(3)).await;
    sweeper(&hasty, Duration::ZERO).sweep_delete(&page).await.unwrap();
    assert_eq!(bench.names().await, ["held", "used"]);
    assert!(granted(acquire(&hasty, &entry("used"), false).await) > greater);
}

pub(crate) async fn look<D: Dialect>(store: &SqlStore<D>, name: &str) -> Result<Seen> {
    Ok(store.look_now(&[LockKey::new("", name).unwrap()]).await?.remove(0))
}

/// By the clock of the database, its rows, and the mark where there is none.
pub(crate) async fn a_look_shows_the_holder_or_what_later_fences_exceed(bench: &impl Bench) {
    let store = bench.at(seconds(0)).await;
    assert_eq!(look(&store, "x").await.unwrap(), Seen::Free { floor: None });
    // The longest label that a lock may have.
    let label = Some("n".repeat(512));
    let mine = OwnRow { more: 4, label: label.clone(), ..entry("x") };
    let first = granted(acquire(&store, &mine, false).await);
    let held = Seen::Held { fence: Some(first), label };
    let last = FencingToken::new(first.get() + 4).unwrap();
    let free = Seen::Free { floor: Some(last) };
    for (time, seen) in [(9_000_000, &held), (10_000_001, &free), (-1_000_000_000, &held)] {
        let store = bench.at(seconds(0) + time).await;
        assert_eq!(look(&store, "x").await.unwrap(), *seen, "after {time} µs");
    }
    // The clock has gone back: only what is stored can carry the fence.
    let back = bench.at(seconds(-1000)).await;
    release(&back, &mine).await.unwrap();
    assert_eq!(look(&back, "x").await.unwrap(), free);
    let next = entry("x");
    let greater = granted(acquire(&back, &next, false).await);
    assert_eq!(greater.get(), last.get() + 1);
    release(&back, &next).await.unwrap();
    assert_eq!(look(&back, "y").await.unwrap(), Seen::Free { floor: None });
    let swept = sweeper(&bench.at(seconds(100)).await, Duration::from_secs(60));
    assert!(swept.sweep(Duration::ZERO).await.unwrap());
    assert!(bench.names().await.is_empty());
    let back = bench.at(seconds(-1000)).await;
    for name in ["x", "y"] {
        assert_eq!(look(&back, name).await.unwrap(), Seen::Free { floor: Some(greater) });
        assert!(granted(acquire(&back, &entry(name), false).await) > greater, "{name}");
    }
}

pub(crate) async fn a_look_answers_for_each_name_in_its_place(bench: &impl Bench) {
    let store = bench.at(seconds(0)).await;
    assert!(store.look_now(&[]).await.unwrap().is_empty());
    let odd = ["x", "x ", "X", "ü🔒", "'; --", "a\\"].map(str::to_owned);
    let names: Vec<_> = odd.into_iter().chain((0..150).map(|n| format!("n{n}"))).collect();
    let mut fences = Vec::new();
    for (at, name) in names.iter().enumerate() {
        fences.push(match at % 3 {
            0 => Some(granted(acquire(&store, &entry(name), false).await)),
            _ => None,
        });
    }
    // Forwards and backwards, so that each is asked for twice.
    let wanted: Vec<_> = names.iter().zip(fences).collect();
    let wanted: Vec<_> = wanted.iter().chain(wanted.iter().rev()).collect();
    let keys: Vec<_> =
        wanted.iter().map(|(name, _)| LockKey::new("", name.as_str()).unwrap()).collect();
    let seen = store.look_now(&keys).await.unwrap();
    assert_eq!(seen.len(), wanted.len());
    for ((name, fence), seen) in wanted.into_iter().zip(seen) {
        let shown = match seen {
            Seen::Held { fence, .. } => fence,
            _ => None,
        };
        assert_eq!(shown, *fence, "{name}");
    }
}

/// With a clock that stands still, whatever is forgotten shows at once.
pub(crate) async fn fences_rise_while_two_stores_sweep_all_the_time<B: Bench>(bench: &B) {
    let settle = B::Of::SETTLE;

    let mut sweepers = Vec::new();
    for _ in 0..2 {
        let sweeping = sweeper(&bench.at(seconds(0)).await, Duration::ZERO);
        sweepers.push(tokio::spawn(async move {
            loop {
                sweeping.sweep(settle).await.unwrap();
            }
        }));
    }
    let store = bench.at(seconds(0)).await;
    let (mut last, mut rounds, begun) = (0, 0, Instant::now());
    // Long enough for some sweeps.
    while rounds < 300 || begun.elapsed() < settle * 4 {
        rounds += 1;
        let mine = entry("x");
        // A deadlock with a sweep is contention.
        let fence = loop {
            if let Attempt::Granted { token, .. } = acquire(&store, &mine, false).await.unwrap() {
                break token.get();
            }
        };
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        assert_eq!(release(&store, &mine).await.unwrap(), Released::Freed);
    }
    for sweeper in sweepers {
        assert!(!sweeper.is_finished(), "a sweep failed");
        sweeper.abort();
    }
}
