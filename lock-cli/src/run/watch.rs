//! Watching the lease and the command at the same time.

use std::sync::Arc;
use std::time::Duration;

use distlock::{Clock, ClockInstant, Held, LockGuard, LockState, LostReason};
use serde_json::json;
use tokio::sync::mpsc;

use super::child::Supervised;
use super::deadline::Policy;
use super::notes::Notes;
use super::protocol::{Ended, Order, Report};
use super::signals::Signals;

/// How it came to an end.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) ended: End,
    /// Why the command had to stop, if it had to.
    pub(crate) stopped: Option<Why>,
}

#[derive(Clone, Copy, Debug)]
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

/// How long a report that is there already can take to be read.
const CATCH_UP: Duration = Duration::from_millis(50);

/// Stays until the command has ended. Whatever happens, it does not run on without the lock.
pub(crate) async fn watch(
    guard: &LockGuard,
    mut supervised: Supervised,
    policy: Policy,
    clock: &Arc<dyn Clock>,
    signals: &mut Signals,
    notes: &Notes,
) -> Verdict {
    let orders = supervised.orders();
    let first = guard.valid_until();
    let _ = orders.send(Order::Lease(policy.deadlines(first)));
    let feeder =
        tokio::spawn(feed(guard.held().clone(), first, orders.clone(), policy, Arc::clone(clock)));
    let lost = guard.lost();
    let mut lost_seen = false;
    let mut killed = false;
    let mut stopped = None;
    let mut stop = |why: Why| {
        if stopped.is_none() {
            stopped = Some(why);
            let fields = json!({ "reason": why.name() });
            notes.warn("stopping", fields, || {
                let name = notes.name();
                format!("{name}: {}; stopping the command", why.sentence())
            });
        }
    };
    // Set when a deadline was found to be over: what the supervisor has reported meanwhile is read
    // first, since a command that ended in time was covered although we slept. It keeps the deadline
    // by itself, so nothing runs on for want of our word.
    let mut catch_up: Option<ClockInstant> = None;
    let ended = loop {
        let last_resort = policy.last_resort(guard.valid_until());
        let caught_up = catch_up.is_none_or(|until| clock.now() >= until);
        tokio::select! {
            biased;
            report = supervised.report() => match report {
                Some(Report::Started(pid)) => {
                    notes.detail("started", json!({ "pid": pid }), || format!("the command runs as process {pid}"));
                }
                Some(Report::NotStarted(errno)) => break End::NotStarted(errno),
                Some(report @ (Report::Stopping | Report::TooLate)) => {
                    stop(match guard.state() {
                        LockState::Lost(reason) => Why::Lost(reason),
                        _ if policy.is_max_hold_over(clock.now()) => Why::MaxHold,
                        _ => Why::LeaseEnding,
                    });
                    if report == Report::TooLate {
                        break End::TooLate;
                    }
                }
                Some(Report::Ended(ended)) => break End::Command(ended),
                None => {
                    supervised.kill().await;
                    break End::Unsupervised;
                }
            },
            signal = signals.next() => drop(orders.send(Order::Signal(signal.as_raw()))),
            () = clock.sleep_until(catch_up.unwrap_or(last_resort)), if !caught_up => {}
            reason = lost.wait(), if caught_up && !lost_seen => {
                if catch_up.is_none() && reason == LostReason::Expired {
                    catch_up = Some(clock.now() + CATCH_UP);
                    continue;
                }
                lost_seen = true;
                let _ = orders.send(Order::Stop);
                stop(Why::Lost(reason));
            }
            () = clock.sleep_until(last_resort), if caught_up && !killed => {
                if catch_up.is_none() && clock.now() >= last_resort + CATCH_UP {
                    catch_up = Some(clock.now() + CATCH_UP);
                    continue;
                }
                // The supervisor has a deadline before this one, and a stopped one cannot keep it.
                if clock.now() >= policy.last_resort(guard.valid_until()) {
                    killed = true;
                    supervised.kill().await;
                    stop(Why::LeaseEnding);
                }
            }
        }
    };
    feeder.abort();
    supervised.join(&**clock).await;
    // A command that ended by itself in time was covered to its end, even if we could not see that
    // in time. One whose lock was taken away was not.
    if stopped.is_none()
        && let LockState::Lost(reason @ LostReason::Taken) = guard.state()
    {
        stopped = Some(Why::Lost(reason));
    }
    Verdict { ended, stopped }
}

/// Tells the supervisor of every renewal. In a task of its own: whoever does not read our standard
/// error may hold up `watch`, and must not hold up this.
async fn feed(
    held: Held,
    mut told: ClockInstant,
    orders: mpsc::UnboundedSender<Order>,
    policy: Policy,
    clock: Arc<dyn Clock>,
) {
    // Renewals come every third of the ttl, and the old deadline is as far away as the next one.
    let pause = (held.ttl() / 30).clamp(Duration::from_millis(2), Duration::from_millis(500));
    while !matches!(held.state(), LockState::Lost(_)) {
        clock.sleep(pause).await;
        let until = held.valid_until();
        if until != told {
            told = until;
            let _ = orders.send(Order::Lease(policy.deadlines(until)));
        }
    }
}
