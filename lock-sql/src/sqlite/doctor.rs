//! What an operator should know about an SQLite file.

use std::path::Path;

use lock_core::{Finding, Result};

use crate::engine::store::SqlStore;
use crate::engine::wire::statement::{PlaceStyle, SqlStatement, Values};
use crate::sqlite::database::SqliteFile;
use crate::sqlite::filesystem::{beside, cleaned, resolved};

const SETTINGS: &str = "SELECT sqlite_version(), (SELECT journal_mode FROM pragma_journal_mode)";

/// A log that is longer than this has not been written back for long.
const LONG_LOG: u64 = 64 << 20;

pub(super) async fn diagnose(store: &SqlStore<SqliteFile>) -> Result<Vec<Finding>> {
    let at = store.at();
    let ask = SqlStatement::new(PlaceStyle::Numbers, 0, SETTINGS);
    let row = store.ask(&ask, &Values::default()).await?;
    let (version, journal) = (row.text(0)?, row.text(1)?);
    let mut findings = vec![Finding::info(format!(
        "{at} is a file of SQLite {version}: its locks exclude the processes of this machine only"
    ))];
    if !is_sound(version) {
        findings.push(Finding::warning(
            format!("SQLite {version} may lose a commit when another process writes the log back at the same instant, and a lock with it"),
            "link SQLite 3.51.3 or newer (libsqlite3-sys 0.37), 3.50.7 or 3.44.6",
        ));
    }
    let real = resolved(&store.dialect.target.path);
    match &real {
        Some(real) if journal == "wal" => findings.push(log(at, real)),
        _ => findings.push(Finding::warning(
            format!("the journal mode of {at} is {journal}: processes that wait for a lock slow its holder down"),
            "put the file on a local file system, where write-ahead logging works",
        )),
    }
    if let Some(folder) = real.as_deref().and_then(cleaned) {
        findings.push(Finding::warning(
            format!("{at} is in {folder}, whose old files are removed by programs that clean up, also while they are in use"),
            "move it into a folder that nothing cleans, such as /var/lib/…",
        ));
    }
    Ok(findings)
}

/// How long the log is.
fn log(at: &str, real: &Path) -> Finding {
    let bytes = std::fs::metadata(beside(real, "-wal")).map_or(0, |file| file.len());
    let text = format!("the log of {at} (-wal) has {:.1} MiB", bytes as f64 / f64::from(1 << 20));
    match bytes > LONG_LOG {
        true => Finding::warning(
            format!("{text}: a program reads for so long that it is not written back"),
            "end the transaction that some program has left open on this file, or the disk fills up",
        ),
        false => Finding::info(text),
    }
}

/// Whether this version is without the defect that two processes, of which one commits and one writes
/// the log back at the same instant, may lose a commit (<https://sqlite.org/wal.html#walresetbug>).
fn is_sound(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    let numbers: [u32; 3] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
    match numbers {
        [3, 44, patch] => patch >= 6,
        [3, 50, patch] => patch >= 7,
        newer => newer >= [3, 51, 3],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_may_lose_a_commit_are_known() {
        for sound in ["3.44.6", "3.50.7", "3.50.8", "3.51.3", "3.52.0", "4.0"] {
            assert!(is_sound(sound), "{sound}");
        }
        for unsound in ["3.38.0", "3.44.5", "3.45.9", "3.50.6", "3.51.2", "3.51", "x"] {
            assert!(!is_sound(unsound), "{unsound}");
        }
    }
}
