//! Panics of tasks that nobody waits for, as a store and the core have them: without this, only standard error tells.

use std::panic;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;

/// A panic, and the thread on which it came. The threads of a case have its name.
struct Panic {
    thread: String,
    told: String,
}

static SEEN: Mutex<Vec<Panic>> = Mutex::new(Vec::new());

/// From now on panics are noted down. They are told as before, too.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let thread = thread::current().name().unwrap_or_default().to_owned();
            let told = panic.to_string().replace('\n', " ");
            seen().push(Panic { thread, told });
            before(panic);
        }));
    });
}

fn seen() -> MutexGuard<'static, Vec<Panic>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What came on the threads of this name since it was asked last.
pub(crate) fn on(thread: &str) -> Vec<String> {
    seen().extract_if(.., |panic| panic.thread == thread).map(|panic| panic.told).collect()
}

/// All that nobody has asked for: they came on threads that outlive the cases.
pub(crate) fn elsewhere() -> Vec<String> {
    seen().drain(..).map(|panic| format!("{}: {}", panic.thread, panic.told)).collect()
}
