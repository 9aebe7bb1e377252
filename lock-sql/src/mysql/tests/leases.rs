//! Taking, keeping and ending leases.

use super::*;
use crate::engine::value::Sql;

#[tokio::test]
async fn a_lease_ends_by_the_server_s_clock_and_the_old_owner_is_refused() {
    let server = Server::start().await;
    server.set_clock(1_000_000).await;
    let before = server.store(TTL).await;
    let (old, new) = (entry("x"), entry("x"));
    let first = granted(before.acquire(&old, false).await);
    assert_eq!(first, 1_000_000_000_000, "the clock in microseconds");
    assert_eq!(time_left(before.acquire(&new, false).await), TTL);
    assert_eq!(time_left(before.acquire(&new, true).await), TTL);
    server.set_clock(1_000_009).await;
    let later = server.store(TTL).await;
    assert_eq!(time_left(later.acquire(&new, false).await), Duration::from_secs(1));
    assert_eq!(
        later.check(&old, token(first)).await.unwrap(),
        Renewal::Alive { valid_for: Some(Duration::from_secs(1)) }
    );
    // On the microsecond of its end it is over.
    server.set_clock(1_000_010).await;
    let end = server.store(TTL).await;
    assert_eq!(renew(&end, &old, token(first)).await, Outcome::Gone);
    assert_eq!(end.check(&old, token(first)).await.unwrap(), Renewal::Lost);
    let second = granted(end.acquire(&new, true).await);
    assert!(second > first);
    assert_eq!(renew(&end, &old, None).await, Outcome::Gone);
    assert_eq!(end.release(&old).await.unwrap(), Released::AlreadyGone);
    assert_eq!(renew(&end, &new, token(second)).await, Outcome::Renewed);
    assert_eq!(end.release(&new).await.unwrap(), Released::Freed);
    assert_eq!(end.release(&new).await.unwrap(), Released::AlreadyGone);
}

/// A step of the clock back makes no lease end early, and no fence fall.
#[tokio::test]
async fn a_clock_that_goes_back() {
    let server = Server::start().await;
    server.set_clock(1_000_000).await;
    let before = server.store(TTL).await;
    let (held, free) = (entry("held"), entry("free"));
    let (first, second) =
        (granted(before.acquire(&held, false).await), granted(before.acquire(&free, false).await));
    assert_eq!(before.release(&free).await.unwrap(), Released::Freed);
    server.set_clock(500_000).await;
    let after = server.store(TTL).await;
    time_left(after.acquire(&entry("held"), false).await);
    assert_eq!(renew(&after, &held, token(first)).await, Outcome::Renewed);
    let next = entry("free");
    assert_eq!(granted(after.acquire(&next, false).await), second + 1, "free at once");
    assert_eq!(after.release(&next).await.unwrap(), Released::Freed);
    // The repeat and the renewal have not moved the end of the lease back.
    server.set_clock(1_000_009).await;
    let later = server.store(TTL).await;
    assert_eq!(time_left(later.acquire(&entry("held"), false).await), Duration::from_secs(1));
}

#[tokio::test]
async fn a_repeated_try_finds_its_own_row_and_keeps_its_token() {
    let server = Server::start().await;
    server.set_clock(1_000_000).await;
    let store = server.store(TTL).await;
    let mine = Entry { label: Some("a label ".repeat(100)), ..entry("x") };
    let fence = granted(store.acquire(&mine, false).await);
    assert_eq!(granted(store.acquire(&mine, false).await), fence);
    assert_eq!(granted(store.acquire(&mine, true).await), fence);
    // An older try that arrives late does not shorten the lease.
    let short = Entry { owner: Secret(mine.owner.0.clone()), ..entry_for("x", TTL / 10) };
    assert_eq!(granted(store.acquire(&short, false).await), fence);
    assert_eq!(time_left(store.acquire(&entry("x"), false).await), TTL);
    let key = LockKey::new("", "x").unwrap();
    let holder = store.inspect(&key).await.unwrap().unwrap().holder.unwrap();
    assert_eq!(holder.fence.map(FencingToken::as_i64), Some(fence));
    assert_eq!(holder.held_for, Some(Duration::ZERO));
    assert_eq!(holder.label, None, "the repeat had none");
}

