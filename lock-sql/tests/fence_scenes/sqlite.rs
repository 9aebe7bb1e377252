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
with_common!(by_name! {});
