//! Several locks that are taken together.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use lock_core::kinds::{HeldSet, LockSet};
use lock_core::memory::MemoryBackend;
use lock_core::testing::ManualClock;
use lock_core::{
    Clock, Effect, ErrorKind, LockEvent, LockKey, LockLayer, LockObserver, LockState, Locks,
    LostReason, Released,
};
use tokio_util::sync::CancellationToken;

use crate::kinds_rw::poll_turns;
use crate::{MS, SECOND, another, dropped_after, stores, virtual_locks};

/// Whether nobody has the lock at this moment.
async fn is_free(locks: &Locks, name: &str) -> bool {
    match locks.named(name).unwrap().try_acquire().await.unwrap() {
        Some(guard) => guard.release().await.is_ok(),
        None => false,
    }
}

async fn are_free(locks: &Locks, names: &[&str]) -> bool {
    for name in names {
        if !is_free(locks, name).await {
            return false;
        }
    }
    true
}

fn names(set: &LockSet) -> Vec<&str> {
    set.keys().map(LockKey::name).collect()
}

#[tokio::test]
async fn names_are_ordered_by_their_bytes_and_count_once() {
    let locks = Locks::new(MemoryBackend::queued());
    let set = locks.all(["b", "é", "a", "B", "b", "ab"]).unwrap();
    assert_eq!(names(&set), ["B", "a", "ab", "b", "é"]);
    let owned: Vec<String> = (0..128).map(|n| format!("{:03}", n / 2)).collect();
    assert_eq!(locks.all(&owned).unwrap().keys().count(), 64, "doubles count once");
}

#[tokio::test]
async fn a_set_has_one_name_to_sixty_four() {
    let locks = Locks::new(MemoryBackend::queued());
    let many = |count: u32| locks.all((0..count).map(|n| n.to_string())).map(drop);
    many(1).unwrap();
    many(64).unwrap();
    for (error, part) in [
        (many(0), "no name"),
        (many(65), "65 locks is too large, the limit is 64"),
        (locks.all(["a", ""]).map(drop), "empty"),
    ] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = locks.all(["a"]).unwrap().ttl(MS).acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidInput, Some("a")));
}

/// A deadlock would last for ever, since the locks are renewed.
#[tokio::test(start_paused = true)]
async fn opposite_orders_never_deadlock() {
    for store in stores() {
        let (store, _, clock) = virtual_locks(store.stepwise());
        let tasks = [["a", "b"], ["b", "a"]].map(|names| {
            let locks = another(&store, clock);
            tokio::spawn(async move {
                for _ in 0..1000 {
                    let guard = locks.all(names).unwrap().acquire().await.unwrap();
                    tokio::task::yield_now().await;
                    guard.release().await.unwrap();
                }
            })
        });
        let both = async {
            for task in tasks {
                task.await.unwrap();
            }
        };
        tokio::time::timeout(3600 * SECOND, both).await.expect("they wait for each other");
    }
}

#[tokio::test(start_paused = true)]
async fn one_deadline_is_for_all() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let others = another(&store, clock);
        for (name, held_for) in [("a", 400 * MS), ("b", 800 * MS), ("c", 3600 * SECOND)] {
            let guard = others.named(name).unwrap().label(name).acquire().await.unwrap();
            tokio::spawn(async move {
                clock.sleep(held_for).await;
                drop(guard);
            });
        }
        let begun = clock.now();
        let error = locks.all(["c", "b", "a"]).unwrap().acquire_timeout(SECOND).await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::NotAcquired, Some("c")), "{error}");
        assert_eq!(error.holder().unwrap().label.as_deref(), Some("c"));
        assert_eq!(clock.now().since(begun), SECOND);
        assert!(are_free(&others, &["a", "b"]).await);
    }
}

/// Moves the time when a lock is granted.
#[derive(Clone, Debug)]
struct SlowGrants(ManualClock);

impl LockLayer for SlowGrants {
    fn observer(&self) -> Option<Arc<dyn LockObserver>> {
        Some(Arc::new(self.clone()))
    }
}

impl LockObserver for SlowGrants {
    fn observe(&self, _: &'static str, _: Option<&LockKey>, event: LockEvent<'_>) {
        if let LockEvent::Granted { .. } = event {
            self.0.advance(SECOND);
        }
    }
}

