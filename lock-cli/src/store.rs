//! Choosing the store, and opening it.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use distlock::{Error, ErrorKind, Lock, Locks};
use tokio::time::timeout;

use crate::args::StoreArgs;
use crate::exit::ExitError;
use crate::output::short;
use crate::signals::until_signal;

/// The variable with the store's URL if `--store` is not given.
const VARIABLE: &str = "DISTLOCK_STORE";

/// How long a read-only command waits for the connection to close.
const CLOSE: Duration = Duration::from_secs(1);

/// An open store, and where its URL came from. The URL itself may contain a password and is not
/// kept.
pub(crate) struct OpenStore {
    pub(crate) locks: Locks,
    origin: String,
}

impl OpenStore {
    /// Opens a store that other processes share, as [`open_any`](Self::open_any) finds it.
    pub(crate) async fn open(args: &StoreArgs, limit: Option<Duration>) -> Result<Self, ExitError> {
        let store = Self::open_any(args, limit).await?;
        if store.locks.backend_name() == "memory" {
            let message = "a memory:// store ends with this process: its locks exclude nobody";
            return Err(ExitError::config(message).with_hint(
                "name a store that others can reach, or none: the default is an SQLite file",
            ));
        }
        Ok(store)
    }

    /// Opens the store from `--store`, else from the environment, else the file in the user's state
    /// directory. Without a `limit` it takes as long as the store's own limits allow.
    pub(crate) async fn open_any(
        args: &StoreArgs,
        limit: Option<Duration>,
    ) -> Result<Self, ExitError> {
        let (url, origin) = choose(args.store.as_deref(), |name| std::env::var_os(name))?;
        let connecting = distlock::connect(&url);
        let connected = match limit {
            None => connecting.await,
            Some(limit) => timeout(limit, connecting).await.unwrap_or_else(|_| {
                let what = format!("the store did not answer within {}", short(limit));
                Err(Error::new(ErrorKind::NoAnswer, what))
            }),
        };
        let locks = connected.map_err(|error| explain(error, &origin))?;
        Ok(Self { locks, origin })
    }

    /// The outcome of `work` on a store that is [opened](Self::open) for it, and closed afterwards.
    pub(crate) async fn with<T>(
        args: &StoreArgs,
        work: impl AsyncFnOnce(&Self) -> Result<T, ExitError>,
    ) -> Result<T, ExitError> {
        let store = Self::open(args, None).await?;
        let done = work(&store).await;
        store.close().await;
        done
    }

    /// As [`with`](Self::with), until a signal comes: then the work is dropped, and the store closed.
    pub(crate) async fn with_until_signal<T>(
        args: &StoreArgs,
        work: impl AsyncFnOnce(&Self) -> Result<T, ExitError>,
    ) -> Result<T, ExitError> {
        let store = until_signal(Self::open(args, None)).await?;
        let done = until_signal(work(&store)).await;
        store.close().await;
        done
    }

    /// The URL of the store that the options name. It may contain a password.
    #[cfg(feature = "conformance")]
    pub(crate) fn url(args: &StoreArgs) -> Result<String, ExitError> {
        choose(args.store.as_deref(), |name| std::env::var_os(name)).map(|(url, _)| url)
    }

    /// A name that no lock has, for a lock of this program's own.
    pub(crate) fn new_name(purpose: &str) -> Result<String, Error> {
        let id = distlock::OwnerId::generate(&distlock::backend::OsRng)?.short();
        Ok(format!("distlock-{purpose}-{id}"))
    }

    /// A lock of this store, with its time to live if one was given. It has no least time: `run` sets that
    /// when its command has run.
    pub(crate) fn lock(&self, name: &str, ttl: Option<Duration>) -> Result<Lock, ExitError> {
        let lock = self.locks.named(name)?.min_hold(Duration::ZERO);
        self.check_ttl(ttl)?;
        Ok(match ttl {
            Some(ttl) => lock.ttl(ttl),
            None => lock,
        })
    }

    /// Refuses a time to live that is shorter than what this store keeps.
    pub(crate) fn check_ttl(&self, ttl: Option<Duration>) -> Result<(), ExitError> {
        let Some(ttl) = ttl else { return Ok(()) };
        let least = self.locks.capabilities().min_ttl;
        if ttl < least {
            return Err(ExitError::usage(format!(
                "--ttl {} is too short for {}: it keeps a lock for {} at least",
                humantime::format_duration(ttl),
                self.locks.backend_name(),
                humantime::format_duration(least)
            ))
            .with_hint("a longer --ttl only makes others wait longer if this machine dies"));
        }
        Ok(())
    }

