//! Locks of any kind as people see them: one thing under its name.

use std::sync::Arc;

use lock_core::kinds::{HeldAs, HeldSet, WholeLock};
use lock_core::memory::MemoryBackend;
use lock_core::{Clock, Locks, Released};

use crate::altered::Altered;
use crate::{MS, SECOND, another, stores, virtual_locks};

fn held_as(whole: &WholeLock) -> Vec<HeldAs> {
    whole.holds.iter().map(|hold| hold.held_as).collect()
}

fn labels(whole: &WholeLock) -> Vec<&str> {
    whole.holds.iter().map(|hold| hold.holder.label.as_deref().unwrap()).collect()
}

/// By a look, by a list where the store cannot look, and grouped from a list of the user's.
#[tokio::test(start_paused = true)]
async fn each_kind_is_one_under_its_name() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let process = another(&store, clock);
        let (gpus, prices) = (locks.semaphore("a", 3).unwrap(), locks.rw_lock("a").unwrap());
        let _alone = locks.named("a").unwrap().label("alone").acquire().await.unwrap();
        let mut permits = Vec::new();
        for label in ["one", "two", "three"] {
            permits.push(gpus.clone().label(label).acquire().await.unwrap());
        }
        permits.sort_by_key(lock_core::kinds::Permit::slot);
        permits.remove(1).release().await.unwrap();
        let _reads = prices.label("report").read().await.unwrap();
        let writes = process.rw_lock("a").unwrap().label("import");
        let writer = tokio::spawn(async move { writes.write().await });
        // Names that only look alike.
        let _other = locks.named("a~~").unwrap().acquire().await.unwrap();
        let _another = locks.semaphore("a~~b", 1).unwrap().acquire().await.unwrap();
        clock.sleep(SECOND).await;

        let whole = locks.inspect_whole("a").await.unwrap();
        let all = [
            HeldAs::Exclusive,
            HeldAs::Permit(0),
            HeldAs::Permit(2),
            HeldAs::Reader,
            HeldAs::Writer,
        ];
        assert_eq!(held_as(&whole), all);
        let shown = labels(&whole);
        assert_eq!((shown[0], &shown[3..]), ("alone", &["report", "import"][..]));
        assert_eq!(whole.holds[0].holder.held_for, Some(SECOND));
        let listed = WholeLock::group(locks.list("a").await.unwrap());
        assert_eq!(
            listed.iter().map(|whole| whole.key.name()).collect::<Vec<_>>(),
            ["a", "a~~", "a~~b"]
        );
        assert_eq!(listed[0], whole);
        // A store that cannot look at its locks, as one of an outsider.
        let mut blind = Altered::of(store.client());
        blind.can.look = false;
        let blind = Locks::builder(blind).clock(clock).build().unwrap();
        assert_eq!(blind.inspect_whole("a").await.unwrap(), whole);

        // By what is shown, each can be taken away, and by nothing else.
        for hold in &whole.holds {
            let released = locks.force_release(hold.part.name(), &hold.holder.mark).await.unwrap();
            assert_eq!(released, Released::Freed, "{hold:?}");
        }
        writer.abort();
        clock.sleep(SECOND).await;
        assert_eq!(held_as(&locks.inspect_whole("a").await.unwrap()), []);
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_count_once() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let permit = locks.semaphore("gpu", 2).unwrap();
    let _held = (permit.acquire().await.unwrap(), permit.acquire().await.unwrap());
    let _written = locks.rw_lock("prices").unwrap().write().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let process = another(&store, clock);
        waiting.push(tokio::spawn(async move {
            let gpus = process.semaphore("gpu", 2).unwrap();
            let prices = process.rw_lock("prices").unwrap();
            tokio::select! {
                _ = gpus.acquire() => {}
                _ = prices.read() => {}
            }
        }));
    }
    clock.sleep(100 * MS).await;
    for name in ["gpu", "prices"] {
        assert_eq!(locks.inspect_whole(name).await.unwrap().waiters, Some(3), "{name}");
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// The parts can be inspected by their own names, and a long name has no parts.
#[tokio::test]
async fn a_part_and_a_long_name_are_what_they_are() {
    let locks = Locks::new(MemoryBackend::queued());
    let _permit = locks.semaphore("gpu", 1).unwrap().acquire().await.unwrap();
    let part = locks.inspect_whole("gpu~~p0").await.unwrap();
    assert_eq!((part.key.name(), held_as(&part)), ("gpu", vec![HeldAs::Permit(0)]));
    let long = "x".repeat(512);
    let _held = locks.named(&long).unwrap().acquire().await.unwrap();
    assert_eq!(held_as(&locks.inspect_whole(&long).await.unwrap()), [HeldAs::Exclusive]);
    let free = locks.inspect_whole("free").await.unwrap();
    assert_eq!((free.key.name(), held_as(&free)), ("free", vec![]));
    assert!(locks.inspect_whole("").await.is_err());
}

/// Holds of several kinds, taken one by one.
#[tokio::test]
async fn holds_of_any_kind_are_one() {
    let store = Arc::new(MemoryBackend::queued());
    let locks = Locks::builder(MemoryBackend::clone(&store)).build().unwrap();
    let permit = locks.semaphore("gpu", 2).unwrap().acquire().await.unwrap();
    let lock = locks.named("a").unwrap().acquire().await.unwrap();
    let both: HeldSet = [permit.held(), lock.held()].into_iter().cloned().collect();
    assert_eq!(both.keys().map(|key| key.name()).collect::<Vec<_>>(), ["gpu", "a"]);
    assert_eq!(both.valid_until(), permit.valid_until().min(lock.valid_until()));
    assert_eq!(both.token("gpu").unwrap(), permit.token().unwrap());
    store.lose_now(&format!("gpu~~p{}", permit.slot()));
    let (key, _) = both.lost().await;
    assert_eq!(key.name(), "gpu");
    assert!(both.token("a").is_err());
    lock.release().await.unwrap();
}

/// As before the first of them is taken: whoever waits for the loss of none of them waits, and does so for ever.
#[tokio::test(start_paused = true)]
async fn of_no_holds_none_is_lost() {
    let none = HeldSet::from_iter([]);
    assert_eq!(none.lost().loss(), None);
    assert!(tokio::time::timeout(SECOND, none.lost().wait()).await.is_err());
}
