//! The course of one hold, from the first lease to the end of the command: events go in, actions
//! come out, and time is a value. The driver is in `watch`.

use std::time::Duration;

use distlock::clock::ClockInstant;
use distlock::{LockState, LostReason};

use super::deadline::Policy;
use super::protocol::{Ended, Order, Report};
use crate::args::OnLost;

/// How long it can take to read a report that has already arrived.
const CATCH_UP: Duration = Duration::from_millis(50);

/// How it came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Command(Ended),
    /// It could not be started, with this errno.
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
    /// No renewal succeeded, or none could be made, until shortly before the end of the lease.
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
            Self::MaxHold | Self::Lost(LostReason::MaxHold) => "--max-hold was reached",
            Self::LeaseEnding | Self::Lost(LostReason::Expired) => {
                "its lease could not be renewed in time"
            }
            Self::Lost(LostReason::Taken) => "the store says that we no longer hold it",
            Self::Lost(_) => "the connection to the store was closed",
        }
    }
}

/// How it came to an end, and why the command had to stop, if it had to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) ended: End,
    pub(crate) stopped: Option<Why>,
}

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The supervisor has sent a report.
    Report(Report),
    /// The supervisor will send no more reports.
    Silence,
    /// We have received a signal.
    Signal(i32),
    /// The lock was lost.
    Lost(LostReason),
    /// The time given by [`Course::wake_at`] has come.
    Time,
}

/// What to do about it, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Report that the command runs.
    SayStarted(i32),
    /// Report why the command has to stop.
    SayStopping(Why),
    /// Report that the lock is lost and the command goes on.
    SayLost(Why),
    Tell(Order),
    /// Kill everything without the supervisor's help.
    Kill,
    /// The hold is over.
    End(End),
}

/// Where the hold stands.
#[derive(Clone, Debug)]
pub(super) struct Course {
    policy: Policy,
    /// How often to check whether the lease was renewed, and when next.
    look_every: Duration,
    look_at: ClockInstant,
    /// The last known end of the lease while the lock was held.
    valid_until: ClockInstant,
    phase: Phase,
    /// Why the command had to stop, if it had to. It goes on all the same if the user has asked for
    /// that.
    stopped: Option<Why>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    /// A deadline was found to have passed, perhaps because this process did not run. The
    /// supervisor's reports are read first: a command that ended in time was covered even though we
    /// slept. The supervisor enforces the deadline without us, so nothing keeps running.
    CatchingUp {
        until: ClockInstant,
    },
    /// The command was asked to stop, and has until `limit` if its lease lasts that long. The
    /// supervisor kills it in time; if the supervisor is stopped, we do it here.
    Stopping {
        limit: ClockInstant,
    },
    Killed,
}

impl Course {
    /// The course of a hold, and the first order, with which the supervisor starts the command.
    pub(super) fn begin(
        policy: Policy,
        ttl: Duration,
        valid_until: ClockInstant,
        now: ClockInstant,
    ) -> (Self, Order) {
        // The lease is renewed every third of the ttl, and an old deadline is as far away as the
        // next one.
        let look_every = (ttl / 30).clamp(Duration::from_millis(2), Duration::from_millis(500));
        let (phase, look_at) = (Phase::Running, now + look_every);
        let course = Self { policy, look_every, look_at, valid_until, phase, stopped: None };
        (course, Order::Lease(policy.deadlines(valid_until, now)))
    }

    /// When [`Event::Time`] is due.
    pub(super) fn wake_at(&self) -> ClockInstant {
        self.deadline().min(self.look_at)
    }

    /// Whether a loss is news.
    pub(super) fn awaits_loss(&self) -> bool {
        matches!(self.phase, Phase::Running) && self.stopped.is_none()
    }

