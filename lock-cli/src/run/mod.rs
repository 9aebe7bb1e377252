//! `distlock run`: take the lock, run a command, release the lock.

mod held_locks;
pub(crate) mod hold_machine;
pub(crate) mod supervisor;
pub(crate) mod waiting;
pub(crate) mod wanted;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use distlock::clock::{Clock, ClockInstant};
use distlock::{Error, ErrorKind, LostReason};
use rustix::process::Signal;
use serde_json::json;

use self::held_locks::HeldLocks;
use self::hold_machine::deadline::Policy;
use self::hold_machine::{HoldAction, HoldEnd, HoldEvent, HoldMachine, StopReason};
use self::supervisor::handle::SupervisorHandle;
use self::supervisor::protocol::CommandExit;
use self::waiting::{ENDING, StoreSession};
use self::wanted::Hold;
use crate::args::{OnLost, RunArgs};
use crate::exit::{ExitError, code};
use crate::output::reporter::Reporter;
use crate::output::{millis, quoted, rfc3339, short};
use crate::signals::{STOPPING, Signals};
use crate::store::OpenStore;

/// The part of [`ENDING`] reserved for closing the store.
const CLOSING: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: RunArgs) -> Result<u8, ExitError> {
    waiting::as_wanted(&args.want, locked(&args)).await
}

/// Takes the locks, runs the command under them, and releases them.
async fn locked(args: &RunArgs) -> Result<u8, ExitError> {
    check(args)?;
    // If our parent set SIGCHLD to be ignored, the kernel frees a dead supervisor's pid at once
    // unless we listen, and the number could then belong to another process group.
    let _children = Signals::watch(&[], &[Signal::CHILD])?;
    let mut session = StoreSession::open(&args.names, &args.want).await?;
    let outcome = hold(args, &mut session).await;
    session.close().await;
    outcome
}

/// Errors that can be found without the store.
fn check(args: &RunArgs) -> Result<(), ExitError> {
    held_locks::check(&args.names)?;
    if args.name_after_line {
        return Err(ExitError::usage(
            "a NAME after -c LINE is taken as another lock, not as an argument of LINE",
        )
        .with_hint("put the names before -c, and what LINE needs into LINE"));
    }
    let Some(limit) = args.max_hold else { return Ok(()) };
    if limit.is_zero() {
        return Err(ExitError::usage(
            "--max-hold 0 would stop the command at once: give it some time",
        ));
    }
    Ok(())
}

/// Takes the locks and runs the command under them. The program begins to end when the command has
/// ended.
async fn hold(args: &RunArgs, session: &mut StoreSession) -> Result<u8, ExitError> {
    let clock = Arc::clone(session.clock());
    let mut held = HeldLocks::default();
    if let Err(failure) = HeldLocks::take(args, session, &mut held).await {
        release(held, None, session).await;
        return Err(failure);
    }
    let outcome = work(args, session, &held).await;
    // A command that did not start, or had to end, keeps the lock from nobody.
    if let Ok((HoldEnd::Command(_), None)) = outcome {
        held.set_min_hold(args.min_hold.unwrap_or_else(|| session.store.locks.min_hold()));
    }
    let kept_until = held.kept_until(clock.now());
    let weakest = quoted(&held.weakest());
    let (lost_at_last, which) = release(held, kept_until, session).await.unzip();
    let (ended, stopped) = outcome?;
    if let (Some(_), Some(why), Some(which)) = (kept_until, lost_at_last, &which) {
        return Err(kept_too_shortly(why, which, &sentence(why, &session.store)));
    }
    let about = match (stopped, which) {
        (None, Some(taken_away)) => taken_away,
        // The limit is one for all locks.
        (Some(StopReason::MaxHold), _) => session.reporter.name(),
        _ => weakest,
    };
    let lost = |why| lost(why, ended, args.on_lost, &about, &sentence(why, &session.store));
    match (stopped.or(lost_at_last), ended) {
        (_, HoldEnd::NotStarted(errno)) => Err(not_started(args, errno)),
        (Some(why), _) => Err(lost(why)),
        (None, HoldEnd::TooLate) => Err(lost(StopReason::LeaseEnding)),
        (None, HoldEnd::Unsupervised) => Err(unsupervised()),
        (None, HoldEnd::Command(CommandExit::Exited(code))) => Ok(code),
        (None, HoldEnd::Command(CommandExit::Signaled(signal))) => {
            Err(ExitError::of_signal(signal, "the command died of a signal").said())
        }
    }
}

/// Runs the command under the lock.
async fn work(
    args: &RunArgs,
    session: &mut StoreSession,
    held: &HeldLocks,
) -> Result<(HoldEnd, Option<StopReason>), ExitError> {
    let clock = Arc::clone(session.clock());
    let max_hold_at = args.max_hold.map(|limit| clock.now() + limit);
    let policy = Policy::new(held.ttl(), args.kill_after, max_hold_at, args.on_lost);
    let owners = in_lines(args, held, |guard| Ok(guard.owner().to_hex()))?;
    let environment = environment(args, &session.store, held)?;
    let supervised =
        SupervisorHandle::start(args, &owners, environment, &*clock, &mut session.signals).await?;
    let (ended, stopped) = watch(held, supervised, policy, session).await;
    if let HoldEnd::Command(ended) = ended {
        session.reporter.ended(ended);
    }
    Ok((ended, stopped))
}

