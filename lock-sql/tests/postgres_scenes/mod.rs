//! What kills mutants, beside the suite: each ends with an error that says what it saw.

#![allow(dead_code, reason = "each test target uses a part of it")]

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use lock_core::{
    Attempt, ClaimRequest, LockBackend, LockKey, OsRng, OwnerId, Released, Renewal, Resume, Seen,
};
use lock_sql::SqlBackend;
use lock_testkit::servers::{PgBouncer, PostgresServer};

use crate::looks::{key, look};
use crate::postgres_common::splitter::Splitter;
use crate::postgres_common::{
    TTL, backend, busy, claim, claim_within, granted, number, plain, run, server,
};

/// What a scene saw that must not be.
type Scene = Result<(), String>;

fn unless(fine: bool, seen: impl FnOnce() -> String) -> Scene {
    if fine { Ok(()) } else { Err(seen()) }
}

/// A lock on a row, or a change of it, takes a number from the server, and so a place in its log.
const NEXT_TRANSACTION: &str = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";

/// The lock on a row lasts until the transaction is on the disk. Whoever only waits takes none.
pub(crate) async fn looks_write_nothing() -> Scene {
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
                format!("{mode}: {written:?} transactions of 80 looks each")
            })?;
            let before = number(&mut connection, NEXT_TRANSACTION).await;
            for _ in 0..20 {
                busy(&mut *waiter).await;
                busy(&mut *claim(&client, mode, TTL, false)).await;
                let Renewal::Alive { .. } = held.check().await.unwrap() else { panic!("lost") };
                client.look(&[key(mode), key("free")]).await.unwrap();
            }
            written.push(number(&mut connection, NEXT_TRANSACTION).await - before);
        }
    }
    Ok(())
}

/// A primary, a standby that has the table and nothing since, but what `more` does there, what is before
/// them, and a client of that.
pub(crate) async fn behind_a_splitter(
    more: &str,
) -> (PostgresServer, PostgresServer, Splitter, SqlBackend) {
    let (primary, standby) = (server().await, server().await);
    backend(&standby).await.close().await.unwrap();
    let read_only = "ALTER DATABASE postgres SET default_transaction_read_only = on";
    run(&mut plain(&standby).await, &format!("{read_only}; {more}")).await;
    backend(&primary).await.close().await.unwrap();
    let splitter = Splitter::start(primary.address().unwrap(), standby.address().unwrap()).await;
    let url = format!(
        "postgres://postgres@{}/postgres?sslmode=disable&lock_pooler=transaction",
        splitter.address
    );
    let client = lock_sql::connect(&url).await.unwrap();
    (primary, standby, splitter, client)
}

