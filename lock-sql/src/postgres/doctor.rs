//! What an operator should know about a PostgreSQL server.

use lock_core::{Finding, Result};

use super::server::PostgresServer;
use super::{MANY_DEAD_ROWS, Postgres};
use crate::engine::executor::Executor;
use crate::engine::statement::{Places, Statement};
use crate::engine::value::Row;

/// The quoted table → the clock, the version, the settings that matter as a new session gets them, and
/// how the table is kept. A setting that this version does not have is NULL.
const SETTINGS: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
     current_setting('server_version'), \
     (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'), \
     current_setting('fsync'), \
     (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(:table::text)), \
     (SELECT reset_val::bigint FROM pg_settings WHERE name = 'statement_timeout'), \
     (SELECT reset_val::bigint FROM pg_settings WHERE name = 'idle_session_timeout'), \
     (SELECT reset_val::bigint FROM pg_settings WHERE name = 'transaction_timeout')";

/// A statement may wait this long for a row, in ms, and must not be ended before.
const LEAST_TIMEOUT: i64 = 2000;

pub(super) async fn diagnose(
    this: &Postgres,
    executor: &Executor<PostgresServer>,
) -> Result<Vec<Finding>> {
    let (at, table) = (executor.at(), executor.driver.table.values());
    let ask = Statement::new(Places::Dollars, 0, SETTINGS);
    let (row, apart) = executor.ask_with_clock(&ask, &table).await?;
    let mut findings = settings(&row, at)?;
    findings.extend(apart);
    if executor.driver.is_pooled() {
        findings.push(Finding::warning(
            format!("a pooler before {at} gives each transaction another connection: waiters are not notified and poll, and statements are sent unprepared"),
            "give this program a direct connection, or a pooler in session mode",
        ));
    } else if this.waiters.is_none() {
        findings.push(Finding::warning(
            format!("no notifications arrive from {at}: waiters poll"),
            "connect to the primary directly, without a proxy that splits reads from writes",
        ));
    }
    let dead = executor.ask(&executor.own().dead_rows, &table).await?.int(0)?;
    if dead >= MANY_DEAD_ROWS {
        findings.push(Finding::warning(
            format!("the lock table in {at} has {dead} dead row versions, and locks that change hands often become slow"),
            "look for an old snapshot (a long or prepared transaction, a replication slot), and check that autovacuum is on",
        ));
    }
    Ok(findings)
}

fn settings(row: &Row, at: &str) -> Result<Vec<Finding>> {
    let mut findings = vec![Finding::fact(format!("{at} is PostgreSQL {}", row.text(1)?))];
    if row.optional_text(2)? == Some("off") {
        findings.push(Finding::warning(
            format!("synchronous_commit is off for new sessions of {at}; this library switches it on for its own, but behind a pooler a crash of the server may forget the last locks"),
            "ALTER ROLE <user> SET synchronous_commit = on",
        ));
    }
    if row.optional_text(3)? == Some("off") {
        findings.push(Finding::warning(
            format!(
                "fsync is off on {at}: a crash of its machine may lose every lock, or the database"
            ),
            "set fsync to on",
        ));
    }
    if row.optional_text(4)? == Some("u") {
        findings.push(Finding::warning(
            format!("the lock table in {at} is UNLOGGED: a crash of the server loses all locks, which second holders then get"),
            "ALTER TABLE <the lock table> SET LOGGED",
        ));
    }
    for (column, name) in [(5, "statement_timeout"), (7, "transaction_timeout")] {
        if let Some(limit @ 1..LEAST_TIMEOUT) = row.optional_int(column)? {
            findings.push(Finding::warning(
                format!("{name} is {limit} ms on {at}, which ends statements that wait for a row another client is writing"),
                format!("ALTER ROLE <user> SET {name} = '5s'"),
            ));
        }
    }
    if let Some(limit @ 1..) = row.optional_int(6)? {
        findings.push(Finding::warning(
            format!("idle_session_timeout is {limit} ms on {at}, which ends the connection on which waiters are notified"),
            "ALTER ROLE <user> SET idle_session_timeout = 0",
        ));
    }
    Ok(findings)
}