    /// An answer of the store, with a hint where the store is to blame.
    pub(crate) fn describe<T>(&self, answer: Result<T, Error>) -> Result<T, ExitError> {
        answer.map_err(|error| explain(error, &self.origin))
    }

    /// Closes the connection; nothing is held.
    pub(crate) async fn close(&self) {
        // There is nothing to clean up, and the process ends now.
        let _ = self.locks.close(CLOSE).await;
    }
}

fn explain(error: Error, origin: &str) -> ExitError {
    let hint = match error.kind() {
        ErrorKind::Unavailable | ErrorKind::NoAnswer => {
            format!(
                "the store comes from {origin}: is it up, is the address right, and do both sides use TLS, or neither?"
            )
        }
        ErrorKind::Denied | ErrorKind::Store => {
            format!(
                "the store comes from {origin}: check your access rights, and that nothing else uses it for another purpose"
            )
        }
        ErrorKind::Config => format!("the store comes from {origin}"),
        _ => return error.into(),
    };
    ExitError::from(error).with_hint(hint)
}

/// The URL of the store and where it came from.
fn choose(
    option: Option<&str>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(String, String), ExitError> {
    if let Some(url) = option {
        return Ok((url.to_owned(), "--store".to_owned()));
    }
    if let Some(url) = variable(VARIABLE).filter(|url| !url.is_empty()) {
        return match url.into_string() {
            Ok(url) => Ok((url, format!("${VARIABLE}"))),
            Err(_) => Err(ExitError::config(format!("${VARIABLE} is not UTF-8, as it must be"))),
        };
    }
    if !cfg!(feature = "sqlite") {
        return Err(ExitError::config(format!(
            "no store is given, and this build has no SQLite for the default store: pass --store or set ${VARIABLE}"
        )));
    }
    let folder = state_folder(variable)?;
    make_folder(&folder)?;
    let file = folder.join("locks.db");
    Ok((sqlite_url(&file)?, format!("the default, {}", file.display())))
}

/// `$XDG_STATE_HOME/distlock`, else `~/.local/state/distlock`. The XDG base directory specification
/// says that a relative path there is to be ignored.
fn state_folder(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, ExitError> {
    let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state =
        path("XDG_STATE_HOME").or_else(|| path("HOME").map(|home| home.join(".local/state")));
    state.map(|state| state.join("distlock")).ok_or_else(|| {
        ExitError::config(format!(
            "no store is given, and neither $XDG_STATE_HOME nor $HOME says where your state directory is: pass --store or set ${VARIABLE}"
        ))
    })
}

fn make_folder(folder: &Path) -> Result<(), ExitError> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        ExitError::new(
            crate::exit::code::UNAVAILABLE,
            "unavailable",
            format!("cannot create {} for the default store: {error}", folder.display()),
        )
        .with_hint(format!("create it yourself, pass --store, or set ${VARIABLE}"))
    })
}

/// A URL in which no part of the path can be mistaken for a parameter.
fn sqlite_url(file: &Path) -> Result<String, ExitError> {
    let path = file.to_str().ok_or_else(|| {
        ExitError::config(format!(
            "the state directory {} is not UTF-8: pass --store or set ${VARIABLE}",
            file.display()
        ))
    })?;
    let mut url = "sqlite://".to_owned();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    }

    #[test]
    fn the_option_wins_over_the_variable() {
        let set = [(VARIABLE, "memory://b")];
        assert_eq!(choose(Some("memory://a"), environment(&set)).unwrap().0, "memory://a");
        assert_eq!(choose(None, environment(&set)).unwrap().0, "memory://b");
    }

    #[test]
    fn the_state_folder_is_where_xdg_says() {
        let both = [("XDG_STATE_HOME", "/s"), ("HOME", "/h")];
        assert_eq!(state_folder(environment(&both)).unwrap(), Path::new("/s/distlock"));
        let relative = [("XDG_STATE_HOME", "s"), ("HOME", "/h")];
        assert_eq!(
            state_folder(environment(&relative)).unwrap(),
            Path::new("/h/.local/state/distlock")
        );
        assert!(state_folder(environment(&[])).is_err());
    }

    #[test]
    fn a_path_stays_a_path() {
        let url = sqlite_url(Path::new("/a b/c?d#e%f/ü.db")).unwrap();
        assert_eq!(url, "sqlite:///a%20b/c%3Fd%23e%25f/%C3%BC.db");
    }
}
