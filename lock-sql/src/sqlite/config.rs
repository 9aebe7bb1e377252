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
    /// Absolute, so that a later `chdir` changes nothing.
    pub(super) path: PathBuf,
    /// Whether the file is created when it is missing.
    pub(super) create_file: bool,
}

/// The configuration in what stands after `sqlite:`.
pub(crate) fn config_from_url(rest: &str) -> Result<SqlConfig> {
    if rest.contains('#') {
        return Err(Error::config(
            "an sqlite URL has no `#` part: write %23 if the file's name has a `#`",
        ));
    }
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
            "mode={mode} is unknown: use `rwc` (create the file when it is missing) or `rw`"
        ))),
    }
}

fn file_name(location: &str) -> Result<String> {
    let raw = location.strip_prefix("//").unwrap_or(location);
    if raw.split('/').next().unwrap_or_default().contains('@') {
        // Not shown: this looks like the user and the password of another kind of store.
        return Err(Error::config(
            "an sqlite URL has no user and host: write `sqlite:///abs/path`, and %40 for an `@` in a file's name",
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
        "an in-memory SQLite database belongs to one connection, so nobody else could see its locks: use `memory://` for locks inside of one process, or name a file",
    )
}

fn absolute(name: &str) -> Result<PathBuf> {
    std::path::absolute(Path::new(name)).map_err(|error| {
        Error::config(format!("{name:?} cannot be made an absolute path")).with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn path(url: &str) -> Result<PathBuf> {
        let Target::Sqlite(target) = SqlConfig::from_url(url)?.target else {
            panic!("{url} is sqlite")
        };
        Ok(target.path)
    }

    #[test]
    fn paths() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(path("sqlite:///var/lib/l.db").unwrap(), Path::new("/var/lib/l.db"));
        assert_eq!(path("SQLITE:///a%20b/%C3%BC%23%3F.db").unwrap(), Path::new("/a b/ü#?.db"));
        assert_eq!(path("sqlite://l.db").unwrap(), here.join("l.db"));
        assert_eq!(path("sqlite://d/l.db?mode=rw").unwrap(), here.join("d/l.db"));
        assert_eq!(path("sqlite:l.db").unwrap(), here.join("l.db"));
        for bad in [
            "sqlite://",
            "sqlite:",
            "sqlite:///a/",
            "sqlite:///a%2",
            "sqlite:///%zz",
            "sqlite:///%00",
            "sqlite:///%ff",
            "sqlite:///a#b",
            "sqlite://~/l.db",
        ] {
            assert_eq!(path(bad).unwrap_err().kind(), lock_core::ErrorKind::Config, "{bad}");
        }
    }

    #[test]
    fn an_in_memory_database_points_to_the_memory_store() {
        for bad in [
            "sqlite::memory:",
            "sqlite://:memory:",
            "sqlite:///x?mode=memory",
            "sqlite:file:x?mode=memory",
        ] {
            let error = path(bad).unwrap_err().to_string();
            assert!(error.contains("memory://"), "{bad}: {error}");
        }
    }

    #[test]
    fn parameters() {
        let config = SqlConfig::from_url(
            "sqlite:///x?lock_table=t1&lock_retention=2m&lock_connect_timeout=500ms&lock_create_table=false&mode=rw",
        )
        .unwrap();
        assert_eq!(config.table.as_str(), "t1");
        assert_eq!(config.retention, Duration::from_secs(120));
        assert_eq!(config.connect_timeout, Duration::from_millis(500));
        assert!(!config.create_table);
        let error = SqlConfig::from_url("sqlite:///x?cache=shared").unwrap_err().to_string();
        for name in crate::PARAMETERS.iter().chain(SQLITE_PARAMETERS) {
            assert!(error.contains(name), "{error}");
        }
        for bad in [
            "lock_tabel=x",
            "mode=ro",
            "mode=x",
            "mode",
            "lock_table=a%22b",
            "mode=rw&mode=rwc",
            "lock_retention=5",
        ] {
            assert!(SqlConfig::from_url(&format!("sqlite:///x?{bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_credential_of_a_mistaken_url_is_shown() {
        let error = SqlConfig::from_url("sqlite://user:hunter2@host/db").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}