/// Returns when the command has ended: how, and why it had to, if it had to. Whatever happens, the
/// command does not keep running without the lock.
async fn watch(
    held: &HeldLocks,
    mut supervised: SupervisorHandle,
    policy: Policy,
    session: &mut StoreSession,
) -> (HoldEnd, Option<StopReason>) {
    let StoreSession { store, signals, reporter, is_stopping, .. } = session;
    let clock = store.locks.clock();
    let mut renewals = store.renewals.news();
    let (mut machine, first) =
        HoldMachine::begin(policy, held.ttl(), held.valid_until(), clock.now());
    supervised.tell(first);
    let ended = 'machine: loop {
        let event = tokio::select! {
            biased;
            report = supervised.report() => report.map_or(HoldEvent::Silence, HoldEvent::Report),
            signal = signals.next() => {
                *is_stopping |= STOPPING.contains(&signal);
                HoldEvent::Signal(signal.as_raw())
            }
            failure = renewals.next() => {
                report_renewals(failure, held.valid_until().since(clock.now()), reporter);
                continue;
            }
            reason = held.lost(), if machine.awaits_loss() => HoldEvent::Lost(reason),
            () = clock.sleep_until(machine.wake_at()) => HoldEvent::Time,
        };
        for action in machine.on(event, held.lease(), clock.now()) {
            match action {
                HoldAction::SayStarted(pid) => {
                    let text = format!("the command runs as process {pid}");
                    reporter.detail("started", json!({ "pid": pid }), &text);
                }
                HoldAction::SayStopping(why) => {
                    let text = format!("{}; stopping the command", sentence(why, store));
                    reporter.warn("stopping", json!({ "reason": why.name() }), &text);
                }
                HoldAction::SayLost(why) => {
                    let text = format!("{}; the command goes on without it", sentence(why, store));
                    reporter.warn("lost", json!({ "reason": why.name() }), &text);
                }
                HoldAction::Tell(order) => supervised.tell(order),
                HoldAction::Kill => supervised.kill(&**clock).await,
                HoldAction::End(end) => break 'machine end,
            }
        }
    };
    supervised.join(&**clock).await;
    (ended, machine.stopped(held.loss()))
}

fn report_renewals(failure: Option<String>, left: Duration, reporter: &Reporter) {
    let left_ms = millis(left);
    match failure {
        Some(message) => {
            let text = format!(
                "a renewal of {} failed ({message}); {} left",
                reporter.name(),
                short(left)
            );
            reporter.detail(
                "renewal-failed",
                json!({ "message": message, "left_ms": left_ms }),
                &text,
            );
        }
        None => {
            let text = format!("{} is renewed again", reporter.name());
            reporter.detail("renewed", json!({ "left_ms": left_ms }), &text);
        }
    }
}

/// Why the lock is lost; if it was not renewed in time, with the error of the last renewal.
fn sentence(why: StopReason, store: &OpenStore) -> String {
    let is_by_renewals =
        matches!(why, StopReason::LeaseEnding | StopReason::Lost(LostReason::Expired));
    match store.renewals.failure().filter(|_| is_by_renewals) {
        Some(failure) => format!("{} ({failure})", why.sentence()),
        None => why.sentence().to_owned(),
    }
}

fn environment(
    args: &RunArgs,
    store: &OpenStore,
    held: &HeldLocks,
) -> Result<Vec<(&'static str, String)>, ExitError> {
    let ends = held.in_order(&args.names).map(|guard| guard.valid_until_wall_clock());
    let mut environment = vec![
        ("DISTLOCK_NAME", args.names.join("\n")),
        ("DISTLOCK_FENCE", in_lines(args, held, |guard| Ok(guard.token()?.to_string()))?),
        ("DISTLOCK_VALID_UNTIL", ends.min().map(rfc3339).unwrap_or_default()),
        ("DISTLOCK_TTL_MS", millis(held.ttl()).to_string()),
        ("DISTLOCK_BACKEND", store.locks.backend_name().to_owned()),
    ];
    if args.permits.is_some() {
        let slots = held.in_order(&args.names).filter_map(Hold::slot);
        let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
        environment.push(("DISTLOCK_SLOT", slots.join("\n")));
    }
    Ok(environment)
}

/// The words of several locks are on lines of their own, in the order in which the locks were given.
fn in_lines(
    args: &RunArgs,
    held: &HeldLocks,
    word: impl Fn(&Hold) -> Result<String, ExitError>,
) -> Result<String, ExitError> {
    let words: Result<Vec<_>, _> = held.in_order(&args.names).map(word).collect();
    Ok(words?.join("\n"))
}

