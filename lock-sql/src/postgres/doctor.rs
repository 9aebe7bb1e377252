//! What an operator should know about a PostgreSQL server.

use lock_core::{Finding, Result};

use crate::engine::store::SqlStore;
use crate::engine::table::lock_table::StatementName;
use crate::engine::wire::statement::{PlaceStyle, Row, SqlStatement};
use crate::postgres::server::PostgresServer;

/// The quoted table → the clock, the version, the settings that matter as a new session gets them, how the
/// table is kept, and the other schemas with a table of this name. A setting that this version does not
/// have is NULL.
const SETTINGS: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
     current_setting('server_version'), \
     (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'), \
     current_setting('fsync'), \
     (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(:table::text)), \
     (SELECT reset_val::bigint FROM pg_settings WHERE name = 'statement_timeout'), \
     (SELECT reset_val::bigint FROM pg_settings WHERE name = 'idle_session_timeout'), \
     (SELECT reset_val::bigint FROM pg_settings WHERE name = 'transaction_timeout'), \
     (SELECT string_agg(o.relnamespace::regnamespace::text, ', ') FROM pg_class AS c JOIN pg_class AS o \
       ON o.relname = c.relname AND o.oid <> c.oid AND o.relkind IN ('r', 'p') \
       WHERE c.oid = to_regclass(:table::text))";

/// The number of dead row versions that is worth a warning.
pub(super) const MANY_DEAD_ROWS: i64 = 10_000;

/// A statement may wait this long for a row, in ms, and must not be ended before.
const LEAST_TIMEOUT: i64 = 2000;

pub(super) async fn diagnose(store: &SqlStore<PostgresServer>) -> Result<Vec<Finding>> {
    let (at, server) = (store.at(), &store.dialect);
    let table = server.table.values();
    let ask = SqlStatement::new(PlaceStyle::Dollars, 0, SETTINGS);
    let (row, apart) = store.ask_with_clock(&ask, &table).await?;
    let mut findings = settings(&row, at)?;
    findings.push(Finding::info(format!("the locks are in {}", server.table.names.table)));
    if let Some(others) = row.optional_text(8)? {
        findings.push(Finding::warning(
            format!("a table of the same name is also in {others}, with separate locks: a client whose search path leads there does not see these"),
            "give all clients the same lock_schema, and drop the table that none of them uses",
        ));
    }
    findings.extend(apart);
    if server.is_pooled() {
        findings.push(Finding::warning(
            format!("a pooler before {at} gives each transaction another connection: waiters are not notified and poll, and statements are sent unprepared"),
            "give this program a direct connection, or a pooler in session mode",
        ));
    } else if server.pushes.get().is_none() {
        findings.push(Finding::warning(
            format!("no notifications arrive from {at}: waiters poll"),
            "connect to the primary directly, without a proxy that splits reads from writes",
        ));
    }
    let dead = store.ask(store.statement(StatementName::DeadRows), &table).await?.int(0)?;
    if dead >= MANY_DEAD_ROWS {
        findings.push(Finding::warning(
            format!("the lock table in {at} has {dead} dead row versions, and locks that change hands often become slow"),
            "look for an old snapshot (a long or prepared transaction, a replication slot), and check that autovacuum is on",
        ));
    }
    Ok(findings)
}

fn settings(row: &Row, at: &str) -> Result<Vec<Finding>> {
    let mut findings = vec![Finding::info(format!("{at} is PostgreSQL {}", row.text(1)?))];
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
