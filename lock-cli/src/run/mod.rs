//! `distlock run`: take the lock, run a command, release the lock.

mod child;
mod course;
mod deadline;
mod family;
mod holding;
pub(crate) mod notes;
mod protocol;
pub(crate) mod signals;
pub(crate) mod supervisor;
pub(crate) mod waiting;
mod watch;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use distlock::clock::{Clock, ClockInstant};
use distlock::{Error, ErrorKind, LockGuard, LostReason};
use rustix::process::Signal;
use serde_json::json;

use self::child::{Job, Supervised};
use self::course::{End, Verdict, Why};
use self::deadline::Policy;
use self::holding::Holding;
use self::notes::Notes;
use self::protocol::Ended;
use self::signals::{FORWARDED, Signals};
use self::waiting::Patience;
use crate::args::{OnLost, RunArgs};
use crate::exit::{Failure, code};
use crate::output::{millis, quoted, rfc3339, short};
use crate::store::Store;

/// How long the program may still take when all that is left is to tell the store: after the
/// command, or after an abandoned wait. What the store has not confirmed by then expires with the
/// lease.
pub(crate) const ENDING: Duration = Duration::from_millis(2500);
/// The part of it reserved for closing the store.
const CLOSING: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: RunArgs) -> Result<u8, Failure> {
    check(&args)?;
    let notes = Notes::new(&args.names, &args.want);
    let mut signals = Signals::watch(&FORWARDED)?;
    // If our parent set SIGCHLD to be ignored, the kernel frees a dead supervisor's pid at once
    // unless we listen, and the number could then belong to another process group.
    let _children = Signals::watch_even_ignored(Signal::CHILD)?;
    let (store, patience) = waiting::open(&args.want, &mut signals).await?;
    let mut end_by = None;
    let outcome = hold(&args, &store, patience, &mut end_by, &mut signals, &notes).await;
    let end_by = end_by.unwrap_or_else(|| store.locks.clock().now() + ENDING);
    close(&store, end_by, &mut signals, &notes).await;
    outcome
}

/// Errors that can be found without the store.
fn check(args: &RunArgs) -> Result<(), Failure> {
    holding::check(&args.names)?;
    let Some(limit) = args.max_hold else { return Ok(()) };
    if limit.is_zero() {
        return Err(Failure::usage(
            "--max-hold 0 would stop the command at once: give it some time",
        ));
    }
    if args.min_hold.is_some_and(|least| least > limit) {
        return Err(Failure::usage("--min-hold is longer than --max-hold: make it shorter"));
    }
    Ok(())
}

/// Removes what an abandoned wait has left in the store, and closes the store. A second signal ends
/// that, unless it came together with the first.
pub(crate) async fn close(
    store: &Store,
    end_by: ClockInstant,
    signals: &mut Signals,
    notes: &Notes,
) {
    let clock = store.locks.clock();
    let impatience = async {
        clock.sleep(Duration::from_millis(500)).await;
        signals.next().await
    };
    let clean = tokio::select! {
        biased;
        _ = impatience => return,
        clean = store.locks.close(end_by.since(clock.now())) => clean,
        () = clock.sleep_until(end_by) => {
            Err(Error::new(ErrorKind::NoAnswer, "the store does not answer"))
        }
    };
    if let Err(error) = clean {
        notes.warn("not_cleaned_up", json!({ "message": error.to_string() }), || {
            format!("{}: could not tell the store that we are leaving: {error}", notes.name())
        });
    }
}