pub(crate) async fn reads_that_are_behind() -> Scene {
    let (_primary, _standby, splitter, client) = behind_a_splitter("").await;
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

/// A look at what has been going on goes to the primary, whatever is before it.
pub(crate) async fn looks_away_from_the_primary() -> Scene {
    let (_primary, _standby, _splitter, client) = behind_a_splitter("").await;
    let mut held = claim(&client, "x", TTL, true);
    let fence = granted(&mut *held).await;
    let (seen, held) = (look(&client, "x").await, Seen::Held { fence: Some(fence), label: None });
    unless(seen == held, || format!("where plain reads are behind, a hold is seen as {seen:?}"))
}

/// Stops looks in the middle while `stall` says so: when they read a clock.
const STALLED_LOOKS: &str = "CREATE TABLE stall AS SELECT false AS now; \
     CREATE FUNCTION public.stalled(reading timestamptz) RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$ BEGIN \
       WHILE current_query() LIKE '%WITH unchanged%' AND (SELECT now FROM stall) LOOP \
         PERFORM pg_sleep(0.01); END LOOP; \
       RETURN reading; END $$; \
     CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$ BEGIN \
       PERFORM public.stalled(NULL); RETURN pg_catalog.clock_timestamp(); END $$; \
     CREATE FUNCTION public.statement_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
       'SELECT public.stalled(pg_catalog.statement_timestamp())'; \
     ALTER DATABASE postgres SET search_path = public, pg_catalog";

/// What sleeps in a function of ours.
const STALLED: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";

/// A lease that ends in the middle of a look, but for a renewal that comes in between.
pub(crate) async fn late_looks() -> Scene {
    let server = server().await;
    let mut admin = plain(&server).await;
    run(&mut admin, STALLED_LOOKS).await;
    for mode in ["none", "transaction"] {
        let url = format!("{}?lock_pooler={mode}", server.url());
        let client = lock_sql::connect(&url).await.unwrap();
        // Prepared before.
        look(&client, mode).await;
        let ttl = Duration::from_secs(3);
        let mut held = claim(&client, mode, ttl, false);
        let begun = tokio::time::Instant::now();
        let fence = granted(&mut *held).await;
        run(&mut admin, "UPDATE stall SET now = true").await;
        let looking = {
            let client = client.clone();
            tokio::spawn(async move { look(&client, mode).await })
        };
        while number(&mut admin, STALLED).await == 0 {
            assert!(!looking.is_finished() && begun.elapsed() < ttl, "the look does not stop");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep_until(begun + ttl / 2).await;
        let Renewal::Alive { .. } = held.renew().await.unwrap() else { panic!("lost") };
        tokio::time::sleep_until(begun + ttl * 5 / 4).await;
        run(&mut admin, "UPDATE stall SET now = false").await;
        let (seen, held) = (looking.await.unwrap(), Seen::Held { fence: Some(fence), label: None });
        unless(seen == held, || format!("{mode}: a hold that was renewed is seen as {seen:?}"))?;
    }
    Ok(())
}

/// A clock that is two seconds behind.
const BEHIND: &str = "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
     $$ SELECT pg_catalog.clock_timestamp() - interval '2 s' $$; \
     ALTER DATABASE postgres SET search_path = public, pg_catalog";

/// A standby that has the row, and another clock, by which the lease lasts longer: that is no promise.
pub(crate) async fn a_clock_that_is_behind() -> Scene {
    let (primary, standby, splitter, client) = behind_a_splitter(BEHIND).await;
    let mut held = claim(&client, "x", TTL, true);
    granted(&mut *held).await;
    let copy = "SELECT format('INSERT INTO distlock VALUES (%L, %L, %s, %L, %L, NULL, %L)', \
         name, owner, fence, expires, acquired, waiters) FROM distlock WHERE name = 'x'";
    let copy: String =
        sqlx::query_scalar(copy).fetch_one(&mut plain(&primary).await).await.unwrap();
    let copy = format!("BEGIN READ WRITE; {copy}; COMMIT");
    run(&mut plain(&standby).await, &copy).await;
    let before = splitter.reads.load(SeqCst);
    let seen = held.check().await.unwrap();
    assert!(splitter.reads.load(SeqCst) > before, "the standby was asked");
    match seen {
        Renewal::Alive { valid_for } if valid_for.is_none_or(|left| left <= TTL) => Ok(()),
        other => Err(format!("a check of a lease of {TTL:?} is answered {other:?}")),
    }
}

/// The hold of a cohort goes to another process, while a standby has not heard of it.
pub(crate) async fn a_cohort_that_is_handed_over() -> Scene {
    let (_primary, _standby, _splitter, client) = behind_a_splitter("").await;
    let owner = OwnerId::generate(&OsRng).unwrap();
    let request = ClaimRequest::new(LockKey::new("", "x").unwrap(), owner, TTL).with_fences(5);
    let mut first = client.claim(request.clone()).unwrap();
    let fence = granted(&mut *first).await;
    let data = first.detach().await.unwrap();
    let taken = |fences| {
        let resume = Resume::new(fence, data.clone());
        client.claim(request.clone().with_fences(fences).with_resume(resume)).unwrap()
    };
    for _ in 0..2 {
        let (checked, renewed) = (taken(5).check().await.unwrap(), taken(5).renew().await.unwrap());
        let alive = |answer: &Renewal| matches!(answer, Renewal::Alive { .. });
        unless(alive(&checked) && alive(&renewed), || {
            format!("a living hold is checked and renewed: {checked:?}, {renewed:?}")
        })?;
    }
    let forged = taken(6).renew().await.unwrap();
    unless(forged == Renewal::Lost, || format!("a block of another size: {forged:?}"))?;
    let released = taken(5).release().await.unwrap();
    unless(released == Released::Freed, || format!("its release is answered {released:?}"))
}

/// Other clients of a pooler leave their search path on the connections of the server, and there are
/// tables of the same name.
pub(crate) async fn paths_of_others() -> Scene {
    let server = server().await;
    let pooler = PgBouncer::start(server.address().unwrap(), "transaction", 1).await.unwrap();
    let url = format!("postgres://postgres@{}/postgres?sslmode=disable", pooler.address());
    let first = lock_sql::connect(&url).await.unwrap();
    let mut held = claim(&first, "x", TTL, true);
    granted(&mut *held).await;
    let leak = format!("{url}&statement_cache_capacity=0");
    let leak: sqlx::postgres::PgConnectOptions = leak.parse().unwrap();
    let leak = leak.extra_float_digits(None);
    let table = "CREATE TABLE t7.distlock (LIKE public.distlock INCLUDING ALL)";
    for sql in ["CREATE SCHEMA t7", table] {
        let mut other = sqlx::ConnectOptions::connect(&leak).await.unwrap();
        run(&mut other, &format!("{sql}; SET search_path = t7")).await;
        let second = lock_sql::connect(&url).await;
        let second = second.map_err(|error| format!("after {sql}, opening fails: {error}"))?;
        for client in [&first, &second] {
            let tried = claim(client, "x", TTL, false).try_acquire().await;
            unless(matches!(tried, Ok(Attempt::Busy { .. })), || {
                format!("after {sql}, a lock that is held is answered {tried:?}")
            })?;
        }
        let renewed = held.renew().await;
        unless(matches!(renewed, Ok(Renewal::Alive { .. })), || {
            format!("after {sql}, a hold is answered {renewed:?}")
        })?;
        let tables = "SELECT count(*) FROM pg_class WHERE relname = 'distlock' AND relkind = 'r'";
        let tables = number(&mut plain(&server).await, tables).await;
        unless(tables == if sql == table { 2 } else { 1 }, || format!("{tables} tables"))?;
    }
    Ok(())
}

/// A try that comes again after the end of its lease finds its hold if nobody has taken it, also where its
/// client was told that the lock is free, and so begins with the statement that takes free locks.
pub(crate) async fn late_repeats() -> Scene {
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

/// Stops the inserts of pooled clients while `stall` says so.
const STALL: &str = "CREATE TABLE stall AS SELECT false AS now; \
     CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$ BEGIN \
       WHILE current_query() LIKE '%LOCAL%WITH answer%' AND (SELECT now FROM stall) LOOP \
         PERFORM pg_sleep(0.01); END LOOP; \
       RETURN pg_catalog.clock_timestamp(); END $$; \
     ALTER DATABASE postgres SET search_path = public, pg_catalog";

/// The mark is raised in the middle of an insert, and above the fence of that. Its name, which has no row
/// yet, is looked at.
pub(crate) async fn floors_below_late_inserts() -> Scene {
    let server = server().await;
    let mut admin = plain(&server).await;
    run(&mut admin, STALL).await;
    let client = backend(&server).await;
    let pooled =
        lock_sql::connect(&format!("{}?lock_pooler=transaction", server.url())).await.unwrap();
    // An insert that takes longer than it may begins anew.
    for round in 1..10 {
        run(&mut admin, "UPDATE stall SET now = true").await;
        let name = format!("new {round}");
        let mut late = claim_within(&pooled, &name, (TTL, TTL), false);
        let late = tokio::spawn(async move { late.try_acquire().await });
        while number(&mut admin, STALLED).await == 0 {
            assert!(!late.is_finished(), "the insert does not stop");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let far = 3_000_000_000_000_000_i64 + round * 1_000_000;
        let fold = format!(
            "INSERT INTO distlock VALUES (E'\\x01fence', NULL, {far}, now(), now(), '0', '{{}}') \
               ON CONFLICT (name) DO UPDATE SET fence = {far}"
        );
        run(&mut admin, &fold).await;
        let seen = look(&client, &name).await;
        run(&mut admin, "UPDATE stall SET now = false").await;
        let Attempt::Granted { token, .. } = late.await.unwrap().unwrap() else {
            panic!("a new lock is held by another client")
        };
        let Seen::Free { floor } = seen else { panic!("{name} is seen as {seen:?}") };
        unless(floor.is_none_or(|floor| floor < token), || {
            format!("{name} was free with the floor {floor:?}, and then has the fence {token}")
        })?;
        if token.as_i64() < far {
            return Ok(());
        }
    }
    panic!("no insert was under way while the mark was raised")
}

/// A server is stopped in the middle of an insert, and the row of that name is swept meanwhile. Its fence is
/// ahead of the clock.
pub(crate) async fn late_inserts() -> Scene {
    let server = server().await;
    let mut admin = plain(&server).await;
    run(&mut admin, STALL).await;
    let sweeping =
        lock_sql::connect(&format!("{}?lock_retention=100ms", server.url())).await.unwrap();
    let pooled =
        lock_sql::connect(&format!("{}?lock_pooler=transaction", server.url())).await.unwrap();
    let mut old = claim(&sweeping, "x", TTL, false);
    granted(&mut *old).await;
    old.release().await.unwrap();
    let far = 3_000_000_000_000_000_i64;
    let ahead =
        format!("UPDATE distlock SET fence = {far} WHERE name = 'x'; UPDATE stall SET now = true");
    run(&mut admin, &ahead).await;
    let minute = Duration::from_secs(60);
    let mut late = claim_within(&pooled, "x", (minute, minute), false);
    let late = tokio::spawn(async move { late.try_acquire().await });
    let within = tokio::time::timeout(minute, async {
        while number(&mut admin, STALLED).await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        while number(&mut admin, "SELECT count(*) FROM distlock WHERE name = 'x'").await > 0 {
            // A grant starts a sweep if one is due.
            let mut other = claim(&sweeping, "other", TTL, false);
            granted(&mut *other).await;
            other.release().await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        run(&mut admin, "UPDATE stall SET now = false").await;
        late.await.unwrap()
    });
    match within.await.expect("the row was not swept").unwrap() {
        Attempt::Granted { token, .. } => {
            unless(token.as_i64() > far, || format!("a fence of {token} after {far}"))
        }
        other => Err(format!("a lock that is free is answered {other:?}")),
    }
}
