//! The course of one hold, from the first lease to the end of the command: events go in, actions
//! come out, and time is a value. The parent module drives it.

pub(crate) mod deadline;

use std::time::Duration;

use distlock::LostReason;
use distlock::clock::ClockInstant;

use self::deadline::Policy;
use super::supervisor::protocol::{CommandExit, SupervisorOrder, SupervisorReport};
use crate::args::OnLost;

/// How long it can take to read a report that has already arrived.
const CATCH_UP: Duration = Duration::from_millis(50);

/// How it came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldEnd {
    Command(CommandExit),
    /// It could not be started, with this errno.
    NotStarted(i32),
    /// The lease was about to end before it could be started.
    TooLate,
    /// The supervisor vanished, and the command was killed.
    Unsupervised,
}

/// Why a command had to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    MaxHold,
    /// No renewal succeeded, or none could be made, until shortly before the end of the lease.
    LeaseEnding,
    Lost(LostReason),
}

impl StopReason {
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

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum HoldEvent {
    /// The supervisor has sent a report.
    Report(SupervisorReport),
    /// The supervisor will send no more reports.
    Silence,
    /// We have received a signal.
    Signal(i32),
    /// The lock was lost.
    Lost(LostReason),
    /// The time given by [`HoldMachine::wake_at`] has come.
    Time,
}

/// What to do about it, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldAction {
    /// Report that the command runs.
    SayStarted(i32),
    /// Report why the command has to stop.
    SayStopping(StopReason),
    /// Report that the lock is lost and the command goes on.
    SayLost(StopReason),
    Tell(SupervisorOrder),
    /// Kill everything without the supervisor's help.
    Kill,
    /// The hold is over.
    End(HoldEnd),
}

/// Where the hold stands.
#[derive(Clone, Debug)]
pub(super) struct HoldMachine {
    policy: Policy,
    /// How often to check whether the lease was renewed, and when next.
    look_every: Duration,
    look_at: ClockInstant,
    /// The last known end of the lease while the lock was held.
    valid_until: ClockInstant,
    phase: HoldPhase,
    /// Why the command had to stop, if it had to. It goes on all the same if the user has asked for
    /// that.
    stopped: Option<StopReason>,
    /// What the present event calls for.
    actions: Vec<HoldAction>,
}

#[derive(Clone, Copy, Debug)]
enum HoldPhase {
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

impl HoldMachine {
    /// The course of a hold, and the first order, with which the supervisor starts the command.
    pub(super) fn begin(
        policy: Policy,
        ttl: Duration,
        valid_until: ClockInstant,
        now: ClockInstant,
    ) -> (Self, SupervisorOrder) {
        // The lease is renewed every third of the ttl, and an old deadline is as far away as the
        // next one.
        let look_every = (ttl / 30).clamp(Duration::from_millis(2), Duration::from_millis(500));
        let machine = Self {
            policy,
            look_every,
            look_at: now + look_every,
            valid_until,
            phase: HoldPhase::Running,
            stopped: None,
            actions: Vec::new(),
        };
        (machine, SupervisorOrder::Lease(policy.deadlines(valid_until, now)))
    }

    /// When [`HoldEvent::Time`] is due.
    pub(super) fn wake_at(&self) -> ClockInstant {
        self.deadline().min(self.look_at)
    }

    /// Whether a loss is news.
    pub(super) fn awaits_loss(&self) -> bool {
        matches!(self.phase, HoldPhase::Running) && self.stopped.is_none()
    }

    /// What to do about `event`. `lease` is the current end of the lease; `None` for a lost lock,
    /// whose validity ends at once: the command must still have its time to stop.
    pub(super) fn on(
        &mut self,
        event: HoldEvent,
        lease: Option<ClockInstant>,
        now: ClockInstant,
    ) -> Vec<HoldAction> {
        self.look_at = now + self.look_every;
        if let Some(until) = lease.filter(|until| *until != self.valid_until) {
            self.valid_until = until;
            self.tell(SupervisorOrder::Lease(self.policy.deadlines(until, now)));
        }
        match event {
            HoldEvent::Report(report) => self.on_report(report, now),
            HoldEvent::Silence => {
                self.actions.push(HoldAction::Kill);
                self.end(HoldEnd::Unsupervised);
            }
            HoldEvent::Signal(number) => self.tell(SupervisorOrder::Signal(number)),
            HoldEvent::Lost(reason) => self.on_loss(reason, now),
            HoldEvent::Time => self.on_time(now),
        }
        std::mem::take(&mut self.actions)
    }

