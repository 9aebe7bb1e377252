//! Work that a signal ends, for subcommands that start no command.

use rustix::process::Signal;

use crate::exit::{Failure, code};
use crate::run::signals::{self, Signals};

/// The signals that end it.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// The outcome of `work`, unless a signal comes first: then `work` is dropped, and what it has left
/// in the store ends with its lease.
pub(crate) async fn until_signal<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut signals = Signals::watch(&ENDING)?;
    tokio::select! {
        biased;
        signal = signals.next() => Err(stopped(signal)),
        done = work => done,
    }
}

/// Not an error that has to be explained: the user asked for it.
fn stopped(signal: Signal) -> Failure {
    let number = signal.as_raw();
    let code = code::SIGNAL.saturating_add(u8::try_from(number).unwrap_or(0));
    Failure::new(code, "interrupted", format!("ended by {}", signals::name(number))).said()
}
