//! What a worker and the stage say to each other: one JSON value a line. Times are nanoseconds of the
//! boot-time clock, which all processes of the machine share.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::parts::Parts;

/// What a worker has to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Brief {
    pub(crate) url: String,
    /// The names of the plain locks. A line names a lock by its place here, or a part by its place behind them.
    pub(crate) names: Vec<String>,
    pub(crate) parts: Parts,
    pub(crate) ttl: Duration,
    /// A hold lasts for up to twice as long.
    pub(crate) hold: Duration,
    /// Whether one hold now and then lasts longer than its ttl.
    pub(crate) outlasts: bool,
    pub(crate) contenders: u64,
    pub(crate) seed: u64,
    /// Which of all workers this is, so that its holds have numbers of their own.
    pub(crate) number: u64,
}

/// What a worker is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The answer of the registers to a request.
    Answer { request: u64, answer: Answer },
    /// Take over a lock that another worker has detached.
    Attach { hold: u64, name: usize, token: String },
    /// Let nothing run on the runtime for so long.
    Starve(Duration),
    /// Stop yourself (SIGSTOP) in the next hold, between its read and its write, if it begins before
    /// this moment.
    Halt { before: u64 },
    /// Poll the next acquisition so often, and then kill yourself.
    Die { polls: usize },
    /// Finish what you hold, close, and end.
    Finish,
}

/// The last element that each register has, [`EMPTY`] if it has none, or nothing if it has refused.
/// JSON cannot tell an absent element from a refusal.
pub(crate) type Reads = [Option<u64>; 3];

/// No element has this number.
pub(crate) const EMPTY: u64 = 0;

/// What each of the registers answered: the last element that was read, or whether the write was
/// acknowledged.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Read(Reads),
    Written,
}

/// What a worker says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Say {
    /// It has connected.
    Ready,
    Granted {
        hold: u64,
        name: usize,
        invoked: u64,
        granted: u64,
        fence: u64,
        valid_until: u64,
    },
    Read {
        request: u64,
        name: usize,
        fence: u64,
    },
    /// `read` is what each of the registers answered; one that refused is not written.
    Write {
        request: u64,
        name: usize,
        fence: u64,
        read: Reads,
        added: u64,
    },
    /// A release is about to be asked for: from now on its holder believes in nothing. Said before the store can
    /// hear of it, since a worker may be killed before it can say how that went.
    Releasing {
        hold: u64,
        at: u64,
    },
    Ended(Ended),
    /// The hold goes on under a lease token.
    Detached {
        hold: u64,
        name: usize,
        token: String,
    },
    /// Something that is only counted.
    Saw(Seen),
    /// Why the worker cannot go on.
    Failed(String),
    /// It has panicked: where, and why.
    Panicked(String),
    /// So many contenders have not ended what they did, although all others had.
    Waiting(usize),
    /// It has closed its client, and how many locks were left.
    Closed(Result<(), String>),
}

/// The end of a hold, as its holder saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) hold: u64,
    pub(crate) valid_until: u64,
    pub(crate) release_invoked: Option<u64>,
    pub(crate) released: Option<u64>,
    pub(crate) lost: Option<Lost>,
}

/// A loss that was reported to a holder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Lost {
    pub(crate) at: u64,
    pub(crate) reason: String,
    /// For how long the worker itself has not run since the end of validity.
    pub(crate) stalled: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Seen {
    /// Not granted, because another client held it.
    Busy,
    /// The future was dropped while it waited.
    Dropped,
    /// Granted, and lost before it could be used.
    LostAtOnce,
    /// Failed, and nothing was done.
    Failed,
    /// Failed, and the effect is unknown.
    Unknown,
    /// Several tasks waited at once, to pass one hold on.
    Cohort,
    /// A hold was renewed for longer than its ttl.
    Outlasted,
}