#[tokio::test]
async fn a_lock_for_which_no_time_is_left_is_not_asked_for() {
    let clock = ManualClock::default();
    let store = MemoryBackend::queued().with_clock(clock.clone());
    let locks = Locks::builder(store.clone()).clock(clock.clone()).layer(SlowGrants(clock));
    let set = locks.build().unwrap().all(["a", "b"]).unwrap();
    let error = set.acquire_timeout(SECOND).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotAcquired, Some("b")), "{error}");
    assert_eq!(store.requests(), 2, "the grant of the first and its release");
}

#[tokio::test(start_paused = true)]
async fn a_try_waits_for_none_and_keeps_none() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let others = another(&store, clock);
        let set = locks.all(["a", "b", "c"]).unwrap();
        for busy in ["a", "b", "c"] {
            let theirs = others.named(busy).unwrap().acquire().await.unwrap();
            let begun = clock.now();
            assert!(set.try_acquire().await.unwrap().is_none());
            assert_eq!(set.try_run(async |_| panic!("one is held")).await.unwrap(), None::<()>);
            let error = set.acquire_timeout(Duration::ZERO).await.unwrap_err();
            assert_eq!((error.kind(), error.key()), (ErrorKind::NotAcquired, Some(busy)));
            assert_eq!(clock.now(), begun);
            let free: Vec<_> = ["a", "b", "c"].into_iter().filter(|name| *name != busy).collect();
            assert!(are_free(&others, &free).await, "all but {busy}");
            theirs.release().await.unwrap();
        }
        assert_eq!(set.try_run(async |held| held.state()).await.unwrap(), Some(LockState::Secure));
    }
}

/// Two losses in a row: a try repairs the first one itself.
#[tokio::test(start_paused = true)]
async fn whichever_request_or_answer_is_lost_none_is_half_held() {
    for is_answer in [true, false] {
        for (skip, failed) in [(0, "a"), (1, "b"), (2, "c")] {
            let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
            let others = another(&store, clock);
            store.skip_requests(skip);
            for _ in 0..2 {
                if is_answer { store.lose_next_reply() } else { store.lose_next_request() }
            }
            let set = locks.all(["a", "b", "c"]).unwrap().ttl(10 * SECOND);
            let error = set.try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert_eq!((error.key(), error.effect()), (Some(failed), Effect::Unknown), "{error}");
            let before: Vec<_> =
                ["a", "b", "c"].into_iter().filter(|name| *name < failed).collect();
            assert!(are_free(&others, &before).await, "those before {failed}, at once");
            clock.sleep(SECOND).await;
            assert!(are_free(&others, &["a", "b", "c"]).await, "after {failed} had failed");
        }
    }
}

/// The answer to the release of the first one is lost, too.
#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_is_repeated_after_a_failure() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let others = another(&store, clock);
    let _theirs = others.named("b").unwrap().acquire().await.unwrap();
    store.skip_requests(2);
    store.lose_next_request();
    let set = locks.all(["a", "b"]).unwrap();
    assert!(set.try_acquire().await.unwrap().is_none());
    clock.sleep(SECOND).await;
    assert!(is_free(&others, "a").await);
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_dropped_at_any_await_leaves_nothing() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store.stepwise());
        let others = another(&store, clock);
        let set = locks.all(["a", "b", "c"]).unwrap();
        let mut polls = 1;
        while dropped_after(polls, set.acquire()).await.is_none() {
            clock.sleep(100 * MS).await;
            assert!(are_free(&others, &["a", "b", "c"]).await, "dropped after {polls} polls");
            polls += 1;
        }
        assert!(polls > 6, "{polls} polls");
        clock.sleep(100 * MS).await;
        assert!(are_free(&others, &["a", "b", "c"]).await, "its guard was dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_at_any_await_leaves_nothing() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store.stepwise());
        let others = another(&store, clock);
        let set = locks.all(["a", "b"]).unwrap();
        for polls in 1..16 {
            let theirs = others.named("b").unwrap().acquire().await.unwrap();
            assert!(dropped_after(polls, set.acquire()).await.is_none());
            clock.sleep(100 * MS).await;
            assert!(is_free(&others, "a").await, "dropped after {polls} polls");
            theirs.release().await.unwrap();
            clock.sleep(100 * MS).await;
            assert!(is_free(&others, "b").await, "dropped after {polls} polls");
        }
    }
}

