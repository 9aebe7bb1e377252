//! When a command must stop so that it is gone before its lease can end.

use std::time::Duration;

use distlock::ClockInstant;

/// The rules for one hold. Pure arithmetic on the clock that the lease is counted on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// How long before the end of validity the command is asked to stop.
    lead: Duration,
    /// How long before the end of validity it is killed.
    margin: Duration,
    /// When `--max-hold` is over.
    max_hold_at: Option<ClockInstant>,
}

/// When to ask, and when to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    pub(crate) ask_at: ClockInstant,
    pub(crate) kill_at: ClockInstant,
}

impl Policy {
    /// The command gets `kill_after` between the signal and SIGKILL, at most a third of the ttl:
    /// renewals begin when two thirds are left, and need the third between to be repeated in.
    pub(crate) fn new(
        ttl: Duration,
        kill_after: Duration,
        max_hold_at: Option<ClockInstant>,
    ) -> Self {
        Self { lead: kill_after.min(ttl / 3), margin: margin(ttl), max_hold_at }
    }

    /// The deadlines while the lease is valid until `valid_until`.
    pub(crate) fn deadlines(&self, valid_until: ClockInstant) -> Deadlines {
        let kill_at = valid_until.minus(self.margin);
        let mut ask_at = valid_until.minus(self.lead).min(kill_at);
        if let Some(limit) = self.max_hold_at {
            ask_at = ask_at.min(limit);
        }
        Deadlines { ask_at, kill_at }
    }

    /// When `run` kills the command itself, if the supervisor has not.
    pub(crate) fn last_resort(&self, valid_until: ClockInstant) -> ClockInstant {
        valid_until.minus(self.margin / 2)
    }

    /// Whether `--max-hold` is over.
    pub(crate) fn is_max_hold_over(&self, now: ClockInstant) -> bool {
        self.max_hold_at.is_some_and(|limit| now >= limit)
    }
}

/// What SIGKILL needs to take effect: a wake-up of the supervisor, a look through `/proc`, and the
/// exit of the processes. That takes a few milliseconds, but each of them waits for a processor: on
/// two cores with six busy processes 60 ms were too little. The library has taken 1 % + 2 ms off
/// the lease for the clocks already.
fn margin(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_millis(50), Duration::from_millis(500)).min(ttl / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const END: ClockInstant = ClockInstant::from_nanos(100_000_000_000);

    fn deadlines(ttl: Duration, kill_after: Duration) -> (Duration, Duration) {
        let deadlines = Policy::new(ttl, kill_after, None).deadlines(END);
        (END.since(deadlines.ask_at), END.since(deadlines.kill_at))
    }

    #[test]
    fn the_command_is_asked_first_and_killed_before_the_end() {
        let ms = Duration::from_millis;
        assert_eq!(deadlines(30 * SECOND, 5 * SECOND), (5 * SECOND, ms(500)));
        assert_eq!(deadlines(3 * SECOND, 5 * SECOND), (SECOND, ms(150)));
        assert_eq!(deadlines(ms(300), 5 * SECOND), (ms(100), ms(50)));
        // Without time to stop there is nothing to ask.
        assert_eq!(deadlines(30 * SECOND, Duration::ZERO), (ms(500), ms(500)));
    }

    #[test]
    fn even_the_shortest_lease_leaves_the_command_some_time() {
        let (_, kill) = deadlines(Duration::from_millis(12), SECOND);
        assert_eq!(kill, Duration::from_millis(3));
    }

    #[test]
    fn max_hold_asks_earlier_but_kills_no_earlier() {
        let limit = END.minus(50 * SECOND);
        let policy = Policy::new(30 * SECOND, 5 * SECOND, Some(limit));
        assert_eq!(policy.deadlines(END).ask_at, limit);
        assert_eq!(policy.deadlines(END).kill_at, END.minus(Duration::from_millis(500)));
        assert!(policy.is_max_hold_over(limit) && !policy.is_max_hold_over(limit.minus(SECOND)));
    }
}
