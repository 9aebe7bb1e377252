//! Leases, owners and fences.

use super::*;

#[tokio::test]
async fn a_repeat_by_the_owner_keeps_its_fence_and_others_wait() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let (mine, other) = (entry("x"), entry("x"));
    let fence = granted(store.acquire(&mine, false).await);
    machine.advance(Duration::from_secs(4));
    assert_eq!(granted(store.acquire(&mine, false).await), fence);
    let first = row(&store, "x").await.unwrap();
    assert_eq!(first.expires, machine.boot_us() + micros(TTL) + 1);
    for polling in [false, true] {
        let left = is_busy(store.acquire(&other, polling).await).unwrap();
        assert_eq!(left, TTL + Duration::from_micros(1));
    }
    assert!(matches!(store.check(&other, None).await, Ok(Renewal::Lost)));
    assert!(matches!(store.check(&mine, None).await, Ok(Renewal::Alive { valid_for: Some(_) })));
}

#[tokio::test]
async fn a_lease_ends_and_the_old_owner_is_refused() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let (old, new) = (entry("x"), entry("x"));
    let first = granted(store.acquire(&old, false).await);
    machine.advance(TTL);
    is_busy(store.acquire(&new, false).await);
    machine.advance(Duration::from_micros(1));
    // Over by the clock: not prolonged any more, although nobody has taken it.
    assert_eq!(renew(&store, &old, None).await.unwrap(), Renewal::Lost);
    let second = granted(store.acquire(&new, true).await);
    assert!(second > first);
    assert_eq!(renew(&store, &old, None).await.unwrap(), Renewal::Lost);
    assert_eq!(store.check(&old, None).await.unwrap(), Renewal::Lost);
    assert_eq!(store.release(&old).await.unwrap(), Released::AlreadyGone);
    assert!(matches!(renew(&store, &new, None).await.unwrap(), Renewal::Alive { .. }));
    assert_eq!(store.release(&new).await.unwrap(), Released::Freed);
    assert_eq!(store.release(&new).await.unwrap(), Released::AlreadyGone);
    assert_eq!(renew(&store, &new, None).await.unwrap(), Renewal::Lost);
}

#[tokio::test]
async fn an_ended_lease_is_not_freed_twice() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let mine = entry("x");
    granted(store.acquire(&mine, false).await);
    machine.advance(TTL * 2);
    assert_eq!(store.release(&mine).await.unwrap(), Released::AlreadyGone);
    assert_eq!(row(&store, "x").await.unwrap().owner, None);
}

#[tokio::test]
async fn a_late_statement_moves_no_lease_back() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let fresh = store(&folder, &machine, FOREVER).await;
    // A store whose present is stale, as that of a statement that waited for a long time.
    let stale = store(&folder, &Machine::new("a"), FOREVER).await;
    let mine = entry("x");
    granted(fresh.acquire(&mine, false).await);
    machine.advance(Duration::from_secs(6));
    assert!(matches!(renew(&fresh, &mine, None).await.unwrap(), Renewal::Alive { .. }));
    let end = row(&fresh, "x").await.unwrap().expires;
    assert!(matches!(renew(&stale, &mine, None).await.unwrap(), Renewal::Alive { .. }));
    assert_eq!(row(&fresh, "x").await.unwrap().expires, end);
    granted(stale.acquire(&mine, false).await);
    assert_eq!(row(&fresh, "x").await.unwrap().expires, end);
    // And it takes nothing over that only a fresh clock would see ended.
    machine.advance(TTL * 2);
    is_busy(stale.acquire(&entry("x"), false).await);
    granted(fresh.acquire(&entry("x"), false).await);
}

#[tokio::test]
async fn a_restart_of_the_machine_ends_all_leases() {
    let (folder, before, after) = (TempDir::new().unwrap(), Machine::new("a"), Machine::new("b"));
    // The clock starts again, so that the old end of the lease lies far in the future.
    after.boot.store(5_000_000, Ordering::Relaxed);
    after.wall.fetch_add(micros(TTL), Ordering::Relaxed);
    let old = store(&folder, &before, FOREVER).await;
    let new = store(&folder, &after, FOREVER).await;
    let (survivor, taker) = (entry("x"), entry("x"));
    let first = granted(old.acquire(&survivor, false).await);
    assert_eq!(new.check(&survivor, None).await.unwrap(), Renewal::Lost);
    assert_eq!(renew(&new, &survivor, None).await.unwrap(), Renewal::Lost);
    assert!(new.inspect(&LockKey::new("", "x").unwrap()).await.unwrap().is_none());
    assert!(granted(new.acquire(&taker, true).await) > first);
}

