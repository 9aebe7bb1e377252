//! Removing rows, without losing a fence.

use super::*;

#[tokio::test]
async fn the_sweep_removes_what_is_old_and_keeps_the_greatest_fence() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let retention = Duration::from_secs(60);
    let store = store(&folder, &machine, retention).await;
    // More than one page and one batch: released, abandoned, and held ones.
    let mut greatest = 0;
    for n in 0..PAGES_AND_MORE {
        let mine = entry(&format!("n{n:04}"));
        greatest = greatest.max(granted(store.acquire(&mine, false).await));
        if n % 2 == 0 {
            assert_eq!(store.release(&mine).await.unwrap(), Released::Freed);
        }
        machine.wall.fetch_add(1, Ordering::Relaxed);
    }
    let held = entry("held");
    machine.advance(TTL + retention - Duration::from_secs(1));
    assert!(store.sweep(Duration::ZERO).await.unwrap());
    // The released ones are past the retention, the abandoned ones not yet.
    assert_eq!(names(&store).await.len(), PAGES_AND_MORE / 2 + 1);
    machine.advance(Duration::from_secs(2));
    let fence = granted(store.acquire(&held, false).await);
    assert!(store.sweep(Duration::ZERO).await.unwrap());
    assert_eq!(names(&store).await, ["\u{1}fence", "held"]);
    // The wall clock has gone back: only the mark can carry the fence.
    machine.wall.store(0, Ordering::Relaxed);
    let again = granted(store.acquire(&entry("n0000"), false).await);
    assert!(again > greatest, "{again} after {greatest}");
    assert_eq!(granted(store.acquire(&held, false).await), fence);
}

const PAGES_AND_MORE: usize = 600;

async fn names(store: &SqliteStore) -> Vec<String> {
    let sql = "SELECT name FROM distlock ORDER BY name".into();
    let reply = store.patiently(Turn::Look, ADMIN_LIMIT, || Query::new(&sql)).await.unwrap();
    reply.rows.iter().map(|row| row.text(0).unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_sweep_judges_each_row_anew() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, Duration::ZERO).await;
    for name in ["held", "used", "old"] {
        let mine = entry(name);
        granted(store.acquire(&mine, false).await);
        store.release(&mine).await.unwrap();
    }
    machine.advance(Duration::from_secs(1));
    let page = store.sweep_page(Value::from("")).await.unwrap();
    assert_eq!(page.gone.len(), 3);
    store.sweep_fold(page.greatest().unwrap()).await.unwrap();
    // Before the deletion one of them is taken, and another taken and released.
    let (held, used) = (entry("held"), entry("used"));
    machine.wall.fetch_add(1000, Ordering::Relaxed);
    granted(store.acquire(&held, false).await);
    let greater = granted(store.acquire(&used, false).await);
    store.release(&used).await.unwrap();
    machine.advance(Duration::from_micros(1));
    store.sweep_delete(&page, page.greatest().unwrap()).await.unwrap();
    assert_eq!(names(&store).await, ["\u{1}fence", "held", "used"]);
    assert!(matches!(renew(&store, &held, None).await.unwrap(), Renewal::Alive { .. }));
    machine.wall.store(0, Ordering::Relaxed);
    assert!(granted(store.acquire(&entry("used"), false).await) > greater);
}

#[tokio::test]
async fn the_sweep_never_removes_a_row_that_was_just_taken() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, Duration::ZERO).await;
    let old = entry("held");
    granted(store.acquire(&old, false).await);
    store.release(&old).await.unwrap();
    machine.wall.fetch_add(1_000_000, Ordering::Relaxed);
    let later = entry("later");
    granted(store.acquire(&later, false).await);
    store.release(&later).await.unwrap();
    machine.advance(Duration::from_secs(1));
    let page = store.sweep_page(Value::from("")).await.unwrap();
    assert_eq!(page.gone.len(), 2);
    store.sweep_fold(page.greatest().unwrap()).await.unwrap();
    // Taken between the two steps, with a fence that stays below the mark.
    machine.wall.store(0, Ordering::Relaxed);
    let held = entry("held");
    let fence = granted(store.acquire(&held, false).await);
    store.sweep_delete(&page, page.greatest().unwrap()).await.unwrap();
    assert_eq!(names(&store).await, ["\u{1}fence", "held"]);
    is_busy(store.acquire(&entry("held"), false).await);
    assert_eq!(granted(store.acquire(&held, false).await), fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_while_two_stores_sweep_all_the_time() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    // Without a wall clock, whatever is forgotten shows at once.
    machine.wall.store(0, Ordering::Relaxed);
    let sweepers: Vec<_> = {
        let mut sweepers = Vec::new();
        for _ in 0..2 {
            let store = store(&folder, &machine, Duration::ZERO).await;
            sweepers.push(tokio::spawn(async move {
                loop {
                    store.sweep(Duration::ZERO).await.unwrap();
                }
            }));
        }
        sweepers
    };
    let store = store(&folder, &machine, Duration::ZERO).await;
    let mut last = 0;
    for _ in 0..300 {
        let mine = entry("x");
        let fence = granted(store.acquire(&mine, false).await);
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        assert_eq!(store.release(&mine).await.unwrap(), Released::Freed);
        machine.advance(Duration::from_micros(2));
    }
    for sweeper in sweepers {
        assert!(!sweeper.is_finished(), "a sweep failed");
        sweeper.abort();
    }
}
