//! When a command must stop so that it has ended before its lease can end.

use std::time::Duration;

use distlock::clock::ClockInstant;
use serde::{Deserialize, Serialize};

use crate::args::OnLost;

/// How much later than the supervisor `run` acts when no lease sets the time.
const LATE: Duration = Duration::from_secs(1);

/// The rules for one hold. Pure arithmetic on the clock that the lease is counted on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// How long the command may take between the signal and SIGKILL.
    kill_after: Duration,
    /// How long after one renewal the next is due.
    renew_every: Duration,
    /// How long before the end of validity it is killed.
    margin: Duration,
    /// When `--max-hold` is reached.
    max_hold_at: Option<ClockInstant>,
    pub(crate) on_lost: OnLost,
}

/// When to start at the latest, when to ask, and when to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deadlines {
    /// Without a lease no command is started, even one that would go on without it.
    #[serde(with = "nanos")]
    pub(crate) start_by: ClockInstant,
    #[serde(with = "nanos")]
    pub(crate) ask_at: ClockInstant,
    #[serde(with = "nanos")]
    pub(crate) kill_at: ClockInstant,
}

/// An instant as a number: both processes read the same clock.
mod nanos {
    use distlock::clock::ClockInstant;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(at: &ClockInstant, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(at.as_nanos())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<ClockInstant, D::Error> {
        u64::deserialize(from).map(ClockInstant::from_nanos)
    }
}

impl Policy {
    pub(crate) fn new(
        ttl: Duration,
        kill_after: Duration,
        max_hold_at: Option<ClockInstant>,
        on_lost: OnLost,
    ) -> Self {
        Self { kill_after, renew_every: ttl / 3, margin: margin(ttl), max_hold_at, on_lost }
    }

    /// The deadlines after a renewal that was seen at `now`, while the lease is valid until
    /// `valid_until`.
    ///
    /// The command gets `kill_after` between the signal and SIGKILL, but at most half of what the
    /// lease has left when the next renewal is due: the other half is for repeating that renewal.
    /// With a fresh lease of a whole ttl that is a third of the ttl. A store that counts a lease
    /// from an earlier request, as ZooKeeper does, leaves less, and its healthy locks must not be
    /// considered lost.
    pub(crate) fn deadlines(&self, valid_until: ClockInstant, now: ClockInstant) -> Deadlines {
        let left = valid_until.since(now).saturating_sub(self.renew_every);
        let end = valid_until.minus(self.margin);
        let kill_at = match self.on_lost {
            OnLost::Ignore => ClockInstant::FAR_FUTURE,
            OnLost::Kill | OnLost::Term => end,
        };
        let mut ask_at = match self.on_lost {
            OnLost::Ignore | OnLost::Kill => kill_at,
            OnLost::Term => valid_until.minus(self.kill_after.min(left / 2)).min(kill_at),
        };
        if let Some(limit) = self.max_hold_at {
            ask_at = ask_at.min(limit);
        }
        Deadlines { start_by: ask_at.min(end), ask_at, kill_at }
    }

    /// When `run` kills the command itself, if the supervisor has not.
    pub(crate) fn last_resort(&self, valid_until: ClockInstant) -> ClockInstant {
        match self.on_lost {
            OnLost::Ignore => ClockInstant::FAR_FUTURE,
            OnLost::Term | OnLost::Kill => valid_until.minus(self.margin / 2),
        }
    }

    /// When `run` itself kills a command that was asked to stop at `asked`, whatever its lease
    /// says, if the supervisor has not.
    pub(crate) fn last_resort_after(&self, asked: ClockInstant) -> ClockInstant {
        asked + self.kill_after + LATE
    }

    /// Whether `--max-hold` has been reached.
    pub(crate) fn is_max_hold_over(&self, now: ClockInstant) -> bool {
        self.max_hold_at.is_some_and(|limit| now >= limit)
    }
}

/// The time SIGKILL needs to take effect: waking the supervisor, scanning `/proc`, and the exit of
/// the processes. That takes a few milliseconds, but each step waits for a processor: on two cores
/// with six busy processes, 60 ms were too few. The library has already taken 1 % + 2 ms off the
/// lease for the clocks.
fn margin(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_millis(50), Duration::from_millis(500)).min(ttl / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const END: ClockInstant = ClockInstant::from_nanos(100_000_000_000);

    fn deadlines(ttl: Duration, kill_after: Duration) -> (Duration, Duration) {
        let deadlines =
            Policy::new(ttl, kill_after, None, OnLost::Term).deadlines(END, END.minus(ttl));
        (END.since(deadlines.ask_at), END.since(deadlines.kill_at))
    }

    #[test]
    fn the_command_is_asked_first_and_killed_before_the_end() {
        let ms = Duration::from_millis;
        assert_eq!(deadlines(30 * SECOND, 5 * SECOND), (5 * SECOND, ms(500)));
        assert_eq!(deadlines(3 * SECOND, 5 * SECOND), (SECOND, ms(150)));
        assert_eq!(deadlines(ms(300), 5 * SECOND), (ms(100), ms(50)));
        // With no time to stop, it is not asked.
        assert_eq!(deadlines(30 * SECOND, Duration::ZERO), (ms(500), ms(500)));
    }

    #[test]
    fn even_the_shortest_lease_leaves_the_command_some_time() {
        let (_, kill) = deadlines(Duration::from_millis(12), SECOND);
        assert_eq!(kill, Duration::from_millis(3));
    }

    #[test]
    fn a_lease_that_is_counted_from_an_earlier_request_is_not_taken_for_lost() {
        // Two thirds of the ttl are left after a renewal, and a third when the next one is due.
        let ttl = 15 * SECOND;
        let policy = Policy::new(ttl, 5 * SECOND, None, OnLost::Term);
        let deadlines = policy.deadlines(END, END.minus(ttl * 2 / 3));
        let next_renewal = END.minus(ttl / 3);
        assert!(deadlines.ask_at > next_renewal, "it was asked to stop on a healthy store");
        assert_eq!(END.since(deadlines.ask_at), ttl / 6);
        // One with nothing to spare is asked when it has to be killed.
        let late = policy.deadlines(END, END.minus(SECOND));
        assert_eq!(late.ask_at, late.kill_at);
    }

    #[test]
    fn a_command_that_would_go_on_without_a_lease_is_not_started_without_one() {
        let policy = Policy::new(30 * SECOND, SECOND, None, OnLost::Ignore);
        let deadlines = policy.deadlines(END, END.minus(30 * SECOND));
        assert_eq!(deadlines.ask_at, ClockInstant::FAR_FUTURE);
        assert_eq!(END.since(deadlines.start_by), Duration::from_millis(500));
    }

    #[test]
    fn max_hold_asks_earlier_but_kills_no_earlier() {
        let limit = END.minus(50 * SECOND);
        let policy = Policy::new(30 * SECOND, 5 * SECOND, Some(limit), OnLost::Term);
        let deadlines = policy.deadlines(END, END.minus(30 * SECOND));
        assert_eq!(deadlines.ask_at, limit);
        assert_eq!(deadlines.kill_at, END.minus(Duration::from_millis(500)));
        assert!(policy.is_max_hold_over(limit) && !policy.is_max_hold_over(limit.minus(SECOND)));
    }
}
