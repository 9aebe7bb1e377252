//! Runs cases: each on its own thread and runtime, with limits on both clocks.

pub(crate) mod case;
pub(crate) mod check;
mod expected;
pub(crate) mod junit;
mod level;
mod limits;
pub(crate) mod main_fn;
mod pace;
pub(crate) mod panics;
mod place;
pub(crate) mod report;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::cases;
use crate::context::{Cx, seed};
use crate::runner::case::{Case, Need};
use crate::runner::check::{Check, Failure, Stop, Verdict};
use crate::runner::limits::{GetLimits, Limits, Progress, watched};
use crate::runner::pace::Pace;
use crate::runner::place::Place;
use crate::runner::report::{CaseResult, Outcome, Report};
use crate::{Harness, Time};
use lock_core::{Binding, Wake};

/// Runs all cases whose names `filter` accepts, one after the other, on stores of `harness`.
///
/// A [missing](crate::Unavailable::missing) store shows as ignored cases: compare the report with
/// what you expect to have run.
pub fn run(harness: impl Harness, filter: impl Fn(&str) -> bool) -> Report {
    let harness: Arc<dyn Harness> = Arc::new(harness);
    let results = cases::all()
        .filter(|case| filter(case.id))
        .map(|case| CaseResult { id: case.id, outcome: run_case(&harness, *case).outcome() })
        .collect();
    Report { results }
}

/// All cases, in the order of the suite: their names, and what must hold, in one sentence each.
pub fn all_cases() -> impl Iterator<Item = (&'static str, &'static str)> {
    cases::all().map(|case| (case.id, case.about))
}

/// The variable that says how often each case is run, each time on a fresh store.
pub(crate) const REPEAT: &str = "LOCK_TEST_REPEAT";

/// How often a case is run that fails while the machine is stalled, or is spared its fault.
const TRIES: u32 = 3;

/// Runs one case as often as `LOCK_TEST_REPEAT` says, or once. Never panics and always ends: a case
/// that hangs is left behind on its thread.
///
/// Without that variable, a real-time case that could not be judged in time, or failed while the machine was stalled,
/// is run again when no other case runs, and says so, unless no stall can excuse what it saw.
pub(crate) fn run_case(harness: &Arc<dyn Harness>, case: Case) -> Ended {
    let place = Place::enter();
    match std::env::var(REPEAT).ok().map(|times| times.parse()) {
        None if harness.time() == Time::Virtual => run_struck(harness, case),
        None => judged(case.id, &place, || {
            let pace = Pace::watch();
            (run_struck(harness, case), pace.standstill())
        }),
        Some(Ok(times)) if times > 0 => repeated(times, || run_struck(harness, case)),
        Some(_) => Ended::hindered(format!("{REPEAT} must be a number of at least 1")),
    }
}

/// How a run of a case ended.
#[derive(Debug)]
pub(crate) enum Ended {
    As(Outcome),
    Failed(Failure),
}

impl Ended {
    fn hindered(seen: String) -> Self {
        Self::Failed(Failure::new(seen, Verdict::Hindered))
    }

    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Self::As(outcome) => outcome,
            Self::Failed(failure) => Outcome::Failed(failure.seen),
        }
    }

    /// Whether the store could not even be started.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self, Self::Failed(failure) if failure.verdict == Verdict::Unavailable)
    }
}

/// How the first run ended that was judged without a stall, or the last one.
fn judged(id: &str, place: &Place, mut run: impl FnMut() -> (Ended, Option<String>)) -> Ended {
    for _ in 1..TRIES {
        let (failure, standstill) = match run() {
            (Ended::Failed(failure), standstill) => (failure, standstill),
            (ended, _) => return ended,
        };
        match (failure.verdict, standstill) {
            // It has seen nothing that would have to be excused.
            (Verdict::Late, _) => say_once_more(id, &failure.seen),
            (Verdict::Violated | Verdict::Panicked, _) | (_, None) => {
                return Ended::Failed(failure);
            }
            (_, Some(standstill)) => {
                eprintln!("repeated: {id}: {standstill}: {}", in_short(&failure.seen));
            }
        }
        place.step_aside();
    }
    run().0
}

