//! What a held lock, a waiter and a released lock leave on the server.

use std::time::Duration;

use lock_testkit::golden;

use crate::common::stored::stored;
use crate::common::{locks, plain, queued, server, until};

const TTL: Duration = Duration::from_secs(60);

#[tokio::test]
async fn what_is_stored_is_what_was_stored() {
    let server = server().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let held = a.named("held").unwrap().label("a label").ttl(TTL).cohort(4);
    let guard = held.acquire().await.unwrap();
    let released = a.named("released").unwrap();
    released.acquire().await.unwrap().release().await.unwrap();
    let waiter = b.named("held").unwrap().ttl(TTL);
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    let mut plain = plain(&server).await;
    until("it waits", TTL, async || queued(&mut plain, "held").await.len() == 1).await;
    golden::check(env!("CARGO_MANIFEST_DIR"), "redis", &stored(&mut plain).await);
    waiter.abort();
    drop(guard);
}
