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
pub(crate) type Transaction = sqlx::Transaction<'static, Database>;
const LONG_AGO: &str = "CURRENT_TIMESTAMP - INTERVAL 1 HOUR";
const ENDED: &str = "0";

server!(MariaDbServer, MySqlPoolOptions);
// At REPEATABLE READ, the server's own level.
scenes!(start, "BEGIN");
parallel!();
commits!();
with_common!(by_name! {
    transactions_of_one_holder_do_not_wait_for_each_other,
    no_update_is_lost_at_read_committed,
});

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