    /// What to do about `event`. `lease` is the current end of the lease; `None` for a lost lock,
    /// whose validity ends at once: the command must still have its time to stop.
    pub(super) fn on(
        &mut self,
        event: Event,
        lease: Option<ClockInstant>,
        now: ClockInstant,
    ) -> Vec<Action> {
        self.look_at = now + self.look_every;
        let mut actions = Vec::new();
        if let Some(until) = lease.filter(|until| *until != self.valid_until) {
            self.valid_until = until;
            actions.push(Action::Tell(Order::Lease(self.policy.deadlines(until, now))));
        }
        match event {
            Event::Report(report) => self.on_report(report, now, &mut actions),
            Event::Silence => actions.extend([Action::Kill, Action::End(End::Unsupervised)]),
            Event::Signal(number) => actions.push(Action::Tell(Order::Signal(number))),
            Event::Lost(reason) => self.on_loss(reason, now, &mut actions),
            Event::Time => self.on_time(now, &mut actions),
        }
        actions
    }

    /// The verdict after the end, given the state of the lock. A command that ended on its own in
    /// time was covered to its end, even if we could not see that in time. One whose lock was taken
    /// away was not.
    pub(super) fn verdict(&self, ended: End, lock: LockState) -> Verdict {
        let taken = match lock {
            LockState::Lost(reason @ LostReason::Taken) => Some(Why::Lost(reason)),
            _ => None,
        };
        Verdict { ended, stopped: self.stopped.or(taken) }
    }

    /// When to act if nothing happens.
    fn deadline(&self) -> ClockInstant {
        match self.phase {
            Phase::Running => self.policy.last_resort(self.valid_until),
            Phase::CatchingUp { until } => until,
            // The end of a lease that is no longer ours means nothing.
            Phase::Stopping { limit } if matches!(self.stopped, Some(Why::Lost(_))) => limit,
            Phase::Stopping { limit } => limit.min(self.policy.last_resort(self.valid_until)),
            Phase::Killed => ClockInstant::FAR_FUTURE,
        }
    }

    fn on_report(&mut self, report: Report, now: ClockInstant, actions: &mut Vec<Action>) {
        match report {
            Report::Started(pid) => actions.push(Action::SayStarted(pid)),
            Report::NotStarted(errno) => actions.push(Action::End(End::NotStarted(errno))),
            Report::Ended(ended) => actions.push(Action::End(End::Command(ended))),
            Report::TooLate => {
                self.stop(Why::LeaseEnding, now, actions);
                actions.push(Action::End(End::TooLate));
            }
            Report::Stopping => {
                let over = self.policy.is_max_hold_over(now);
                self.stop(if over { Why::MaxHold } else { Why::LeaseEnding }, now, actions);
            }
        }
    }

    fn on_loss(&mut self, reason: LostReason, now: ClockInstant, actions: &mut Vec<Action>) {
        match (self.phase, reason) {
            (Phase::Running, _) if self.policy.on_lost == OnLost::Ignore => {
                self.stopped = Some(Why::Lost(reason));
                actions.push(Action::SayLost(Why::Lost(reason)));
            }
            (Phase::Running, LostReason::Expired) => {
                self.phase = Phase::CatchingUp { until: now + CATCH_UP };
            }
            (Phase::Running, _) => {
                let kills = self.policy.on_lost == OnLost::Kill;
                actions.push(Action::Tell(if kills { Order::Kill } else { Order::Stop }));
                self.stop(Why::Lost(reason), now, actions);
            }
            _ => {}
        }
    }

    fn on_time(&mut self, now: ClockInstant, actions: &mut Vec<Action>) {
        let deadline = self.deadline();
        if now < deadline {
            return;
        }
        match self.phase {
            Phase::Running if now >= deadline + CATCH_UP => {
                self.phase = Phase::CatchingUp { until: now + CATCH_UP };
            }
            Phase::CatchingUp { .. } if now < self.policy.last_resort(self.valid_until) => {
                self.phase = Phase::Running;
            }
            Phase::Running | Phase::CatchingUp { .. } | Phase::Stopping { .. } => {
                self.stop(Why::LeaseEnding, now, actions);
                self.phase = Phase::Killed;
                actions.push(Action::Kill);
            }
            Phase::Killed => {}
        }
    }

    /// Stops the command, for this reason unless there was an earlier one.
    fn stop(&mut self, why: Why, now: ClockInstant, actions: &mut Vec<Action>) {
        if self.stopped.is_some() {
            return;
        }
        self.stopped = Some(why);
        self.phase = Phase::Stopping { limit: self.policy.last_resort_after(now) };
        actions.push(Action::SayStopping(why));
    }
}

#[cfg(test)]
mod tests;
