//! Exit codes, and errors that end the program.

use distlock::{Error, ErrorKind};

/// The codes of sysexits.h where one fits, those of env(1) and timeout(1) for the command, and 79,
/// which neither uses, for a lost lock.
pub(crate) mod code {
    /// `status --quiet`: the lock is free.
    pub(crate) const FREE: u8 = 1;
    /// `doctor`: something should be mended. `conformance`: a case failed.
    pub(crate) const WARNED: u8 = 1;
    /// The command line is wrong.
    pub(crate) const USAGE: u8 = 64;
    /// The store cannot be reached, or refused us.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// A bug in this program.
    pub(crate) const INTERNAL: u8 = 70;
    /// Another client holds the lock.
    pub(crate) const NOT_ACQUIRED: u8 = 75;
    /// The store's URL is wrong, or the build lacks something.
    pub(crate) const CONFIG: u8 = 78;
    /// The lock was lost while the command ran, or was held for too long.
    pub(crate) const LOST: u8 = 79;
    /// The command exists but cannot be executed.
    pub(crate) const NOT_EXECUTABLE: u8 = 126;
    /// The command does not exist.
    pub(crate) const NOT_FOUND: u8 = 127;
    /// Added to the number of the signal that ended the command, or that ended us while waiting.
    pub(crate) const SIGNAL: u8 = 128;
}

/// An error that ends the program: its exit code, what went wrong, and what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// It has been said already, or the user does not want to hear it.
    pub(crate) said: bool,
}

impl Failure {
    pub(crate) fn new(code: u8, kind: &'static str, message: impl Into<String>) -> Self {
        Self { code, kind, message: message.into(), hint: None, said: false }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(code::USAGE, "usage", message)
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(code::CONFIG, "config", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(code::INTERNAL, "internal", message)
    }

    /// A signal ended us before the command was started.
    pub(crate) fn interrupted(signal: i32, name: &str) -> Self {
        let code = code::SIGNAL.saturating_add(u8::try_from(signal).unwrap_or(0));
        Self::new(
            code,
            "interrupted",
            format!("{name} while waiting: the lock was not taken, and nothing was started"),
        )
    }

    /// A second line: what to do about it.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same failure with the exit code the user asked for.
    pub(crate) fn with_code(mut self, code: Option<u8>) -> Self {
        self.code = code.unwrap_or(self.code);
        self
    }

    /// Marks it as already reported, or as not wanted by the user.
    pub(crate) fn said(mut self) -> Self {
        self.said = true;
        self
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

/// Each kind of library error maps to one code. Kinds not listed here count as internal errors.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, kind) = match error.kind() {
            ErrorKind::InvalidInput => (code::USAGE, "invalid-input"),
            ErrorKind::Config => (code::CONFIG, "config"),
            ErrorKind::Unsupported => (code::CONFIG, "unsupported"),
            ErrorKind::NotAcquired => (code::NOT_ACQUIRED, "not-acquired"),
            ErrorKind::Lost(_) => (code::LOST, "lost"),
            ErrorKind::Unavailable => (code::UNAVAILABLE, "unavailable"),
            ErrorKind::NoAnswer => (code::UNAVAILABLE, "no-answer"),
            ErrorKind::Timeout => (code::UNAVAILABLE, "timeout"),
            ErrorKind::Denied => (code::UNAVAILABLE, "denied"),
            ErrorKind::Store => (code::UNAVAILABLE, "store"),
            ErrorKind::Closed => (code::INTERNAL, "closed"),
            _ => (code::INTERNAL, "internal"),
        };
        Self::new(code, kind, error.to_string())
    }
}