/// Nobody polls it any more, and nobody drops it, although it could go on.
#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_left_alone_stops_others_for_a_lease_at_most() {
    for store in stores() {
        for polls in 1..40 {
            let (store, locks, clock) = virtual_locks(store.clone().stepwise());
            let other = another(&store, clock).all(["a", "b", "c"]).unwrap().ttl(6 * SECOND);
            let theirs = other.acquire().await.unwrap();
            let set = locks.all(["a", "b", "c"]).unwrap().ttl(6 * SECOND);
            let mut alone = Box::pin(async { set.acquire().await.map(drop) });
            assert!(poll_turns(polls, &mut alone).await.is_none(), "others have them");
            theirs.release().await.unwrap();
            let is_done = poll_turns(polls, &mut alone).await.is_some();
            // Each of them may be granted to the call that is alone, one after the other.
            let all = tokio::time::timeout(7 * SECOND, other.acquire()).await;
            let what = format!("left alone after {polls}");
            all.expect(&what).expect(&what).release().await.unwrap();
            if is_done {
                break;
            }
            alone.await.expect(&what);
            tokio::time::sleep(SECOND).await;
            assert_eq!(locks.list("").await.unwrap(), [], "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_dropped_at_any_await_releases_all() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store.stepwise());
        let others = another(&store, clock);
        let set = locks.all(["a", "b", "c"]).unwrap();
        let mut polls = 1;
        loop {
            let guard = set.acquire().await.unwrap();
            let released = dropped_after(polls, guard.release()).await;
            clock.sleep(100 * MS).await;
            assert!(are_free(&others, &["a", "b", "c"]).await, "dropped after {polls} polls");
            match released {
                Some(released) => break assert_eq!(released.unwrap(), Released::Freed),
                None => polls += 1,
            }
        }
        assert!(polls > 2, "{polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn when_one_is_lost_all_are_and_the_others_stay_renewed() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let others = another(&store, clock);
    let set = locks.all(["a", "b", "c"]).unwrap().ttl(10 * SECOND);
    let guard = set.acquire().await.unwrap();
    let [early, mine] = [(), ()].map(|()| guard.lost().cancellation_token());
    mine.cancel();
    clock.sleep(60 * SECOND).await;
    assert_eq!((guard.state(), guard.lost().loss()), (LockState::Secure, None));
    assert!(!early.is_cancelled() && guard.remaining() > 5 * SECOND);
    store.lose_now("b");
    let (key, reason) = guard.lost().await;
    assert_eq!((key.name(), reason), ("b", LostReason::Taken));
    assert!(early.is_cancelled() && guard.lost().cancellation_token().is_cancelled());
    assert_eq!(guard.state(), LockState::Lost(LostReason::Taken));
    assert_eq!((guard.remaining(), guard.valid_until()), (Duration::ZERO, clock.now()));
    for error in [guard.token("a").unwrap_err(), guard.tokens().map(drop).unwrap_err()] {
        assert_eq!((error.lost_reason(), error.key()), (Some(LostReason::Taken), Some("b")));
    }
    clock.sleep(60 * SECOND).await;
    assert!(!is_free(&others, "a").await && is_free(&others, "b").await);
    assert!(!is_free(&others, "c").await, "until the guard goes");
    let held = guard.held().clone();
    drop(guard);
    clock.sleep(MS).await;
    assert!(are_free(&others, &["a", "c"]).await);
    assert_eq!(held.lost().loss().unwrap().0.name(), "b", "it was the first");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_lost_while_the_next_is_waited_for_ends_the_wait() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let others = another(&store, clock);
        let theirs = others.named("c").unwrap().acquire().await.unwrap();
        let set = locks.all(["a", "b", "c"]).unwrap().ttl(3 * SECOND);
        let waits = tokio::spawn(async move { set.acquire().await });
        clock.sleep(SECOND).await;
        assert!(!is_free(&others, "b").await);
        store.lose_now("a");
        let error = waits.await.unwrap().unwrap_err();
        assert_eq!((error.lost_reason(), error.key()), (Some(LostReason::Taken), Some("a")));
        assert!(are_free(&others, &["a", "b"]).await);
        theirs.release().await.unwrap();
        clock.sleep(MS).await;
        assert!(is_free(&others, "c").await, "it does not wait any more");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_lock_can_end_before_the_last_one_is_there() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let others = another(&store, clock);
    let _theirs = others.named("b").unwrap().acquire().await.unwrap();
    let set = || locks.all(["a", "b"]).unwrap().ttl(3 * SECOND);
    for (set, reason) in
        [(set().no_renew(), LostReason::Expired), (set().max_hold(SECOND), LostReason::MaxHold)]
    {
        let error = set.acquire_timeout(60 * SECOND).await.unwrap_err();
        assert_eq!((error.lost_reason(), error.key()), (Some(reason), Some("a")));
        // Nobody waits for the release of what was lost.
        clock.sleep(MS).await;
        assert!(is_free(&others, "a").await);
    }
}

/// And nobody waits for the last one.
#[tokio::test]
async fn a_set_of_which_one_has_ended_is_not_handed_out() {
    let clock = ManualClock::default();
    let store = MemoryBackend::queued().with_clock(clock.clone());
    let locks = Locks::builder(store).clock(clock.clone()).layer(SlowGrants(clock));
    let locks = locks.build().unwrap();
    let set = locks.all(["a", "b"]).unwrap().max_hold(900 * MS);
    let error = set.acquire().await.unwrap_err();
    assert_eq!((error.lost_reason(), error.key()), (Some(LostReason::MaxHold), Some("a")));
    assert!(locks.inspect("b").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_of_one_is_the_risk_of_all() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let guard = locks.all(["a", "b"]).unwrap().acquire().await.unwrap();
    store.skip_requests(1);
    store.lose_next_request();
    let error = guard.renew().await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Unavailable, Some("b")), "{error}");
    assert_eq!(guard.state(), LockState::AtRisk);
    assert!(guard.token("a").is_ok());
    assert_eq!(guard.renew().await.unwrap(), LockState::Secure);
    assert_eq!(guard.check().await.unwrap(), LockState::Secure);
    store.lose_now("a");
    let error = guard.check().await.unwrap_err();
    assert_eq!((error.lost_reason(), error.key()), (Some(LostReason::Taken), Some("a")));
}

#[tokio::test(start_paused = true)]
async fn a_late_release_costs_one_call_and_tells_of_all() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let others = another(&store, clock);
    let set = locks.all(["a", "b", "c"]).unwrap().ttl(9 * SECOND);
    let guard = set.acquire().await.unwrap();
    let begun = clock.now();
    store.partition();
    let error = guard.release().await.unwrap_err();
    assert_eq!(clock.now().since(begun), 3 * SECOND, "the limit of one call");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::NoAnswer, Effect::Unknown));
    assert_eq!(error.key(), None);
    let text = error.to_string();
    assert!(text.contains("3 of 3 locks failed"), "{text}");
    let places: Vec<_> = ["\"c\"", "\"b\"", "\"a\""].map(|name| text.find(name).unwrap()).into();
    assert!(places.is_sorted(), "in the order of their release: {text}");
    store.heal();
    clock.sleep(2 * SECOND).await;
    assert!(are_free(&others, &["a", "b", "c"]).await, "released in the background");

    // One is lost, and another one not answered.
    let guard = set.acquire().await.unwrap();
    store.lose_now("b");
    guard.lost().await;
    // That of the release which comes first.
    store.lose_next_request();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LostReason::Taken), "{error}");
    assert_eq!((error.effect(), error.is_retryable()), (Effect::Unknown, false));
    assert!(error.to_string().contains("2 of 3"), "{error}");
    clock.sleep(2 * SECOND).await;
    assert!(are_free(&others, &["a", "b", "c"]).await);
}

