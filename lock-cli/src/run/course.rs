//! The course of one hold, from the first lease to the end of the command: what happened goes in, what
//! is to be done comes out, and time is a value. The driver is in `watch`.

use std::time::Duration;

use distlock::LostReason;
use distlock::clock::ClockInstant;

use super::deadline::Policy;
use super::protocol::{Ended, Order, Report};

/// How long a report that is there already can take to be read.
const CATCH_UP: Duration = Duration::from_millis(50);

/// How it came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Command(Ended),
    /// It could not be started, with this error number of the system.
    NotStarted(i32),
    /// The lease was about to end before it could be started.
    TooLate,
    /// The supervisor vanished, and the command was killed.
    Unsupervised,
}

/// Why a command had to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    MaxHold,
    /// No renewal succeeded, or nobody could make one, until shortly before the end of the lease.
    LeaseEnding,
    Lost(LostReason),
}

impl Why {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MaxHold | Self::Lost(LostReason::MaxHold) => "max-hold",
            Self::LeaseEnding | Self::Lost(LostReason::Expired) => "expired",
            Self::Lost(LostReason::Taken) => "taken",
            Self::Lost(_) => "closed",
        }
    }

    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::MaxHold | Self::Lost(LostReason::MaxHold) => "--max-hold is over",
            Self::LeaseEnding | Self::Lost(LostReason::Expired) => {
                "its lease could not be renewed in time"
            }
            Self::Lost(LostReason::Taken) => "the store says that it is not ours any more",
            Self::Lost(_) => "the connection to the store was closed",
        }
    }
}

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The supervisor has said something.
    Report(Report),
    /// The supervisor says nothing any more.
    Silence,
    /// The lock was lost.
    Lost(LostReason),
    /// The time that [`Course::wake_at`] has named is over.
    Time,
}

/// What is to be done about it, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Say that the command runs.
    SayStarted(i32),
    /// Say why the command has to stop.
    SayStopping(Why),
    Tell(Order),
    /// Kill everything without the supervisor's help.
    Kill,
    /// It is over.
    End(End),
}

/// Where the hold stands.
#[derive(Debug)]
pub(super) struct Course {
    policy: Policy,
    /// The end of the lease, as it was known last while the lock was held.
    valid_until: ClockInstant,
    phase: Phase,
    /// Why the command had to stop, if it had to.
    stopped: Option<Why>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    /// A deadline was found to be over, perhaps because this process did not run. What the supervisor
    /// has reported meanwhile is read first: a command that ended in time was covered although we
    /// slept. The supervisor keeps the deadline without us, so nothing runs on in the meantime.
    CatchingUp {
        until: ClockInstant,
    },
    /// The command was asked to stop. The supervisor kills it in time; a supervisor that is stopped
    /// cannot, and then it is done here.
    Stopping {
        last_resort: ClockInstant,
    },
    Killed,
}

impl Course {
    pub(super) fn new(policy: Policy, valid_until: ClockInstant) -> Self {
        Self { policy, valid_until, phase: Phase::Running, stopped: None }
    }

    /// The lease is valid until then. Not for a lock that is lost, whose validity is over at once: the
    /// command must have its time to stop all the same.
    pub(super) fn renewed(&mut self, valid_until: ClockInstant) {
        self.valid_until = valid_until;
    }

    pub(super) fn stopped(&self) -> Option<Why> {
        self.stopped
    }

    /// When [`Event::Time`] is due.
    pub(super) fn wake_at(&self) -> ClockInstant {
        match self.phase {
            Phase::Running => self.policy.last_resort(self.valid_until),
            Phase::CatchingUp { until } => until,
            Phase::Stopping { last_resort } => last_resort,
            Phase::Killed => ClockInstant::FAR_FUTURE,
        }
    }

