//! A second process: this same executable, which a case starts again, talks to line by line, stops,
//! continues and kills.

mod process;
mod protocol;
mod serve;

use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use process::Process;
pub(crate) use protocol::{Order, Reply};
pub(crate) use serve::serve;

/// The store's uri: set for a child, and only for a child.
const URI: &str = "LOCK_TEST_CHILD_URI";
/// The prefix of the case's keys.
const PREFIX: &str = "LOCK_TEST_CHILD_PREFIX";

/// Whether this executable knows how to be a child: only if [`main`](crate::main) runs it.
static CAN_BE_CHILD: AtomicBool = AtomicBool::new(false);

/// The uri if this process is a child. After this call the process may start children.
pub(crate) fn uri_for_child() -> Option<String> {
    CAN_BE_CHILD.store(true, Ordering::Relaxed);
    std::env::var(URI).ok()
}

pub(crate) fn can_have_children() -> bool {
    CAN_BE_CHILD.load(Ordering::Relaxed)
}
