//! What a leader does when it resumes after being stopped for longer than a lease.

use std::time::Duration;

use tokio::time::Instant;

use crate::common::{locks_from, soon, three};

/// For testing a server by hand, with any program in `LOCK_TEST_ETCD`: prints how many holds an old
/// leader ended, and for how long two clients believed that they held a lock.
///
/// `cargo test -p lock-etcd --test it an_old_leader -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures a defect of the server, by chance"]
async fn an_old_leader_goes_on() {
    let (rounds, locks, ttl) = (3, 60, Duration::from_secs(6));
    let cluster = three().await;
    let (mut held, mut lost, mut overlaps, mut longest) = (0, 0, 0, Duration::ZERO);
    for round in 0..rounds {
        let leader = cluster.leader().await.unwrap();
        let (a, b) = (
            locks_from(&cluster, (leader + 1) % 3).await,
            locks_from(&cluster, (leader + 2) % 3).await,
        );
        let mut pairs = Vec::new();
        for at in 0..locks {
            let name = format!("lock{round}-{at}");
            let guard = a.named(name.as_str()).unwrap().ttl(ttl).acquire().await.unwrap();
            let next = b.named(name.as_str()).unwrap().ttl(ttl);
            let next = tokio::spawn(async move {
                let guard = next.acquire().await.unwrap();
                (Instant::now(), guard)
            });
            pairs.push((guard, next));
        }
        cluster.freeze(leader).unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        // Holds ended by an overloaded machine say nothing about the leader.
        pairs.retain(|(guard, _)| guard.token().is_ok());
        held += pairs.len();
        cluster.thaw(leader).unwrap();
        let mut watching = tokio::task::JoinSet::new();
        for (guard, next) in pairs {
            watching.spawn(async move {
                let over = tokio::time::timeout(Duration::from_secs(12), guard.lost().wait()).await;
                let ended = over.is_ok().then(Instant::now);
                let (got, guard) = if ended.is_some() {
                    soon("the next holder", next).await.unwrap()
                } else {
                    let _ = guard.release().await;
                    soon("the next holder", next).await.unwrap()
                };
                drop(guard);
                ended.map(|ended| ended.saturating_duration_since(got))
            });
        }
        let ended: Vec<_> = watching.join_all().await.into_iter().flatten().collect();
        lost += ended.len();
        overlaps += ended.iter().filter(|overlap| !overlap.is_zero()).count();
        longest = longest.max(ended.into_iter().max().unwrap_or_default());
        println!("round {round}: {lost} of {held} holds were ended");
    }
    println!("{lost} of {held} holds were ended, {overlaps} of them late, by {longest:?} at most");
}
