//! What an operator should know about an SQLite file.

use lock_core::{Finding, Result};

use super::file::SqliteFile;
use crate::engine::executor::Executor;
use crate::engine::statement::{Places, Statement, Values};

const SETTINGS: &str = "SELECT sqlite_version(), (SELECT journal_mode FROM pragma_journal_mode)";

pub(super) async fn diagnose(executor: &Executor<SqliteFile>) -> Result<Vec<Finding>> {
    let at = executor.at();
    let ask = Statement::new(Places::Numbers, 0, SETTINGS);
    let row = executor.ask(&ask, &Values::default()).await?;
    let mut findings = vec![Finding::fact(format!(
        "{at} is a file of SQLite {}: its locks exclude the processes of this machine only",
        row.text(0)?
    ))];
    let journal = row.text(1)?;
    if journal != "wal" {
        findings.push(Finding::warning(
            format!("the journal mode of {at} is {journal}: processes that wait for a lock slow its holder down"),
            "put the file on a local file system, where write-ahead logging works",
        ));
    }
    Ok(findings)
}
