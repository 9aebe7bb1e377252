//! Permits: never too many, each with a number of its own, and nothing left behind.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use lock_core::kinds::Permit;
use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;
use lock_core::{ErrorKind, FencingToken, LockState, Locks, LostReason};

use crate::kinds_rw::poll_turns;
use crate::{MS, SECOND, another, stores, virtual_locks};

/// Clients of one store, as if they were processes.
fn processes(store: &MemoryBackend, clock: TokioClock, count: usize) -> Vec<Locks> {
    (0..count).map(|_| another(store, clock)).collect()
}

/// Who has which slot now, and the greatest token of each so far.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<HashMap<u32, LedgerLine>>>);

/// Whether a slot is held, and its last token.
type LedgerLine = (bool, Option<FencingToken>);

impl Ledger {
    fn take(&self, permit: &Permit, most: usize) {
        let mut slots = self.0.lock().unwrap();
        let (is_held, last) = slots.entry(permit.slot()).or_default();
        let token = Some(permit.token().unwrap());
        assert!(!*is_held && token > *last, "violated: slot {} has two holders", permit.slot());
        (*is_held, *last) = (true, token);
        assert!(
            slots.values().filter(|(is_held, _)| *is_held).count() <= most,
            "violated: more than {most} permits"
        );
    }

    fn give_back(&self, slot: u32) {
        self.0.lock().unwrap().get_mut(&slot).unwrap().0 = false;
    }
}

