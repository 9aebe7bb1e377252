//! Names, inspection and force.

use super::*;

#[tokio::test]
async fn force_takes_a_lock_away_and_a_late_repeat_does_not_revive_the_hold() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let (mine, key) = (entry("x"), LockKey::new("", "x").unwrap());
    let first = granted(store.acquire(&mine, false).await);
    let token = Some(FencingToken::new(first).unwrap());
    let stranger = OwnerId::from_bytes([7; 16]);
    assert_eq!(store.force_release(&key, Some(&stranger)).await.unwrap(), Released::AlreadyGone);
    assert!(matches!(renew(&store, &mine, token).await.unwrap(), Renewal::Alive { .. }));
    assert_eq!(store.force_release(&key, None).await.unwrap(), Released::Freed);
    assert_eq!(store.force_release(&key, None).await.unwrap(), Released::AlreadyGone);
    assert_eq!(renew(&store, &mine, token).await.unwrap(), Renewal::Lost);
    // A repeat of the first try that lands now makes another hold, with a greater fence.
    let second = granted(store.acquire(&mine, false).await);
    assert!(second > first);
    assert_eq!(renew(&store, &mine, token).await.unwrap(), Renewal::Lost);
    assert_eq!(store.check(&mine, token).await.unwrap(), Renewal::Lost);
    assert_eq!(store.release(&mine).await.unwrap(), Released::Freed);
}

#[tokio::test]
async fn inspection_shows_who_and_for_how_long() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let mine = entry("x");
    let fence = granted(store.acquire(&mine, false).await);
    machine.advance(Duration::from_secs(3));
    let info = store.inspect(&LockKey::new("", "x").unwrap()).await.unwrap().unwrap();
    let holder = info.holder.unwrap();
    assert_eq!(holder.owner.unwrap().to_hex(), mine.owner.0);
    assert_eq!(holder.label.as_deref(), Some("somebody"));
    assert_eq!(holder.fence.unwrap().get(), fence);
    assert_eq!(holder.held_for, Some(Duration::from_secs(3)));
    assert_eq!(holder.expires_in, Some(Duration::from_secs(7) + Duration::from_micros(1)));
    assert_eq!(info.waiters, None);
    machine.advance(TTL);
    assert!(store.inspect(&LockKey::new("", "x").unwrap()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_list_takes_prefix_and_start_literally() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let keys = [
        ("", "a%b"),
        ("", "a_b"),
        ("", "axb"),
        ("", "A%b"),
        ("", "ü1"),
        ("p", "a%1"),
        ("p", "b"),
        ("pq", "a%2"),
        ("", "pa"),
    ];
    for (prefix, name) in keys {
        let mine = Entry { name: LockKey::new(prefix, name).unwrap().encode(), ..entry("_") };
        granted(store.acquire(&mine, false).await);
    }
    let released = entry("a%released");
    granted(store.acquire(&released, false).await);
    store.release(&released).await.unwrap();
    let list = async |prefix: &str, start: &str| -> Vec<String> {
        let found = store.list(prefix, start).await.unwrap();
        found.iter().map(|info| info.key.to_string()).collect()
    };
    assert_eq!(list("", "").await, ["A%b", "a%b", "a_b", "axb", "pa", "ü1"]);
    assert_eq!(list("", "a%").await, ["a%b"]);
    assert_eq!(list("", "a_").await, ["a_b"]);
    assert_eq!(list("", "ü").await, ["ü1"]);
    assert_eq!(list("p", "").await, ["p/a%1", "p/b"]);
    assert_eq!(list("p", "a%").await, ["p/a%1"]);
    assert_eq!(list("q", "").await, Vec::<String>::new());
}

#[tokio::test]
async fn names_are_compared_byte_by_byte() {
    let (folder, machine) = (TempDir::new().unwrap(), Machine::new("a"));
    let store = store(&folder, &machine, FOREVER).await;
    let long = "é".repeat(256);
    let keys = [
        ("", "a"),
        ("", "A"),
        ("", "a "),
        ("", "á"),
        ("", "a\u{301}"),
        ("a", "bc"),
        ("ab", "c"),
        ("", "abc"),
        ("", "'; DROP TABLE distlock; --"),
        ("", "1"),
        ("", "01"),
        (&*long, &*long),
    ];
    for (prefix, name) in keys {
        let mine = Entry { name: LockKey::new(prefix, name).unwrap().encode(), ..entry("_") };
        granted(store.acquire(&mine, false).await);
        let other = Entry { name: mine.name.clone(), ..entry("_") };
        is_busy(store.acquire(&other, false).await);
    }
}
