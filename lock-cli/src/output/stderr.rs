//! Standard error, written by a dedicated thread.
//!
//! A terminal that was stopped with Ctrl-S, or a pipe that is not read, blocks its writer. That
//! must not be the task that waits for a lock or watches one.

use std::io::Write;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The thread, started with the first text; `None` if it cannot be.
static THREAD: OnceLock<Option<mpsc::Sender<String>>> = OnceLock::new();
/// How many texts are not written yet.
static PENDING: Mutex<usize> = Mutex::new(0);
static WRITTEN: Condvar = Condvar::new();

/// How long the end of the program waits for a reader that does not read: with the time in which the
/// store is told, less than the three seconds that are promised.
const ENDING: Duration = Duration::from_millis(400);

/// Writes `text` soon, in one write, so that lines of several processes do not mix. Errors are
/// ignored: there is no one to report them to.
pub(crate) fn write(text: String) {
    let Some(texts) = THREAD.get_or_init(thread) else { return write_now(&text) };
    *PENDING.lock() += 1;
    let _ = texts.send(text);
}

/// Whether something is still being written, so that optional output should be skipped.
pub(crate) fn is_busy() -> bool {
    *PENDING.lock() > 0
}

/// Waits until everything is written, or nobody reads it.
pub(crate) fn flush() {
    WRITTEN.wait_while_for(&mut PENDING.lock(), |pending| *pending > 0, ENDING);
}

fn thread() -> Option<mpsc::Sender<String>> {
    let (texts, queue) = mpsc::channel::<String>();
    let work = move || {
        for text in queue {
            write_now(&text);
            *PENDING.lock() -= 1;
            WRITTEN.notify_all();
        }
    };
    std::thread::Builder::new().name("stderr".to_owned()).spawn(work).is_ok().then_some(texts)
}

fn write_now(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
