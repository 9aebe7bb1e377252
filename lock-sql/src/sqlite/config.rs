//! SQLite's URLs.

use std::panic::RefUnwindSafe;
use std::path::{Path, PathBuf};

use lock_core::{Error, Result};
use lock_kit::settings::{Parameter, ReadBy};
use lock_kit::url::{Params, decode};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

/// The parameters that only SQLite has.
pub const SQLITE_PARAMETERS: &[&str] = &[MODE.name];

/// Whether a missing file is created.
const MODE: Parameter<ReadBy<bool>> = Parameter {
    name: "mode",
    text: "`rwc` creates a missing file, `rw` does not",
    default: "`rwc`",
    values: creates_file,
};

/// A database file, and what may be done to it.
#[derive(Clone)]
pub(crate) struct SqliteTarget {
    /// Absolute, so a later `chdir` has no effect.
    pub(super) path: PathBuf,
    /// Whether a missing file is created.
    pub(super) may_create: bool,
    /// Switch to write-ahead logging. Not done for the database of an application's pool.
    pub(super) use_wal: bool,
    /// Those of a pool may contain the key of an encrypted database.
    pub(super) options: SqliteConnectOptions,
}

/// Only the options are read, also those of a pool.
impl RefUnwindSafe for SqliteTarget {}

impl SqliteTarget {
    /// Reads the part of the URL between `sqlite:` and the parameters, and those.
    pub(crate) fn from_url(location: &str, params: &mut Params) -> Result<Self> {
        let may_create = MODE.read(params)?.unwrap_or(true);
        let path = absolute(&file_name(location)?)?;
        Ok(Self { path, may_create, use_wal: true, options: SqliteConnectOptions::new() })
    }

    /// Connections of our own, with the options of the pool.
    pub(crate) fn of_pool(pool: &SqlitePool) -> Result<Self> {
        let options = SqliteConnectOptions::clone(&pool.connect_options());
        let name = options.get_filename();
        if name.as_os_str().is_empty() || name.to_string_lossy().contains(":memory:") {
            return Err(Error::config(
                "this pool uses an in-memory database, which belongs to one connection: use a file, or `memory://`",
            ));
        }
        let path = std::path::absolute(name).map_err(|error| {
            Error::config("the path of the pool's file cannot be made absolute").with_source(error)
        })?;
        Ok(Self { path, may_create: false, use_wal: false, options })
    }
}

fn creates_file(mode: &str) -> Result<bool> {
    match mode {
        "rwc" => Ok(true),
        "rw" => Ok(false),
        "memory" => Err(in_memory()),
        "ro" => Err(Error::config("mode=ro cannot be used: taking a lock writes to the database")),
        _ => Err(Error::config(format!(
            "mode={mode} is unknown: use `rwc` (create the file if it is missing) or `rw`"
        ))),
    }
}

fn file_name(location: &str) -> Result<String> {
    let raw = location.strip_prefix("//").unwrap_or(location);
    if raw.split('/').next().unwrap_or_default().contains('@') || raw.contains("://") {
        // Not shown: this looks like the user and password of another kind of store.
        return Err(Error::config(
            "an sqlite URL has no user and host: write `sqlite:///abs/path`, and %40 for an `@` in a file name",
        ));
    }
    let name = decode("the path", raw)?;
    if name == ":memory:" || name.starts_with("file:") && name.contains("memory") {
        return Err(in_memory());
    }
    if name.is_empty() {
        return Err(Error::config(
            "this sqlite URL names no file: write it as in `sqlite:///var/lib/app/locks.db`",
        ));
    }
    if name.starts_with("~/") {
        return Err(Error::config(format!(
            "{name:?}: `~` is not expanded in a URL: write the home directory out"
        )));
    }
    if name.ends_with('/') {
        return Err(Error::config(format!("{name:?} is a directory: name a file in it")));
    }
    Ok(name)
}

fn in_memory() -> Error {
    Error::config(
        "an in-memory SQLite database belongs to one connection, so no other connection could see its locks: use `memory://` for locks within one process, or name a file",
    )
}

fn absolute(name: &str) -> Result<PathBuf> {
    std::path::absolute(Path::new(name)).map_err(|error| {
        Error::config(format!("{name:?} cannot be made an absolute path")).with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_of_the_parameter_what_is_declared() {
        assert!(include_str!("../../README.md").contains(&MODE.row()), "{}", MODE.row());
    }
}