/// The first end that is not a pass, or else a pass.
fn repeated(times: u32, run: impl Fn() -> Ended) -> Ended {
    for nth in 1..=times {
        match run() {
            Ended::As(Outcome::Passed) => {}
            Ended::Failed(failure) => {
                let seen = format!("{}\nin run {nth} of {times}", failure.seen);
                return Ended::Failed(Failure { seen, ..failure });
            }
            other => return other,
        }
    }
    Ended::As(Outcome::Passed)
}

/// Runs the case until each of its faults has come upon its call: one that was meant for a request may meet
/// what keeps the connection alive.
fn run_struck(harness: &Arc<dyn Harness>, case: Case) -> Ended {
    for _ in 1..TRIES {
        match run_once(harness, case, Limits::of) {
            Ended::Failed(failure) if failure.verdict == Verdict::Missed => {
                say_once_more(case.id, &failure.seen);
            }
            ended => return ended,
        }
    }
    run_once(harness, case, Limits::of)
}

/// Says that a case, or what else is judged, is run again though no stall has come upon it.
pub(crate) fn say_once_more(id: &str, seen: &str) {
    eprintln!("once more: {id}: {}", in_short(seen));
}

/// The clause, and what was seen.
fn in_short(told: &str) -> String {
    told.lines().take(2).collect::<Vec<_>>().join(" ")
}

fn run_once(harness: &Arc<dyn Harness>, case: Case, limits: GetLimits) -> Ended {
    panics::watch();
    let (send, receive) = sync_channel(2);
    let time = harness.time();
    let harness = Arc::clone(harness);
    let spawned = std::thread::Builder::new().name(case.id.to_owned()).spawn(move || {
        let run = || block_on_case(&harness, case, limits, &send);
        let outcome = catch_unwind(AssertUnwindSafe(run));
        let panics = panics::on(case.id);
        let panicked = |seen: &str| Ended::Failed(Failure::new(seen, Verdict::Panicked));
        let _ = send.send(Progress::Ended(match outcome {
            Ok(ended) if panics.is_empty() => ended,
            // One that was passed on from another thread.
            Err(panic) if panics.is_empty() => panicked(panic_text(&*panic)),
            _ => panicked(&panics.join("; ")),
        }));
    });
    if let Err(error) = spawned {
        return Ended::hindered(format!("the case's thread could not be started: {error}"));
    }
    match watched(&receive, time, limits(time, Duration::ZERO).watchdog) {
        Ended::Failed(failure) => Ended::Failed(Failure { seen: told(&case, &failure), ..failure }),
        ended => ended,
    }
}

/// A line that begins with it says that there were two holders, that a fence fell, or that a task panicked. Nothing
/// excuses that, wherever it is said: the programs that judge a run look for it.
pub(crate) const MARK: &str = "violated: ";

/// The clause that a case is about, as in `C7`.
pub(crate) fn clause(case: &str) -> String {
    let rule = case.split('_').next().unwrap_or_default().to_uppercase();
    let (letter, number) = rule.split_at_checked(1).unwrap_or_default();
    format!("{letter}{}", number.trim_start_matches('0'))
}

/// The rule, what it demands, what was seen instead, after which calls, and how to reproduce it.
fn told(case: &Case, Failure { seen, verdict, calls, wire }: &Failure) -> String {
    let (what, excuse) = match verdict {
        Verdict::Broken => ("broken", String::new()),
        Verdict::Violated => ("broken", format!("\n{MARK}no slow machine excuses this")),
        Verdict::Panicked => {
            ("not judged", format!("\n{MARK}a task or a call of the store ended by a panic"))
        }
        Verdict::Hindered | Verdict::Late | Verdict::Missed | Verdict::Unavailable => {
            ("not judged", String::new())
        }
    };
    let seed = seed::replays(case.id).map(|seed| format!("\nseed: {seed}")).unwrap_or_default();
    let calls: String = calls.iter().map(|call| format!("\nafter: {call}")).collect();
    let wire: String = wire.iter().map(|message| format!("\non the wire: {message}")).collect();
    let clause = clause(case.id);
    format!("{clause} {what}: {}\nseen: {seen}{calls}{wire}{seed}{excuse}", case.about)
}

