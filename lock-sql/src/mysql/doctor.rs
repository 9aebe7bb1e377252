//! What an operator should know about a MySQL or MariaDB server.

use lock_core::{Finding, Result};

use super::server::MySqlServer;
use crate::engine::executor::Executor;
use crate::engine::statement::{Places, Statement, Values};

/// The clock, the version, and the settings that matter. Both servers have all of them.
const SETTINGS: &str = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), VERSION(), \
     CAST(@@GLOBAL.innodb_flush_log_at_trx_commit AS SIGNED), \
     CAST(@@GLOBAL.log_bin AS SIGNED), CAST(@@GLOBAL.sync_binlog AS SIGNED), \
     CAST(@@SESSION.wait_timeout AS SIGNED)";

/// In seconds; a connection that rests is used again after less.
const LEAST_TIMEOUT: i64 = 30;

pub(super) async fn diagnose(executor: &Executor<MySqlServer>) -> Result<Vec<Finding>> {
    let at = executor.at();
    let ask = Statement::new(Places::Marks, 0, SETTINGS);
    let (row, apart) = executor.ask_with_clock(&ask, &Values::default()).await?;
    let version = row.text(1)?;
    let server = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
    let mut findings = vec![Finding::fact(format!("{at} is {server} {version}"))];
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
