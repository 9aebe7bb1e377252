//! How often tests were judged again in the runs before, with this build folder: a number that grows is a defect
//! long before it fails a run.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::job;

/// So many runs are shown.
const SHOWN: usize = 10;

/// The numbers of full and of quick runs.
pub(crate) fn file(is_full: bool) -> PathBuf {
    job::target().join(if is_full { "judged-again-full.txt" } else { "judged-again-quick.txt" })
}

/// Adds the number of this run, and tells those of the runs before.
pub(crate) fn noted(file: &Path, number: usize) -> io::Result<String> {
    let before = if file.exists() { fs::read_to_string(file)? } else { String::new() };
    let mut all = File::options().append(true).create(true).open(file)?;
    writeln!(all, "{number}")?;
    let numbers: Vec<_> = before.lines().collect();
    let last = &numbers[numbers.len().saturating_sub(SHOWN)..];
    Ok(match last.is_empty() {
        true => "no run before it here".to_owned(),
        false => format!("in the runs before it here {}", last.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_runs_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("numbers.txt");
        assert_eq!(noted(&file, 3).unwrap(), "no run before it here");
        for number in 0..12 {
            noted(&file, number).unwrap();
        }
        let told = "in the runs before it here 2, 3, 4, 5, 6, 7, 8, 9, 10, 11";
        assert_eq!(noted(&file, 0).unwrap(), told);
    }
}
