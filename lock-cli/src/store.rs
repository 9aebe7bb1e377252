//! Choosing the store, and opening it.

use std::time::Duration;

use distlock::{Error, ErrorKind, Lock, Locks};
use tokio::time::{Instant, timeout_at};

use crate::args::StoreArgs;
use crate::exit::ExitError;
use crate::output::short;
use crate::renewals::Renewals;
use crate::signals::until_signal;
use crate::store_url;

/// How long a read-only command waits for the connection to close.
const CLOSE: Duration = Duration::from_secs(1);

/// Longer than any process lives.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// An open store, and where its URL came from. The URL itself may contain a password and is not
/// kept.
pub(crate) struct OpenStore {
    pub(crate) locks: Locks,
    pub(crate) renewals: Renewals,
    origin: String,
}

impl OpenStore {
    /// Opens a store that other processes share, as [`open_any`](Self::open_any) finds it.
    pub(crate) async fn open(args: &StoreArgs) -> Result<Self, ExitError> {
        Self::open_any(args).await?.shared()
    }

    /// The same, and tries again until `limit` has passed while the store cannot be reached. The first time that is
    /// `told`.
    pub(crate) async fn open_within(
        args: &StoreArgs,
        limit: Duration,
        told: impl FnOnce(&Error),
    ) -> Result<Self, ExitError> {
        let (url, origin) = store_url::choose(args, |name| std::env::var_os(name))?;
        let renewals = Renewals::new();
        // It pauses after an attempt that has failed.
        let store = distlock::builder(&url).layer(renewals.clone()).connect_lazy();
        let explain = |error| explain(error, &origin, is_file(&url));
        let store = store.map_err(explain)?;
        // A clock has no moment as late as some limits.
        let ends = Instant::now() + limit.min(FAR);
        let (mut told, mut last) = (Some(told), None);
        loop {
            let error = match timeout_at(ends, store.get()).await {
                Ok(Ok(locks)) => return Self { locks, renewals, origin }.shared(),
                Ok(Err(error)) => error,
                Err(_) => last.unwrap_or_else(|| {
                    let what = format!("the store did not answer within {}", short(limit));
                    Error::new(ErrorKind::NoAnswer, what)
                }),
            };
            let is_away = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NoAnswer);
            if !is_away || Instant::now() >= ends {
                return Err(explain(error));
            }
            if let Some(told) = told.take() {
                told(&error);
            }
            last = Some(error);
        }
    }

    /// If other processes share it.
    fn shared(self) -> Result<Self, ExitError> {
        if self.locks.backend_name() == "memory" {
            let message =
                "a memory:// store exists in this process only: its locks exclude no other process";
            return Err(ExitError::config(message).with_hint(
                "use a store that other processes can reach, or none: the default is an SQLite file",
            ));
        }
        Ok(self)
    }

    /// Opens the store that the options or the environment name, else the file in the user's state
    /// directory. It takes as long as the store's own limits allow.
    pub(crate) async fn open_any(args: &StoreArgs) -> Result<Self, ExitError> {
        let (url, origin) = store_url::choose(args, |name| std::env::var_os(name))?;
        let renewals = Renewals::new();
        match distlock::builder(&url).layer(renewals.clone()).connect().await {
            Ok(locks) => Ok(Self { locks, renewals, origin }),
            Err(error) => Err(explain(error, &origin, is_file(&url))),
        }
    }

    /// The outcome of `work` on a store that is [opened](Self::open) for it, and closed afterwards.
    pub(crate) async fn with<T>(
        args: &StoreArgs,
        work: impl AsyncFnOnce(&Self) -> Result<T, ExitError>,
    ) -> Result<T, ExitError> {
        let store = Self::open(args).await?;
        let done = work(&store).await;
        store.close().await;
        done
    }

    /// As [`with`](Self::with), until a signal comes: then the work is dropped, and the store closed.
    pub(crate) async fn with_until_signal<T>(
        args: &StoreArgs,
        work: impl AsyncFnOnce(&Self) -> Result<T, ExitError>,
    ) -> Result<T, ExitError> {
        let store = until_signal(Self::open(args)).await?;
        let done = until_signal(work(&store)).await;
        store.close().await;
        done
    }

    /// The URL of the store that the options name. It may contain a password.
    #[cfg(feature = "conformance")]
    pub(crate) fn url(args: &StoreArgs) -> Result<String, ExitError> {
        store_url::choose(args, |name| std::env::var_os(name)).map(|(url, _)| url)
    }

    /// A name that no lock has, for a lock of this program's own.
    pub(crate) fn new_name(purpose: &str) -> Result<String, Error> {
        let id = distlock::admin::OwnerId::generate(&distlock::backend::OsRng)?.short();
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
        let is_file = self.locks.backend_name() == "sqlite";
        answer.map_err(|error| explain(error, &self.origin, is_file))
    }

    /// Closes the connection; nothing is held.
    pub(crate) async fn close(&self) {
        // There is nothing to clean up, and the process ends now.
        let _ = self.locks.close(CLOSE).await;
    }
}

fn is_file(url: &str) -> bool {
    url.starts_with("sqlite:")
}

fn explain(error: Error, origin: &str, is_file: bool) -> ExitError {
    let hint = match error.kind() {
        ErrorKind::Unavailable | ErrorKind::NoAnswer if is_file => {
            format!(
                "the store's URL comes from {origin}: can this user write to the file and its folder, is the disk full, or does another program keep the file locked?"
            )
        }
        ErrorKind::Unavailable | ErrorKind::NoAnswer => {
            format!(
                "the store's URL comes from {origin}: is the server running, is the address correct, and do both sides use TLS, or neither?"
            )
        }
        ErrorKind::Denied | ErrorKind::Store => {
            format!(
                "the store's URL comes from {origin}: check your access rights, and that nothing else uses the same table or keys"
            )
        }
        ErrorKind::Config => format!("the store's URL comes from {origin}"),
        _ => return error.into(),
    };
    ExitError::from(error).with_hint(hint)
}