/// Releases the locks in reverse, and waits for the answers for as long as the end may take; before that for
/// --min-hold, if they are kept, unless a signal asks or has asked for the end. Returns a reason, and the name of
/// its lock, if it turns out that one had already been taken away, or was lost while it was kept.
async fn release(
    held: HeldLocks,
    kept_until: Option<ClockInstant>,
    session: &mut StoreSession,
) -> Option<(StopReason, String)> {
    let (is_kept, limit) = match kept_until {
        Some(end) => (true, end + (ENDING - CLOSING)),
        None => (false, session.end_by().minus(CLOSING)),
    };
    if let Some(end) = kept_until.filter(|_| !session.is_stopping) {
        let left = end.since(session.clock().now());
        let text = format!("holding {} for {} more", session.reporter.name(), short(left));
        session.reporter.detail("holding", json!({ "left_ms": millis(left) }), &text);
    }
    let StoreSession { store, signals, reporter, is_stopping, is_left, .. } = session;
    let clock = store.locks.clock();
    let (all, ttl) = (reporter, held.ttl());
    let mut taken_away = None;
    for guard in held.into_reverse() {
        let reporter = all.of(guard.key().name());
        let released = tokio::select! {
            biased;
            released = guard.release() => released,
            // The lock must outlast us, so it is not released: that would let another machine run the command.
            () = async { if !*is_stopping { signals.next().await; } }, if is_kept => {
                *is_left = true;
                let text = format!("{}: a signal has ended the wait for --min-hold; it is left to its ttl, {}", all.name(), short(ttl));
                all.note("left", json!({ "ttl_ms": millis(ttl) }), &text);
                return None;
            }
            () = clock.sleep_until(limit) => {
                Err(Error::new(ErrorKind::NoAnswer, "the store does not answer"))
            }
        };
        let Err(error) = released else {
            reporter.detail("released", json!({}), &format!("released {}", reporter.name()));
            continue;
        };
        match error.kind() {
            ErrorKind::Lost(reason) if is_kept || reason == LostReason::Taken => {
                taken_away.get_or_insert((StopReason::Lost(reason), reporter.name()));
            }
            // Already reported, or of no consequence: the command ended in time.
            ErrorKind::Lost(_) => {}
            _ => {
                let text = format!(
                    "the release could not be confirmed ({error}); the lease will expire on its own"
                );
                let fields = json!({ "message": error.to_string() });
                reporter.warn("release-unconfirmed", fields, &text);
            }
        }
    }
    taken_away
}

fn lost(why: StopReason, ended: HoldEnd, on_lost: OnLost, name: &str, reason: &str) -> ExitError {
    let while_it_ran = |then| format!("{name} was lost while the command ran: {reason}{then}");
    let message = match (ended, why) {
        (HoldEnd::TooLate, _) => {
            format!("{name} was lost before the command could start: {reason}")
        }
        (_, StopReason::MaxHold) => format!("{name}: {reason}, so the command was stopped"),
        (HoldEnd::Command(_), StopReason::Lost(_)) if on_lost == OnLost::Ignore => {
            while_it_ran("; the command went on to its end")
        }
        (_, StopReason::Lost(LostReason::Taken)) => while_it_ran(""),
        _ => while_it_ran("; the command was stopped before the lease ended"),
    };
    ExitError::new(code::LOST, why.name(), message)
}

/// The command has run to its end under the lock, but others may already run it again.
fn kept_too_shortly(why: StopReason, name: &str, reason: &str) -> ExitError {
    let message = format!(
        "{name} was lost before --min-hold had passed: {reason}; the command has ended, and another may start at once"
    );
    ExitError::new(code::LOST, why.name(), message)
}

fn unsupervised() -> ExitError {
    ExitError::new(
        code::SIGNAL + 9,
        "unsupervised",
        "the command's supervisor was killed, so the command was killed too",
    )
    .with_hint("do not kill lock-supervisor, which ends with its command: stop the command or `distlock run` instead")
}

/// The command could not be started: 127 if it was not found, 126 otherwise, as with env(1) and
/// timeout(1).
fn not_started(args: &RunArgs, errno: i32) -> ExitError {
    let program = args.argv().first().map(|program| quoted(&program.to_string_lossy()));
    let program = program.unwrap_or_default();
    let error = io::Error::from_raw_os_error(errno);
    if error.kind() == io::ErrorKind::NotFound {
        return ExitError::new(code::NOT_FOUND, "not-found", format!("the command {program} was not found"))
            .with_hint("check the spelling and $PATH; if it is a script, the program in its first line may be missing");
    }
    ExitError::new(
        code::NOT_EXECUTABLE,
        "not-executable",
        format!("the command {program} cannot be executed: {error}"),
    )
    .with_hint(
        "it must be a program, or a script that begins with #!, and must be executable (chmod +x)",
    )
}
