//! The primary is lost, and its standby takes its place.

use lock_core::{ClaimRequest, LockBackend, LockKey, OsRng, OwnerId, Released};
use lock_testkit::servers::PostgresServer;

use crate::postgres_common::{TTL, backend, busy, claim, granted, plain, run, until_number};

/// Waits until the primary has a standby of which this is true.
async fn wait_for_standby(primary: &PostgresServer, what: &str) {
    let count = format!("SELECT count(*) FROM pg_stat_replication WHERE {what}");
    until_number(&mut plain(primary).await, &count, 1).await;
}

async fn promote(standby: &PostgresServer) {
    run(&mut plain(standby).await, "SELECT pg_promote()").await;
}

#[tokio::test]
async fn a_hold_outlives_its_primary_where_the_standby_is_synchronous() {
    let primary = PostgresServer::primary().await.unwrap();
    let standby = primary.standby().await.unwrap();
    for sql in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
        run(&mut plain(&primary).await, sql).await;
    }
    wait_for_standby(&primary, "sync_state = 'sync'").await;
    let owner = OwnerId::generate(&OsRng).unwrap();
    let request = ClaimRequest::new(LockKey::new("", "x").unwrap(), owner, TTL);
    let first = backend(&primary).await;
    let fence = granted(&mut *first.claim(request.clone()).unwrap()).await;

    primary.kill().unwrap();
    promote(&standby).await;
    let second = backend(&standby).await;
    let mut other = claim(&second, "x", TTL, false);
    busy(&mut *other).await;
    let mut held = second.claim(request).unwrap();
    assert_eq!(granted(&mut *held).await, fence, "the holder has it still");
    assert_eq!(held.release().await.unwrap(), Released::Freed);
    assert!(granted(&mut *other).await > fence);
}

/// What it has missed is lost: the lock is granted once more. The resource can tell by the fence.
#[tokio::test]
async fn a_standby_that_has_missed_a_hold_grants_it_with_a_greater_fence() {
    let primary = PostgresServer::primary().await.unwrap();
    let standby = primary.standby().await.unwrap();
    let first = backend(&primary).await;
    let mut old = claim(&first, "old", TTL, false);
    granted(&mut *old).await;
    old.release().await.unwrap();
    wait_for_standby(&primary, "replay_lsn = pg_current_wal_lsn()").await;
    standby.kill().unwrap();
    let mut missed = Vec::new();
    for name in ["old", "new"] {
        missed.push((name, granted(&mut *claim(&first, name, TTL, false)).await));
    }
    primary.kill().unwrap();
    standby.restart().await.unwrap();
    promote(&standby).await;
    let second = backend(&standby).await;
    for (name, fence) in missed {
        let after = granted(&mut *claim(&second, name, TTL, false)).await;
        assert!(after > fence, "{name}: {after} after {fence}");
    }
}
