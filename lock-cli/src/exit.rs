//! Exit codes, and errors that end the program.

use std::os::unix::process::CommandExt;
use std::process::Command;

use distlock::{Error, ErrorKind};
use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};

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
pub(crate) struct ExitError {
    pub(crate) code: u8,
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// It has been said already, or the user does not want to hear it.
    pub(crate) said: bool,
    /// The signal that is behind it.
    pub(crate) signal: Option<i32>,
}

impl ExitError {
    pub(crate) fn new(code: u8, kind: &'static str, message: impl Into<String>) -> Self {
        Self { code, kind, message: message.into(), hint: None, said: false, signal: None }
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

    /// A signal ended us, or the command. Whoever started us must see that (see [`die_of`]).
    pub(crate) fn of_signal(number: i32, message: impl Into<String>) -> Self {
        let code = code::SIGNAL.saturating_add(u8::try_from(number).unwrap_or(0));
        Self { signal: Some(number), ..Self::new(code, "interrupted", message) }
    }

    /// A second line: what to do about it.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Marks it as already reported, or as not wanted by the user.
    pub(crate) fn said(mut self) -> Self {
        self.said = true;
        self
    }
}

/// Ends this process by `signal`, as timeout(1) does: a shell gives up its script when a command died
/// of Ctrl-C, and goes on when it only exited with 130. Returns where that is not possible, as in
/// the first process of a container.
///
/// Signals that are caught have their default again after an exec, so the program becomes itself.
pub(crate) fn die_of(signal: i32) {
    let _ = Command::new("/proc/self/exe").arg("die").arg(signal.to_string()).exec();
}

/// The end of it, in the fresh program.
pub(crate) fn die(signal: i32) -> u8 {
    // The command has written its own core, if any.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    if let Some(signal) = Signal::from_named_raw(signal) {
        // Rust's own handler for SIGSEGV and SIGBUS only leaves with the first.
        for _ in 0..2 {
            let _ = kill_process(getpid(), signal);
        }
    }
    code::SIGNAL.saturating_add(u8::try_from(signal).unwrap_or(0))
}

/// Each kind of library error maps to one code. Kinds not listed here count as internal errors.
impl From<Error> for ExitError {
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
