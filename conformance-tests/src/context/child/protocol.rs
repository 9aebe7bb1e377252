//! The messages between a case and its child process: one JSON value per line.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the child is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Take the lock and keep it, waiting up to `limit`.
    Acquire { name: String, ttl: Duration, limit: Duration },
    /// Like `Acquire`, but answered at once with `Done`; `Result` asks how it ended.
    Wait { name: String, ttl: Duration },
    /// The outcome of `Wait`, as soon as there is one.
    Result { name: String },
    /// Take the lock if it is free.
    Try { name: String, ttl: Duration },
    /// The fencing token of the lock that is held.
    Token { name: String },
    /// Release the lock.
    Release { name: String },
    /// Hand the lock to the bearer of its lease token.
    Detach { name: String },
    /// Take over a detached lock.
    Attach { name: String, ttl: Duration, token: String },
    /// Add one to the number in `file`, `times` times, each under the lock.
    Count { name: String, ttl: Duration, file: PathBuf, times: u32 },
    /// Close everything and end.
    Exit,
}

/// What the child answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    /// The lock is held, with this token; the end of its validity on the boot-time clock.
    Held {
        fence: u64,
        valid_until: u64,
    },
    Busy,
    /// The lock was held and no longer is.
    Lost {
        reason: String,
    },
    Lease {
        token: String,
    },
    Counted(Vec<Counted>),
    Failed {
        error: String,
    },
    /// A task of it has panicked.
    Panicked {
        what: String,
    },
}

/// One hold of `Order::Count`. Times are nanoseconds of the boot-time clock, which all processes
/// share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) invoked: u64,
    pub(crate) granted: u64,
    pub(crate) fence: u64,
    pub(crate) valid_until: u64,
    pub(crate) release_invoked: u64,
    pub(crate) released: u64,
}