/// Takes the locks and runs the command under them. Sets `end_by` to the time by which the program
/// has to end, once the command has ended.
async fn hold(
    args: &RunArgs,
    store: &Store,
    patience: Patience,
    end_by: &mut Option<ClockInstant>,
    signals: &mut Signals,
    notes: &Notes,
) -> Result<u8, Failure> {
    let clock = store.locks.clock();
    let mut holding = Holding::none();
    let taken = Holding::take(args, store, patience, &mut holding, signals, notes).await;
    if let Err(failure) = taken {
        let end_by = *end_by.insert(clock.now() + ENDING);
        release(holding, notes, &**clock, end_by.minus(CLOSING)).await;
        return Err(failure);
    }
    let free_at = args.min_hold.map(|least| clock.now() + least);
    let verdict = work(args, store, &holding, signals, notes).await;
    let mut covered = false;
    if let (Some(at), Ok(Verdict { ended: End::Command(_), stopped: None })) = (free_at, &verdict) {
        covered = keep(&holding, at, &**clock, signals, notes).await;
    }
    let weakest = holding.weakest().map(|name| notes.of(name));
    let end_by = *end_by.insert(clock.now() + ENDING);
    let taken_away = release(holding, notes, &**clock, end_by.minus(CLOSING)).await;
    let (lost_at_last, which) = taken_away.filter(|_| !covered).unzip();
    let Verdict { ended, stopped } = verdict?;
    let about = match (stopped, which) {
        (None, Some(taken_away)) => taken_away,
        // The limit is one for all locks.
        (Some(Why::MaxHold), _) => notes.clone(),
        _ => weakest.unwrap_or_else(|| notes.clone()),
    };
    match (stopped.or(lost_at_last), ended) {
        (_, End::NotStarted(errno)) => Err(not_started(args, errno)),
        (Some(why), _) => Err(lost(why, ended, args.on_lost, &about)),
        (None, End::TooLate) => Err(lost(Why::LeaseEnding, ended, args.on_lost, &about)),
        (None, End::Unsupervised) => Err(unsupervised()),
        (None, End::Command(Ended::Exited(code))) => Ok(code),
        (None, End::Command(Ended::Signaled(signal))) => {
            Ok(code::SIGNAL.saturating_add(u8::try_from(signal).unwrap_or(0)))
        }
    }
}

/// Keeps the lock until `at`, unless it is lost first or a signal arrives. Returns whether the
/// store has confirmed that the command was covered: a later loss is then harmless.
async fn keep(
    holding: &Holding,
    at: ClockInstant,
    clock: &dyn Clock,
    signals: &mut Signals,
    notes: &Notes,
) -> bool {
    let left = at.since(clock.now());
    notes.detail("holding", json!({ "left_ms": millis(left) }), || {
        format!("holding {} for {} more", notes.name(), short(left))
    });
    let waiting = async {
        let covered = holding.check().await;
        tokio::select! {
            _ = holding.lost() => {}
            () = clock.sleep_until(at) => {}
        }
        covered
    };
    tokio::select! {
        biased;
        _ = signals.next() => false,
        covered = waiting => covered,
    }
}

/// Runs the command under the lock.
async fn work(
    args: &RunArgs,
    store: &Store,
    holding: &Holding,
    signals: &mut Signals,
    notes: &Notes,
) -> Result<Verdict, Failure> {
    let clock: Arc<dyn Clock> = Arc::clone(store.locks.clock());
    let max_hold_at = args.max_hold.map(|limit| clock.now() + limit);
    let policy = Policy::new(holding.ttl(), args.kill_after, max_hold_at, args.on_lost);
    let job = Job {
        command: args.argv(),
        environment: environment(args, store, holding)?,
        mark: format!("DISTLOCK_OWNER={}", owners(args, holding)),
        signal: args.signal,
        kill_after: args.kill_after,
    };
    let supervised = Supervised::start(&job, &*clock).await?;
    let verdict = watch::watch(holding, supervised, policy, &clock, signals, notes).await;
    if let End::Command(ended) = verdict.ended {
        notes.ended(ended);
    }
    Ok(verdict)
}

/// The words of several locks are on lines of their own, in the order in which the locks were given.
fn environment(
    args: &RunArgs,
    store: &Store,
    holding: &Holding,
) -> Result<Vec<(&'static str, String)>, Failure> {
    let fences = holding.in_order(&args.names).map(|guard| Ok(guard.token()?.to_string()));
    let fences = fences.collect::<Result<Vec<_>, Failure>>()?;
    let ends = holding.in_order(&args.names).map(|guard| guard.valid_until_wall_clock());
    Ok(vec![
        ("DISTLOCK_NAME", args.names.join("\n")),
        ("DISTLOCK_FENCE", fences.join("\n")),
        ("DISTLOCK_OWNER", owners(args, holding)),
        ("DISTLOCK_VALID_UNTIL", ends.min().map(rfc3339).unwrap_or_default()),
        ("DISTLOCK_TTL_MS", millis(holding.ttl()).to_string()),
        ("DISTLOCK_BACKEND", store.locks.backend_name().to_owned()),
    ])
}

