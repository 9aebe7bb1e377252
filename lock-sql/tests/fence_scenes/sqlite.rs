//! Where the data are in an SQLite file.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Held, Locks};
use lock_sql::fence::{admit_token, commit, create_table, forget};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Executor, Pool, Row};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::{LONG, Scene, key, refused, token};

pub(crate) type Database = sqlx::Sqlite;
pub(crate) type Server = tempfile::TempDir;
pub(crate) type Transaction = sqlx::Transaction<'static, Database>;
const LONG_AGO: &str = "unixepoch() - 3600";
const ENDED: &str = "0";

async fn start() -> (Server, Pool<Database>) {
    let folder = tempfile::tempdir().unwrap();
    let file = SqliteConnectOptions::new().filename(folder.path().join("data.db"));
    let file = file.create_if_missing(true).busy_timeout(LONG);
    let pool = SqlitePoolOptions::new().max_connections(8).acquire_timeout(LONG);
    let pool = pool.connect_with(file).await.unwrap();
    (folder, pool)
}

pub(crate) fn locks_url(folder: &Server) -> String {
    format!("sqlite://{}", folder.path().join("data.db").display())
}

scenes!(start, "BEGIN IMMEDIATE");
commits!();
by_name! {
    whoever_was_overtaken_is_refused,
    the_next_holder_waits_and_sees_what_was_committed,
    no_update_of_a_holder_is_lost,
    old_tokens_can_be_forgotten,
    a_commit_after_a_later_grant_is_refused,
    an_earlier_hold_of_the_owner_is_refused,
    every_holder_of_a_cohort_commits,
}
