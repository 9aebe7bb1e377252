//! A wall clock that is ahead or behind, for the servers and workers that are started with it.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use conformance_tests::Unavailable;
use lock_testkit::preload::{self, readable_folder};
use tempfile::TempDir;

const SOURCE: &str = include_str!("../../clock/clock.c");

/// One clock. Programs with its variables see each step at once.
#[derive(Debug)]
pub(crate) struct WallClock {
    file: File,
    folder: TempDir,
}

impl WallClock {
    pub(crate) fn new() -> Result<Self, Unavailable> {
        let folder = readable_folder()?;
        let file = File::create(folder.path().join("ahead"));
        let file =
            file.map_err(|error| Unavailable::broken(format!("no file for a clock: {error}")))?;
        let clock = Self { file, folder };
        clock.set(0)?;
        library()?;
        Ok(clock)
    }

    /// From now on it is so many seconds ahead of the machine's clock.
    pub(crate) fn set(&self, seconds: i64) -> Result<(), Unavailable> {
        let nanos = seconds.saturating_mul(1_000_000_000);
        self.file
            .write_all_at(&nanos.to_ne_bytes(), 0)
            .map_err(|error| Unavailable::broken(format!("a clock cannot be set: {error}")))
    }

    /// What makes a program see this clock.
    pub(crate) fn variables(&self) -> Result<Vec<(String, OsString)>, Unavailable> {
        Ok(vec![
            ("LD_PRELOAD".to_owned(), library()?.into()),
            ("DISTLOCK_CLOCK".to_owned(), self.folder.path().join("ahead").into()),
        ])
    }
}

/// The library, which is compiled once for each run.
fn library() -> Result<&'static Path, Unavailable> {
    static LIBRARY: OnceLock<Result<(TempDir, PathBuf), Unavailable>> = OnceLock::new();
    let made = LIBRARY.get_or_init(|| {
        let folder = readable_folder()?;
        let library = preload::library(folder.path(), "clock", SOURCE)?;
        Ok((folder, library))
    });
    made.as_ref().map(|(_, library)| library.as_path()).map_err(Clone::clone)
}

/// The folder of the library would outlive the run: a static is never dropped.
pub(crate) fn remove_library() {
    if let Ok(library) = library()
        && let Some(folder) = library.parent()
    {
        let _ = std::fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_program_sees_the_steps_of_its_clock() {
        let clock = WallClock::new().unwrap();
        for (ahead, least) in [(0, 0), (86_400, 86_300), (-3600, -3700)] {
            clock.set(ahead).unwrap();
            let mut date = Command::new("date");
            let output = date.arg("+%s").envs(clock.variables().unwrap()).output().unwrap();
            let seen: i64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            let now = i64::try_from(now.as_secs()).unwrap();
            assert!((least..=ahead + 1).contains(&(seen - now)), "{ahead}: {seen} at {now}");
        }
    }
}