fn owners(args: &RunArgs, holding: &Holding) -> String {
    let owners: Vec<_> =
        holding.in_order(&args.names).map(|guard| guard.owner().to_hex()).collect();
    owners.join("\n")
}

/// Releases the locks in reverse, and waits for the answers until `limit`. Returns a reason, and the
/// notes of its lock, if it turns out that one had already been taken away.
async fn release(
    holding: Holding,
    notes: &Notes,
    clock: &dyn Clock,
    limit: ClockInstant,
) -> Option<(Why, Notes)> {
    let mut taken_away = None;
    for guard in holding.into_reverse() {
        let notes = notes.of(guard.key().name());
        if let Some(why) = release_one(guard, &notes, clock, limit).await {
            taken_away.get_or_insert((why, notes));
        }
    }
    taken_away
}

/// Releases a lock. Returns a reason if it turns out that
/// the lock had already been taken away.
async fn release_one(
    guard: LockGuard,
    notes: &Notes,
    clock: &dyn Clock,
    limit: ClockInstant,
) -> Option<Why> {
    let released = tokio::select! {
        biased;
        released = guard.release() => released,
        () = clock.sleep_until(limit) => {
            Err(Error::new(ErrorKind::NoAnswer, "the store does not answer"))
        }
    };
    match released {
        Ok(_) => {
            notes.detail("released", json!({}), || format!("released {}", notes.name()));
            None
        }
        Err(error) => match error.kind() {
            ErrorKind::Lost(reason @ LostReason::Taken) => Some(Why::Lost(reason)),
            // Already reported, or of no consequence: the command ended in time.
            ErrorKind::Lost(_) => None,
            _ => {
                notes.warn("release_unconfirmed", json!({ "message": error.to_string() }), || {
                    format!("{}: the release could not be confirmed ({error}); the lease will expire on its own", notes.name())
                });
                None
            }
        },
    }
}

fn lost(why: Why, ended: End, on_lost: OnLost, notes: &Notes) -> Failure {
    let (name, reason) = (notes.name(), why.sentence());
    let message = match (ended, why) {
        (End::TooLate, _) => {
            format!("{name} was lost before the command could start: {reason}")
        }
        (_, Why::MaxHold) => format!("{name}: {reason}, so the command was stopped"),
        (End::Command(_), Why::Lost(_)) if on_lost == OnLost::Ignore => {
            format!(
                "{name} was lost while the command ran: {reason}; the command went on to its end"
            )
        }
        (_, Why::Lost(LostReason::Taken)) => {
            format!("{name} was lost while the command ran: {reason}")
        }
        _ => format!(
            "{name} was lost while the command ran: {reason}; the command was stopped before the lease ended"
        ),
    };
    Failure::new(code::LOST, why.name(), message)
}

fn unsupervised() -> Failure {
    Failure::new(
        code::SIGNAL + 9,
        "unsupervised",
        "the command's supervisor was killed, so the command was killed too",
    )
    .with_hint("do not kill lock-supervisor, which ends with its command: stop the command or `distlock run` instead")
}

/// The command could not be started: 127 if it was not found, 126 otherwise, as with env(1) and
/// timeout(1).
fn not_started(args: &RunArgs, errno: i32) -> Failure {
    let program = args.argv().first().map(|program| quoted(&program.to_string_lossy()));
    let program = program.unwrap_or_default();
    let error = io::Error::from_raw_os_error(errno);
    if error.kind() == io::ErrorKind::NotFound {
        return Failure::new(code::NOT_FOUND, "not-found", format!("the command {program} was not found"))
            .with_hint("check the spelling and $PATH; if it is a script, the program in its first line may be missing");
    }
    Failure::new(
        code::NOT_EXECUTABLE,
        "not-executable",
        format!("the command {program} cannot be executed: {error}"),
    )
    .with_hint(
        "it must be a program, or a script that begins with #!, and must be executable (chmod +x)",
    )
}
