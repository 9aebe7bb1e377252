//! Waiting for the lock, and reporting it.

use std::io::IsTerminal;
use std::pin::pin;
use std::time::Duration;

use distlock::clock::{Clock, ClockInstant, SystemClock};
use distlock::{ErrorKind, HolderInfo, Lock, LockGuard};
use rustix::process::Signal;
use serde_json::json;

use super::notes::Notes;
use super::signals::{self, Signals};
use crate::args::WantArgs;
use crate::exit::{Failure, code};
use crate::holder;
use crate::output::{columns, millis, rfc3339, short, stopwatch};
use crate::stderr;
use crate::store::Store;

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    Try,
    Limit(Duration),
    Forever,
}

/// A wait shorter than this is not reported.
const GRACE: Duration = Duration::from_millis(300);
/// How often the line is redrawn on a terminal, and how often a line is written elsewhere.
const REDRAW: Duration = Duration::from_secs(1);
const REPEAT: Duration = Duration::from_secs(30);
/// How long we wait to learn who holds the lock, which is only a courtesy.
const ASKING: Duration = Duration::from_secs(1);

/// Opens the store, and returns how long to wait for the lock, less the time that connecting took.
pub(crate) async fn open(
    want: &WantArgs,
    signals: &mut Signals,
) -> Result<(Store, Patience), Failure> {
    let begun = SystemClock::default().now();
    let store = tokio::select! {
        biased;
        signal = signals.next() => return Err(interrupted(signal)),
        store = Store::open(&want.store, want.wait) => store?,
    };
    let took = store.locks.clock().now().since(begun);
    let patience = match (want.nonblock, want.wait) {
        (true, _) => Patience::Try,
        (false, Some(limit)) => Patience::Limit(limit.saturating_sub(took)),
        (false, None) => Patience::Forever,
    };
    Ok((store, patience))
}

impl Patience {
    /// What is left of it.
    pub(crate) fn after(self, passed: Duration) -> Self {
        match self {
            Self::Limit(limit) => Self::Limit(limit.saturating_sub(passed)),
            unlimited => unlimited,
        }
    }
}

/// A lock that is wanted.
pub(crate) fn lock(name: &str, want: &WantArgs, store: &Store) -> Result<Lock, Failure> {
    let lock = store.lock(name, want.ttl)?;
    Ok(match &want.label {
        Some(label) => lock.label(label.as_str()),
        None => lock,
    })
}

/// Waits for the lock, or for a signal. After an error or a signal, the caller closes the store,
/// which cleans up whatever was left there.
pub(crate) async fn acquire(
    want: &WantArgs,
    store: &Store,
    lock: &Lock,
    patience: Patience,
    signals: &mut Signals,
    notes: &Notes,
) -> Result<LockGuard, Failure> {
    let clock = store.locks.clock();
    let started = clock.now();
    let guard = wait(store, lock, patience, signals, notes).await;
    let guard = guard.map_err(|failure| match failure.code() {
        code::NOT_ACQUIRED => failure.with_code(want.conflict_exit_code),
        _ => failure,
    })?;
    let (fence, waited) = (guard.token()?, clock.now().since(started));
    let fields = json!({
        "fence": fence.get(),
        "owner": guard.owner().short(),
        "backend": store.locks.backend_name(),
        "ttl_ms": millis(guard.ttl()),
        "valid_until": rfc3339(guard.valid_until_wall_clock()),
        "waited_ms": millis(waited),
    });
    notes.detail("acquired", fields, || {
        format!("acquired {} after {}, fence {fence}", notes.name(), short(waited))
    });
    Ok(guard)
}

async fn wait(
    store: &Store,
    lock: &Lock,
    patience: Patience,
    signals: &mut Signals,
    notes: &Notes,
) -> Result<LockGuard, Failure> {
    let clock = store.locks.clock();
    let started = clock.now();
    let mut acquiring = pin!(async {
        match patience {
            Patience::Try => lock.try_acquire().await,
            Patience::Limit(limit) => lock.acquire_timeout(limit).await.map(Some),
            Patience::Forever => lock.acquire().await.map(Some),
        }
    });
    let mut display = Display::new(notes, started);
    let answer = loop {
        tokio::select! {
            biased;
            signal = signals.next() => {
                return Err(interrupted(signal));
            }
            answer = &mut acquiring => break answer,
            () = clock.sleep_until(display.next_at), if !notes.quiet() => {
                // The wait continues while we ask.
                let asked = tokio::select! {
                    biased;
                    answer = &mut acquiring => break answer,
                    holder = ask(store, lock) => holder,
                };
                display.show(notes, asked.as_ref(), &**clock);
            }
        }
    };
    drop(display);
    match answer {
        Ok(Some(guard)) => Ok(guard),
        Ok(None) => Err(not_acquired(notes, ask(store, lock).await, None)),
        Err(error) if error.kind() == ErrorKind::NotAcquired => {
            let waited = clock.now().since(started);
            let who = match error.holder() {
                Some(holder) => Some(holder.clone()),
                None => ask(store, lock).await,
            };
            Err(not_acquired(notes, who, Some(waited)))
        }
        Err(error) => store.describe(Err(error)),
    }
}

fn interrupted(signal: Signal) -> Failure {
    Failure::interrupted(signal.as_raw(), &signals::name(signal.as_raw()))
}

/// Another client holds it: say who.
fn not_acquired(notes: &Notes, who: Option<HolderInfo>, waited: Option<Duration>) -> Failure {
    let name = notes.name();
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
        None => format!("{name} not acquired{after}: another client held it until just now"),
    };
    notes.note("not_acquired", fields, || message.clone());
    Failure::new(code::NOT_ACQUIRED, "not-acquired", message).said()
}

/// Who holds the lock, if the store answers soon.
async fn ask(store: &Store, lock: &Lock) -> Option<HolderInfo> {
    tokio::select! {
        answer = store.locks.inspect(lock.key().name()) => answer.ok().flatten()?.holder,
        () = store.locks.clock().sleep(ASKING) => None,
    }
}

/// One line that is redrawn on a terminal, or else a line now and then.
struct Display {
    started: ClockInstant,
    next_at: ClockInstant,
    on_terminal: bool,
    drawn: bool,
}

impl Display {
    fn new(notes: &Notes, started: ClockInstant) -> Self {
        let on_terminal = !notes.json() && std::io::stderr().is_terminal();
        Self { started, next_at: started + GRACE, on_terminal, drawn: false }
    }

    fn show(&mut self, notes: &Notes, holder: Option<&HolderInfo>, clock: &dyn Clock) {
        let now = clock.now();
        let waited = now.since(self.started);
        if !self.on_terminal {
            self.next_at = now + REPEAT;
            return notes.waiting(holder, millis(waited));
        }
        self.next_at = now + REDRAW;
        // A stopped terminal will show the next one.
        if stderr::is_busy() {
            return;
        }
        let by = holder.map(|holder| format!(" · held by {}", holder::brief(holder)));
        let text = format!("waiting for {}{}", notes.name(), by.unwrap_or_default());
        let end = format!(" · {}", stopwatch(waited));
        stderr::write(format!("\r{}\x1b[K", fit(&text, &end, columns(std::io::stderr()))));
        self.drawn = true;
    }
}

/// Also where the wait is given up half-way.
impl Drop for Display {
    fn drop(&mut self) {
        if self.drawn {
            stderr::write("\r\x1b[K".to_owned());
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
