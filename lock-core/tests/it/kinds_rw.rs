//! Readers and writers: never both, neither starves, and nothing is left behind.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_core::kinds::{ReadGuard, RwLock, WriteGuard};
use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;
use lock_core::{
    Binding, Capabilities, ErrorKind, FenceCheck, LockState, Locks, LostReason, Released, Result,
    Seen, Wake,
};
use tokio::task::JoinSet;

use crate::altered::Altered;
use crate::kinds_semaphore::dropped_after_turns;
use crate::slow::SlowStore;
use crate::{MS, SECOND, another, stores, virtual_locks};

/// What is read and written.
#[derive(Debug, Default)]
struct Register {
    readers: u32,
    writers: u32,
    tokens: FenceCheck,
    together: u32,
}

impl Register {
    fn enter(&mut self, writes: bool, token: lock_core::FencingToken) {
        if writes {
            self.writers += 1;
            self.tokens.admit(token).unwrap();
        } else {
            self.readers += 1;
            self.tokens.admit_reader(token).unwrap();
        }
        self.together = self.together.max(self.readers);
        assert!(self.writers == 0 || self.writers + self.readers == 1, "{self:?}");
    }

    fn leave(&mut self, writes: bool) {
        if writes { self.writers -= 1 } else { self.readers -= 1 }
    }
}

