//! SQLite's URLs.

use std::path::{Path, PathBuf};

use lock_core::url::{Params, decode};
use lock_core::{Error, Result};

use crate::config::{SqlConfig, Target, all_parameters};

/// The parameters that only SQLite has.
pub const SQLITE_PARAMETERS: &[&str] = &["mode"];

/// A database file.
#[derive(Clone, Debug)]
pub(crate) struct SqliteTarget {
    /// Absolute, so a later `chdir` has no effect.
    pub(crate) path: PathBuf,
    /// Whether a missing file is created.
    pub(super) create_file: bool,
}

/// Parses the part of the URL after `sqlite:`.
pub(crate) fn config_from_url(rest: &str) -> Result<SqlConfig> {
    let (location, mut params) = Params::split(rest)?;
    let mut config = SqlConfig::default();
    config.take(&mut params)?;
    let create_file = params.text("mode")?.as_deref().map_or(Ok(true), creates_file)?;
    params.finish("sqlite", &all_parameters(SQLITE_PARAMETERS))?;
    let path = absolute(&file_name(location)?)?;
    config.target = Target::Sqlite(SqliteTarget { path, create_file });
    Ok(config)
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
    if raw.split('/').next().unwrap_or_default().contains('@') {
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
