//! The library's single error type.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

/// The result of every fallible operation of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, where, and whether the store may have acted anyway.
///
/// It answers three separate questions, because callers handle them differently: *what* happened
/// ([`kind`](Self::kind)), *may I try again* ([`is_retryable`](Self::is_retryable)), and *did the
/// store do it anyway* ([`effect`](Self::effect)).
///
/// Errors never contain a credential: a backend names its endpoint, never the URL that it was given.
///
/// ```
/// # use lock_core as distlock;
/// use distlock::{ErrorKind, LockKey};
///
/// let error = LockKey::new("", "").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidInput);
/// assert!(!error.is_retryable());
/// ```
#[derive(Clone)]
pub struct Error(Box<Details>);

#[derive(Clone)]
struct Details {
    kind: ErrorKind,
    effect: Effect,
    retryable: bool,
    operation: Option<Operation>,
    key: Option<String>,
    backend: Option<&'static str>,
    message: Cow<'static, str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, a duration or a token that the caller passed breaks a rule. Nothing was sent.
    InvalidInput,
    /// A bad URL or parameter, or a missing cargo feature. Nothing was sent.
    Config,
    /// The store lacks a capability that was asked for. Nothing was sent.
    Unsupported,
    /// The wait timed out while another client held the lock.
    NotAcquired,
    /// The lock was held and no longer is.
    Lost(LostReason),
    /// The store could not be reached, or cannot serve requests now.
    Unavailable,
    /// The store did not answer in time, or the runtime that keeps the lock is not driven.
    NoAnswer,
    /// The caller's time limit passed while something was still open: see
    /// [`Locks::close`](crate::Locks::close).
    Timeout,
    /// The store denied access: credentials, permissions, a file that is not writable.
    Denied,
    /// The store gave an invalid answer: a different schema, a value out of range.
    Store,
    /// The `Locks` was closed.
    Closed,
    /// A defect of this library or of a backend.
    Internal,
}

/// Whether the failed operation may have taken effect in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The store did not act.
    None,
    /// The store may have acted or may still act: the request was sent and no answer was seen.
    Unknown,
}

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening the store.
    Connect,
    /// Trying or waiting to get the lock.
    Acquire,
    /// Prolonging the lock or the place in the queue.
    Renew,
    /// Asking the store whether the lock is still held.
    Check,
    /// Giving the lock up.
    Release,
    /// Handing the lock to another process.
    Detach,
    /// Taking over a lock that another process detached.
    Attach,
    /// Inspecting one lock.
    Inspect,
    /// Listing locks.
    List,
    /// Taking a lock away from its holder.
    ForceRelease,
    /// Looking whether somebody has a lock.
    Look,
    /// Looking for what is wrong with the store.
    Diagnose,
    /// Letting a store serve again that waits for an operator.
    Recover,
    /// Asking whether the store answers.
    Ping,
    /// Closing the store.
    Close,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Check => "check",
            Self::Release => "release",
            Self::Detach => "detach",
            Self::Attach => "attach",
            Self::Inspect => "inspect",
            Self::List => "list",
            Self::ForceRelease => "force-release",
            Self::Look => "look",
            Self::Diagnose => "diagnose",
            Self::Recover => "recover",
            Self::Ping => "ping",
            Self::Close => "close",
        })
    }
}

