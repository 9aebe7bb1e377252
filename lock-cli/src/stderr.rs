//! Standard error, written by a dedicated thread.
//!
//! A terminal that was stopped with Ctrl-S, or a pipe that is not read, blocks its writer. That
//! must not be the task that waits for a lock or watches one.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};

enum Order {
    Write(String),
    /// Everything before this was written.
    Flush(mpsc::SyncSender<()>),
}

static THREAD: OnceLock<Option<mpsc::Sender<Order>>> = OnceLock::new();
/// How many writes are pending.
static PENDING: AtomicUsize = AtomicUsize::new(0);

/// Writes `text` soon, in one write, so that lines of several processes do not mix. Errors are
/// ignored: there is no one to report them to.
pub(crate) fn write(text: String) {
    match thread() {
        Some(orders) => {
            PENDING.fetch_add(1, Ordering::Relaxed);
            let _ = orders.send(Order::Write(text));
        }
        None => write_now(&text),
    }
}

/// Whether something is still being written, so that optional output should be skipped.
pub(crate) fn is_busy() -> bool {
    PENDING.load(Ordering::Relaxed) > 0
}

/// Waits until everything is written.
pub(crate) fn flush() {
    let Some(Some(orders)) = THREAD.get() else { return };
    let (done, written) = mpsc::sync_channel(1);
    if orders.send(Order::Flush(done)).is_ok() {
        let _ = written.recv();
    }
}

/// The thread, started when the first line is written; `None` if it cannot be.
fn thread() -> Option<&'static mpsc::Sender<Order>> {
    let start = || {
        let (orders, queue) = mpsc::channel();
        let work = move || {
            for order in queue {
                match order {
                    Order::Write(text) => {
                        write_now(&text);
                        PENDING.fetch_sub(1, Ordering::Relaxed);
                    }
                    Order::Flush(done) => drop(done.send(())),
                }
            }
        };
        std::thread::Builder::new().name("stderr".to_owned()).spawn(work).is_ok().then_some(orders)
    };
    THREAD.get_or_init(start).as_ref()
}

fn write_now(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
