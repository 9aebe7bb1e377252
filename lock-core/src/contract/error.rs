//! The library's single error type.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use super::HolderInfo;

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
/// [`source`](StdError::source) is the error of the store's driver or of the system, where there is one, so that
/// a program can look at its code. `Display` shows one line of its text already, and a reporter that prints the whole
/// chain repeats it.
///
/// ```
/// # use lock_core as distlock;
/// use std::error::Error as _;
/// use std::io;
///
/// # let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
/// # let error = distlock::Error::new(distlock::ErrorKind::Unavailable, "no answer").with_source(refused);
/// let driver: Option<&io::Error> = error.source().and_then(|source| source.downcast_ref());
/// assert_eq!(driver.map(io::Error::kind), Some(io::ErrorKind::ConnectionRefused));
/// ```
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
    cause: Option<Cause>,
}

/// What the message is followed by.
#[derive(Clone)]
enum Cause {
    /// Who has the lock.
    Holder(Box<HolderInfo>),
    /// An error, and what is shown in place of its text.
    Error(Arc<dyn StdError + Send + Sync>, Option<Cow<'static, str>>),
}

impl Cause {
    fn shown(&self) -> Option<&dyn fmt::Display> {
        match self {
            Self::Holder(holder) => Some(holder),
            Self::Error(_, Some(text)) if text.is_empty() => None,
            Self::Error(_, Some(text)) => Some(text),
            Self::Error(error, None) => Some(error),
        }
    }
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
            cause: None,
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

    /// Keeps the driver's error as the [source](StdError::source), and shows its text. Neither that text nor its
    /// `Debug` may contain a credential.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.cause = Some(Cause::Error(Arc::new(source), None));
        self
    }

    /// As [`with_source`](Self::with_source), with another text in place of the driver's. Nothing is shown for an
    /// empty one.
    #[must_use]
    pub fn with_source_shown_as(
        mut self,
        source: impl StdError + Send + Sync + 'static,
        text: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.0.cause = Some(Cause::Error(Arc::new(source), Some(text.into())));
        self
    }

    /// Names the holder that is in the way.
    #[must_use]
    pub(crate) fn held_by(mut self, holder: HolderInfo) -> Self {
        self.0.cause = Some(Cause::Holder(Box::new(holder)));
        self
    }

    /// See [`holder`](Self::holder), which is next to what it returns.
    pub(super) fn shown_holder(&self) -> Option<&HolderInfo> {
        match &self.0.cause {
            Some(Cause::Holder(holder)) => Some(holder),
            _ => None,
        }
    }

    /// Names the operation, unless a closer layer has named it already.
    #[must_use]
    pub fn in_operation(mut self, operation: Operation) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

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

    /// See [`for_key`](Self::for_key), which is next to the key.
    pub(super) fn name_lock(&mut self, name: impl fmt::Display) {
        self.0.key.get_or_insert_with(|| name.to_string());
    }

    /// Names the backend, unless a closer layer has named it already.
    #[must_use]
    pub fn on_backend(mut self, backend: &'static str) -> Self {
        self.0.backend.get_or_insert(backend);
        self
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
        if let Some(cause) = details.cause.as_ref().and_then(Cause::shown) {
            // Statements to copy stay as they are.
            f.write_str(if details.message.contains('\n') { "\n" } else { ": " })?;
            // It ends here, and its rest is not needed.
            let _ = write!(OneLine { f, left: LONGEST_CAUSE }, "{cause}");
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
/// print: [`Display`](fmt::Display), and each cause of a source that is shown as it is, on a line of its own, unless
/// the text contains it. `{:#?}` shows the fields.
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
        let shown = match &self.0.cause {
            Some(Cause::Error(error, None)) => error.source(),
            _ => None,
        };
        let causes = std::iter::successors(shown, |cause| (*cause).source());
        for cause in causes.map(ToString::to_string).filter(|cause| !text.contains(cause)) {
            write!(f, "\ncaused by: {cause}")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.0.cause.as_ref()? {
            Cause::Error(error, _) => Some(&**error),
            Cause::Holder(_) => None,
        }
    }
}

/// Why a lock is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out before a renewal succeeded.
    Expired,
    /// The store reported that the lock is no longer ours: it was taken away, or the store lost it. Also, of a lease
    /// token: it was released, or its lease ended, which the store does not tell apart.
    Taken,
    /// [`Lock::max_hold`](crate::Lock::max_hold) was reached.
    MaxHold,
    /// The guard released it or was dropped.
    Released,
    /// It was handed to another process.
    Detached,
    /// The `Locks` was closed, or its runtime ended, while the guard was alive.
    Closed,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out before a renewal succeeded",
            Self::Taken => "the store reports that it is no longer held",
            Self::MaxHold => "the longest allowed hold was reached",
            Self::Released => "it was released",
            Self::Detached => "it was handed to another process",
            Self::Closed => "the connection to the store was closed",
        })
    }
}

impl StdError for LostReason {}

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

    #[test]
    fn the_source_is_the_error_of_the_driver_whatever_is_shown_of_it() {
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let new = || Error::new(ErrorKind::Unavailable, "no answer");
        for (error, text) in [
            (new().with_source(refused()), format!("no answer: {}", refused())),
            (
                new().with_source_shown_as(refused(), "it is full"),
                "no answer: it is full".to_owned(),
            ),
            (new().with_source_shown_as(refused(), ""), "no answer".to_owned()),
        ] {
            assert_eq!((error.to_string(), format!("{error:?}")), (text.clone(), text));
            let source: Option<&std::io::Error> = error.source().and_then(|it| it.downcast_ref());
            assert_eq!(source.map(std::io::Error::kind), Some(refused().kind()));
        }
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
