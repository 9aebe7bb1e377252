//! The MySQL dialect: a table on a server, MySQL 8 or MariaDB 10.6 and newer.

mod codes;
mod config;
mod mutants;
mod renew;
mod server;
mod statements;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::runtime;
use lock_core::{
    Attempt, Binding, Capabilities, DataLoss, Error, ErrorKind, Fencing, FencingToken, Result,
    SystemClock, Wake, async_trait,
};
use sqlx::MySqlPool;

pub use config::MYSQL_PARAMETERS;
pub(crate) use config::{MySqlTarget, config_from_url};
#[cfg(distlock_mutants)]
pub use mutants::wrong::{MUTANTS, VARIABLE};

use crate::config::SqlConfig;
use crate::engine::driver::{Dialect, Freeing, Lease, State, Turn};
use crate::engine::entry::{Due, Entry, Outcome};
use crate::engine::limits::Limits;
use crate::engine::pool::Pool;
use crate::engine::steps::{Steps, Taken};
use crate::engine::store::{Store, Want};
use crate::engine::value::{Query, Row, Value, fence_or_zero, from_micros, micros};
use crate::engine::wake::{WHILE_CONTENDED, busy};
use server::{MySqlServer, Source};
use statements::{LABEL, SWEEP, Statements, WAS_RUNNING};

/// The lock table of a database.
#[derive(Debug)]
pub(crate) struct MySql(Arc<MySqlServer>);

pub(crate) type MySqlStore = Arc<Store<MySql>>;

pub(crate) async fn connect(target: &MySqlTarget, config: &SqlConfig) -> Result<MySqlStore> {
    let source = Source::Options(Arc::new(target.options.clone()));
    open(server(target.endpoint.clone(), source, config), config).await
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
            "the pool's connections to {server_name} have no database: name the one in which the lock table is"
        )));
    };
    let endpoint = format!("{server_name}/{database}");
    open(server(endpoint, Source::Pool(pool.clone()), config), config).await
}

fn server(endpoint: String, source: Source, config: &SqlConfig) -> MySqlServer {
    MySqlServer::new(endpoint, config.table.clone(), source, config.create_table)
}

async fn open(server: MySqlServer, config: &SqlConfig) -> Result<MySqlStore> {
    runtime::require("MySQL")?;
    let store = on(server, config);
    // The connection looks for the table and tries every right that is needed.
    store.probe(config.connect_timeout).await?;
    Ok(store)
}

fn on(server: MySqlServer, config: &SqlConfig) -> MySqlStore {
    let (server, clock) = (Arc::new(server), SystemClock::default());
    let pool = Pool::new(Arc::clone(&server), clock.clone());
    Store::new(MySql(server), pool, clock, config.retention)
}

impl MySql {
    fn statements(&self) -> &Statements {
        &self.0.statements
    }

    /// Takes the row that is there.
    fn take(&self, entry: &Entry) -> Query {
        let owner = || entry.owner.0.as_bytes();
        Query::new(&self.statements().take)
            .bind(owner())
            .bind(owner())
            .bind(owner())
            .bind(shortened(entry))
            .bind(owner())
            .bind(owner())
            .bind(micros(entry.ttl))
            .bind(entry.name.as_bytes())
    }

    /// Makes the row, and takes it if somebody else has made it.
    fn make(&self, entry: &Entry) -> Query {
        Query::new(&self.statements().make)
            .bind(entry.name.as_bytes())
            .bind(entry.owner.0.as_bytes())
            .bind(micros(entry.ttl))
            .bind(shortened(entry))
    }
}

impl Dialect for MySql {
    type Links = Arc<Pool<MySqlServer>>;

