//! The MySQL dialect: a table on a server, MySQL 8 or MariaDB 10.6 and newer.

mod codes;
mod config;
mod renew;
mod server;
pub(crate) mod statements;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::runtime;
use lock_core::{
    Attempt, ClockInstant, Error, ErrorKind, FencingToken, Result, SystemClock, async_trait,
};
use sqlx::MySqlPool;

pub use config::MYSQL_PARAMETERS;
pub(crate) use config::{MySqlTarget, config_from_url};

use crate::config::SqlConfig;
use crate::engine::dialect::{Dialect, Turn};
use crate::engine::entry::{Due, Entry, Outcome};
use crate::engine::error::Names;
use crate::engine::pool::Pool;
use crate::engine::statement::{Statements, Values};
use crate::engine::store::{Store, Want};
use crate::engine::value::Row;
use crate::engine::wake::{WHILE_CONTENDED, busy};
use server::{MySqlServer, Source};
use statements::{OwnStatements, WAS_RUNNING};

const NAME: &str = "mysql";

/// The lock table of a database.
#[derive(Debug)]
pub(crate) struct MySql(Arc<MySqlServer>);

pub(crate) type MySqlStore = Arc<Store<MySql>>;

pub(crate) async fn connect(target: &MySqlTarget, config: &SqlConfig) -> Result<MySqlStore> {
    let source = Source::Options(Arc::new(target.options.clone()));
    open(MySqlServer::new(target.endpoint.clone(), source, config), config).await
}

/// Connections of our own, with the options of the pool.
pub(crate) async fn from_pool(pool: &MySqlPool, config: &SqlConfig) -> Result<MySqlStore> {
    let options = pool.connect_options();
    let server_name = match options.get_socket() {
        Some(path) => path.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    let Some(database) = options.get_database() else {
        return Err(Error::config(format!(
            "the pool's connections to {server_name} have no database: name the one with the lock table"
        )));
    };
    let endpoint = format!("{server_name}/{database}");
    open(MySqlServer::new(endpoint, Source::Pool(pool.clone()), config), config).await
}

async fn open(server: MySqlServer, config: &SqlConfig) -> Result<MySqlStore> {
    runtime::require("MySQL")?;
    let store = on(server, config);
    // The connection looks up the table and checks every right that is needed.
    store.probe(config.connect_timeout).await?;
    Ok(store)
}

fn on(server: MySqlServer, config: &SqlConfig) -> MySqlStore {
    let (server, clock) = (Arc::new(server), SystemClock::default());
    let pool = Pool::new(Arc::clone(&server), clock.clone());
    Store::new(MySql(server), pool, clock, config.retention)
}

impl MySql {
    fn own(&self) -> &OwnStatements {
        &self.0.statements.1
    }
}

#[async_trait]
impl Dialect for MySql {
    type Links = Arc<Pool<MySqlServer>>;

    const NAME: &'static str = NAME;
    const SWEEPS_AT_ONCE: bool = false;
    const WAS_RUNNING: i64 = WAS_RUNNING;

    fn names(&self) -> &Names {
        &self.0.names
    }

    fn statements(&self) -> &Statements {
        &self.0.statements.0
    }

    /// The row was written; if the number is missing, the outcome is unknown.
    fn told(&self, row: &Row) -> Result<i64> {
        row.int(0).map_err(|_| {
            let text = format!(
                "the reply of {} to an UPDATE lacks the number that the statement passed to LAST_INSERT_ID: use a proxy that passes it on, or none",
                self.0.names.at
            );
            Error::new(ErrorKind::Store, text).with_unknown_effect()
        })
    }

    fn look_again(&self) {
        self.0.schema.look_again();
    }

    /// A new name, or one whose row was removed.
    async fn missing(store: &Store<Self>, entry: &Entry, start: ClockInstant) -> Result<Attempt> {
        let (make, values) = (&store.dialect.own().make, entry.values(None));
        let marking = Want::patient(Turn::Try, start, entry.call_timeout);
        let want = marking.by(entry);
        let mut made = store.execute(want.once(), make, &values).await?;
        if made.is_none() {
            // Without the mark, as after a TRUNCATE, clients that insert rows lock the gap in its
            // place, and block each other. Not if another client has that row locked: then it
            // exists.
            let values = Values::default().with("fence", None::<FencingToken>);
            store.execute(marking.once(), &store.dialect.statements().sweep_fold, &values).await?;
            made = store.execute(want, make, &entry.values(None)).await?;
        }
        match made.as_ref().map(|made| made.rows.first()) {
            Some(Some(row)) => store.attempt(entry, row),
            Some(None) => Ok(busy(Some(Duration::ZERO))),
            None => Ok(busy(Some(WHILE_CONTENDED))),
        }
    }

    async fn renew(store: &Store<Self>, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        renew::renew(store, dues, limit).await
    }
}
