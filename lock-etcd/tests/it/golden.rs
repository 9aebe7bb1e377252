//! What a held lock, a waiter and a released lock leave in etcd.

use std::time::Duration;

use lock_testkit::golden;

use crate::common::{LONG, locks, one, plain, soon};

#[tokio::test]
async fn what_is_stored_is_what_was_stored() {
    let cluster = one().await;
    let (a, b) = (locks(&cluster).await, locks(&cluster).await);
    let held = a.named("held").unwrap().label("a label").ttl(LONG).acquire().await.unwrap();
    a.named("released").unwrap().acquire().await.unwrap().release().await.unwrap();
    let forced = a.named("forced").unwrap().acquire().await.unwrap();
    a.force_release_any("forced").await.unwrap();
    let waiter = b.named("held").unwrap().label("another").ttl(LONG);
    let waiting = tokio::spawn(async move { drop(waiter.acquire().await) });
    let plain = plain(&cluster, 0);
    soon("it waits", async {
        while plain.all("held/").await.len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let mut lines = Vec::new();
    for (nth, found) in plain.all("").await.into_iter().enumerate() {
        let key = found.key.replace(&format!("{:x}", found.lease), &format!("LEASE-{nth}"));
        let lasts = match found.lease {
            0 => "for ever".to_owned(),
            lease => {
                let left = u64::try_from(plain.left(lease).await).unwrap();
                format!("for {}", golden::lasts(Duration::from_secs(left)))
            }
        };
        lines.push(format!("{key} {lasts}: {:?}", found.value));
    }
    golden::check(env!("CARGO_MANIFEST_DIR"), "etcd", &lines);
    waiting.abort();
    drop((held, forced));
}
