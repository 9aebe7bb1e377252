//! What `run` and its supervisor say to each other: one line of plain text each.

use std::fmt;

use distlock::clock::ClockInstant;

use super::deadline::Deadlines;

/// From `run` to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The lease has moved. The first one starts the command.
    Lease(Deadlines),
    /// Pass this signal on.
    Signal(i32),
    /// The lock is not ours any more: ask the command to stop now, and give it the time that
    /// `--kill-after` names, whatever the lease was.
    Stop,
}

/// From the supervisor to `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command runs, with this process id.
    Started(i32),
    /// It could not be started, with this error number of the system (0 if there is none).
    NotStarted(i32),
    /// The first lease was about to end, or over, when it arrived: the command was not started.
    TooLate,
    /// A deadline has come, and the command was asked to stop or killed.
    Stopping,
    /// The end, last of all.
    Ended(Ended),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Exited(u8),
    Signaled(i32),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease(at) => {
                write!(f, "lease {} {}", at.ask_at.as_nanos(), at.kill_at.as_nanos())
            }
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::Stop => f.write_str("stop"),
        }
    }
}

impl Order {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let order = match words.next()? {
            "lease" => {
                let mut instant = || Some(ClockInstant::from_nanos(words.next()?.parse().ok()?));
                Self::Lease(Deadlines { ask_at: instant()?, kill_at: instant()? })
            }
            "signal" => Self::Signal(words.next()?.parse().ok()?),
            "stop" => Self::Stop,
            _ => return None,
        };
        words.next().is_none().then_some(order)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(pid) => write!(f, "started {pid}"),
            Self::NotStarted(errno) => write!(f, "not-started {errno}"),
            Self::TooLate => f.write_str("too-late"),
            Self::Stopping => f.write_str("stopping"),
            Self::Ended(Ended::Exited(code)) => write!(f, "exited {code}"),
            Self::Ended(Ended::Signaled(signal)) => write!(f, "signaled {signal}"),
        }
    }
}

impl Report {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "started" => rest.parse().ok().map(Self::Started),
            "not-started" => rest.parse().ok().map(Self::NotStarted),
            "too-late" if rest.is_empty() => Some(Self::TooLate),
            "stopping" if rest.is_empty() => Some(Self::Stopping),
            "exited" => rest.parse().ok().map(|code| Self::Ended(Ended::Exited(code))),
            "signaled" => rest.parse().ok().map(|signal| Self::Ended(Ended::Signaled(signal))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_as_it_was_written() {
        let at = |nanos| ClockInstant::from_nanos(nanos);
        let lease = Deadlines { ask_at: at(7), kill_at: at(u64::MAX) };
        for order in [Order::Lease(lease), Order::Signal(15), Order::Stop] {
            assert_eq!(Order::parse(&order.to_string()), Some(order));
        }
        for report in [
            Report::Started(42),
            Report::NotStarted(2),
            Report::TooLate,
            Report::Stopping,
            Report::Ended(Ended::Exited(255)),
            Report::Ended(Ended::Signaled(9)),
        ] {
            assert_eq!(Report::parse(&report.to_string()), Some(report));
        }
    }

    #[test]
    fn other_lines_are_nothing() {
        for line in [
            "",
            "lease",
            "lease 1",
            "lease 1 2 3",
            "lease 1 -2",
            "signal",
            "signal x",
            "stop now",
            "exited 256",
        ] {
            assert_eq!(Order::parse(line), None, "{line}");
            assert_eq!(Report::parse(line), None, "{line}");
        }
    }
}