#[tokio::test(start_paused = true)]
async fn a_guard_answers_by_name() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued());
    let locks = Locks::builder(store).clock(clock).prefix("shop").build().unwrap();
    let set = locks.all(["b", "a"]).unwrap().ttl(10 * SECOND).label("packing");
    let guard = set.acquire().await.unwrap();
    let tokens: Vec<_> =
        guard.tokens().unwrap().map(|(key, token)| (key.name().to_owned(), token)).collect();
    let [a, b] = ["a", "b"].map(|name| guard.token(name).unwrap());
    assert_eq!(tokens, [("a".to_owned(), a), ("b".to_owned(), b)]);
    assert!(a < b, "taken in this order");
    let error = guard.token("c").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("\"c\""), "{error}");
    assert_eq!(guard.ttl(), 10 * SECOND);
    for name in ["a", "b"] {
        let holder = locks.inspect(name).await.unwrap().unwrap().holder.unwrap();
        assert_eq!(holder.label.as_deref(), Some("packing"));
    }
    assert!(guard.remaining() <= 10 * SECOND && guard.valid_until() > clock.now());
    assert!(format!("{guard:?}").contains("Secure"));
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

#[tokio::test(start_paused = true)]
async fn run_stops_the_work_when_one_is_taken_away() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let set = locks.all(["a", "b"]).unwrap();
    assert_eq!(set.run(async |held| held.keys().count()).await.unwrap(), 2);
    let error = set
        .run(async |_| {
            store.lose_now("a");
            std::future::pending::<()>().await;
        })
        .await
        .unwrap_err();
    assert_eq!((error.lost_reason(), error.key()), (Some(LostReason::Taken), Some("a")));
    // A body that never yields.
    let clock = ManualClock::default();
    let store = MemoryBackend::queued().with_clock(clock.clone());
    let locks = Locks::builder(store).clock(clock.clone()).build().unwrap();
    let set = locks.all(["a", "b"]).unwrap().ttl(SECOND);
    let error = set.run(async |_| clock.advance(SECOND)).await.unwrap_err();
    assert_eq!(error.lost_reason(), Some(LostReason::Expired));
}