    const NAME: &'static str = "mysql";
    const SWEEPS_AT_ONCE: bool = false;
    const SWEPT: usize = SWEEP;
    const WAS_RUNNING: i64 = WAS_RUNNING;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(Binding::Lease, Wake::Poll);
        // The next fence is made from the stored one; the clock is needed only if the table is lost.
        capabilities.fencing = Fencing::Durable;
        capabilities.detachable = true;
        capabilities.inspect = true;
        capabilities.loses_data_on = &[DataLoss::Failover];
        capabilities
    }

    fn endpoint(&self) -> String {
        self.0.names.at.clone()
    }

    fn probe(&self) -> Query {
        let [_, update, _] = &self.statements().probes;
        Query::new(update)
    }

    fn look(&self, name: &str) -> Query {
        Query::new(&self.statements().look).bind(name.as_bytes())
    }

    fn list(&self, start: &str, bare: bool) -> Query {
        Query::new(&self.statements().list)
            .bind(start.as_bytes())
            .bind(i64::try_from(start.len()).unwrap_or(i64::MAX))
            .bind(start.as_bytes())
            .bind(bare)
    }

    fn release(&self, freeing: &Freeing<'_>) -> Query {
        match freeing.owner {
            Some(owner) => Query::new(&self.statements().release)
                .bind(freeing.name.as_bytes())
                .bind(owner.as_bytes())
                .bind(fence_or_zero(freeing.fence)),
            None => Query::new(&self.statements().force).bind(freeing.name.as_bytes()),
        }
    }

    fn confirm(&self, entry: &Entry, fence: Option<FencingToken>) -> Option<Query> {
        let confirm = Query::new(&self.statements().confirm)
            .bind(entry.name.as_bytes())
            .bind(entry.owner.0.as_bytes());
        Some(confirm.bind(fence_or_zero(fence)))
    }

    fn sweep_page(&self, after: &Value, retention: Duration) -> Query {
        Query::new(&self.statements().sweep_page).bind(micros(retention)).bind(after.as_bytes())
    }

    fn sweep_fold(&self, fence: i64) -> Query {
        Query::new(&self.statements().sweep_fold).bind(fence)
    }

    fn sweep_delete(&self, names: &[Value], folded: i64, retention: Duration) -> Query {
        Query::new(&self.statements().sweep_delete)
            .bind(folded)
            .bind(micros(retention))
            .bind_places(names, SWEEP)
    }

    fn lease(&self, row: &Row) -> Result<Lease> {
        Ok(Lease {
            name: row.text(0).ok().map(str::to_owned),
            owner: row.optional_text(1)?.map(str::to_owned),
            fence: row.int(2)?,
            state: State::of(row.int(3)?),
            held: Some(row.duration(4)?),
            label: row.optional_text(5)?.map(str::to_owned),
        })
    }

    /// The row was written; if the number is missing, nobody knows how.
    fn told(&self, row: &Row) -> Result<i64> {
        row.int(0).map_err(|_| {
            let text = format!(
                "the reply of {} to an UPDATE has not the number that the statement gave to LAST_INSERT_ID: use a proxy that hands it on, or none",
                self.0.names.at
            );
            Error::new(ErrorKind::Store, text).with_unknown_effect()
        })
    }

    fn look_again(&self) {
        self.0.look_again();
    }
}

#[async_trait]
impl Steps for MySql {
    async fn acquire(store: &Store<Self>, entry: &Entry, polling: bool) -> Result<Attempt> {
        let (this, start) = (&store.dialect, store.now());
        let mut reply = match store.take_or_look(entry, polling, || this.take(entry)).await? {
            Taken::Answered(reply) => reply,
            Taken::Held(left) => return Ok(busy(Some(left))),
            Taken::Contended => return Ok(busy(Some(WHILE_CONTENDED))),
        };
        if reply.rows.is_empty() {
            // A new name, or one whose row was removed.
            let make = || this.make(entry);
            let once = Limits::once(start, entry.call_timeout);
            let mut made = store.take(entry, once, make).await?;
            if made.is_none() {
                // Without the mark, as after a TRUNCATE, those who make rows lock the gap in its
                // place, and stop each other. Not if somebody has just that row: then it is not missing.
                let want = Want { turn: Turn::Try, limits: once, owner: None };
                store.execute(want, || Query::new(&this.statements().mark)).await?;
                let patient = Limits::patient(start, entry.call_timeout);
                made = store.take(entry, patient, make).await?;
            }
            let Some(made) = made else { return Ok(busy(Some(WHILE_CONTENDED))) };
            reply = made;
        }
        let told = reply.rows.first().map(|row| this.told(row)).transpose()?.unwrap_or(0);
        match told {
            1.. => {
                let token = FencingToken::answered(told)?;
                Ok(Attempt::Granted { token, valid_for: Some(entry.ttl) })
            }
            left => Ok(busy(Some(from_micros(left.saturating_neg())))),
        }
    }

    async fn renew(store: &Store<Self>, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        renew::renew(store, dues, limit).await
    }
}

/// The label is for people: a long one is cut.
fn shortened(entry: &Entry) -> Option<String> {
    entry.label.as_deref().map(|label| label.chars().take(LABEL).collect())
}