fn block_on_case(
    harness: &Arc<dyn Harness>,
    case: Case,
    limits: GetLimits,
    progress: &SyncSender<Progress>,
) -> Ended {
    let runtime = match runtime(harness.time(), case.id) {
        Ok(runtime) => runtime,
        Err(error) => return Ended::hindered(format!("no runtime: {error}")),
    };
    let checked = runtime.block_on(checked(&**harness, case, limits, progress));
    // Remaining keepers hold their claims; a blocking call of a store may still run.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match checked {
        Ok(()) => Ended::As(Outcome::Passed),
        Err(Stop::NotApplicable(reason)) => Ended::As(Outcome::Ignored(reason)),
        Err(Stop::Failed(failure)) => Ended::Failed(failure),
    }
}

/// Its threads have this name.
pub(crate) fn runtime(time: Time, name: &str) -> std::io::Result<Runtime> {
    match time {
        Time::Virtual => Builder::new_current_thread().enable_all().start_paused(true).build(),
        Time::Real => {
            Builder::new_multi_thread().worker_threads(2).thread_name(name).enable_all().build()
        }
    }
}

/// Gives up what does not end in time, which says nothing of the clause: a case that demands an end says by when.
async fn within<T>(limit: Duration, action: impl Future<Output = T>) -> Check<T> {
    let late = |_| Stop::hindered(format_args!("it did not end within {limit:?}"));
    tokio::time::timeout(limit, action).await.map_err(late)
}

async fn checked(
    harness: &dyn Harness,
    case: Case,
    limits: GetLimits,
    progress: &SyncSender<Progress>,
) -> Check {
    let time = harness.time();
    let start = Cx::start(harness, case.needs.contains(&Need::Alone));
    let cx = match within(limits(time, Duration::ZERO).case, start).await? {
        Ok(cx) => cx,
        Err(missing) if !missing.is_broken() && is_required(harness.name()) => {
            let seen = format!("LOCK_TEST_REQUIRE asks for this store, and {missing}");
            return Err(Stop::Failed(Failure::new(seen, Verdict::Unavailable)));
        }
        Err(broken) if broken.is_broken() => {
            return Err(Stop::Failed(Failure::new(broken, Verdict::Unavailable)));
        }
        Err(missing) => return Err(missing.into()),
    };
    if let Some(reason) = case.needs.iter().find_map(|need| unmet(&cx, *need)) {
        return Err(Stop::NotApplicable(reason.to_owned()));
    }
    if case.needs.contains(&Need::Faults) {
        cx.link().await?;
    }
    let limits = limits(time, cx.ttl());
    let _ = progress.send(Progress::Started(cx.downgrade(), limits));
    let body = within(limits.case, (case.body)(cx.clone())).await;
    body.and_then(|ended| ended).and_then(|()| cx.all_have_struck()).map_err(|stop| match stop {
        Stop::Failed(failure) => {
            let (calls, wire) = (cx.last_calls(), cx.last_messages());
            Stop::Failed(Failure { calls, wire, ..failure })
        }
        other => other,
    })
}

/// Why `need` is not met, if it is not.
fn unmet(cx: &Cx, need: Need) -> Option<&'static str> {
    let capabilities = cx.capabilities();
    let (met, reason) = match need {
        Need::Fair => (capabilities.fair, "the store does not declare `fair`"),
        Need::Push => {
            (capabilities.wake != Wake::Poll, "the store cannot push: it declares `Wake::Poll`")
        }
        Need::Blocks => (capabilities.fence_block, "the store does not declare `fence_block`"),
        Need::NoBlocks => (
            !capabilities.fence_block,
            "the store declares `fence_block`, so there is no refusal to test",
        ),
        Need::Detach => (capabilities.detachable, "the store does not declare `detachable`"),
        Need::NoDetach => (
            !capabilities.detachable,
            "the store declares `detachable`, so there is no refusal to test",
        ),
        Need::Inspect => (capabilities.inspect, "the store does not declare `inspect`"),
        Need::NoInspect => {
            (!capabilities.inspect, "the store declares `inspect`, so there is no refusal to test")
        }
        Need::Look => (capabilities.look, "the store does not declare `look`"),
        Need::NoLook => {
            (!capabilities.look, "the store declares `look`, so there is no refusal to test")
        }
        Need::Lease => (
            capabilities.binding == Binding::Lease,
            "a hold of this store does not have its own lease",
        ),
        Need::Faults | Need::Alone => (true, ""),
        Need::Processes => (
            cx.store().uri().is_some()
                && !cx.is_virtual()
                && crate::context::child::can_have_children(),
            "the store lives in one process: its harness provides no uri for a second one",
        ),
    };
    (!met).then_some(reason)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)")
}

