//! Watches the lease and the command at the same time: events go to [`Course`], and its actions are
//! carried out.

use std::sync::Arc;

use distlock::clock::Clock;
use serde_json::json;

use super::child::Supervised;
use super::course::{Action, Course, Event, Verdict};
use super::deadline::Policy;
use super::holding::Holding;
use super::notes::Notes;
use super::signals::Signals;

/// Returns when the command has ended. Whatever happens, the command does not keep running without
/// the lock.
pub(crate) async fn watch(
    holding: &Holding,
    mut supervised: Supervised,
    policy: Policy,
    clock: &Arc<dyn Clock>,
    signals: &mut Signals,
    notes: &Notes,
) -> Verdict {
    let (mut course, first) =
        Course::begin(policy, holding.ttl(), holding.valid_until(), clock.now());
    supervised.tell(first);
    let ended = 'course: loop {
        let event = tokio::select! {
            biased;
            report = supervised.report() => report.map_or(Event::Silence, Event::Report),
            signal = signals.next() => Event::Signal(signal.as_raw()),
            reason = holding.lost(), if course.awaits_loss() => Event::Lost(reason),
            () = clock.sleep_until(course.wake_at()) => Event::Time,
        };
        for action in course.on(event, holding.lease(), clock.now()) {
            match action {
                Action::SayStarted(pid) => notes.started(pid),
                Action::SayStopping(why) => {
                    notes.warn("stopping", json!({ "reason": why.name() }), || {
                        format!("{}: {}; stopping the command", notes.name(), why.sentence())
                    });
                }
                Action::SayLost(why) => {
                    notes.warn("lost", json!({ "reason": why.name() }), || {
                        format!(
                            "{}: {}; the command goes on without it",
                            notes.name(),
                            why.sentence()
                        )
                    });
                }
                Action::Tell(order) => supervised.tell(order),
                Action::Kill => supervised.kill(&**clock).await,
                Action::End(end) => break 'course end,
            }
        }
    };
    supervised.join(&**clock).await;
    course.verdict(ended, holding.state())
}