    /// Whether a loss is news.
    pub(super) fn awaits_loss(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    pub(super) fn on(&mut self, event: Event, now: ClockInstant) -> Vec<Action> {
        match event {
            Event::Report(report) => self.on_report(report, now),
            Event::Silence => vec![Action::Kill, Action::End(End::Unsupervised)],
            Event::Lost(reason) => self.on_loss(reason, now),
            Event::Time => self.on_time(now),
        }
    }

    fn on_report(&mut self, report: Report, now: ClockInstant) -> Vec<Action> {
        match report {
            Report::Started(pid) => vec![Action::SayStarted(pid)],
            Report::NotStarted(errno) => vec![Action::End(End::NotStarted(errno))],
            Report::Ended(ended) => vec![Action::End(End::Command(ended))],
            Report::TooLate => {
                let mut actions = self.stop(Why::LeaseEnding, now);
                actions.push(Action::End(End::TooLate));
                actions
            }
            Report::Stopping => {
                let over = self.policy.is_max_hold_over(now);
                self.stop(if over { Why::MaxHold } else { Why::LeaseEnding }, now)
            }
        }
    }

    fn on_loss(&mut self, reason: LostReason, now: ClockInstant) -> Vec<Action> {
        match (self.phase, reason) {
            (Phase::Running, LostReason::Expired) => {
                self.phase = Phase::CatchingUp { until: now + CATCH_UP };
                Vec::new()
            }
            (Phase::Running, _) => {
                let mut actions = vec![Action::Tell(Order::Stop)];
                actions.extend(self.stop(Why::Lost(reason), now));
                actions
            }
            _ => Vec::new(),
        }
    }

    fn on_time(&mut self, now: ClockInstant) -> Vec<Action> {
        if now < self.wake_at() {
            return Vec::new();
        }
        match self.phase {
            Phase::Running if now >= self.wake_at() + CATCH_UP => {
                self.phase = Phase::CatchingUp { until: now + CATCH_UP };
                Vec::new()
            }
            Phase::CatchingUp { .. } if now < self.policy.last_resort(self.valid_until) => {
                self.phase = Phase::Running;
                Vec::new()
            }
            Phase::Running | Phase::CatchingUp { .. } | Phase::Stopping { .. } => {
                let mut actions = self.stop(Why::LeaseEnding, now);
                self.phase = Phase::Killed;
                actions.push(Action::Kill);
                actions
            }
            Phase::Killed => Vec::new(),
        }
    }

    /// The command stops, for this reason unless there was one before.
    fn stop(&mut self, why: Why, now: ClockInstant) -> Vec<Action> {
        if self.stopped.is_some() {
            return Vec::new();
        }
        self.stopped = Some(why);
        // A lease that ends sets the time. One that does not, or that is not ours any more, sets none.
        let last_resort = match why {
            Why::LeaseEnding | Why::Lost(LostReason::Expired) => {
                self.policy.last_resort(self.valid_until)
            }
            Why::MaxHold | Why::Lost(_) => self.policy.last_resort_after(now),
        };
        self.phase = Phase::Stopping { last_resort };
        vec![Action::SayStopping(why)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TTL: Duration = Duration::from_secs(30);
    const KILL_AFTER: Duration = Duration::from_secs(5);
    const START: ClockInstant = ClockInstant::from_nanos(1_000_000_000_000);

    fn course() -> Course {
        let policy = Policy::new(TTL, KILL_AFTER, Some(START + 20 * SECOND));
        Course::new(policy, START + TTL)
    }

    #[test]
    fn a_lock_that_was_taken_gives_the_command_its_time() {
        let mut course = course();
        let now = START + 10 * SECOND;
        let why = Why::Lost(LostReason::Taken);
        let actions = course.on(Event::Lost(LostReason::Taken), now);
        assert_eq!(actions, [Action::Tell(Order::Stop), Action::SayStopping(why)]);
        let limit = now + KILL_AFTER;
        assert!(course.wake_at() > limit, "killed before --kill-after was over");
        assert_eq!(course.on(Event::Time, limit), []);
        assert_eq!(course.on(Event::Time, course.wake_at()), [Action::Kill]);
        assert_eq!(course.stopped(), Some(why));
    }

    #[test]
    fn a_lease_that_ends_is_the_limit_whatever_the_supervisor_does() {
        let mut course = course();
        let at = course.wake_at();
        assert!(at < START + TTL);
        let actions = course.on(Event::Time, at);
        assert_eq!(actions, [Action::SayStopping(Why::LeaseEnding), Action::Kill]);
        assert_eq!(course.wake_at(), ClockInstant::FAR_FUTURE, "once is enough");
    }

    #[test]
    fn a_report_of_the_supervisor_does_not_move_the_end_of_the_lease() {
        let mut course = course();
        let at = course.wake_at();
        let actions = course.on(Event::Report(Report::Stopping), START + 19 * SECOND);
        assert_eq!(actions, [Action::SayStopping(Why::LeaseEnding)]);
        assert_eq!(course.wake_at(), at);
    }

    #[test]
    fn after_a_sleep_the_reports_come_first() {
        for event in [Event::Time, Event::Lost(LostReason::Expired)] {
            let mut course = course();
            let woken = START + 2 * TTL;
            assert_eq!(course.on(event, woken), []);
            assert!(course.wake_at() > woken);
            let ended = Ended::Exited(5);
            let actions = course.on(Event::Report(Report::Ended(ended)), woken);
            assert_eq!(actions, [Action::End(End::Command(ended))]);
            assert_eq!(course.stopped(), None, "it was covered to its end");
        }
    }

    #[test]
    fn after_a_sleep_without_a_report_it_is_killed() {
        let mut course = course();
        let woken = START + 2 * TTL;
        assert_eq!(course.on(Event::Lost(LostReason::Expired), woken), []);
        let actions = course.on(Event::Time, woken + CATCH_UP);
        assert_eq!(actions, [Action::SayStopping(Why::LeaseEnding), Action::Kill]);
    }

    #[test]
    fn a_renewal_that_is_seen_late_lets_it_go_on() {
        let mut course = course();
        let woken = START + 2 * TTL;
        assert_eq!(course.on(Event::Time, woken), []);
        course.renewed(woken + TTL);
        assert_eq!(course.on(Event::Time, woken + CATCH_UP), []);
        assert!(course.wake_at() > (woken + TTL).minus(SECOND) && course.awaits_loss());
    }

    #[test]
    fn max_hold_is_named_and_the_first_reason_stays() {
        let mut course = course();
        let now = START + 20 * SECOND;
        assert_eq!(
            course.on(Event::Report(Report::Stopping), now),
            [Action::SayStopping(Why::MaxHold)]
        );
        assert!(course.wake_at() > now + KILL_AFTER);
        assert_eq!(course.on(Event::Lost(LostReason::Taken), now), []);
        assert_eq!(course.stopped(), Some(Why::MaxHold));
    }

    #[test]
    fn a_supervisor_that_vanishes_takes_the_command_with_it() {
        let actions = course().on(Event::Silence, START);
        assert_eq!(actions, [Action::Kill, Action::End(End::Unsupervised)]);
    }
}