impl Error {
    /// A new error. `message` names the value, the rule and the remedy, but never a credential.
    ///
    /// [`ErrorKind::Unavailable`], [`ErrorKind::NoAnswer`] and [`ErrorKind::Timeout`] start as
    /// retryable, all others do not. The last two start with [`Effect::Unknown`], all others with
    /// [`Effect::None`].
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let is_open = matches!(kind, ErrorKind::NoAnswer | ErrorKind::Timeout);
        Self(Box::new(Details {
            kind,
            effect: if is_open { Effect::Unknown } else { Effect::None },
            retryable: is_open || kind == ErrorKind::Unavailable,
            operation: None,
            key: None,
            backend: None,
            message: message.into(),
            source: None,
        }))
    }

    /// Bad input: see [`ErrorKind::InvalidInput`].
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// Bad configuration: see [`ErrorKind::Config`].
    pub fn config(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// A missing capability: see [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// The lock is lost for `reason`.
    pub fn lost(reason: LostReason) -> Self {
        Self::new(ErrorKind::Lost(reason), format!("the lock is lost: {reason}"))
    }

    /// Records that the store may have acted although no answer was seen.
    #[must_use]
    pub fn with_unknown_effect(mut self) -> Self {
        self.0.effect = Effect::Unknown;
        self
    }

    /// Records whether the same call may succeed when it is made again.
    #[must_use]
    pub fn with_retryable(mut self, retryable: bool) -> Self {
        self.0.retryable = retryable;
        self
    }

    /// Keeps the driver's error as the cause. It must not print a credential.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Names the operation, unless a closer layer has named it already.
    #[must_use]
    pub fn in_operation(mut self, operation: Operation) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// See [`for_key`](Self::for_key), which is next to the key.
    /// `None` for an attempt that met another holder.
    pub(crate) fn unless_busy<T>(taken: Result<T>) -> Result<Option<T>> {
        match taken {
            Err(busy) if busy.kind() == ErrorKind::NotAcquired => Ok(None),
            taken => taken.map(Some),
        }
    }

    /// The same, of the lock with this name, in place of the one that it is made of.
    #[must_use]
    pub(crate) fn renamed(mut self, name: impl fmt::Display) -> Self {
        self.0.key = Some(name.to_string());
        self
    }

    pub(super) fn name_lock(&mut self, name: impl fmt::Display) {
        self.0.key.get_or_insert_with(|| name.to_string());
    }

    /// Names the backend, unless a closer layer has named it already.
    #[must_use]
    pub fn on_backend(mut self, backend: &'static str) -> Self {
        self.0.backend.get_or_insert(backend);
        self
    }

    /// The cause that [`with_source`](Self::with_source) was given.
    pub(super) fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the store failed in a way that may pass, so that the same call may succeed if it is repeated.
    /// A lock that another client holds is no such failure: [`NotAcquired`](ErrorKind::NotAcquired) is not
    /// retryable, and to wait for longer is up to the caller.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// Whether the store may have acted.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// Why the lock is lost, if this error reports a loss.
    pub fn lost_reason(&self) -> Option<LostReason> {
        match self.0.kind {
            ErrorKind::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    /// The operation that failed, where it is known.
    pub fn operation(&self) -> Option<Operation> {
        self.0.operation
    }

    /// The lock concerned, where there is one.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// The backend that failed, where there is one.
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }

    /// The sentence without operation, key, backend and cause.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = &self.0;
        if let Some(operation) = details.operation {
            write!(f, "{operation}")?;
            if let Some(key) = &details.key {
                write!(f, " {key:?}")?;
            }
            if let Some(backend) = details.backend {
                write!(f, " on {backend}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&details.message)?;
        if let Some(source) = &details.source {
            // Statements to copy stay as they are.
            f.write_str(if details.message.contains('\n') { "\n" } else { ": " })?;
            // It ends here, and its rest is not needed.
            let _ = write!(OneLine { f, left: LONGEST_CAUSE }, "{source}");
        }
        Ok(())
    }
}

/// The most that an error shows of its cause.
const LONGEST_CAUSE: usize = 300;

/// Writes what a server or a driver has said: a hostile one must neither fill a log nor draw on a terminal.
struct OneLine<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    left: usize,
}

impl fmt::Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if self.left == 0 {
                self.f.write_str("…")?;
                return Err(fmt::Error);
            }
            self.left -= 1;
            self.f.write_char(if letter.is_control() { ' ' } else { letter })?;
        }
        Ok(())
    }
}

