//! What locks of every state and kind leave on the server.

use std::time::Duration;

use lock_testkit::golden;

use crate::common::stored::stored;
use crate::common::{backend, busy, claim, granted, locks, plain, queued, server, until};

const TTL: Duration = Duration::from_secs(60);

#[tokio::test]
async fn what_is_stored_is_what_was_stored() {
    let server = server().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let held = a.named("held").unwrap().label("a label").ttl(TTL).cohort(4);
    let guard = held.acquire().await.unwrap();
    let released = a.named("released").unwrap();
    released.acquire().await.unwrap().release().await.unwrap();
    let forced = a.named("forced").unwrap().ttl(TTL).acquire().await.unwrap();
    a.force_release_any("forced").await.unwrap();
    let waiter = b.named("held").unwrap().ttl(TTL);
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    let mut plain = plain(&server).await;
    until("it waits", TTL, async || queued(&mut plain, "held").await.len() == 1).await;
    golden::check(env!("CARGO_MANIFEST_DIR"), "redis", &stored(&mut plain).await);
    waiter.abort();
    drop((guard, forced));
}

/// The next in the queue has the lock, and does not know it yet: that lasts half a second.
#[tokio::test]
async fn what_is_handed_over_is_what_was_handed_over() {
    let server = server().await;
    let (a, b) = (backend(&server).await, backend(&server).await);
    let mut plain = plain(&server).await;
    let mut lines = Vec::new();
    until("it is seen in time", TTL, async || {
        let (mut holder, mut next) =
            (claim(&a, "handed", TTL, true), claim(&b, "handed", TTL, true));
        granted(&mut *holder).await;
        busy(&mut *next).await;
        holder.release().await.unwrap();
        lines = stored(&mut plain).await;
        next.release().await.unwrap();
        lines.iter().any(|line| line.starts_with("\"handed\""))
    })
    .await;
    golden::check(env!("CARGO_MANIFEST_DIR"), "redis-handed", &lines);
}

/// The names and labels of their parts, which are the same on every store.
#[tokio::test]
async fn other_kinds_of_lock_are_what_they_were() {
    let server = server().await;
    let locks = locks(&server).await;
    let permit = locks.semaphore("permits", 3).unwrap().label("a permit").ttl(TTL);
    let permit = permit.acquire().await.unwrap();
    let rw = |name| locks.rw_lock(name).unwrap().label("a label").ttl(TTL);
    let read = rw("read").read().await.unwrap();
    let write = rw("written").write().await.unwrap();
    let election = locks.election("election").unwrap().ttl(TTL);
    let leader = election.campaign("a value, ü|").await.unwrap();
    // Which one of the slots is chance.
    let lines = stored(&mut plain(&server).await).await.into_iter().map(|line| {
        let slot = ["permits~~p", "read~~r"].iter().find_map(|name| line.split_once(name));
        let Some((_, rest)) = slot else { return line };
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (name, rest) = line.split_at(line.len() - rest.len());
        format!("{name}SLOT{}", &rest[digits..])
    });
    golden::check(env!("CARGO_MANIFEST_DIR"), "kinds", &lines.collect::<Vec<_>>());
    drop((permit, read, write, leader));
}