#[tokio::test(start_paused = true)]
async fn there_are_never_more_holders_than_permits() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let ledger = Ledger::default();
        let mut tasks = Vec::new();
        for (number, process) in (0_u32..).zip(processes(&store, clock, 4)) {
            for task in 0..5 {
                let (gpus, ledger) = (process.semaphore("gpu", 3).unwrap(), ledger.clone());
                tasks.push(tokio::spawn(async move {
                    for round in 0..20 {
                        let permit = gpus.acquire().await.unwrap();
                        ledger.take(&permit, 3);
                        tokio::time::sleep(MS * ((number * 7 + task * 3 + round) % 11)).await;
                        ledger.give_back(permit.slot());
                        permit.release().await.unwrap();
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        tokio::time::sleep(SECOND).await;
        assert_eq!(locks.list("").await.unwrap(), [], "everything is free at the end");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_tried_without_waiting() {
    for store in stores() {
        let (_, locks, _) = virtual_locks(store);
        let two = locks.semaphore("gpu", 2).unwrap();
        let one = two.try_acquire().await.unwrap().unwrap();
        let other = two.try_acquire().await.unwrap().unwrap();
        assert_ne!(one.slot(), other.slot());
        assert!(two.try_acquire().await.unwrap().is_none());
        let slot = one.slot();
        one.release().await.unwrap();
        assert_eq!(two.acquire().await.unwrap().slot(), slot);
        // A client that knows fewer permits does not see the others.
        let shorter = locks.semaphore("gpu", 1).unwrap();
        let seen = shorter.try_acquire().await.unwrap().map(|permit| permit.slot());
        assert!(seen.is_none_or(|slot| slot == 0));
    }
}

/// As long as a new number is being rolled out.
#[tokio::test(start_paused = true)]
async fn whoever_queues_behind_a_client_with_fewer_permits_is_served_after_it() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let gpus = locks.semaphore("gpu", 3).unwrap();
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(gpus.acquire().await.unwrap());
        }
        held.sort_by_key(Permit::slot);
        let mut waiters = Vec::new();
        for permits in [2, 3] {
            let gpus = another(&store, clock).semaphore("gpu", permits).unwrap();
            waiters.push(tokio::spawn(async move { gpus.acquire().await.unwrap() }));
            tokio::time::sleep(SECOND).await;
        }
        held.pop().unwrap().release().await.unwrap();
        tokio::time::sleep(10 * SECOND).await;
        assert!(!waiters[0].is_finished() && !waiters[1].is_finished());
        let newcomer = another(&store, clock).semaphore("gpu", 3).unwrap();
        let permit = newcomer.try_acquire().await.unwrap().expect("the highest slot is free");
        permit.release().await.unwrap();
        held.pop().unwrap().release().await.unwrap();
        for waiter in waiters {
            held.push(waiter.await.unwrap());
        }
        assert_eq!(held.iter().map(Permit::slot).collect::<Vec<_>>(), [0, 1, 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_leaves_no_place() {
    for store in stores() {
        let (_, locks, _) = virtual_locks(store);
        let gpus = locks.semaphore("gpu", 2).unwrap().label("me");
        let held = [gpus.acquire().await.unwrap(), gpus.acquire().await.unwrap()];
        let error = gpus.acquire_timeout(SECOND).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAcquired);
        assert!(error.to_string().contains("gpu") && !error.to_string().contains("~~"), "{error}");
        tokio::time::sleep(100 * MS).await;
        let shown = locks.list("gpu").await.unwrap();
        assert_eq!(shown.len(), 2, "no turnstile: {shown:?}");
        assert!(shown.iter().all(|lock| lock.waiters.unwrap_or(0) == 0), "{shown:?}");
        drop(held);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_served_gives_up_its_other_places() {
    let (_, locks, _) = virtual_locks(MemoryBackend::queued());
    let gpus = locks.semaphore("gpu", 3).unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(gpus.acquire().await.unwrap());
    }
    let waiter = tokio::spawn({
        let gpus = gpus.clone();
        async move { gpus.acquire().await.unwrap() }
    });
    tokio::time::sleep(100 * MS).await;
    let waiting = locks.list("gpu").await.unwrap();
    let places = waiting.iter().map(|lock| lock.waiters.unwrap()).sum::<usize>();
    assert_eq!(places, 3, "the first waiter waits for every slot");
    let freed = held.remove(1);
    let slot = freed.slot();
    freed.release().await.unwrap();
    let got = waiter.await.unwrap();
    assert_eq!(got.slot(), slot);
    tokio::time::sleep(100 * MS).await;
    let left = locks.list("gpu").await.unwrap();
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(left.iter().all(|lock| lock.waiters == Some(0)), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_task_passes_none_of_its_process() {
    let (_, locks, _) = virtual_locks(MemoryBackend::queued());
    let one = locks.semaphore("gpu", 1).unwrap();
    let held = one.acquire().await.unwrap();
    let waiter = tokio::spawn({
        let one = one.clone();
        async move { one.acquire().await.unwrap() }
    });
    tokio::time::sleep(MS).await;
    held.release().await.unwrap();
    assert!(one.try_acquire().await.unwrap().is_none());
    waiter.await.unwrap().release().await.unwrap();
    assert!(one.try_acquire().await.unwrap().is_some());
}

/// A process that dies as the first waiter keeps the others waiting no longer than its turn lasts.
#[tokio::test(start_paused = true)]
async fn a_dead_first_waiter_stops_the_others_for_a_moment() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let dies = store.client();
        let dying = Locks::builder(dies.clone()).clock(clock).build().unwrap();
        let gpus = locks.semaphore("gpu", 2).unwrap();
        let held = [gpus.acquire().await.unwrap(), gpus.acquire().await.unwrap()];
        let first = dying.semaphore("gpu", 2).unwrap();
        let first = tokio::spawn(async move { first.acquire().await });
        tokio::time::sleep(100 * MS).await;
        dies.partition();
        drop(held);
        let begun = tokio::time::Instant::now();
        let other = another(&store, clock);
        // Others that queue behind it: this one does not pass it, since no permit is tried while one waits.
        let waiters = [(); 2].map(|()| {
            let gpus = other.semaphore("gpu", 2).unwrap();
            tokio::spawn(async move { gpus.acquire().await.unwrap().slot() })
        });
        for waiter in waiters {
            waiter.await.unwrap();
        }
        assert!(begun.elapsed() < 31 * SECOND, "{:?}", begun.elapsed());
        first.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_its_turn_makes_the_first_waiter_begin_again() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let gpus = locks.semaphore("gpu", 2).unwrap();
    let held = [gpus.acquire().await.unwrap(), gpus.acquire().await.unwrap()];
    let waits = |number: u32| {
        let gpus = gpus.clone();
        tokio::spawn(async move { (number, gpus.acquire().await.unwrap()) })
    };
    let first = waits(1);
    tokio::time::sleep(MS).await;
    let second = waits(2);
    tokio::time::sleep(MS).await;
    store.lose_now("gpu~~pt");
    tokio::time::sleep(SECOND).await;
    let [one, other] = held;
    one.release().await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert!(second.is_finished() && !first.is_finished(), "the second has the turn now");
    other.release().await.unwrap();
    assert_eq!(first.await.unwrap().0, 1);
    assert_eq!(second.await.unwrap().0, 2);
}

/// One task gets the slot that another one of its process gives up: it is no slot to be tried meanwhile.
#[tokio::test(start_paused = true)]
async fn a_slot_that_goes_to_another_task_is_still_of_this_process() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let one = locks.semaphore("gpu", 1).unwrap();
    let held = one.acquire().await.unwrap();
    let waiter = tokio::spawn({
        let one = one.clone();
        async move { one.acquire().await.unwrap() }
    });
    tokio::time::sleep(MS).await;
    held.release().await.unwrap();
    let permit = waiter.await.unwrap();
    let before = store.requests();
    assert!(one.try_acquire().await.unwrap().is_none());
    assert_eq!(store.requests(), before, "its own slot is not worth a request");
    permit.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_is_taken_away_is_lost() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let permit = locks.semaphore("gpu", 1).unwrap().acquire().await.unwrap();
    assert_eq!(permit.key().name(), "gpu");
    store.lose_now("gpu~~p0");
    let error = permit.check().await.unwrap_err();
    assert_eq!(error.lost_reason(), Some(LostReason::Taken));
    assert!(error.to_string().contains("gpu") && !error.to_string().contains("~~"), "{error}");
    assert_eq!(permit.state(), LockState::Lost(LostReason::Taken));
    assert_eq!(permit.lost().await, LostReason::Taken);
    assert!(permit.release().await.is_err());
}

/// A task may have it in its hand for long.
#[tokio::test(start_paused = true)]
async fn a_permit_that_was_lost_is_one_to_be_tried() {
    for store in stores() {
        let (store, locks, _) = virtual_locks(store);
        let gpus = locks.semaphore("gpu", 1).unwrap();
        let permit = gpus.acquire().await.unwrap();
        store.lose_now("gpu~~p0");
        permit.check().await.unwrap_err();
        let next = gpus.try_acquire().await.unwrap().expect("nobody has it");
        drop(permit);
        assert!(gpus.try_acquire().await.unwrap().is_none());
        assert_eq!(next.check().await.unwrap(), LockState::Secure);
    }
}

#[test]
fn bad_numbers_and_names_are_refused() {
    let locks = Locks::new(MemoryBackend::queued());
    for bad in [0, 257] {
        let error = locks.semaphore("gpu", bad).unwrap_err();
        assert!(error.to_string().contains(&bad.to_string()), "{error}");
    }
    assert!(locks.semaphore("", 1).is_err());
    assert!(locks.semaphore("x".repeat(506), 256).is_ok());
    assert!(locks.semaphore("x".repeat(507), 1).is_err());
    for part in ["gpu~~p3", "gpu~~pt", "prices~~r3", "prices~~g"] {
        assert_eq!(locks.named(part).unwrap_err().kind(), ErrorKind::InvalidInput, "{part}");
        assert!(locks.semaphore(part, 1).is_err() && locks.rw_lock(part).is_err(), "{part}");
    }
    assert!(locks.named("gpu~~x").is_ok());
}

/// Polls `call` so often, whether it is woken or not, with a turn for all others after each, and drops it.
pub(crate) async fn dropped_after_turns<T>(polls: u32, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    for _ in 0..polls {
        let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(value) = polled {
            return Some(value);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_anywhere_leaves_nothing() {
    for store in stores() {
        for taken in 0..=2 {
            for polls in 1..40 {
                let (store, locks, clock) = virtual_locks(store.clone().stepwise());
                let other = another(&store, clock);
                let theirs = other.semaphore("gpu", 2).unwrap();
                let mut held = Vec::new();
                for _ in 0..taken {
                    held.push(theirs.acquire().await.unwrap());
                }
                let gpus = locks.semaphore("gpu", 2).unwrap();
                drop(dropped_after_turns(polls, gpus.acquire()).await);
                drop(held);
                tokio::time::sleep(SECOND).await;
                let left = other.list("").await.unwrap();
                assert_eq!(left, [], "{taken} taken, dropped after {polls}");
            }
        }
    }
}

/// Nobody polls it any more, and nobody drops it, although it could go on.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_left_alone_stops_others_for_a_lease_at_most() {
    for store in stores() {
        for taken in 0..=2 {
            for polls in 1..40 {
                let (store, locks, clock) = virtual_locks(store.clone().stepwise());
                let other = another(&store, clock).semaphore("gpu", 2).unwrap().ttl(6 * SECOND);
                let mut held = Vec::new();
                for _ in 0..taken {
                    held.push(other.acquire().await.unwrap());
                }
                let gpus = locks.semaphore("gpu", 2).unwrap().ttl(6 * SECOND);
                let mut alone = Box::pin(async { gpus.acquire().await.map(drop) });
                let is_done = poll_turns(polls, &mut alone).await.is_some();
                drop(held);
                let both = async { (other.acquire().await, other.acquire().await) };
                let both = tokio::time::timeout(7 * SECOND, both).await;
                let what = format!("{taken} taken, left alone after {polls}");
                let (one, another) = both.expect(&what);
                drop((one.expect(&what), another.expect(&what)));
                if is_done {
                    break;
                }
                alone.await.expect(&what);
                tokio::time::sleep(SECOND).await;
                assert_eq!(locks.list("").await.unwrap(), [], "{what}");
            }
        }
    }
}
