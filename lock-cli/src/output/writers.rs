//! Standard error, and the file of `--events`, each written by a dedicated thread.
//!
//! A terminal that was stopped with Ctrl-S, or a pipe that is not read, blocks its writer. That
//! must not be the task that waits for a lock or watches one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Started with the first text.
static STDERR: OnceLock<TextWriter> = OnceLock::new();
/// Open if it was asked for.
static EVENTS: OnceLock<TextWriter> = OnceLock::new();

/// How long the end of the program waits for readers that do not read: with the time in which the
/// store is told, less than the three seconds that are promised.
const ENDING: Duration = Duration::from_millis(400);

/// Writes one text after the other, each in one write, so that lines of several processes do not mix.
/// Errors are ignored: there is no one to report them to.
struct TextWriter {
    /// `None` if there is no thread.
    texts: Option<mpsc::Sender<String>>,
    write: WriteText,
    pending: Arc<Pending>,
}

type WriteText = Arc<dyn Fn(&str) + Send + Sync>;

/// How many texts are not written yet.
#[derive(Default)]
struct Pending {
    texts: Mutex<usize>,
    written: Condvar,
}

impl TextWriter {
    fn start(name: &str, write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let write: WriteText = Arc::new(write);
        let pending = Arc::new(Pending::default());
        let (texts, queue) = mpsc::channel::<String>();
        let work = {
            let (write, pending) = (Arc::clone(&write), Arc::clone(&pending));
            move || {
                for text in queue {
                    write(&text);
                    *pending.texts.lock() -= 1;
                    pending.written.notify_all();
                }
            }
        };
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        Self { texts: started.is_ok().then_some(texts), write, pending }
    }

    fn write(&self, text: String) {
        let Some(texts) = &self.texts else { return (self.write)(&text) };
        *self.pending.texts.lock() += 1;
        let _ = texts.send(text);
    }

    fn is_busy(&self) -> bool {
        *self.pending.texts.lock() > 0
    }

    /// Waits until everything is written, or nobody reads it.
    fn flush(&self, limit: Duration) {
        let Pending { texts, written } = &*self.pending;
        written.wait_while_for(&mut texts.lock(), |pending| *pending > 0, limit);
    }
}

/// Writes `text` to standard error soon.
pub(crate) fn to_stderr(text: String) {
    let start = || {
        TextWriter::start("stderr", |text| {
            let mut stderr = io::stderr().lock();
            let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
        })
    };
    STDERR.get_or_init(start).write(text);
}

/// Whether something is still being written to standard error, so that optional output should be skipped.
pub(crate) fn is_stderr_busy() -> bool {
    STDERR.get().is_some_and(TextWriter::is_busy)
}

/// From now on, events are written to the end of the file at `path`, which may be a pipe.
pub(crate) fn open_events(path: &Path) -> io::Result<()> {
    // To open a pipe would wait for its reader.
    let at_once = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut options = OpenOptions::new();
    let file = options.append(true).create(true).custom_flags(at_once).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    EVENTS.get_or_init(|| TextWriter::start("events", move |text| append(&file, text)));
    Ok(())
}

fn append(mut file: &File, text: &str) {
    let _ = file.write_all(text.as_bytes());
}

/// Whether events are written to a file.
pub(crate) fn has_events() -> bool {
    EVENTS.get().is_some()
}

/// Writes a line to the file of events soon, if there is one.
pub(crate) fn to_events(line: &str) {
    if let Some(events) = EVENTS.get() {
        events.write(format!("{line}\n"));
    }
}

/// Waits until everything is written, or nobody reads it.
pub(crate) fn flush() {
    let writers = [STDERR.get(), EVENTS.get()];
    let all = writers.iter().flatten();
    let each = ENDING / u32::try_from(all.clone().count().max(1)).unwrap_or(1);
    all.for_each(|writer| writer.flush(each));
}