/// Two virtual machines, or a file that was copied while it was in use: what was granted since we were
/// started is not of an earlier boot.
#[tokio::test]
async fn the_running_lease_of_another_machine_is_not_taken() {
    let (folder, one, two) = (TempDir::new().unwrap(), Machine::new("a"), Machine::new("b"));
    // Its lease is long over by our own clock, which says nothing.
    two.boot.fetch_add(micros(TTL) * 10, Ordering::Relaxed);
    let theirs = store(&folder, &one, FOREVER).await;
    let ours = store(&folder, &two, Duration::ZERO).await;
    let (holder, other, key) = (entry("x"), entry("x"), LockKey::new("", "x").unwrap());
    granted(theirs.acquire(&holder, false).await);
    for polling in [false, true] {
        let error = ours.acquire(&other, polling).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        assert!(error.to_string().contains("another machine") && !error.is_retryable(), "{error}");
    }
    // The sweep leaves it alone, too.
    two.advance(TTL);
    ours.sweep(Duration::ZERO).await.unwrap();
    assert!(matches!(theirs.check(&holder, None).await, Ok(Renewal::Alive { .. })));
    let seen = ours.inspect(&key).await.unwrap().unwrap().holder.unwrap();
    assert_eq!((seen.label.as_deref(), seen.expires_in), (Some("somebody"), None));
    assert_eq!(ours.list("", "").await.unwrap().len(), 1);
    // The way out that the error names.
    assert_eq!(ours.force_release(&key, seen.owner.as_ref()).await.unwrap(), Released::Freed);
    granted(ours.acquire(&other, true).await);
    let error = theirs.acquire(&holder, false).await.unwrap_err();
    assert!(error.to_string().contains("another machine"), "{error}");
    assert_eq!(ours.release(&other).await.unwrap(), Released::Freed);
    granted(theirs.acquire(&holder, false).await);
}

/// Clause C14.
#[tokio::test]
async fn what_is_taken_over_is_compared_with_the_row() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let mine = entry("x");
    let fence = granted(store.acquire(&mine, false).await);
    let taking = |fence: u64, owner: &str| Entry {
        owner: Secret(owner.to_owned()),
        taken_over: Some(FencingToken::new(fence).unwrap()),
        ..entry("x")
    };
    let stranger = OwnerId::generate(&OsRng).unwrap().to_hex();
    let owner = &*mine.owner.0;
    let largest = u64::try_from(i64::MAX).unwrap();
    let false_ones =
        [(fence + 1, owner), (fence - 1, owner), (largest, owner), (fence, &*stranger)];
    for (fence, owner) in false_ones {
        let altered = taking(fence, owner);
        assert_eq!(renew(&store, &altered, altered.taken_over).await.unwrap(), Renewal::Lost);
        assert_eq!(store.check(&altered, altered.taken_over).await.unwrap(), Renewal::Lost);
        assert_eq!(store.release(&altered).await.unwrap(), Released::AlreadyGone);
        assert!(matches!(store.check(&mine, None).await.unwrap(), Renewal::Alive { .. }));
    }
    let right = Entry { ttl: TTL / 2, ..taking(fence, owner) };
    assert!(matches!(renew(&store, &right, right.taken_over).await, Ok(Renewal::Alive { .. })));
    let left = store.check(&right, right.taken_over).await.unwrap();
    let wanted = right.ttl + Duration::from_micros(1);
    assert_eq!(left, Renewal::Alive { valid_for: Some(wanted) }, "the ttl is the request's");
    // A statement that was late by two seconds cuts nothing.
    machine.advance(Duration::from_secs(2));
    assert!(matches!(renew(&store, &right, right.taken_over).await, Ok(Renewal::Alive { .. })));
    machine.boot.fetch_sub(2_000_000, Ordering::Relaxed);
    assert!(matches!(renew(&store, &right, right.taken_over).await, Ok(Renewal::Alive { .. })));
    machine.advance(Duration::from_secs(2));
    assert_eq!(store.check(&right, right.taken_over).await.unwrap(), left);
    assert_eq!(store.release(&right).await.unwrap(), Released::Freed);
}