    /// Why the command had to stop, given why the lock is lost at the end, if it is. A command that
    /// ended on its own in time was covered to its end, even if we could not see that in time. One
    /// whose lock was taken away was not.
    pub(super) fn stopped(&self, loss: Option<LostReason>) -> Option<StopReason> {
        let taken = loss.filter(|reason| *reason == LostReason::Taken);
        self.stopped.or(taken.map(StopReason::Lost))
    }

    fn tell(&mut self, order: SupervisorOrder) {
        self.actions.push(HoldAction::Tell(order));
    }

    fn end(&mut self, how: HoldEnd) {
        self.actions.push(HoldAction::End(how));
    }

    /// When to act if nothing happens.
    fn deadline(&self) -> ClockInstant {
        match self.phase {
            HoldPhase::Running => self.policy.last_resort(self.valid_until),
            HoldPhase::CatchingUp { until } => until,
            // The end of a lease that is no longer ours means nothing.
            HoldPhase::Stopping { limit } if matches!(self.stopped, Some(StopReason::Lost(_))) => {
                limit
            }
            HoldPhase::Stopping { limit } => limit.min(self.policy.last_resort(self.valid_until)),
            HoldPhase::Killed => ClockInstant::FAR_FUTURE,
        }
    }

    fn on_report(&mut self, report: SupervisorReport, now: ClockInstant) {
        match report {
            SupervisorReport::Started(pid) => self.actions.push(HoldAction::SayStarted(pid)),
            SupervisorReport::NotStarted(errno) => self.end(HoldEnd::NotStarted(errno)),
            SupervisorReport::Ended(how) => self.end(HoldEnd::Command(how)),
            SupervisorReport::TooLate => {
                self.stop(StopReason::LeaseEnding, now);
                self.end(HoldEnd::TooLate);
            }
            SupervisorReport::Stopping => {
                let over = self.policy.is_max_hold_over(now);
                self.stop(if over { StopReason::MaxHold } else { StopReason::LeaseEnding }, now);
            }
        }
    }

    fn on_loss(&mut self, reason: LostReason, now: ClockInstant) {
        if !matches!(self.phase, HoldPhase::Running) {
            return;
        }
        match (self.policy.on_lost, reason) {
            (OnLost::Ignore, _) => {
                self.stopped = Some(StopReason::Lost(reason));
                self.actions.push(HoldAction::SayLost(StopReason::Lost(reason)));
            }
            (_, LostReason::Expired) => {
                self.phase = HoldPhase::CatchingUp { until: now + CATCH_UP };
            }
            (on_lost, _) => {
                let kills = on_lost == OnLost::Kill;
                self.tell(if kills { SupervisorOrder::Kill } else { SupervisorOrder::Stop });
                self.stop(StopReason::Lost(reason), now);
            }
        }
    }

    fn on_time(&mut self, now: ClockInstant) {
        let deadline = self.deadline();
        if now < deadline {
            return;
        }
        match self.phase {
            HoldPhase::Running if now >= deadline + CATCH_UP => {
                self.phase = HoldPhase::CatchingUp { until: now + CATCH_UP };
            }
            HoldPhase::CatchingUp { .. } if now < self.policy.last_resort(self.valid_until) => {
                self.phase = HoldPhase::Running;
            }
            HoldPhase::Running | HoldPhase::CatchingUp { .. } | HoldPhase::Stopping { .. } => {
                self.stop(StopReason::LeaseEnding, now);
                self.phase = HoldPhase::Killed;
                self.actions.push(HoldAction::Kill);
            }
            HoldPhase::Killed => {}
        }
    }

    /// Stops the command, for this reason unless there was an earlier one.
    fn stop(&mut self, why: StopReason, now: ClockInstant) {
        if self.stopped.is_some() {
            return;
        }
        self.stopped = Some(why);
        self.phase = HoldPhase::Stopping { limit: self.policy.last_resort_after(now) };
        self.actions.push(HoldAction::SayStopping(why));
    }
}

#[cfg(test)]
mod tests;
