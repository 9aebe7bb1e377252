//! What kills mutants, beside the suite: each ends with an error that says what it saw.

#![allow(dead_code, reason = "each test target uses a part of it")]

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use lock_core::{LockBackend, Renewal};
use lock_sql::SqlBackend;
use lock_testkit::servers::PostgresServer;

use crate::postgres_common::splitter::Splitter;
use crate::postgres_common::{TTL, backend, busy, claim, granted, number, plain, run, server};

/// What a scene saw that must not be.
type Seen = Result<(), String>;

fn unless(fine: bool, seen: impl FnOnce() -> String) -> Seen {
    if fine { Ok(()) } else { Err(seen()) }
}

/// A lock on a row, or a change of it, takes a number from the server, and so a place in its log.
const NEXT_TRANSACTION: &str = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";

/// The lock on a row lasts until the transaction is on the disk. Whoever only waits takes none.
pub(crate) async fn looks_write_nothing() -> Seen {
    let server = server().await;
    for mode in ["none", "transaction"] {
        let url = format!("{}?lock_pooler={mode}", server.url());
        let client = lock_sql::connect(&url).await.unwrap();
        let mut held = claim(&client, mode, TTL, false);
        granted(&mut *held).await;
        let mut waiter = claim(&client, mode, TTL, true);
        let mut connection = plain(&server).await;
        let mut written = Vec::new();
        // The first look while notifications arrive puts its client on the list, and the server may do
        // something of its own: a later round must be without.
        while written.last() != Some(&0) {
            unless(written.len() < 4, || {
                format!("{mode}: {written:?} transactions of 60 looks each")
            })?;
            let before = number(&mut connection, NEXT_TRANSACTION).await;
            for _ in 0..20 {
                busy(&mut *waiter).await;
                busy(&mut *claim(&client, mode, TTL, false)).await;
                let Renewal::Alive { .. } = held.check().await.unwrap() else { panic!("lost") };
            }
            written.push(number(&mut connection, NEXT_TRANSACTION).await - before);
        }
    }
    Ok(())
}

/// A primary, a standby that has the table and nothing since, what is before them, and a client of that.
pub(crate) async fn behind_a_splitter() -> (PostgresServer, PostgresServer, Splitter, SqlBackend) {
    let (primary, standby) = (server().await, server().await);
    backend(&standby).await.close().await.unwrap();
    let read_only = "ALTER DATABASE postgres SET default_transaction_read_only = on";
    run(&mut plain(&standby).await, read_only).await;
    backend(&primary).await.close().await.unwrap();
    let splitter = Splitter::start(primary.address().unwrap(), standby.address().unwrap()).await;
    let url = format!(
        "postgres://postgres@{}/postgres?sslmode=disable&lock_pooler=transaction",
        splitter.address
    );
    let client = lock_sql::connect(&url).await.unwrap();
    (primary, standby, splitter, client)
}

pub(crate) async fn reads_that_are_behind() -> Seen {
    let (_primary, _standby, splitter, client) = behind_a_splitter().await;
    let mut held = claim(&client, "x", TTL, true);
    granted(&mut *held).await;
    let before = splitter.reads.load(SeqCst);
    let seen = held.check().await.unwrap();
    assert!(splitter.reads.load(SeqCst) > before, "the standby was asked");
    match seen {
        Renewal::Alive { valid_for: Some(left) } if left <= TTL => Ok(()),
        other => Err(format!("a read that is behind was taken for {other:?}")),
    }
}

/// A try that comes again after the end of its lease finds its hold if nobody has taken it, also where its
/// client was told that the lock is free, and so begins with the statement that takes free locks.
pub(crate) async fn late_repeats() -> Seen {
    let server = server().await;
    let (client, other) = (backend(&server).await, backend(&server).await);
    let mut connection = plain(&server).await;
    granted(&mut *claim(&other, "held", TTL, true)).await;
    let mut waiter = claim(&client, "held", TTL, true);
    let listed = "SELECT cardinality(waiters)::bigint FROM distlock WHERE name = 'held'";
    while number(&mut connection, listed).await == 0 {
        busy(&mut *waiter).await;
    }
    let ttl = Duration::from_secs(1);
    let mut mine = claim(&client, "x", ttl, false);
    let first = granted(&mut *mine).await;
    tokio::time::sleep(ttl * 5 / 4).await;
    let tell = "SELECT pg_notify('distlock_' || waiters[1], 'x') FROM distlock WHERE name = 'held'";
    run(&mut connection, tell).await;
    tokio::time::sleep(ttl / 2).await;
    let again = granted(&mut *mine).await;
    unless(first == again, || format!("a repeat got {again}, and {first} before"))
}
