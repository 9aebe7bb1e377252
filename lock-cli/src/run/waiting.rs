//! Waiting for the lock, and reporting it.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use distlock::admin::HolderInfo;
use distlock::clock::{Clock, ClockInstant, SystemClock};
use distlock::{Error, ErrorKind, Lock};
use rustix::io::Errno;
use serde_json::json;

use super::wanted::Wanted;
use crate::args::WantArgs;
use crate::exit::{ExitError, code};
use crate::output::holder;
use crate::output::reporter::Reporter;
use crate::output::writers;
use crate::output::{columns, millis, quoted, rfc3339, short, stopwatch};
use crate::signals::{FORWARDED, Signals, interrupted};
use crate::store::OpenStore;

/// A wait shorter than this is not reported.
const GRACE: Duration = Duration::from_millis(300);
/// How often the line is redrawn on a terminal, and how often a line is written elsewhere.
const REDRAW: Duration = Duration::from_secs(1);
const REPEAT: Duration = Duration::from_secs(30);
/// How long we wait to learn who holds the lock, which is only a courtesy.
const ASKING: Duration = Duration::from_secs(1);

/// How long the program may still take when all that is left is to tell the store: after the
/// command, or after an abandoned wait. What the store has not confirmed by then expires with the
/// lease.
pub(super) const ENDING: Duration = Duration::from_millis(2500);

/// The outcome of `work`, with the exit code for which `want` asks, and its events where `want` asks for them.
pub(crate) async fn as_wanted(
    want: &WantArgs,
    work: impl Future<Output = Result<u8, ExitError>>,
) -> Result<u8, ExitError> {
    if let Some(file) = &want.events {
        writers::open_events(file).map_err(|error| cannot_open(file, &error))?;
    }
    work.await.map_err(|failure| failure.moved(&want.moved_codes()))
}

fn cannot_open(file: &Path, error: &io::Error) -> ExitError {
    let file = quoted(&file.to_string_lossy());
    let failure = ExitError::config(format!("cannot write events to {file}: {error}"));
    // Rust has no name for it.
    if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) {
        return failure
            .with_hint("it is a pipe that nobody reads, or a socket: start its reader first");
    }
    failure
}

/// What `run` and `acquire` work with: the store, the signals that may come, and what is told.
pub(crate) struct StoreSession {
    pub(crate) store: OpenStore,
    /// When the wait for all locks ends. It has begun with connecting.
    give_up_at: Option<ClockInstant>,
    pub(crate) signals: Signals,
    pub(crate) reporter: Reporter,
    /// When the program has to have ended, once all that is left is to tell the store.
    end_by: Option<ClockInstant>,
    /// A signal came while the command ran that asks for the end (see [`STOPPING`](crate::signals::STOPPING)).
    pub(super) is_stopping: bool,
    /// Some locks are left to their ttl, so the store is not told that we leave.
    pub(super) is_left: bool,
}

impl StoreSession {
    pub(crate) async fn open(names: &[String], want: &WantArgs) -> Result<Self, ExitError> {
        let mut signals = Signals::watch(&FORWARDED, &[])?;
        let limit = want.wait.filter(|_| !want.is_try());
        let give_up_at = limit.map(|limit| SystemClock::default().now() + limit);
        let reporter = Reporter::new(names, want);
        let opening = async {
            let Some(limit) = limit else { return OpenStore::open(&want.store).await };
            let told = |error: &Error| {
                let text = format!(
                    "the store cannot be reached ({error}); trying again for {}",
                    short(limit)
                );
                reporter.note("unreachable", json!({ "message": error.to_string() }), &text);
            };
            OpenStore::open_within(&want.store, limit, told).await
        };
        let store = tokio::select! {
            biased;
            signal = signals.next() => return Err(interrupted(signal)),
            store = opening => store?,
        };
        let (is_stopping, is_left) = (false, false);
        Ok(Self { store, give_up_at, signals, reporter, end_by: None, is_stopping, is_left })
    }

    /// By when the program has to end, which begins with the first call.
    pub(crate) fn end_by(&mut self) -> ClockInstant {
        let now = self.store.locks.clock().now();
        *self.end_by.get_or_insert(now + ENDING)
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.store.locks.clock()
    }

    /// Removes what an abandoned wait has left in the store, and closes the store. A second signal ends
    /// that, unless it came together with the first.
    pub(crate) async fn close(mut self) {
        if self.is_left {
            return;
        }
        let end_by = self.end_by();
        let Self { store, mut signals, reporter, .. } = self;
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
            let text = format!("could not tell the store that we are leaving: {error}");
            reporter.warn("not-cleaned-up", json!({ "message": error.to_string() }), &text);
        }
    }
}

/// A lock that is wanted.
pub(crate) fn lock(name: &str, want: &WantArgs, store: &OpenStore) -> Result<Lock, ExitError> {
    let lock = store.lock(name, want.ttl)?;
    Ok(match &want.label {
        Some(label) => lock.label(label.as_str()),
        None => lock,
    })
}

/// Waits for the lock, or for a signal. After an error or a signal, the caller closes the store,
/// which cleans up whatever was left there.
pub(crate) async fn acquire<W: Wanted>(
    want: &WantArgs,
    session: &mut StoreSession,
    wanted: &W,
) -> Result<W::Hold, ExitError> {
    let reporter = &session.reporter.of(wanted.name());
    let clock = Arc::clone(session.clock());
    let started = clock.now();
    let guard = wait(want, session, wanted, reporter).await?;
    let (fence, waited) = (guard.token()?, clock.now().since(started));
    let fields = json!({
        "fence": fence.get(),
        "owner": guard.owner().short(),
        "backend": session.store.locks.backend_name(),
        "ttl_ms": millis(guard.ttl()),
        "valid_until": rfc3339(guard.valid_until_wall_clock()),
        "waited_ms": millis(waited),
    });
    let text = format!("acquired {} after {}, fence {fence}", reporter.name(), short(waited));
    reporter.detail("acquired", fields, &text);
    Ok(guard)
}

