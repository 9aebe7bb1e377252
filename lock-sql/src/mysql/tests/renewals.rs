//! Many leases at once.

use super::*;

async fn held(store: &MySqlStore, name: &str, ttl: Duration) -> (Entry, Option<FencingToken>) {
    let entry = entry_for(name, ttl);
    let fence = granted(store.acquire(&entry, false).await);
    (entry, token(fence))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_lease_of_a_batch_has_its_own_answer() {
    let server = Server::start().await;
    server.set_clock(1_000_000).await;
    let before = server.store(TTL).await;
    let mut leases = Vec::new();
    for n in 0..40 {
        leases.push(held(&before, &format!("n{n:02}"), TTL * (1 + n % 3)).await);
    }
    let over = held(&before, "over", Duration::from_secs(1)).await;
    server.set_clock(1_000_005).await;
    let store = server.store(TTL).await;
    let expected = |leases: &[(Entry, _)], gone: &[&str], locked: &[&str]| -> Vec<Outcome> {
        let found = |entry: &Entry| match entry.name.as_str() {
            name if gone.contains(&name) => Outcome::Gone,
            name if locked.contains(&name) => Outcome::Locked,
            _ => Outcome::Renewed,
        };
        leases.iter().map(|(entry, _)| found(entry)).collect()
    };
    // Taken away and taken by somebody else, by the same owner anew, released, and never there.
    server.run("DELETE FROM distlock WHERE name = 'n03'").await;
    for at in [5, 6] {
        before.force_release(&LockKey::decode(&leases[at].0.name).unwrap(), None).await.unwrap();
    }
    granted(store.acquire(&entry("n05"), false).await);
    granted(store.acquire(&leases[6].0, false).await);
    store.release(&leases[7].0).await.unwrap();
    leases.push((entry("nowhere"), token(5)));
    leases.push(over);
    let gone = ["n03", "n05", "n06", "n07", "nowhere", "over"];
    // One without its token.
    leases[9].1 = None;
    let mut other = server.admin.begin().await.unwrap();
    sqlx::query("SELECT * FROM distlock WHERE name IN ('n10', 'n11') FOR UPDATE")
        .fetch_all(&mut *other)
        .await
        .unwrap();
    // A statement that waits for the locked rows is undone as a whole: then none is renewed.
    let found = renew_all(&store, &leases).await;
    assert_eq!(found, expected(&leases, &gone, &["n10", "n11"]));
    other.rollback().await.unwrap();
    assert_eq!(renew_all(&store, &leases).await, expected(&leases, &gone, &[]));
    // By the length of each.
    for (entry, fence) in &leases[12..15] {
        let left = Renewal::Alive { valid_for: Some(entry.ttl) };
        assert_eq!(store.check(entry, *fence).await.unwrap(), left);
    }
}

async fn renew_all(store: &MySqlStore, leases: &[(Entry, Option<FencingToken>)]) -> Vec<Outcome> {
    let dues: Vec<_> = leases.iter().map(|(entry, fence)| Due { entry, fence: *fence }).collect();
    store.renew(&dues, TTL).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_all_sizes() {
    let server = Server::start().await;
    let store = server.store(TTL).await;
    let mut leases = Vec::new();
    for n in 0..500 {
        leases.push(held(&store, &format!("n{n:03}"), TTL).await);
    }
    for size in [1, 2, 8, 9, 33, 128, 129, 500] {
        let found = renew_all(&store, &leases[..size]).await;
        assert_eq!(found, vec![Outcome::Renewed; size]);
    }
}
