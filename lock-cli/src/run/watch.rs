//! Watching the lease and the command at the same time.

use std::sync::Arc;
use std::time::Duration;

use distlock::clock::{Clock, ClockInstant};
use distlock::{Held, LockGuard, LockState, LostReason};
use serde_json::json;
use tokio::sync::mpsc;

use super::child::Supervised;
use super::course::{Action, Course, End, Event, Why};
use super::deadline::Policy;
use super::notes::Notes;
use super::protocol::Order;
use super::signals::Signals;

/// How it came to an end, and why the command had to stop, if it had to.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) ended: End,
    pub(crate) stopped: Option<Why>,
}

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
    let _ = orders.send(Order::Lease(policy.deadlines(first, clock.now())));
    let feeder =
        tokio::spawn(feed(guard.held().clone(), first, orders.clone(), policy, Arc::clone(clock)));
    let lost = guard.lost();
    let mut course = Course::new(policy, first);
    let ended = 'course: loop {
        if let Some(until) = lease(guard.held()) {
            course.renewed(until);
        }
        let event = tokio::select! {
            biased;
            report = supervised.report() => report.map_or(Event::Silence, Event::Report),
            signal = signals.next() => {
                let _ = orders.send(Order::Signal(signal.as_raw()));
                continue;
            }
            reason = lost.wait(), if course.awaits_loss() => Event::Lost(reason),
            () = clock.sleep_until(course.wake_at()) => Event::Time,
        };
        if let Some(until) = lease(guard.held()) {
            course.renewed(until);
        }
        for action in course.on(event, clock.now()) {
            match action {
                Action::SayStarted(pid) => notes.started(pid),
                Action::SayStopping(why) => {
                    notes.warn("stopping", json!({ "reason": why.name() }), || {
                        format!("{}: {}; stopping the command", notes.name(), why.sentence())
                    });
                }
                Action::Tell(order) => drop(orders.send(order)),
                Action::Kill => supervised.kill(&**clock).await,
                Action::End(end) => break 'course end,
            }
        }
    };
    feeder.abort();
    supervised.join(&**clock).await;
    // A command that ended by itself in time was covered to its end, even if we could not see that
    // in time. One whose lock was taken away was not.
    let taken = match guard.state() {
        LockState::Lost(reason @ LostReason::Taken) => Some(Why::Lost(reason)),
        _ => None,
    };
    Verdict { ended, stopped: course.stopped().or(taken) }
}

/// The end of the lease; `None` if the lock is lost. Asked for in this order, since a loss ends the
/// validity at once.
fn lease(held: &Held) -> Option<ClockInstant> {
    let until = held.valid_until();
    (!matches!(held.state(), LockState::Lost(_))).then_some(until)
}

/// Tells the supervisor of every renewal. In a task of its own, so that nothing that holds up `watch`
/// holds up this.
async fn feed(
    held: Held,
    mut told: ClockInstant,
    orders: mpsc::UnboundedSender<Order>,
    policy: Policy,
    clock: Arc<dyn Clock>,
) {
    // Renewals come every third of the ttl, and the old deadline is as far away as the next one.
    let pause = (held.ttl() / 30).clamp(Duration::from_millis(2), Duration::from_millis(500));
    while let Some(until) = lease(&held) {
        if until != told {
            told = until;
            let _ = orders.send(Order::Lease(policy.deadlines(until, clock.now())));
        }
        clock.sleep(pause).await;
    }
}
