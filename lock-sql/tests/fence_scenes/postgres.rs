//! Where the data are in PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Held, Locks};
use lock_sql::fence::{admit_token, commit, create_table, forget};
use lock_testkit::servers::PostgresServer;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Executor, Pool, Row};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::{LONG, Scene, key, refused, token};

pub(crate) type Database = sqlx::Postgres;
pub(crate) type Transaction = sqlx::Transaction<'static, Database>;
const LONG_AGO: &str = "now() - interval '1 hour'";
const ENDED: &str = "now() - interval '1 second'";

server!(PostgresServer, PgPoolOptions);
scenes!(start, "BEGIN");
parallel!();
commits!();
with_common!(by_name! {
    transactions_of_one_holder_do_not_wait_for_each_other,
    a_snapshot_that_is_too_old_is_refused,
    nobody_is_granted_the_lock_while_it_commits,
});

pub(crate) async fn a_snapshot_that_is_too_old_is_refused() -> Scene {
    let (_server, pool) = pool().await;
    let mut tx = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    let Err(error) = admit_token(&mut tx, &key("a"), token(1)).await else {
        return Err("violated: a holder is admitted that may read what is older".to_owned());
    };
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("READ COMMITTED"), "{error}");
    drop(tx);
    // At SERIALIZABLE the server finds out itself: the second reads what was there before the first.
    let serializable = "BEGIN ISOLATION LEVEL SERIALIZABLE";
    admitted(&pool, "a", 10).await.unwrap();
    let mut old = pool.begin_with(serializable).await.unwrap();
    admit_token(&mut old, &key("a"), token(10)).await.unwrap();
    let mut next = pool.begin_with(serializable).await.unwrap();
    assert_eq!(data(&mut next).await, (0, 0));
    write(&mut old, 1, 10).await;
    old.commit().await.unwrap();
    let admitted = admit_token(&mut next, &key("a"), token(11)).await;
    let ended = match admitted {
        Ok(()) => next.commit().await.map_err(|error| error.to_string()),
        Err(error) => Err(format!("{error:?}")),
    };
    let Err(error) = ended else {
        return Err("violated: a stale read was committed".to_owned());
    };
    assert!(error.contains("40001") || error.contains("serialize"), "{error}");
    Ok(())
}

/// A constraint that is deferred makes the commit last for a while.
pub(crate) async fn nobody_is_granted_the_lock_while_it_commits() -> Scene {
    let (server, pool) = pool().await;
    run(
        &pool,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_sleep(2); RETURN NULL; END'; \
         CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON data DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION slow()",
    )
    .await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let held = here.named("x").unwrap().acquire().await.unwrap();
    end_all_leases(&pool).await;
    let committing = tokio::spawn({
        let pool = pool.clone();
        async move { counted_by(&pool, &held).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let _next = there.named("x").unwrap().acquire_timeout(LONG).await.unwrap();
    let seen = n(&pool).await;
    match committing.await.unwrap() {
        Ok(()) if seen == 0 => Err("violated: it was committed after a later grant".to_owned()),
        Ok(()) => Ok(()),
        // The commit began late, on a machine that is busy.
        Err(error) => refused(Err(error), &[]),
    }
}
