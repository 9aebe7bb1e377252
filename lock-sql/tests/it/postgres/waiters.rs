//! How waiters are told: notifications, and what happens without them.

use std::time::Duration;

use conformance_tests::server::Cut;
use lock_core::{LockBackend, LockKey, Locks, Released, Victim, Wake};
use tokio::time::Instant;

use crate::postgres_common::{
    TTL, backend, busy, claim, granted, locks, number, plain, proxied, pushes_come_back, run,
    server,
};

/// Row 15: the network has forgotten the connections, that for notifications too, without a word.
/// Waiters poll until it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_notifications_waiters_poll() {
    let server = server().await;
    let (proxy, url) = proxied(&server).await;
    let (a, b) = (backend(&server).await, lock_sql::connect(&url).await.unwrap());
    let mut held = claim(&a, "x", TTL, false);
    granted(&mut *held).await;
    let locks = Locks::builder(b.clone()).call_timeout(Duration::from_secs(1)).build().unwrap();
    let waiter = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.named("x").unwrap().acquire().await.unwrap() })
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    // New connections pass; those that are there are silent from now on.
    proxy.stall_present();
    let start = Instant::now();
    held.release().await.unwrap();
    let guard = tokio::time::timeout(Duration::from_secs(8), waiter).await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    guard.release().await.unwrap();
    // The silent connections are still there; the one for notifications is replaced.
    pushes_come_back(&a, &b).await;
    proxy.cut(Cut::Reset);
}

/// Of the processes that wait, a release tells the first one, and that one alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_are_told_in_the_order_of_their_arrival() {
    let server = server().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(backend(&server).await);
    }
    let mut holder = claim(&clients[0], "x", TTL, true);
    granted(&mut *holder).await;
    let mut waiters: Vec<_> = clients.iter().map(|client| claim(client, "x", TTL, true)).collect();
    for waiter in &mut waiters {
        busy(&mut **waiter).await;
    }
    for n in 0..4 {
        holder.release().await.unwrap();
        // The first one hears it, the others hear nothing.
        let told = waiters[n].changed();
        tokio::time::timeout(Duration::from_secs(2), told).await.unwrap().unwrap();
        for other in &mut waiters[n + 1..] {
            let told = tokio::time::timeout(Duration::from_millis(50), other.changed()).await;
            assert!(told.is_err(), "only one is told");
        }
        granted(&mut *waiters[n]).await;
        std::mem::swap(&mut holder, &mut waiters[n]);
    }
}

/// Clause C13: the one that was told wants the lock no more. The next one does not wait for a poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_that_nobody_wants_is_passed_on() {
    let server = server().await;
    let (a, b, c) = (backend(&server).await, backend(&server).await, backend(&server).await);
    for way in ["given up before", "told and dropped", "told and released"] {
        let mut holder = claim(&a, way, TTL, true);
        granted(&mut *holder).await;
        let (mut first, mut second) = (claim(&b, way, TTL, true), claim(&c, way, TTL, true));
        busy(&mut *first).await;
        busy(&mut *second).await;
        match way {
            "given up before" => {
                first.release().await.unwrap();
                holder.release().await.unwrap();
            }
            "told and dropped" => {
                holder.release().await.unwrap();
                first.changed().await.unwrap();
                drop(first);
            }
            _ => {
                holder.release().await.unwrap();
                first.changed().await.unwrap();
                first.release().await.unwrap();
            }
        }
        let told = tokio::time::timeout(Duration::from_secs(2), second.changed()).await;
        told.unwrap_or_else(|_| panic!("{way}: the second one was not told")).unwrap();
        granted(&mut *second).await;
    }
}

/// A process that was killed while it waited costs the others one slow poll, and once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_process_on_the_list_costs_one_poll() {
    let server = server().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let guard = a.named("x").unwrap().acquire().await.unwrap();
    // As if a process had been killed while it waited.
    let dead = "UPDATE distlock SET waiters = '{dead1}' WHERE name = 'x'";
    run(&mut plain(&server).await, dead).await;
    let waiter = tokio::spawn(async move {
        let guard = b.named("x").unwrap().acquire().await.unwrap();
        (Instant::now(), guard)
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    guard.release().await.unwrap();
    let (at, guard) = waiter.await.unwrap();
    assert!(at - start < Duration::from_secs(3), "{:?}", at - start);
    guard.release().await.unwrap();
    let left = "SELECT cardinality(waiters)::bigint FROM distlock WHERE name = 'x'";
    assert_eq!(number(&mut plain(&server).await, left).await, 0);
}

/// A session that listens and never ends its transaction fills the queue of notifications, and the
/// server refuses more. Locks are released all the same, also by force. The queue holds gigabytes,
/// so here a function of the same name refuses in its place.
#[tokio::test]
async fn a_full_queue_of_notifications_stops_no_release() {
    let server = server().await;
    let mut connection = plain(&server).await;
    run(&mut connection, "ALTER DATABASE postgres SET search_path = public, pg_catalog").await;
    let client = backend(&server).await;
    let mut held = claim(&client, "held", TTL, false);
    granted(&mut *held).await;
    let mut taken = claim(&client, "taken", TTL, false);
    granted(&mut *taken).await;
    run(
        &mut connection,
        "UPDATE distlock SET waiters = '{somebody}'; \
         CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS \
         $$ BEGIN RAISE 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$",
    )
    .await;
    assert_eq!(held.release().await.unwrap(), Released::Freed);
    let key = LockKey::new("", "taken").unwrap();
    let admin = client.admin().unwrap();
    assert_eq!(admin.force_release(&key, &Victim::Anybody).await.unwrap(), Released::Freed);
    assert_eq!(admin.inspect(&key).await.unwrap(), None);
    // Who comes meanwhile polls.
    let late = backend(&server).await;
    assert_eq!(late.capabilities().wake, Wake::Poll);
    granted(&mut *claim(&late, "held", TTL, false)).await;
}

/// One statement for a new name, for one that was released here, and for one that is held. Only who is
/// mistaken about it needs two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_is_one_statement() {
    let server = server().await;
    let (proxy, url) = proxied(&server).await;
    // Each statement is one message.
    let client = lock_sql::connect(&format!("{url}&lock_pooler=transaction")).await.unwrap();
    let other = backend(&server).await;
    granted(&mut *claim(&client, "warm", TTL, false)).await;
    let (wanted, mut seen) = ([1, 1, 1, 2], Vec::new());
    // Something in the background may come in between.
    while !seen.contains(&wanted) {
        let round = seen.len();
        assert!(round < 5, "{seen:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
        let name = format!("n{round}");
        let count = async |held: bool| {
            let (before, mut mine) = (proxy.requests(), claim(&client, &name, TTL, false));
            if held {
                busy(&mut *mine).await;
            } else {
                granted(&mut *mine).await;
            }
            (proxy.requests() - before, mine)
        };
        let (new, mut first) = count(false).await;
        first.release().await.unwrap();
        let (known, mut second) = count(false).await;
        let (held, _) = count(true).await;
        second.release().await.unwrap();
        granted(&mut *claim(&other, &name, TTL, false)).await;
        let (mistaken, _) = count(true).await;
        seen.push([new, known, held, mistaken]);
    }
}
