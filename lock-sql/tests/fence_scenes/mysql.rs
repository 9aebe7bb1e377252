//! Where the data are in MariaDB.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Held, Locks};
use lock_sql::fence::{admit_token, commit, create_table, forget};
use lock_testkit::servers::MariaDbServer;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{AssertSqlSafe, Executor, Pool, Row};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::{LONG, Scene, key, refused, token};

pub(crate) type Database = sqlx::MySql;
pub(crate) type Server = MariaDbServer;
pub(crate) type Transaction = sqlx::Transaction<'static, Database>;
const LONG_AGO: &str = "CURRENT_TIMESTAMP - INTERVAL 1 HOUR";
const ENDED: &str = "0";

async fn start() -> (Server, Pool<Database>) {
    let server = MariaDbServer::builder().start().await.unwrap();
    let pool = connect(server.url()).await;
    (server, pool)
}

pub(crate) async fn connect(url: &str) -> Pool<Database> {
    let pool = MySqlPoolOptions::new().max_connections(8).acquire_timeout(LONG);
    pool.connect(url).await.unwrap()
}

pub(crate) fn locks_url(server: &Server) -> String {
    server.url().to_owned()
}

// At REPEATABLE READ, the server's own level.
scenes!(start, "BEGIN");
parallel!();
commits!();
by_name! {
    whoever_was_overtaken_is_refused,
    the_next_holder_waits_and_sees_what_was_committed,
    no_update_of_a_holder_is_lost,
    old_tokens_can_be_forgotten,
    a_commit_after_a_later_grant_is_refused,
    an_earlier_hold_of_the_owner_is_refused,
    every_holder_of_a_cohort_commits,
    transactions_of_one_holder_do_not_wait_for_each_other,
    no_update_is_lost_at_read_committed,
}

/// Here nothing keeps several from finding that there is no row.
pub(crate) async fn no_update_is_lost_at_read_committed() -> Scene {
    let (server, first) = pool().await;
    run(&first, "SET GLOBAL TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
    let pool = connect(server.url()).await;
    for round in 1..=20 {
        let fences: Vec<u64> = (0..8).map(|number| 10 * round + number * 3 % 8).collect();
        counted(&pool, &format!("name{round}"), &fences, fences.len()).await?;
    }
    Ok(())
}
