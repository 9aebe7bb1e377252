//! Other writers, failing commits, dropped calls, lost files.

use super::*;

#[tokio::test]
async fn a_commit_that_fails_is_no_grant() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let mut other = other_connection(&folder).await;
    // A deferred foreign key is judged at the commit, after the row of RETURNING was read.
    for sql in [
        "CREATE TABLE parent (id INTEGER PRIMARY KEY)",
        "CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TRIGGER spoil AFTER INSERT ON distlock BEGIN INSERT INTO child VALUES (1); END",
    ] {
        sqlx::query(sql).execute(&mut other).await.unwrap();
    }
    let error = store.acquire(&entry("x"), false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    assert!(row(&store, "x").await.is_none());
    sqlx::query("DROP TRIGGER spoil").execute(&mut other).await.unwrap();
    granted(store.acquire(&entry("x"), false).await);
}

#[tokio::test]
async fn a_dropped_acquire_is_undone_by_the_release_wherever_it_was_dropped() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let mut other = other_connection(&folder).await;
    // All connections are open from here on, or dropping the opening would be all that is tested.
    let first = entry("x");
    granted(store.acquire(&first, false).await);
    assert_eq!(store.release(&first).await.unwrap(), Released::Freed);
    for round in 0..40 {
        let polls = round % 5 + 1;
        // Sometimes the database is locked, for less time than SQLite itself waits: then the
        // statement that nobody waits for any more is executed when the lock goes.
        let locked = round % 4 != 0;
        if locked {
            sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
        }
        let mine = entry("x");
        {
            let mut acquire = std::pin::pin!(store.acquire(&mine, false));
            for _ in 0..polls {
                let done = std::future::poll_fn(|cx| Poll::Ready(acquire.as_mut().poll(cx)));
                if done.await.is_ready() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let unlock = async {
            if locked {
                tokio::time::sleep(Duration::from_millis(2)).await;
                sqlx::query("COMMIT").execute(&mut other).await.unwrap();
            }
        };
        let release = async { store.release(&mine).await.unwrap() };
        tokio::join!(release, unlock);
        // The connection executes in order: nothing of ours can come after the release.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let owner = row(&store, "x").await.and_then(|row| row.owner);
        assert_eq!(owner, None, "round {round}: dropped after {polls} polls, locked: {locked}");
    }
}

#[tokio::test]
async fn contention_is_busy_for_a_try_and_never_a_loss() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let (held, free) =
        (entry("held"), Entry { call_timeout: Duration::from_millis(200), ..entry("free") });
    granted(store.acquire(&held, false).await);
    let mut other = other_connection(&folder).await;
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
    assert_eq!(is_busy(store.acquire(&free, false).await), Some(WHILE_CONTENDED));
    let short = Entry { call_timeout: Duration::from_millis(200), ..entry("held") };
    let short = Entry { owner: Secret(held.owner.0.clone()), ..short };
    let error = renew(&store, &short, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable());
    // In WAL mode a look waits for nobody.
    assert!(matches!(store.check(&short, None).await.unwrap(), Renewal::Alive { .. }));
    let renewal = renew(&store, &held, None);
    let unlock = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    };
    let (renewal, ()) = tokio::join!(renewal, unlock);
    assert!(matches!(renewal.unwrap(), Renewal::Alive { .. }));
}

#[tokio::test]
async fn a_deleted_or_replaced_file_ends_the_holds_and_is_made_anew() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let old = store(&folder, &machine, FOREVER).await;
    let mine = entry("x");
    let first = granted(old.acquire(&mine, false).await);
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let _ = std::fs::remove_file(folder.path().join(name));
    }
    let new = store(&folder, &machine, FOREVER).await;
    machine.wall.fetch_add(1, Ordering::Relaxed);
    let second = granted(new.acquire(&entry("x"), false).await);
    assert!(second > first, "the wall clock carries the fence over a loss of the file");
    assert_eq!(renew(&old, &mine, None).await.unwrap(), Renewal::Lost);
    is_busy(old.acquire(&mine, false).await);
}

#[tokio::test]
async fn a_renewal_waits_for_one_try_at_most() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let held = entry("held");
    granted(store.acquire(&held, false).await);
    let done = Arc::new(std::sync::Mutex::new(Vec::new()));
    let occupied = store.links.writer.occupy().await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..50 {
        let (store, done) = (Arc::clone(&store), Arc::clone(&done));
        tasks.spawn(async move {
            granted(store.acquire(&entry(&n.to_string()), false).await);
            done.lock().unwrap().push("try");
        });
    }
    // All of them wait now; then comes the renewal.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (renewing, renewed) = (Arc::clone(&store), Arc::clone(&done));
    tasks.spawn(async move {
        assert!(matches!(renew(&renewing, &held, None).await.unwrap(), Renewal::Alive { .. }));
        renewed.lock().unwrap().push("renewal");
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(occupied);
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let done = done.lock().unwrap();
    let place = done.iter().position(|what| *what == "renewal").unwrap();
    assert!(place <= 2, "{place} tries were ahead of the renewal");
}

#[tokio::test]
async fn nothing_works_after_close() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    granted(store.acquire(&entry("x"), false).await);
    store.close().await.unwrap();
    store.close().await.unwrap();
    assert_eq!(store.acquire(&entry("y"), false).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.ping().await.unwrap_err().kind(), ErrorKind::Closed);
    // The last connection tidies up: the log is in the file now.
    assert!(!Path::exists(&folder.path().join("locks.db-wal")));
}