#[tokio::test]
async fn force_takes_a_lock_away_and_a_late_repeat_does_not_revive_the_hold() {
    let server = Server::start().await;
    let store = server.store(TTL).await;
    let (mine, key) = (entry("x"), LockKey::new("", "x").unwrap());
    let first = granted(store.acquire(&mine, false).await);
    let stranger = OwnerId::from_bytes([7; 16]);
    assert_eq!(store.force_release(&key, Some(&stranger)).await.unwrap(), Released::AlreadyGone);
    assert_eq!(renew(&store, &mine, token(first)).await, Outcome::Renewed);
    assert_eq!(store.force_release(&key, None).await.unwrap(), Released::Freed);
    assert_eq!(store.force_release(&key, None).await.unwrap(), Released::AlreadyGone);
    assert_eq!(renew(&store, &mine, token(first)).await, Outcome::Gone);
    // A repeat of the first try that lands now makes another hold, with a greater fence.
    let second = granted(store.acquire(&mine, false).await);
    assert!(second > first);
    assert_eq!(renew(&store, &mine, token(first)).await, Outcome::Gone);
    assert_eq!(store.check(&mine, token(first)).await.unwrap(), Renewal::Lost);
    assert_eq!(store.release(&mine).await.unwrap(), Released::Freed);
}