/// A plain lock of the same task is not known to the set.
#[tokio::test(start_paused = true)]
async fn a_set_is_not_re_entrant() {
    let (_, locks, _) = virtual_locks(MemoryBackend::queued());
    let _mine = locks.named("a").unwrap().acquire().await.unwrap();
    let error = locks.all(["a", "b"]).unwrap().acquire_timeout(SECOND).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotAcquired, Some("a")));
}

#[test]
fn without_any_runtime() {
    let locks = Locks::new(MemoryBackend::queued());
    let set = locks.all(["a", "b"]).unwrap();
    set.try_acquire_blocking().unwrap().unwrap().release_blocking().unwrap();
    let guard = set.acquire_blocking().unwrap();
    assert!(set.try_acquire_blocking().unwrap().is_none());
    let error = set.acquire_timeout_blocking(30 * MS).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAcquired, "{error}");
    assert_eq!(guard.release_blocking().unwrap(), Released::Freed);
    drop(set.acquire_timeout_blocking(20 * SECOND).unwrap());
    locks.close_blocking(20 * SECOND).unwrap();
    assert_eq!(set.acquire_blocking().unwrap_err().kind(), ErrorKind::Closed);
}

/// One of them ends: so does the set, however it was made, and the other does not.
async fn a_lock_and_a_permit(lock_is_first: bool, lock_ends: bool, by_release: bool) {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let lock = locks.named("a").unwrap().acquire().await.unwrap();
    let permit = locks.semaphore("gpu", 2).unwrap().acquire().await.unwrap();
    let holds = [lock.held().clone(), permit.held().clone()];
    let own = holds.each_ref().map(|held| held.lost().cancellation_token());
    let mut order = holds.to_vec();
    if !lock_is_first {
        order.reverse();
    }
    let set: HeldSet = order.iter().cloned().collect();
    let tokens = [(); 2].map(|()| set.lost().cancellation_token());
    let slot = format!("gpu~~p{}", permit.slot());
    let (mut lock, mut permit) = (Some(lock), Some(permit));
    match (lock_ends, by_release) {
        (true, true) => drop(lock.take().unwrap().release().await.unwrap()),
        (false, true) => drop(permit.take().unwrap().release().await.unwrap()),
        (true, false) => store.lose_now("a"),
        (false, false) => store.lose_now(&slot),
    }
    let (ended, other) = if lock_ends { (0, 1) } else { (1, 0) };
    holds[ended].lost().await;
    let what = format!("{lock_is_first} {lock_ends} {by_release}");
    assert!(own[ended].is_cancelled() && !own[other].is_cancelled(), "{what}");
    assert!(tokens.iter().all(CancellationToken::is_cancelled), "{what}");
    let late: HeldSet = order.into_iter().collect();
    assert!(late.lost().cancellation_token().is_cancelled(), "{what}");
    tokio::time::timeout(SECOND, holds[other].lost().wait()).await.expect_err(&what);
    assert_eq!(holds[other].state(), LockState::Secure, "{what}");
}

#[test]
fn the_token_of_a_set_is_none_of_its_holds() {
    let (done, all_done) = mpsc::channel();
    // Whoever waits in vain within one poll is not stopped by a timer of the runtime.
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        for case in 0..8 {
            let is = |bit| case >> bit & 1 == 1;
            runtime.block_on(a_lock_and_a_permit(is(0), is(1), is(2)));
        }
        done.send(())
    });
    all_done.recv_timeout(20 * SECOND).expect("it hangs, or has failed");
}