/// `{:?}` is the text for people, since that is what `fn main() -> distlock::Result<()>` and `unwrap`
/// print: [`Display`](fmt::Display), and each deeper cause that it does not contain yet on a line of
/// its own. `{:#?}` shows the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_string();
        if f.alternate() {
            return f
                .debug_struct("Error")
                .field("kind", &self.0.kind)
                .field("effect", &self.0.effect)
                .field("retryable", &self.0.retryable)
                .field("text", &text)
                .finish();
        }
        f.write_str(&text)?;
        let causes = std::iter::successors(self.source(), |cause| (*cause).source());
        for cause in causes.map(ToString::to_string).filter(|cause| !text.contains(cause)) {
            write!(f, "\ncaused by: {cause}")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // `Display` already prints the cause, so a reporter that walks the chain starts below it.
        self.cause()?.source()
    }
}

/// Why a lock is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out before a renewal succeeded.
    #[error("its lease ran out before a renewal succeeded")]
    Expired,
    /// The store reported that the lock is no longer ours: it was taken away, or the store lost it.
    #[error("the store reports that it is no longer held")]
    Taken,
    /// [`Lock::max_hold`](crate::Lock::max_hold) was reached.
    #[error("the longest allowed hold was reached")]
    MaxHold,
    /// The guard released it or was dropped.
    #[error("it was released")]
    Released,
    /// It was handed to another process.
    #[error("it was handed to another process")]
    Detached,
    /// The `Locks` was closed, or its runtime ended, while the guard was alive.
    #[error("the connection to the store was closed")]
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockKey;

    #[test]
    fn the_innermost_layer_names_the_place() {
        let key = LockKey::new("app", "order:42").unwrap();
        let error = Error::new(ErrorKind::Unavailable, "connection refused")
            .in_operation(Operation::Acquire)
            .in_operation(Operation::Ping)
            .for_key(&key)
            .on_backend("redis");
        assert_eq!(error.to_string(), "acquire \"app/order:42\" on redis: connection refused");
        assert!(error.is_retryable());
        assert_eq!(error.effect(), Effect::None);
    }

    #[test]
    fn a_cause_is_kept_apart_from_a_statement() {
        let cause = || std::io::Error::other("denied");
        let said = |message: &'static str| Error::config(message).with_source(cause()).to_string();
        assert_eq!(said("no table"), "no table: denied");
        assert_eq!(said("execute\nCREATE x;"), "execute\nCREATE x;\ndenied");
    }

    /// What a program prints whose `main` returns the error.
    #[test]
    fn the_debug_text_is_for_people_and_the_alternate_one_shows_the_fields() {
        let io = std::io::Error::new(std::io::ErrorKind::TimedOut, "no route");
        let cause = Error::config("the proxy is down").with_source(io);
        let error = Error::new(ErrorKind::Store, "execute\nCREATE x;")
            .with_source(std::io::Error::other(cause))
            .in_operation(Operation::Connect);
        assert_eq!(
            format!("{error:?}"),
            "connect: execute\nCREATE x;\nthe proxy is down: no route"
        );
        let fields = format!("{error:#?}");
        for part in ["kind: Store", "effect: None", "retryable: false", "CREATE x;\\n"] {
            assert!(fields.contains(part), "{fields}");
        }
        #[derive(Debug)]
        struct Deep;
        impl fmt::Display for Deep {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the request failed")
            }
        }
        impl StdError for Deep {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&fmt::Error)
            }
        }
        let deep = Error::new(ErrorKind::Unavailable, "no answer").with_source(Deep);
        let shown = format!("{:?}", Some(deep));
        let last = format!("caused by: {})", fmt::Error);
        assert_eq!(shown, format!("Some(no answer: the request failed\n{last}"));
    }

    #[test]
    fn a_cause_is_one_line_of_a_bounded_length() {
        let said = |text: String| {
            Error::config("no table").with_source(std::io::Error::other(text)).to_string()
        };
        assert_eq!(said("a\x1b[2J\r\nb".to_owned()), "no table: a [2J  b");
        let long = said("é".repeat(5_000));
        assert_eq!(long, format!("no table: {}…", "é".repeat(LONGEST_CAUSE)));
    }

    #[test]
    fn a_timeout_is_unknown_until_somebody_knows_better() {
        assert_eq!(Error::new(ErrorKind::NoAnswer, "no answer").effect(), Effect::Unknown);
    }
}