#[tokio::test]
async fn fencing_tokens_that_are_used_up_are_an_error() {
    let server = Server::start().await;
    let store = server.store(TTL).await;
    let mine = entry("x");
    granted(store.acquire(&mine, false).await);
    store.release(&mine).await.unwrap();
    server.run("UPDATE distlock SET fence = 9223372036854775807 WHERE name = 'x'").await;
    let error = store.acquire(&mine, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    assert!(error.to_string().contains("used up"), "{error}");
}

/// The statements of a dropped call are finished, and their connections used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_statement_costs_no_connection() {
    let server = Server::start().await;
    let store = server.store(TTL).await;
    granted(store.acquire(&entry("warm"), false).await);
    let connections = async || -> i64 {
        sqlx::query_scalar(
            "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status WHERE variable_name = 'CONNECTIONS'",
        )
        .fetch_one(&server.admin)
        .await
        .unwrap()
    };
    let before = connections().await;
    for n in 0..50 {
        let mine = entry(&format!("n{n}"));
        // The statement is on its way, and its answer cannot be here yet.
        let mut call = Box::pin(store.acquire(&mine, false));
        std::future::poll_fn(|context| {
            let _ = call.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
        drop(call);
        // The release waits for it.
        store.release(&mine).await.unwrap();
        let key = LockKey::new("", mine.name.as_str()).unwrap();
        assert_eq!(store.inspect(&key).await.unwrap(), None);
    }
    assert!(store.links.resting() >= 1);
    assert!(connections().await - before <= 3, "a connection was closed for every dropped call");
}

/// A proxy that splits reads and writes, before a replica that is behind.
#[tokio::test]
async fn a_read_that_shows_no_hold_is_no_loss() {
    let server = Server::start().await;
    server.store(TTL).await;
    server.run("CREATE TABLE stale LIKE distlock").await;
    let stale = |sql: &Sql| -> Sql {
        let changed = sql.replace("FROM `distlock`", "FROM `stale`");
        assert_ne!(changed, **sql);
        changed.into()
    };
    let store = server
        .store_with(|statements| {
            statements.look = stale(&statements.look);
            statements.present.0 = statements.present.0.each_ref().map(stale);
            // A proxy may know `FOR UPDATE` as the end of a statement only.
            statements.unlocked.0 = statements.unlocked.0.each_ref().map(stale);
        })
        .await;
    let mut held = Vec::new();
    for n in 0..20 {
        let mine = entry(&format!("n{n:02}"));
        let fence = token(granted(store.acquire(&mine, false).await));
        held.push((mine, fence));
    }
    // The replica has heard of an earlier hold of one of them.
    server.run("INSERT INTO stale SELECT name, 'somebody', fence - 1, expires, acquired, label FROM distlock WHERE name = 'n07'").await;
    let dues: Vec<_> = held.iter().map(|(entry, fence)| Due { entry, fence: *fence }).collect();
    assert_eq!(store.renew(&dues, TTL).await.unwrap(), vec![Outcome::Renewed; dues.len()]);
    for (entry, fence) in &held {
        let alive = store.check(entry, *fence).await.unwrap();
        assert!(matches!(alive, Renewal::Alive { valid_for: Some(left) } if left <= TTL));
    }
    // What is lost is lost.
    server.run("UPDATE distlock SET owner = NULL, expires = 0 WHERE name IN ('n07', 'n08')").await;
    for (at, found) in store.renew(&dues, TTL).await.unwrap().into_iter().enumerate() {
        let lost = [7, 8].contains(&at);
        assert_eq!(found, if lost { Outcome::Gone } else { Outcome::Renewed }, "{at}");
        let checked = store.check(&held[at].0, held[at].1).await.unwrap();
        assert_eq!(checked == Renewal::Lost, lost, "{at}");
    }
}

/// Clause C14.
#[tokio::test]
async fn what_is_taken_over_is_compared_with_the_row() {
    let server = Server::start().await;
    server.set_clock(1_000_000).await;
    let store = server.store(TTL).await;
    let (mine, second) = (entry("x"), entry("y"));
    let fence = granted(store.acquire(&mine, false).await);
    let other = granted(store.acquire(&second, false).await);
    let taking = |fence: i64, owner: &str| Entry {
        owner: Secret(owner.to_owned()),
        taken_over: token(fence),
        ..entry_for("x", TTL * 100)
    };
    let stranger = OwnerId::generate(&OsRng).unwrap().to_hex();
    let owner = &*mine.owner.0;
    let false_ones =
        [(fence + 1, owner), (fence - 1, owner), (i64::MAX, owner), (fence, &*stranger)];
    for (fence, owner) in false_ones {
        let altered = taking(fence, owner);
        assert_eq!(renew(&store, &altered, altered.taken_over).await, Outcome::Gone);
        // Also in a batch.
        let dues = [
            Due { entry: &altered, fence: altered.taken_over },
            Due { entry: &second, fence: token(other) },
        ];
        assert_eq!(store.renew(&dues, TTL).await.unwrap(), [Outcome::Gone, Outcome::Renewed]);
        assert_eq!(store.check(&altered, altered.taken_over).await.unwrap(), Renewal::Lost);
        assert_eq!(store.release(&altered).await.unwrap(), Released::AlreadyGone);
        let Renewal::Alive { valid_for: Some(left) } = store.check(&mine, None).await.unwrap()
        else {
            panic!("the hold was touched")
        };
        assert!(left <= TTL, "{left:?}");
    }
    let right = Entry { ttl: TTL / 2, ..taking(fence, owner) };
    let dues = [
        Due { entry: &right, fence: right.taken_over },
        Due { entry: &second, fence: token(other) },
    ];
    assert_eq!(store.renew(&dues, TTL).await.unwrap(), [Outcome::Renewed, Outcome::Renewed]);
    let ends = Renewal::Alive { valid_for: Some(right.ttl) };
    assert_eq!(store.check(&right, right.taken_over).await.unwrap(), ends, "the request's ttl");
    let whole = Renewal::Alive { valid_for: Some(TTL) };
    assert_eq!(store.check(&second, None).await.unwrap(), whole);
    assert_eq!(renew(&store, &right, right.taken_over).await, Outcome::Renewed);
    // A statement that was late by two seconds cuts nothing.
    let later = Entry { ttl: right.ttl - Duration::from_secs(2), ..taking(fence, owner) };
    assert_eq!(renew(&store, &later, later.taken_over).await, Outcome::Renewed);
    assert_eq!(store.check(&right, right.taken_over).await.unwrap(), ends);
    assert_eq!(store.release(&right).await.unwrap(), Released::Freed);
}

/// A proxy that writes replies of its own. A number that is missing is no answer, and above all no loss.
#[tokio::test]
async fn a_reply_without_its_number_is_no_loss_and_no_grant() {
    let server = Server::start().await;
    let store = server.store(TTL).await;
    let (mine, other) = (entry("x"), entry("y"));
    let fence = token(granted(store.acquire(&mine, false).await));
    let mute = |sql: &Sql| -> Sql { sql.replace("LAST_INSERT_ID", "").into() };
    let muted = server
        .store_with(|statements| {
            for sql in [
                &mut statements.take,
                &mut statements.make,
                &mut statements.renew,
                &mut statements.confirm,
                &mut statements.release,
            ] {
                *sql = mute(sql);
            }
        })
        .await;
    assert_eq!(renew(&muted, &mine, fence).await, Outcome::Renewed);
    // A row that is there, and one that is not.
    for entry in [&entry("x"), &other] {
        let error = muted.acquire(entry, false).await.unwrap_err();
        assert!(error.to_string().contains("LAST_INSERT_ID"), "{error}");
    }
    assert!(matches!(muted.check(&mine, fence).await.unwrap(), Renewal::Alive { .. }));
    assert!(muted.release(&mine).await.is_err());
    assert_eq!(muted.release(&mine).await.unwrap(), Released::AlreadyGone);
    assert_eq!(renew(&muted, &mine, fence).await, Outcome::Gone);
}