async fn wait<W: Wanted>(
    want: &WantArgs,
    session: &mut StoreSession,
    wanted: &W,
    reporter: &Reporter,
) -> Result<W::Hold, ExitError> {
    let StoreSession { store, give_up_at, signals, .. } = session;
    let clock = store.locks.clock();
    let started = clock.now();
    let mut acquiring = pin!(async {
        match *give_up_at {
            _ if want.is_try() => wanted.attempt().await,
            Some(at) => wanted.wait_for(at.since(started)).await.map(Some),
            None => wanted.wait().await.map(Some),
        }
    });
    let mut display = Display::new(reporter, started);
    let answer = loop {
        tokio::select! {
            biased;
            signal = signals.next() => {
                return Err(interrupted(signal));
            }
            answer = &mut acquiring => break answer,
            () = clock.sleep_until(display.next_at), if reporter.tells_of_waiting() => {
                // The wait continues while we ask.
                let asked = tokio::select! {
                    biased;
                    answer = &mut acquiring => break answer,
                    holder = ask(store, wanted) => holder,
                };
                display.show(reporter, asked.as_ref(), &**clock);
            }
        }
    };
    drop(display);
    let (holder, waited) = match answer {
        Ok(Some(guard)) => return Ok(guard),
        Ok(None) => (None, None),
        Err(error) if error.kind() == ErrorKind::NotAcquired => {
            (error.holder().cloned(), Some(clock.now().since(started)))
        }
        Err(error) => return store.describe(Err(error)),
    };
    let holder = match holder {
        None => ask(store, wanted).await,
        known => known,
    };
    Err(not_acquired(reporter, holder, waited, wanted.busy()))
}

/// Another client holds it: say who.
fn not_acquired(
    reporter: &Reporter,
    who: Option<HolderInfo>,
    waited: Option<Duration>,
    busy: &str,
) -> ExitError {
    let name = reporter.name();
    let after =
        waited.map(|waited| format!(" after {} of waiting", short(waited))).unwrap_or_default();
    let fields = json!({
        "holder": who.as_ref().map(holder::holder_json),
        "waited_ms": waited.map(millis),
    });
    let message = match who {
        Some(holder) => {
            format!("{name} not acquired{after}: held by {}", holder::sentence(&holder))
        }
        None => format!("{name} not acquired{after}: {busy}"),
    };
    reporter.note("not-acquired", fields, &message);
    ExitError::new(code::NOT_ACQUIRED, "not-acquired", message).said()
}

/// Who holds the lock, if the store answers soon.
async fn ask(store: &OpenStore, wanted: &impl Wanted) -> Option<HolderInfo> {
    if !wanted.is_exclusive() {
        return None;
    }
    tokio::select! {
        answer = store.locks.inspect(wanted.name()) => answer.ok().flatten()?.holder,
        () = store.locks.clock().sleep(ASKING) => None,
    }
}

/// One line that is redrawn on a terminal, or else a line now and then.
struct Display {
    started: ClockInstant,
    next_at: ClockInstant,
    /// When the next event is due.
    repeat_at: ClockInstant,
    on_terminal: bool,
    drawn: bool,
}

impl Display {
    fn new(reporter: &Reporter, started: ClockInstant) -> Self {
        let on_terminal = !reporter.json && !reporter.quiet && io::stderr().is_terminal();
        let first = started + GRACE;
        Self { started, next_at: first, repeat_at: first, on_terminal, drawn: false }
    }

    fn show(&mut self, reporter: &Reporter, holder: Option<&HolderInfo>, clock: &dyn Clock) {
        let now = clock.now();
        let waited = now.since(self.started);
        if now >= self.repeat_at {
            self.repeat_at = now + REPEAT;
            reporter.waiting(holder, millis(waited), self.on_terminal);
        }
        if !self.on_terminal {
            self.next_at = self.repeat_at;
            return;
        }
        self.next_at = now + REDRAW;
        // A stopped terminal will show the next one.
        if writers::is_stderr_busy() {
            return;
        }
        let by = holder.map(|holder| format!(" · held by {}", holder::brief(holder)));
        let text = format!("waiting for {}{}", reporter.name(), by.unwrap_or_default());
        let end = format!(" · {}", stopwatch(waited));
        writers::to_stderr(format!("\r{}\x1b[K", fit(&text, &end, columns(io::stderr()))));
        self.drawn = true;
    }
}

/// Also where the wait is given up half-way.
impl Drop for Display {
    fn drop(&mut self) {
        if self.drawn {
            writers::to_stderr("\r\x1b[K".to_owned());
        }
    }
}

/// Shortens `text` to fit on one line with its `end`: a longer line would wrap and fill the screen.
fn fit(text: &str, end: &str, columns: usize) -> String {
    let room = columns.saturating_sub(end.chars().count() + 1);
    if text.chars().count() <= room {
        return format!("{text}{end}");
    }
    text.chars().take(room.saturating_sub(1)).chain(['…']).chain(end.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_and_keeps_its_end() {
        assert_eq!(fit("waiting", " · 00:01", 80), "waiting · 00:01");
        let cut = fit(&"ä".repeat(100), " · 00:01", 40);
        assert_eq!(cut.chars().count(), 39);
        assert!(cut.ends_with("ä… · 00:01"), "{cut}");
    }
}