/// The variable that makes missing stores a failure: `all`, or the names of harnesses.
const REQUIRE: &str = "LOCK_TEST_REQUIRE";

/// Whether `LOCK_TEST_REQUIRE` names this harness, or all.
pub(crate) fn is_required(name: &str) -> bool {
    std::env::var(REQUIRE).is_ok_and(|list| names(&list, name))
}

fn names(list: &str, name: &str) -> bool {
    list.split(',').map(str::trim).any(|item| item == "all" || item == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use async_trait::async_trait;

    use super::*;
    use crate::harness::memory::RealTime;
    use crate::matrix::{Call, State};
    use crate::{MemoryHarness, Store, Unavailable};

    /// A store that is unavailable, in one of several ways.
    #[derive(Clone, Copy, Debug)]
    enum Nothing {
        Missing,
        Broken,
        Hangs,
        Panics,
    }

    #[async_trait]
    impl Harness for Nothing {
        fn name(&self) -> &str {
            "nothing"
        }

        fn time(&self) -> Time {
            Time::Virtual
        }

        async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
            match self {
                Self::Missing => Err(Unavailable::missing("no server")),
                Self::Broken => Err(Unavailable::broken("wrong password")),
                Self::Hangs => std::future::pending().await,
                Self::Panics => panic!("a defect of the harness"),
            }
        }
    }

    #[test]
    fn a_missing_store_is_ignored_and_anything_else_fails() {
        let one = |harness: Nothing| {
            let report = run(harness, |id| id == "s06_busy_is_not_an_error");
            assert_eq!(report.results.len(), 1);
            report.results[0].outcome.clone()
        };
        match one(Nothing::Missing) {
            Outcome::Ignored(reason) => assert_eq!(reason, "no server"),
            // As in CI, where every store must be available.
            Outcome::Failed(text) => {
                assert!(is_required("nothing") && text.contains("no server"), "{text}");
            }
            Outcome::Passed => panic!("a case passed without a store"),
        }
        for (harness, seen) in [
            (Nothing::Broken, "S6 not judged: "),
            (Nothing::Broken, "\nseen: wrong password"),
            (Nothing::Hangs, "S6 not judged: "),
            (Nothing::Hangs, "\nseen: it did not end within 3600s"),
            (Nothing::Panics, "S6 not judged: "),
            (Nothing::Panics, "a defect of the harness\nviolated: "),
        ] {
            match one(harness) {
                Outcome::Failed(text) => assert!(text.contains(seen), "{harness:?}: {text}"),
                other => panic!("{harness:?} led to {other:?}"),
            }
        }
    }

    fn passed() -> Ended {
        Ended::As(Outcome::Passed)
    }

    fn failed(seen: &str, verdict: Verdict) -> Ended {
        Ended::Failed(Failure::new(seen, verdict))
    }

    #[test]
    fn a_case_that_is_repeated_passes_only_if_it_always_does() {
        let runs = std::cell::Cell::new(0);
        let fails_at = |bad: u32| {
            runs.set(0);
            repeated(5, || {
                runs.set(runs.get() + 1);
                if runs.get() == bad { failed("seen", Verdict::Broken) } else { passed() }
            })
            .outcome()
        };
        assert!(matches!(fails_at(9), Outcome::Passed));
        assert_eq!(runs.get(), 5);
        match fails_at(3) {
            Outcome::Failed(text) => assert_eq!(text, "seen\nin run 3 of 5"),
            other => panic!("{other:?}"),
        }
        assert_eq!(runs.get(), 3);
        let ignored = repeated(5, || Ended::As(Outcome::Ignored("no server".to_owned())));
        assert!(matches!(ignored, Ended::As(Outcome::Ignored(_))));
    }

    #[test]
    fn a_failure_on_a_machine_that_stood_still_is_looked_at_again() {
        let runs = std::cell::Cell::new(0);
        let run = |seen: [(&str, Verdict, bool); 3]| {
            runs.set(0);
            judged("case", &Place::enter(), || {
                let (text, verdict, still) = seen[runs.get()];
                runs.set(runs.get() + 1);
                let ended = match text {
                    "" => passed(),
                    text => failed(text, verdict),
                };
                (ended, still.then(|| "the machine stood still".to_owned()))
            })
            .outcome()
        };
        let (pass, late) = (("", Verdict::Broken, true), ("late", Verdict::Broken, true));
        assert_eq!((run([late, late, pass]), runs.get()), (Outcome::Passed, 3));
        assert_eq!((run([late, late, late]), runs.get()), (Outcome::Failed("late".to_owned()), 3));
        let on_time = ("late", Verdict::Broken, false);
        assert_eq!(
            (run([on_time, pass, pass]), runs.get()),
            (Outcome::Failed("late".to_owned()), 1)
        );
        let not_judged = ("no answer", Verdict::Late, false);
        assert_eq!((run([not_judged, not_judged, pass]), runs.get()), (Outcome::Passed, 3));
        for verdict in [Verdict::Violated, Verdict::Panicked] {
            let grave = ("two holders", verdict, true);
            assert_eq!(
                (run([grave, pass, pass]), runs.get()),
                (Outcome::Failed("two holders".to_owned()), 1)
            );
        }
    }

    /// The calls that a case makes on this store, and in which states; `None` if it is not for it.
    fn made(harness: &dyn Harness, case: &Case) -> Option<BTreeSet<(Call, State)>> {
        runtime(harness.time(), case.id).unwrap().block_on(async {
            let cx = Cx::start(harness, false).await.unwrap();
            if case.needs.iter().any(|need| unmet(&cx, *need).is_some()) {
                return None;
            }
            (case.body)(cx.clone()).await.unwrap();
            Some(cx.made())
        })
    }

    #[test]
    fn a_case_makes_each_call_that_it_says_it_decides() {
        // In real time answers are under way for a while, too, but that takes long.
        let harnesses: [Box<dyn Harness>; 3] = [
            Box::new(MemoryHarness::queued()),
            Box::new(MemoryHarness::poll_only()),
            Box::new(RealTime::default()),
        ];
        let (mut idle, mut unseen) = (Vec::new(), Vec::new());
        for case in cases::all().filter(|case| !case.covers.is_empty()) {
            let mut missing: Vec<_> = case.covers.iter().collect();
            let mut runs = 0;
            for harness in &harnesses {
                if let Some(made) = (!missing.is_empty()).then(|| made(&**harness, case)).flatten()
                {
                    missing.retain(|cell| !made.contains(&(cell.call, cell.state)));
                    runs += 1;
                }
            }
            if runs == 0 {
                unseen.push(case.id);
            } else {
                idle.extend(missing.iter().map(|cell| format!("{}: {cell}", case.id)));
            }
        }
        assert!(idle.is_empty(), "cells that their cases never enter: {idle:#?}");
        // The memory store has them all.
        let refusals = [
            "s06_a_detach_of_a_session_is_refused",
            "s06_inspection_that_is_not_there_is_refused",
            "s06_a_look_that_is_not_there_is_refused",
        ];
        assert_eq!(unseen, refusals, "cases that no store in memory is for");
    }

    #[test]
    fn the_summary_counts_and_groups() {
        let report = run(MemoryHarness::poll_only(), |id| id.starts_with("c05"));
        let text = report.to_string();
        let all = cases::all().filter(|case| case.id.starts_with("c05"));
        let (pushed, others): (Vec<&Case>, Vec<&Case>) =
            all.partition(|case| case.needs.contains(&Need::Push));
        let (pushed, ran) = (pushed.len(), others.len());
        let counted = format!("{ran} ran, {ran} passed, 0 failed, {pushed} ignored");
        assert!(pushed > 0 && ran > 0 && text.starts_with(&counted), "{text}");
        assert!(text.contains(&format!("{pushed} ignored: the store cannot push")), "{text}");
    }

    #[test]
    fn a_store_is_required_by_its_name_or_by_all() {
        assert!(names("all", "redis") && names("sqlite, redis", "redis"));
        assert!(!names("", "redis") && !names("redlock", "redis"));
    }
}
