//! The MySQL dialect: a table on a server, MySQL 8 or MariaDB 10.6 and newer.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Attempt, FencingToken, Finding, LockBackend, Result, SystemClock, async_trait};
use lock_kit::runtime;
use statements::{NAME, WAS_RUNNING};

use crate::engine::backend::DialectBackend;
use crate::engine::renewals::RenewalSender as _;
use crate::engine::store::{Dialect, SqlStore};
use crate::engine::table::lock_table::StatementName;
use crate::engine::table::row::{DueRenewal, OwnRow, RenewalOutcome};
use crate::engine::table::settings::{Settings, SqlTarget};
use crate::engine::waiters::busy;
use crate::engine::wire::connections::{StatementClass, StatementLimits};
use crate::engine::wire::pool::ServerPool;
use crate::engine::wire::statement::{PlaceStyle, SqlStatement, Values};
use crate::mysql::server::MySqlServer;

mod codes;
mod config;
mod renewals;
mod server;
pub(crate) mod statements;
#[cfg(test)]
mod tests;

pub(crate) use codes::{RULES, code};
pub use config::MYSQL_PARAMETERS;
pub(crate) use config::MySqlTarget;

#[async_trait]
impl SqlTarget for MySqlTarget {
    fn dialect(&self) -> &'static str {
        NAME
    }

    fn parameters(&self) -> &'static [&'static str] {
        MYSQL_PARAMETERS
    }

    fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    async fn open(&self, settings: &Settings) -> Result<Arc<dyn LockBackend>> {
        runtime::require("MySQL")?;
        let store = on(MySqlServer::new(self, settings));
        // The connection looks up the table and checks every right that is needed.
        store.probe(settings.connect_timeout).await?;
        Ok(Arc::new(DialectBackend::new(store, settings.retention)))
    }
}

fn on(server: MySqlServer) -> Arc<SqlStore<MySqlServer>> {
    let (dialect, clock) = (Arc::new(server), SystemClock::default());
    let connections = Arc::new(ServerPool::new(Arc::clone(&dialect), clock.clone()));
    Arc::new(SqlStore { dialect, connections, clock })
}

/// The clock, the version, and the settings that matter. Both servers have all of them.
const SETTINGS: &str = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), VERSION(), \
     CAST(@@GLOBAL.innodb_flush_log_at_trx_commit AS SIGNED), \
     CAST(@@GLOBAL.log_bin AS SIGNED), CAST(@@GLOBAL.sync_binlog AS SIGNED), \
     CAST(@@SESSION.wait_timeout AS SIGNED)";

/// In seconds; a connection that rests is used again after less.
const LEAST_TIMEOUT: i64 = 30;

#[async_trait]
impl Dialect for MySqlServer {
    const NAME: &'static str = NAME;
    const SWEEPS_AT_ONCE: bool = false;
    const WAS_RUNNING: i64 = WAS_RUNNING;

    /// A new name, or one whose row was removed.
    async fn acquire_without_row(
        store: &SqlStore<Self>,
        limits: StatementLimits,
        entry: &OwnRow,
    ) -> Result<Option<Attempt>> {
        let (make, values) = (store.statement(StatementName::AcquireNew), entry.values(None));
        let mut made = store.execute(limits.once(), make, &values).await?;
        if made.is_none() {
            // Without the mark, as after a TRUNCATE, clients that insert rows lock the gap in its
            // place, and block each other. Not if another client has that row locked: then it
            // exists.
            let marking = limits.then(StatementClass::Try).once();
            let mark = store.statement(StatementName::SweepFold);
            let no_fence = Values::default().with("fence", None::<FencingToken>);
            store.execute(marking, mark, &no_fence).await?;
            made = store.execute(limits, make, &values).await?;
        }
        let Some(made) = made else { return Ok(None) };
        match made.rows.first() {
            Some(row) => store.attempt(entry, row).map(Some),
            None => Ok(Some(busy(Some(Duration::ZERO)))),
        }
    }

    async fn diagnose(store: &SqlStore<Self>) -> Result<Vec<Finding>> {
        let at = store.at();
        let ask = SqlStatement::new(PlaceStyle::Marks, 0, SETTINGS);
        let (row, apart) = store.ask_with_clock(&ask, &Values::default()).await?;
        let version = row.text(1)?;
        let server = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
        let mut findings = vec![Finding::info(format!("{at} is {server} {version}"))];
        findings.extend(apart);
        let flush = row.int(2)?;
        if flush != 1 {
            findings.push(Finding::warning(
                format!("innodb_flush_log_at_trx_commit is {flush} on {at}: a crash of its machine may forget the last second of locks, which second holders then get"),
                "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and set it in the configuration",
            ));
        }
        if row.flag(3)? && row.int(4)? != 1 {
            findings.push(Finding::warning(
                format!("sync_binlog is {} on {at}: after a crash, replicas may have locks that it has forgotten, or lack some", row.int(4)?),
                "SET GLOBAL sync_binlog = 1, and set it in the configuration",
            ));
        }
        let wait = row.int(5)?;
        if wait < LEAST_TIMEOUT {
            findings.push(Finding::warning(
                format!("wait_timeout is {wait} s on {at}: connections that rest are closed, and the next lock waits for a new one"),
                "set wait_timeout to 60 or more",
            ));
        }
        Ok(findings)
    }

    async fn renew_batch(
        store: &SqlStore<Self>,
        dues: &[DueRenewal<'_>],
        limit: Duration,
    ) -> Result<Vec<RenewalOutcome>> {
        match dues {
            [due] => Ok(vec![store.renew_alone(*due, limit).await?]),
            _ => renewals::renew_many(store, dues, limit).await,
        }
    }
}
