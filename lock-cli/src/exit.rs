//! Exit codes, and errors that end the program.

use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::ValueEnum;
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

    /// With the exit code that the user wants for it.
    pub(crate) fn moved(mut self, codes: &[MovedCode]) -> Self {
        let class = MovableFailure::of(&self);
        let wanted = codes.iter().rev().find(|moved| Some(moved.what) == class);
        self.code = wanted.map_or(self.code, |moved| moved.code);
        self
    }

    /// Marks it as already reported, or as not wanted by the user.
    pub(crate) fn said(mut self) -> Self {
        self.said = true;
        self
    }
}

/// The failures that can get another exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MovableFailure {
    NotAcquired,
    Unavailable,
    Denied,
    Config,
    Internal,
    Lost,
}

impl MovableFailure {
    fn of(failure: &ExitError) -> Option<Self> {
        if failure.kind == "denied" {
            return Some(Self::Denied);
        }
        match failure.code {
            code::NOT_ACQUIRED => Some(Self::NotAcquired),
            code::UNAVAILABLE => Some(Self::Unavailable),
            code::CONFIG => Some(Self::Config),
            code::INTERNAL => Some(Self::Internal),
            code::LOST => Some(Self::Lost),
            _ => None,
        }
    }
}

/// Another exit code for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MovedCode {
    pub(crate) what: MovableFailure,
    pub(crate) code: u8,
}

impl MovedCode {
    /// `WHAT=CODE`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (what, code) = text.split_once('=').unwrap_or((text, ""));
        let what = MovableFailure::from_str(what, false).map_err(|_| {
            let known = MovableFailure::value_variants()
                .iter()
                .filter_map(MovableFailure::to_possible_value);
            let known: Vec<_> = known.map(|known| known.get_name().to_owned()).collect();
            format!(
                "{what:?} is not a failure: write one of {}, then = and a code",
                known.join(", ")
            )
        })?;
        let code = code
            .parse()
            .map_err(|_| format!("{code:?} is not an exit code: write a number from 0 to 255"))?;
        Ok(Self { what, code })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_gets_the_code_that_is_wanted_for_it() {
        let codes = ["unavailable=200", "denied=77", "lost=1", "lost=2"].map(MovedCode::parse);
        let codes: Vec<_> = codes.into_iter().collect::<Result<_, _>>().unwrap();
        for (failure, code) in [
            (ExitError::new(code::UNAVAILABLE, "no-answer", ""), 200),
            (ExitError::new(code::UNAVAILABLE, "denied", ""), 77),
            (ExitError::new(code::LOST, "expired", ""), 2),
            (ExitError::config(""), code::CONFIG),
            (ExitError::new(code::NOT_FOUND, "not-found", ""), code::NOT_FOUND),
            (ExitError::of_signal(15, ""), 143),
        ] {
            assert_eq!(failure.moved(&codes).code, code);
        }
        for (text, part) in [
            ("gone=1", "\"gone\""),
            ("usage=1", "not-acquired, unavailable"),
            ("lost", "\"\" is not an exit code"),
            ("lost=256", "0 to 255"),
        ] {
            let error = MovedCode::parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