#[tokio::test(start_paused = true)]
async fn no_one_reads_while_another_writes() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store.stepwise());
        let register = Arc::new(Mutex::new(Register::default()));
        let mut tasks = Vec::new();
        for number in 0..4_u32 {
            let process = another(&store, clock);
            for task in 0..6_u32 {
                let prices = process.rw_lock("prices").unwrap();
                let register = Arc::clone(&register);
                tasks.push(tokio::spawn(async move {
                    for round in 0..20_u32 {
                        let pause = MS * ((number * 7 + task * 3 + round * 5) % 13);
                        if (number + task + round) % 4 == 0 {
                            let write = prices.write().await.unwrap();
                            register.lock().unwrap().enter(true, write.token().unwrap());
                            tokio::time::sleep(pause).await;
                            register.lock().unwrap().leave(true);
                            write.release().await.unwrap();
                        } else {
                            let read = prices.read().await.unwrap();
                            register.lock().unwrap().enter(false, read.token().unwrap());
                            tokio::time::sleep(pause).await;
                            register.lock().unwrap().leave(false);
                            read.release().await.unwrap();
                        }
                        tokio::time::sleep(MS).await;
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert!(
            register.lock().unwrap().together > 4,
            "readers of several processes, side by side"
        );
        tokio::time::sleep(SECOND).await;
        assert_eq!(locks.list("").await.unwrap(), [], "everything is free at the end");
    }
}

#[tokio::test(start_paused = true)]
async fn readers_of_one_process_share_a_hold() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let prices = locks.rw_lock("prices").unwrap();
    prices.write().await.unwrap().release().await.unwrap();
    let before = store.requests();
    let one = prices.read().await.unwrap();
    assert_eq!(store.requests() - before, 2, "a slot and a look");
    let other = prices.read().await.unwrap();
    assert_eq!(store.requests() - before, 3, "a look");
    let view = one.held().clone();
    assert_eq!(one.release().await.unwrap(), Released::Freed);
    assert_eq!(view.state(), LockState::Lost(LostReason::Released));
    assert_eq!(view.lost().await, LostReason::Released);
    assert!(view.token().is_err() && view.remaining().is_zero());
    assert!(view.lost().cancellation_token().is_cancelled());
    assert_eq!(store.requests() - before, 3, "the other one still reads");
    assert_eq!(other.state(), LockState::Secure);
    assert!(prices.try_write().await.unwrap().is_none());
    other.release().await.unwrap();
    assert!(prices.try_write().await.unwrap().is_some());
}

/// Each task makes the lock anew, and keeps only its guard.
#[tokio::test(start_paused = true)]
async fn readers_share_a_hold_without_a_lock_of_their_own() {
    let (_, locks, _) = virtual_locks(MemoryBackend::queued());
    let mut reads = Vec::new();
    for _ in 0..70 {
        reads.push(locks.rw_lock("prices").unwrap().read_timeout(SECOND).await.unwrap());
        assert_eq!(locks.list("prices~~r").await.unwrap().len(), 1);
    }
    reads.clear();
    tokio::time::sleep(MS).await;
    assert!(locks.rw_lock("prices").unwrap().try_write().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn readers_with_other_settings_have_a_hold_of_their_own() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let prices = locks.rw_lock("prices").unwrap();
    let one = prices.read().await.unwrap();
    let other = prices.clone().ttl(60 * SECOND).read().await.unwrap();
    assert_ne!(one.owner(), other.owner());
    let capped = [(); 2].map(|()| prices.clone().max_hold(60 * SECOND));
    let (third, fourth) = (capped[0].read().await.unwrap(), capped[1].read().await.unwrap());
    assert_ne!(third.owner(), fourth.owner(), "each limit counts from its own begin");
    let slots = locks.list("prices~~r").await.unwrap();
    assert_eq!(slots.len(), 4);
    for slot in slots {
        store.lose_now(slot.key.name());
    }
    assert_eq!(one.lost().await, LostReason::Taken);
    assert_eq!(fourth.lost().await, LostReason::Taken);
}

#[tokio::test(start_paused = true)]
async fn neither_side_starves() {
    for store in stores() {
        let (store, _, clock) = virtual_locks(store);
        let over = Arc::new(AtomicBool::new(false));
        // Readers that overlap all the time.
        let readers: Vec<_> = (0..6)
            .map(|number| {
                let (prices, over) =
                    (another(&store, clock).rw_lock("prices").unwrap(), Arc::clone(&over));
                tokio::spawn(async move {
                    tokio::time::sleep(MS * 7 * number).await;
                    let mut reads = 0;
                    while !over.load(Relaxed) {
                        let read = prices.read().await.unwrap();
                        tokio::time::sleep(30 * MS).await;
                        read.release().await.unwrap();
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        let prices = another(&store, clock).rw_lock("prices").unwrap();
        tokio::time::sleep(100 * MS).await;
        for _ in 0..20 {
            let begun = tokio::time::Instant::now();
            prices.write().await.unwrap().release().await.unwrap();
            assert!(begun.elapsed() < 2 * SECOND, "a writer waited for {:?}", begun.elapsed());
        }
        over.store(true, Relaxed);
        for reader in readers {
            assert!(reader.await.unwrap() > 3, "a reader had no turn");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_dead_stop_the_others_for_a_ttl() {
    for store in stores() {
        for writes in [false, true] {
            let (store, locks, clock) = virtual_locks(store.clone());
            let dies = store.client();
            let dying = Locks::builder(dies.clone()).clock(clock).build().unwrap();
            let theirs = dying.rw_lock("prices").unwrap().ttl(10 * SECOND);
            let (mut write, mut read) = (None, None);
            if writes {
                write = Some(theirs.write().await.unwrap());
            } else {
                read = Some(theirs.read().await.unwrap());
            }
            dies.partition();
            let begun = tokio::time::Instant::now();
            let prices = locks.rw_lock("prices").unwrap();
            prices.write().await.unwrap().release().await.unwrap();
            let passed = begun.elapsed();
            assert!(passed > 9 * SECOND && passed < 12 * SECOND, "{passed:?}");
            prices.read().await.unwrap().release().await.unwrap();
            assert!(write.is_none_or(|write| write.token().is_err()));
            assert!(read.is_none_or(|read| read.token().is_err()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tries_do_not_wait() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let (ours, theirs) =
            (locks.rw_lock("a").unwrap(), another(&store, clock).rw_lock("a").unwrap());
        let begun = tokio::time::Instant::now();
        let read = ours.try_read().await.unwrap().expect("an unused name");
        let another = theirs.try_read().await.unwrap().expect("readers do not stop each other");
        assert!(theirs.try_write().await.unwrap().is_none());
        read.release().await.unwrap();
        another.release().await.unwrap();
        let write = theirs.try_write().await.unwrap().expect("nobody reads any more");
        assert!(ours.try_read().await.unwrap().is_none());
        assert!(ours.try_write().await.unwrap().is_none());
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let error = ours.read_timeout(SECOND).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAcquired);
        assert!(!error.to_string().contains("~~"), "{error}");
        assert_eq!(ours.write_timeout(SECOND).await.unwrap_err().kind(), ErrorKind::NotAcquired);
        assert!(begun.elapsed() < 3 * SECOND);
        write.release().await.unwrap();
        ours.read_timeout(SECOND).await.unwrap().release().await.unwrap();
    }
}

/// There is no token to read by yet, so each of them wants the gate.
#[tokio::test(start_paused = true)]
async fn the_first_readers_of_a_name_do_not_stop_each_other() {
    for store in stores() {
        for later in 0..12 {
            let (store, _, clock) = virtual_locks(store.clone().stepwise());
            let new = || {
                let mut store = Altered::of(store.client());
                // Its first look finds that nobody has ever had the name.
                store.first_look = Mutex::new(Some(Seen::Free { floor: None }));
                let locks = Locks::builder(store).clock(clock).build().unwrap();
                locks.rw_lock("prices").unwrap()
            };
            let mut tries = JoinSet::new();
            for number in 0..3 {
                let prices = new();
                tries.spawn(async move {
                    for _ in 0..number * later {
                        tokio::task::yield_now().await;
                    }
                    prices.try_read().await.unwrap()
                });
            }
            for read in tries.join_all().await {
                let read = read.unwrap_or_else(|| panic!("{later} polls later, nobody writes"));
                assert_eq!(read.check().await.unwrap(), LockState::Secure);
            }
            // A writer is no reader.
            let _write = another(&store, clock).rw_lock("prices").unwrap().write().await.unwrap();
            assert!(new().try_read().await.unwrap().is_none());
            let left = another(&store, clock).list("prices~~r").await.unwrap();
            assert_eq!(left, [], "a read that was not granted leaves nothing");
        }
    }
}

/// However long it takes to leave nothing of the attempt.
#[tokio::test(start_paused = true)]
async fn a_writer_whose_time_is_up_is_told_that_others_read() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let _read = locks.rw_lock("prices").unwrap().read().await.unwrap();
        let slow = SlowStore { release: 400 * MS, ..SlowStore::of(store.client()) };
        let slow = Locks::builder(slow).clock(clock).build().unwrap().rw_lock("prices").unwrap();
        let begun = tokio::time::Instant::now();
        let error = slow.write_timeout(SECOND).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAcquired, "{error}");
        let passed = begun.elapsed();
        assert!(passed >= SECOND && passed < 1200 * MS, "{passed:?}");
        assert!(slow.try_write().await.unwrap().is_none());
        tokio::time::sleep(SECOND).await;
        assert_eq!(locks.list("prices~~g").await.unwrap(), [], "it is released in the background");
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_whose_time_is_up_while_others_read_is_told() {
    let (_, locks, _) = virtual_locks(MemoryBackend::queued());
    let prices = locks.rw_lock("prices").unwrap();
    let _read = prices.read().await.unwrap();
    let error = prices.clone().max_hold(SECOND).write().await.unwrap_err();
    assert_eq!(error.lost_reason(), Some(LostReason::MaxHold));
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_loses_its_turn_takes_another() {
    for store in stores() {
        let (store, locks, _) = virtual_locks(store);
        let prices = locks.rw_lock("prices").unwrap();
        let read = prices.read().await.unwrap();
        let writer = tokio::spawn({
            let prices = prices.clone();
            async move { prices.write().await.unwrap() }
        });
        tokio::time::sleep(SECOND).await;
        store.lose_now("prices~~g");
        tokio::time::sleep(15 * SECOND).await;
        assert!(!writer.is_finished());
        read.release().await.unwrap();
        let write = writer.await.unwrap();
        assert_eq!(write.check().await.unwrap(), LockState::Secure);
        assert!(prices.try_read().await.unwrap().is_none());
    }
}

/// Whether others write or read, if they do anything, and whether the call writes.
const MEETINGS: [(Option<bool>, bool); 4] =
    [(None, true), (Some(true), false), (Some(false), true), (None, false)];

/// What others have who write, or read, if they do anything.
async fn held(prices: &RwLock, writes: Option<bool>) -> (Option<WriteGuard>, Option<ReadGuard>) {
    match writes {
        Some(true) => (Some(prices.write().await.unwrap()), None),
        Some(false) => (None, Some(prices.read().await.unwrap())),
        None => (None, None),
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_anywhere_leaves_nothing() {
    for store in stores() {
        for (theirs, writes) in MEETINGS {
            for polls in 1..50 {
                let (store, locks, clock) = virtual_locks(store.clone().stepwise());
                let other = another(&store, clock);
                let prices = other.rw_lock("prices").unwrap();
                let held = held(&prices, theirs).await;
                let prices = locks.rw_lock("prices").unwrap();
                if writes {
                    drop(dropped_after_turns(polls, prices.write()).await);
                } else {
                    drop(dropped_after_turns(polls, prices.read()).await);
                }
                drop(held);
                tokio::time::sleep(SECOND).await;
                let left = other.list("").await.unwrap();
                assert_eq!(left, [], "{theirs:?} {writes}, dropped after {polls}");
            }
        }
    }
}

/// Polls `call` so often, whether it is woken or not, with a turn for all others after each.
pub(crate) async fn poll_turns<T>(
    polls: u32,
    call: &mut Pin<Box<impl Future<Output = T> + ?Sized>>,
) -> Option<T> {
    for _ in 0..polls {
        if let Poll::Ready(value) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(value);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Nobody polls it any more, and nobody drops it.
#[tokio::test(start_paused = true)]
async fn a_read_that_is_left_alone_stops_no_other() {
    for store in stores() {
        for polls in 1..30 {
            let (_, locks, _) = virtual_locks(store.clone().stepwise());
            let prices = locks.rw_lock("prices").unwrap();
            let mut alone = Box::pin(prices.read());
            if poll_turns(polls, &mut alone).await.is_some() {
                assert!(polls > 2, "a store that is stepwise answers at once");
                break;
            }
            let begun = tokio::time::Instant::now();
            let read = tokio::time::timeout(5 * SECOND, prices.read()).await;
            let read = read.expect("a read waits for one that nobody polls").unwrap();
            assert!(begun.elapsed() < SECOND, "{:?}, after {polls}", begun.elapsed());
            tokio::time::sleep(100 * SECOND).await;
            assert_eq!(read.check().await.unwrap(), LockState::Secure);
            read.release().await.unwrap();
            // It may have left an answer unread for too long.
            drop(alone.await);
            tokio::time::sleep(SECOND).await;
            assert_eq!(locks.list("").await.unwrap(), [], "after {polls}");
        }
    }
}

/// Nobody polls it any more, and nobody drops it, although it could go on.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_left_alone_stops_others_for_a_lease_at_most() {
    for store in stores() {
        for (theirs, writes) in MEETINGS {
            for polls in 1..40 {
                let (store, locks, clock) = virtual_locks(store.clone().stepwise());
                let other = another(&store, clock).rw_lock("prices").unwrap().ttl(6 * SECOND);
                let held = held(&other, theirs).await;
                let prices = locks.rw_lock("prices").unwrap().ttl(6 * SECOND);
                let mut alone: Pin<Box<dyn Future<Output = Result<()>>>> = if writes {
                    Box::pin(async { prices.write().await.map(drop) })
                } else {
                    Box::pin(async { prices.read().await.map(drop) })
                };
                let is_done = poll_turns(polls, &mut alone).await.is_some();
                drop(held);
                let written = tokio::time::timeout(7 * SECOND, other.write()).await;
                let what = format!("{theirs:?} {writes}, left alone after {polls}");
                written.expect(&what).expect(&what).release().await.unwrap();
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

#[tokio::test(start_paused = true)]
async fn a_read_that_is_left_alone_with_its_request_has_nothing() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store.stepwise());
        let prices = locks.rw_lock("prices").unwrap();
        store.delay_next(100 * MS);
        let mut alone = Box::pin(prices.read());
        assert!(poll_turns(1, &mut alone).await.is_none());
        let read = tokio::time::timeout(5 * SECOND, prices.read()).await;
        let read = read.expect("a read waits for one that nobody polls").unwrap();
        let theirs = another(&store, clock).rw_lock("prices").unwrap();
        assert!(theirs.try_write().await.unwrap().is_none());
        read.release().await.unwrap();
        let write = theirs.try_write().await.unwrap().expect("nobody reads");
        write.release().await.unwrap();
        alone.await.unwrap().release().await.unwrap();
        assert_eq!(locks.list("").await.unwrap(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_is_dropped_leaves_its_slot_to_the_next() {
    for store in stores() {
        let (store, locks, _) = virtual_locks(store.stepwise());
        let prices = locks.rw_lock("prices").unwrap();
        store.delay_next(100 * MS);
        let mut dropped = Box::pin(prices.read());
        assert!(poll_turns(1, &mut dropped).await.is_none());
        let (begun, before) = (tokio::time::Instant::now(), store.requests());
        let mut waits = Box::pin(prices.read());
        assert!(poll_turns(1, &mut waits).await.is_none());
        drop(dropped);
        let read = tokio::time::timeout(5 * SECOND, waits).await;
        let read = read.expect("a read waits for one that was dropped").unwrap();
        assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
        assert!(store.requests() - before < 6, "it has taken over what was under way");
        let slots = locks.list("prices~~r").await.unwrap();
        assert_eq!(slots.len(), 1, "one slot for both: {slots:?}");
        read.release().await.unwrap();
        // With the last of those who wait the slot is given up.
        store.delay_next(100 * MS);
        let mut both = [Box::pin(prices.read()), Box::pin(prices.read())];
        for read in &mut both {
            assert!(poll_turns(1, read).await.is_none());
        }
        drop(both);
        tokio::time::sleep(SECOND).await;
        assert_eq!(locks.list("").await.unwrap(), []);
    }
}

/// Whoever has begun to take the slot for all may have less patience than the others.
#[tokio::test(start_paused = true)]
async fn a_read_outlasts_the_failure_of_another_one() {
    for store in stores() {
        let (store, locks, _) = virtual_locks(store);
        let prices = locks.rw_lock("prices").unwrap();
        store.refuse();
        let tries = tokio::spawn({
            let prices = prices.clone();
            async move { prices.read_timeout(500 * MS).await }
        });
        tokio::time::sleep(MS).await;
        let waits = tokio::spawn(async move { prices.read().await });
        assert_eq!(tries.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        tokio::time::sleep(3 * SECOND).await;
        assert!(!waits.is_finished());
        store.heal();
        let read = tokio::time::timeout(10 * SECOND, waits).await.expect("the store is back");
        read.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn readers_with_two_settings_have_two_holds_however_they_come() {
    let (_, locks, _) = virtual_locks(MemoryBackend::queued());
    let prices = [10, 20].map(|ttl| locks.rw_lock("prices").unwrap().ttl(ttl * SECOND));
    let mut reads = Vec::new();
    for prices in prices.iter().cycle().take(140) {
        reads.push(prices.read_timeout(SECOND).await.unwrap());
    }
    assert_eq!(locks.list("prices~~r").await.unwrap().len(), 2);
}

/// None of them has its slot yet when the next one comes.
#[tokio::test(start_paused = true)]
async fn readers_with_two_settings_take_two_slots_though_they_come_at_once() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store.stepwise());
        let prices = [10, 20].map(|ttl| locks.rw_lock("prices").unwrap().ttl(ttl * SECOND));
        let mut reads = JoinSet::new();
        for prices in prices.iter().cycle().take(140) {
            let prices = prices.clone();
            reads.spawn(async move { prices.read().await.unwrap() });
        }
        let reads = tokio::spawn(reads.join_all());
        let (other, mut most) = (another(&store, clock), 0);
        // Without a pause, so that it misses none; a read that has to wait would wait for ever.
        for _ in 0..1_000 {
            most = most.max(other.list("prices~~r").await.unwrap().len());
        }
        assert_eq!(most, 2, "slots were taken");
        assert_eq!(reads.await.unwrap().len(), 140);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_too_many_waits_for_the_first_that_stops() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let prices = locks.rw_lock("prices").unwrap();
    let mut others = Vec::new();
    for _ in 0..64 {
        others.push(another(&store, clock).rw_lock("prices").unwrap().read().await.unwrap());
    }
    let waits = tokio::spawn({
        let prices = prices.clone();
        async move { prices.read().await }
    });
    tokio::time::sleep(MS).await;
    let begun = tokio::time::Instant::now();
    assert!(prices.try_read().await.unwrap().is_none());
    assert!(begun.elapsed() < SECOND, "a try waited for {:?}", begun.elapsed());
    let slots = locks.list("prices~~r").await.unwrap();
    let waited_for = slots.iter().find(|slot| slot.waiters == Some(1)).expect("a waiter");
    tokio::time::sleep(5 * SECOND + SECOND / 2).await;
    let later = locks.list("prices~~r").await.unwrap();
    let still = later.iter().find(|slot| slot.waiters == Some(1)).expect("a waiter");
    assert_eq!(still.key, waited_for.key, "it keeps its place");
    let reads_on = waited_for.holder.as_ref().and_then(|holder| holder.owner);
    others.retain(|read| Some(read.owner()) == reads_on);
    assert_eq!(others.len(), 1);
    tokio::time::sleep(MS).await;
    let tried = prices.try_read().await.unwrap().expect("63 slots are free");
    let read = tokio::time::timeout(3 * SECOND, waits).await.expect("63 slots are free");
    tried.release().await.unwrap();
    read.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_never_gives_up_outlasts_the_read_that_it_has_joined() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued());
    let locks = Locks::builder(store.clone()).clock(clock).unavailable_after(Duration::MAX);
    let prices = locks.build().unwrap().rw_lock("prices").unwrap();
    store.refuse();
    let tries = tokio::spawn({
        let prices = prices.clone();
        async move { prices.read_timeout(SECOND).await.map(drop) }
    });
    tokio::time::sleep(MS).await;
    let waits = tokio::spawn(async move { prices.read().await.map(drop) });
    assert!(tries.await.unwrap().is_err());
    tokio::time::sleep(3600 * SECOND).await;
    assert!(!waits.is_finished());
    store.heal();
    waits.await.unwrap().unwrap();
}

/// All of them want the slot that one of them takes.
#[tokio::test(start_paused = true)]
async fn reads_that_wait_for_one_give_up_a_silent_store_together() {
    for store in stores() {
        let (store, locks, _) = virtual_locks(store);
        let prices = locks.rw_lock("prices").unwrap();
        store.refuse();
        let begun = tokio::time::Instant::now();
        let mut reads = JoinSet::new();
        for _ in 0..10 {
            let prices = prices.clone();
            reads.spawn(async move { prices.read().await.map(drop).unwrap_err() });
        }
        for error in reads.join_all().await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        assert!(begun.elapsed() < 40 * SECOND, "{:?}", begun.elapsed());
        store.heal();
        store.freeze();
        let waits = tokio::spawn({
            let prices = prices.clone();
            async move { prices.read().await.map(drop) }
        });
        tokio::time::sleep(MS).await;
        let error = prices.read_timeout(SECOND).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoAnswer, "nobody is known to have it: {error}");
        assert_eq!(prices.try_read().await.unwrap_err().kind(), ErrorKind::NoAnswer);
        waits.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_holds_while_the_store_keeps_silent() {
    for store in stores() {
        let (store, locks, _) = virtual_locks(store);
        let (prices, gpus) = (locks.rw_lock("prices").unwrap(), locks.semaphore("gpu", 4).unwrap());
        store.freeze();
        let begun = tokio::time::Instant::now();
        let errors = [
            prices.read_timeout(100 * MS).await.unwrap_err(),
            prices.write_timeout(100 * MS).await.unwrap_err(),
            gpus.acquire_timeout(100 * MS).await.unwrap_err(),
        ];
        let passed = begun.elapsed();
        assert!(passed < 1200 * MS, "three limits of 100 ms took {passed:?}");
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::NoAnswer, "{error}");
        }
        store.thaw();
        tokio::time::sleep(30 * SECOND).await;
        assert_eq!(locks.list("").await.unwrap(), [], "nothing of that is left");
    }
}

#[tokio::test(start_paused = true)]
async fn however_many_share_a_read_it_is_one_hold_to_renew() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let prices = locks.rw_lock("prices").unwrap().ttl(30 * SECOND);
    prices.write().await.unwrap().release().await.unwrap();
    let mut reads = Vec::new();
    for _ in 0..50 {
        reads.push(prices.read().await.unwrap());
    }
    let before = store.requests();
    tokio::time::sleep(300 * SECOND).await;
    let renewals = store.requests() - before;
    // One in a third of the ttl, or a little sooner.
    assert!((29..=32).contains(&renewals), "{renewals} renewals in ten ttls");
    assert!(reads.iter().all(|read| read.state() == LockState::Secure));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_outlasts_a_store_that_is_down_for_a_while() {
    for store in stores() {
        let (store, locks, _) = virtual_locks(store);
        let (gpus, prices) = (locks.semaphore("gpu", 4).unwrap(), locks.rw_lock("prices").unwrap());
        store.refuse();
        assert!(gpus.try_acquire().await.is_err(), "a try does not wait");
        let (permits, reads) = (gpus.clone(), prices.clone());
        let permit = tokio::spawn(async move { permits.acquire().await });
        let read = tokio::spawn(async move { reads.read().await });
        tokio::time::sleep(3 * SECOND).await;
        assert!(!permit.is_finished() && !read.is_finished(), "an acquisition goes on");
        store.heal();
        permit.await.unwrap().unwrap().release().await.unwrap();
        read.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_is_shown_by_its_own_label() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let prices = locks.rw_lock("prices").unwrap();
    for label in ["packing", ""] {
        let theirs = another(&store, clock).rw_lock("prices").unwrap().label(label);
        let write = theirs.write().await.unwrap();
        let error = prices.write_timeout(SECOND).await.unwrap_err();
        let shown = error.holder().unwrap().label.clone().unwrap_or_default();
        assert_eq!(shown, label);
        assert!(!error.to_string().contains('~'), "{error}");
        write.release().await.unwrap();
    }
    let longest = |length| prices.clone().label("x".repeat(length));
    longest(509).write().await.unwrap().release().await.unwrap();
    longest(509).read().await.unwrap().release().await.unwrap();
    let before = store.requests();
    for error in [
        longest(510).write().await.map(drop).unwrap_err(),
        longest(510).read().await.map(drop).unwrap_err(),
        longest(513).read().await.map(drop).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidInput, Some("prices")));
    }
    assert_eq!(store.requests(), before, "they are refused before anything is sent");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_look_has_permits_and_no_readers() {
    let clock = TokioClock::default();
    // A store of a stranger, which has locks and nothing else.
    let mut store = Altered::of(MemoryBackend::poll_only().with_clock(clock));
    store.can = Capabilities::new(Binding::Lease, Wake::Poll);
    let locks = Locks::builder(store).clock(clock).build().unwrap();
    let error = locks.rw_lock("prices").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("altered"), "{error}");
    let two = locks.semaphore("gpu", 2).unwrap();
    let (one, other) = (two.acquire().await.unwrap(), two.acquire().await.unwrap());
    assert!(two.try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn({
        let two = two.clone();
        async move { two.acquire().await.unwrap().slot() }
    });
    tokio::time::sleep(SECOND).await;
    let slot = other.slot();
    other.release().await.unwrap();
    assert_eq!(waiter.await.unwrap(), slot);
    drop(one);
}

/// Who is in the way is named as it has named itself.
#[tokio::test(start_paused = true)]
async fn the_holder_in_the_way_is_shown_without_a_mark() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let prices = locks.rw_lock("prices").unwrap();
    let write = prices.clone().label("import").write().await.unwrap();
    let other = another(&store, clock).rw_lock("prices").unwrap();
    for error in [
        other.read_timeout(SECOND).await.map(drop).unwrap_err(),
        other.write_timeout(SECOND).await.map(drop).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.key()), (ErrorKind::NotAcquired, Some("prices")));
        assert_eq!(error.holder().unwrap().label.as_deref(), Some("import"), "{error}");
    }
    write.release().await.unwrap();
    let _read = prices.label("report").read().await.unwrap();
    let error = other.write_timeout(SECOND).await.unwrap_err();
    assert_eq!(error.holder().unwrap().label.as_deref(), Some("report"), "{error}");
}

/// The reads of one process overlap all the time, each for as long as it looks at the gate. A writer waits for the
/// one that reads, and for none that comes later.
#[tokio::test(start_paused = true)]
async fn looks_that_overlap_keep_no_writer_out() {
    for store in stores() {
        for waits in [false, true] {
            let (store, locks, clock) = virtual_locks(store.clone());
            let slow = SlowStore { look: 5 * MS, ..SlowStore::of(store.client()) };
            let process = Locks::builder(slow).clock(clock).build().unwrap();
            let prices = process.rw_lock("prices").unwrap();
            let read = prices.read().await.unwrap();
            let mut readers = JoinSet::new();
            for task in 0..2 {
                let prices = prices.clone();
                readers.spawn(async move {
                    tokio::time::sleep(2 * MS * task).await;
                    loop {
                        if waits {
                            let (prices, next) = (prices.clone(), 4 * MS);
                            tokio::spawn(
                                async move { prices.read_timeout(20 * MS).await.map(drop) },
                            );
                            tokio::time::sleep(next).await;
                        } else {
                            drop(prices.try_read().await.unwrap());
                        }
                    }
                });
            }
            let writer = tokio::spawn(async move {
                locks.rw_lock("prices").unwrap().write().await.unwrap().release().await.unwrap()
            });
            tokio::time::sleep(SECOND).await;
            assert!(!writer.is_finished(), "one of them reads");
            read.release().await.unwrap();
            let written = tokio::time::timeout(SECOND, writer).await;
            assert_eq!(written.expect("readers keep it out").unwrap(), Released::Freed);
            readers.shutdown().await;
        }
    }
}

/// A process parts with its slot for each writer, and reads on in it when the writer has given up.
#[tokio::test(start_paused = true)]
async fn writers_that_give_up_cost_a_process_no_slots() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let slow = SlowStore { look: 5 * MS, ..SlowStore::of(store.client()) };
        let process = Locks::builder(slow).clock(clock).build().unwrap();
        let prices = process.rw_lock("prices").unwrap();
        let mut reads = vec![prices.read().await.unwrap()];
        for round in 0..70_u32 {
            let writer = locks.rw_lock("prices").unwrap();
            let writer = tokio::spawn(async move { writer.write_timeout(20 * MS).await.map(drop) });
            let mut readers = JoinSet::new();
            for task in 0..4 {
                let prices = prices.clone();
                readers.spawn(async move {
                    tokio::time::sleep(MS * (1 + task * (round % 9))).await;
                    prices.read_timeout(5 * SECOND).await
                });
            }
            assert_eq!(writer.await.unwrap().unwrap_err().kind(), ErrorKind::NotAcquired);
            reads.extend(readers.join_all().await.into_iter().map(Result::unwrap));
        }
        tokio::time::sleep(SECOND).await;
        assert_eq!(locks.list("prices~~r").await.unwrap().len(), 1);
        reads.clear();
        drop(locks.rw_lock("prices").unwrap().write_timeout(SECOND).await.unwrap());
    }
}