#[tokio::test]
async fn fences_rise_when_the_wall_clock_goes_back() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let mut last = 0;
    for wall in [1_700_000_000_000_000, 1_600_000_000_000_000, 0, -5, 1_700_000_000_000_001] {
        machine.wall.store(wall, Ordering::Relaxed);
        let mine = entry("x");
        let fence = granted(store.acquire(&mine, false).await);
        assert!(fence > last, "{fence} after {last} at {wall}");
        last = fence;
        store.release(&mine).await.unwrap();
    }
    assert_eq!(last, 1_700_000_000_000_004);
}

#[tokio::test]
async fn used_up_fences_are_an_error_and_not_a_grant() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    granted(store.acquire(&entry("x"), false).await);
    machine.advance(TTL * 2);
    let mut other = other_connection(&folder).await;
    sqlx::query("UPDATE distlock SET fence = 9223372036854775807")
        .execute(&mut other)
        .await
        .unwrap();
    let error = store.acquire(&entry("x"), false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.to_string().contains("used up"), "{error}");
}

#[tokio::test]
async fn a_batch_of_renewals_answers_for_each_lease() {
    let folder = TempDir::new().unwrap();
    let machine = Machine::new("boot-1");
    let store = store(&folder, &machine, FOREVER).await;
    let names = ["a\"b", "a\\", "A", "a", "x ", "x", "[\"", "\\u0041", "with a prefix"];
    let mut held: Vec<_> = names.iter().map(|name| entry(name)).collect();
    held[8].name = LockKey::new("ü", "🔒").unwrap().encode();
    held.sort_by(|a, b| a.name.cmp(&b.name));
    let mut fences = Vec::new();
    for entry in &held {
        fences.push(granted(store.acquire(entry, false).await));
    }
    store.release(&held[0]).await.unwrap();
    machine.advance(TTL / 2);
    let dues: Vec<_> = held
        .iter()
        .zip(&fences)
        .enumerate()
        .map(|(at, (entry, fence))| {
            // The second one asks with the fence of another hold, the third knows none.
            let fence = FencingToken::new(fence + u64::from(at == 1)).unwrap();
            Due { entry, fence: (at != 2).then_some(fence) }
        })
        .collect();
    let found = store.renew(&dues, TTL).await.unwrap();
    let wanted: Vec<_> =
        (0..held.len()).map(|at| if at < 2 { Outcome::Gone } else { Outcome::Renewed }).collect();
    assert_eq!(found, wanted);
    machine.advance(TTL * 3 / 4);
    for (at, entry) in held.iter().enumerate() {
        let alive = matches!(store.check(entry, None).await.unwrap(), Renewal::Alive { .. });
        assert_eq!(alive, at >= 2, "{:?}", entry.name);
    }
}

#[tokio::test]
async fn a_full_batch_is_one_statement_that_uses_the_key() {
    let folder = TempDir::new().unwrap();
    let store = store(&folder, &Machine::new("boot-1"), FOREVER).await;
    store.acquire(&entry("a"), false).await.unwrap();
    let sql = format!("EXPLAIN QUERY PLAN {}", store.dialect.statements.renew);
    let mut connection = other_connection(&folder).await;
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind("[]").bind(0).bind("boot-1");
    let plan: Vec<String> = query
        .fetch_all(&mut connection)
        .await
        .unwrap()
        .iter()
        .map(|row| sqlx::Row::get(row, 3))
        .collect();
    assert!(plan.iter().any(|step| step.contains("PRIMARY KEY")), "{plan:?}");
    let held: Vec<_> = (0..LARGEST_BATCH).map(|n| entry(&format!("n{n:04}"))).collect();
    let dues: Vec<_> = held.iter().map(|entry| Due { entry, fence: None }).collect();
    assert_eq!(store.renew(&dues, TTL).await.unwrap(), vec![Outcome::Gone; dues.len()]);
}
