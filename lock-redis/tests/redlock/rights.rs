//! The rights that `REDLOCK.md` names: all are needed, and enough.

use std::time::Duration;

use crate::redlock_common::common::{floor, until};
use crate::redlock_common::{Masters, claim, granted, shortest_wake};
use lock_core::{ErrorKind, Locks};
use tokio::time::Instant;

/// The words of all commands of the page, as one command.
fn documented_rights() -> impl Iterator<Item = &'static str> {
    let page = include_str!("../../REDLOCK.md");
    let lines = page.lines().filter_map(|line| line.strip_prefix("ACL SETUSER app "));
    ["ACL", "SETUSER", "app"].into_iter().chain(lines.flat_map(|line| line.split(' ')))
}

/// Makes the user of `REDLOCK.md` on every node, as it stands there without what is `missing`.
async fn user(masters: &Masters, missing: &[&str]) -> String {
    let words: Vec<_> = documented_rights().filter(|word| !missing.contains(word)).collect();
    for node in 0..masters.0.len() {
        masters.command(node, &["ACL", "DELUSER", "app"]).await;
        masters.command(node, &words).await;
    }
    masters.url("").replace("redlock://", "redlock://app:secret@").replace('?', "/1?")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_missing_right_is_found_when_connecting() {
    let masters = Masters::start().await.unwrap();
    // What the driver does without, or nobody needs before a listing.
    let spare = ["+hello", "+auth", "+ping", "+scan", "+eval"];
    let mut tried = 0;
    for right in documented_rights().filter(|word| word.starts_with('+') && !spare.contains(word)) {
        let url = user(&masters, &[right]).await;
        let error = lock_redis::connect_redlock(&url).await.expect_err(right);
        assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        assert!(!format!("{error} {error:?}").contains("secret@"), "{error}");
        tried += 1;
    }
    assert!(tried > 15, "{tried}");
    // One node that lacks a right is a minority.
    let url = user(&masters, &[]).await;
    masters.command(2, &["ACL", "SETUSER", "app", "-zrange"]).await;
    lock_redis::connect_redlock(&url).await.unwrap();
}

/// Exactly the rights that `REDLOCK.md` names, and nodes that want a password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_are_enough() {
    let masters = Masters::start().await.unwrap();
    let url = user(&masters, &[]).await;
    let locks = async || {
        let backend = lock_redis::connect_redlock(&url).await.unwrap();
        Locks::builder(backend).prefix("app").build().unwrap()
    };
    let (a, b) = (locks().await, locks().await);
    let shortest = shortest_wake(&a, &b, async |guard| {
        assert!(guard.check().await.is_ok());
        assert_eq!(a.list("lo").await.unwrap().len(), 1);
        let released = Instant::now();
        guard.release().await.unwrap();
        (released, ())
    })
    .await;
    // By a push: the slow second look comes after 0.75 s at the earliest.
    assert!(shortest < Duration::from_millis(300), "{shortest:?}");
    let named = lock_redis::connect_redlock(&url).await.unwrap();
    floor(&named, "app:free").await.unwrap();
    drop((a, b));
    let wrong = masters.url("").replace("redlock://", "redlock://app:wr0ng@");
    let error = lock_redis::connect_redlock(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains("wr0ng"), "{error}");
}

/// Nodes that are away may come back, and make a quorum without one that refuses the credentials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_that_is_denied_ends_no_wait_for_the_others() {
    let masters = Masters::start().await.unwrap();
    masters.each(0..2, &["CONFIG", "SET", "requirepass", "another"]).await;
    masters.0[2].kill().unwrap();
    let kind = async || masters.client("").await.unwrap_err().kind();
    assert_eq!(kind().await, ErrorKind::Denied);
    masters.0[1].kill().unwrap();
    assert_eq!(kind().await, ErrorKind::Unavailable);
}

/// A right that is taken away while a lock is held is an error. It is not a loss, and the lock does
/// not seem to be another client's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_taken_away_is_no_loss() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    let ttl = Duration::from_secs(30);
    let mut holder = claim(&backend, "lock", ttl);
    granted(&mut *holder).await;
    let on_all = async |right: &str| {
        masters.each(0..3, &["ACL", "SETUSER", "default", right]).await;
    };
    on_all("-get").await;
    let renewal = holder.renew().await;
    assert!(renewal.is_err(), "{renewal:?}");
    let check = holder.check().await;
    assert!(check.is_err(), "{check:?}");
    let seen = claim(&backend, "lock", ttl).try_acquire().await;
    assert_eq!(seen.unwrap_err().kind(), ErrorKind::Denied);
    on_all("+get").await;
    assert!(matches!(holder.renew().await.unwrap(), lock_core::Renewal::Alive { .. }));
    on_all("-get").await;
    let released = holder.release().await;
    assert!(released.is_err(), "{released:?}");
    on_all("+get").await;
    // It is repeated in the background, too, which may be the first to free the lock.
    holder.release().await.unwrap();
    for node in 0..3 {
        let is_free = async || !masters.has(node, "lock").await;
        until("the lock is free", Duration::from_secs(5), is_free).await;
    }
}
