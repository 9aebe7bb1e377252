//! Removing rows, without losing a fence.

use super::*;

#[tokio::test]
async fn the_sweep_removes_what_is_old_and_keeps_the_greatest_fence() {
    let server = Server::start().await;
    server.set_clock(1_000_000).await;
    let retention = Duration::from_secs(60);
    let store = server.store(retention).await;
    // More than one page and one batch: released, abandoned, and held ones.
    let mut greatest = 0;
    for n in 0..PAGE_AND_MORE {
        let mine = entry(&format!("n{n:04}"));
        greatest = greatest.max(granted(store.acquire(&mine, false).await));
        if n % 2 == 0 {
            assert_eq!(store.release(&mine).await.unwrap(), Released::Freed);
        }
    }
    server.run("UPDATE distlock SET fence = fence + 5000 WHERE name = 'n0010'").await;
    greatest += 5000;
    server.set_clock(1_000_000 + 60 + 10 - 1).await;
    let later = server.store(retention).await;
    assert!(later.sweep(Duration::ZERO).await.unwrap());
    // The released ones are past the retention, the abandoned ones not yet.
    assert_eq!(server.names().await.len(), PAGE_AND_MORE / 2);
    server.set_clock(1_000_000 + 60 + 10).await;
    let last = server.store(retention).await;
    let held = entry("held");
    let fence = granted(last.acquire(&held, false).await);
    assert!(last.sweep(Duration::ZERO).await.unwrap());
    assert_eq!(server.names().await, ["held"]);
    // The clock has gone back: only the mark can carry the fence.
    server.set_clock(1).await;
    let back = server.store(retention).await;
    let again = granted(back.acquire(&entry("n0000"), false).await);
    assert_eq!(again, greatest + 1);
    assert_eq!(granted(back.acquire(&held, false).await), fence);
}

const PAGE_AND_MORE: usize = 600;

#[tokio::test]
async fn the_sweep_judges_each_row_anew() {
    let server = Server::start().await;
    server.set_clock(1_000_000).await;
    let store = server.store(Duration::from_secs(1)).await;
    let mut folded = 0;
    for name in ["held", "used", "old"] {
        let mine = entry(name);
        folded = folded.max(granted(store.acquire(&mine, false).await));
        store.release(&mine).await.unwrap();
    }
    server.set_clock(1_000_001).await;
    let store = server.store(Duration::from_secs(1)).await;
    let page = store.sweep_page(Value::from("")).await.unwrap();
    assert_eq!(page.gone.len(), 3);
    store.sweep_fold(folded).await.unwrap();
    // Before the deletion one of them is taken, and another taken and released.
    let (held, used) = (entry("held"), entry("used"));
    granted(store.acquire(&held, false).await);
    let greater = granted(store.acquire(&used, false).await);
    store.release(&used).await.unwrap();
    store.sweep_delete(&page, folded).await.unwrap();
    assert_eq!(server.names().await, ["held", "used"]);
    assert_eq!(renew(&store, &held, None).await, Outcome::Renewed);
    // Past the retention, but with a fence that was not folded.
    let patient = server.store(Duration::ZERO).await;
    patient.sweep_delete(&page, folded).await.unwrap();
    assert_eq!(server.names().await, ["held", "used"]);
    assert!(granted(store.acquire(&entry("used"), false).await) > greater);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_while_two_stores_sweep_all_the_time() {
    let server = Server::start().await;
    // With a clock that stands still, whatever is forgotten shows at once.
    server.set_clock(1).await;
    let mut sweepers = Vec::new();
    for _ in 0..2 {
        let store = server.store(Duration::ZERO).await;
        sweepers.push(tokio::spawn(async move {
            loop {
                store.sweep(Duration::ZERO).await.unwrap();
            }
        }));
    }
    let store = server.store(Duration::ZERO).await;
    let mut last = 0;
    for _ in 0..300 {
        let mine = entry("x");
        // A deadlock with a sweep is contention.
        let fence = loop {
            match store.acquire(&mine, false).await.unwrap() {
                Attempt::Granted { token, .. } => break token.as_i64(),
                _ => continue,
            }
        };
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        assert_eq!(store.release(&mine).await.unwrap(), Released::Freed);
    }
    for sweeper in sweepers {
        assert!(!sweeper.is_finished(), "a sweep failed");
        sweeper.abort();
    }
}

/// Without the mark those who make rows lock the gap in its place, and stop each other: so one that was
/// stopped writes the mark again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_was_lost_is_written_again() {
    let server = Server::start().await;
    let store = Arc::new(server.store(TTL).await);
    server.run("TRUNCATE distlock").await;
    // Another one who makes a row, and does not end.
    let mut other = server.admin.begin().await.unwrap();
    let mark = "SELECT fence FROM distlock WHERE name = x'0166656E6365' LOCK IN SHARE MODE";
    assert!(sqlx::query(mark).fetch_optional(&mut *other).await.unwrap().is_none());
    let task = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.acquire(&entry("new"), false).await })
    };
    let limit = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let writing: i64 = sqlx::query_scalar(
            "SELECT CAST(COUNT(*) AS SIGNED) FROM information_schema.processlist WHERE info LIKE 'INSERT IGNORE%'",
        )
        .fetch_one(&server.admin)
        .await
        .unwrap();
        if writing > 0 {
            break;
        }
        assert!(!task.is_finished() && tokio::time::Instant::now() < limit, "no mark is written");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    other.rollback().await.unwrap();
    granted(task.await.unwrap());
    assert!(sqlx::query(mark).fetch_optional(&server.admin).await.unwrap().is_some());
}
