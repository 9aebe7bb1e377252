//! Signals: their names, receiving them, and work that one ends.

use std::future::poll_fn;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::ExitError;

/// Signals that are passed on to the command, and that end the wait before it.
pub(crate) const FORWARDED: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// Those that ask not only the command to end, but also what would come after it. The others often ask it for
/// something else.
pub(crate) const STOPPING: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::TERM];

const NAMES: [(&str, Signal); 15] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("TERM", Signal::TERM),
    ("ABRT", Signal::ABORT),
    ("ALRM", Signal::ALARM),
    ("BUS", Signal::BUS),
    ("FPE", Signal::FPE),
    ("ILL", Signal::ILL),
    ("PIPE", Signal::PIPE),
    ("SEGV", Signal::SEGV),
    ("XCPU", Signal::XCPU),
];

/// Parses the value of `--signal`: a name with or without SIG, or a number. Accepts only signals
/// that the supervisor, which is in the same process group, can survive.
pub(crate) fn parse(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES
        .iter()
        .filter(|(_, signal)| FORWARDED.contains(signal) || *signal == Signal::KILL)
        .find(|(known, signal)| *known == name || signal.as_raw().to_string() == name)
        .map(|(_, signal)| signal.as_raw())
        .ok_or_else(|| "use one of TERM, INT, HUP, QUIT, USR1, USR2 and KILL".to_owned())
}

/// `SIGTERM`, or `signal 33` for one without a name here.
pub(crate) fn name(number: i32) -> String {
    let known = NAMES.iter().find(|(_, signal)| signal.as_raw() == number);
    known.map_or_else(|| format!("signal {number}"), |(name, _)| format!("SIG{name}"))
}

/// A stream of received signals.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// From now on these signals only arrive here. Those of `wanted` that our parent set to be
    /// ignored, as nohup(1) does, stay ignored, for the command too; `always` arrive in any case.
    pub(crate) fn watch(wanted: &[Signal], always: &[Signal]) -> Result<Self, ExitError> {
        let ignored = ignored();
        let wanted = wanted.iter().filter(|signal| ignored & mask(signal.as_raw()) == 0);
        let streams = wanted
            .chain(always)
            .map(|signal| Ok((*signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<std::io::Result<_>>()
            .map_err(|error| ExitError::internal(format!("cannot receive signals: {error}")))?;
        Ok(Self(streams))
    }

    /// The next signal that has already arrived. Cancel-safe.
    pub(crate) async fn try_next(&mut self) -> Option<Signal> {
        tokio::select! {
            biased;
            signal = self.next() => Some(signal),
            () = std::future::ready(()) => None,
        }
    }

    /// The next signal. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                // `None` would mean that the runtime is gone, and with it this task.
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The set of ignored signals of this process, bit N − 1 for signal N: `SigIgn` in proc(5). Empty if
/// that cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn mask(signal: i32) -> u64 {
    u32::try_from(signal - 1).ok().and_then(|bit| 1_u64.checked_shl(bit)).unwrap_or(0)
}

/// The signals that end it.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// The outcome of `work`, unless a signal comes first: then `work` is dropped, and what it has left
/// in the store ends with its lease.
pub(crate) async fn until_signal<T>(
    work: impl Future<Output = Result<T, ExitError>>,
) -> Result<T, ExitError> {
    let mut signals = Signals::watch(&ENDING, &[])?;
    let signal = tokio::select! {
        biased;
        signal = signals.next() => signal.as_raw(),
        done = work => return done,
    };
    // Not an error that has to be explained: the user asked for it.
    Err(ExitError::of_signal(signal, format!("ended by {}", name(signal))).said())
}

/// A signal ended us before the command was started.
pub(crate) fn interrupted(signal: Signal) -> ExitError {
    let number = signal.as_raw();
    let message = format!("{}: nothing was started, and the lock is not held", name(number));
    ExitError::of_signal(number, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_by_name_and_number() {
        for text in ["TERM", "term", "SIGTERM", "15"] {
            assert_eq!(parse(text), Ok(15), "{text}");
        }
        for text in ["", "SIG", "STOP", "19", "0", "-15", "RTMIN"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(
            (name(9), name(11), name(40)),
            ("SIGKILL".into(), "SIGSEGV".into(), "signal 40".into())
        );
    }

    #[test]
    fn the_mask_counts_from_one() {
        assert_eq!((mask(1), mask(64), mask(0), mask(65)), (1, 1 << 63, 0, 0));
    }

    #[test]
    fn rust_programs_ignore_sigpipe() {
        assert_ne!(ignored() & mask(Signal::PIPE.as_raw()), 0);
    }
}
