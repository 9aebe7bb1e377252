//! What a row does, in terms that are the same for all set-ups.

use serde::Serialize;

use crate::site::{Switch, Verb};

/// What a fault may break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) enum Class {
    /// Nothing.
    K,
    /// Nothing, but the store is unavailable for a while.
    U,
    /// Exclusion. It must be seen to, and no guarded update may be lost.
    F,
    /// Exclusion and the order of the fences.
    X,
}

/// How long a fault lasts, at least and at most, in hundredths of the ttl.
pub(crate) type Span = (u64, u64);

/// Which servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Leader,
    /// One that does not lead, or any of a quorum.
    Other,
    Majority,
}

/// What happens on the links of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLink {
    /// The reply to the next request is held up for so long.
    HoldReply,
    LoseRequest,
    /// The reply to one of the next twelve requests.
    LoseReply,
    Reset,
    Fin,
    Silence,
    /// For the connections that there are: new ones work.
    SilencePresent,
    SilenceReplies,
    Refuse,
    /// 200 ms, more or less by as much.
    Delay,
}

/// What happens to one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnWorker {
    /// One that holds a lock.
    Kill,
    /// It kills itself at one of the awaits of an acquisition.
    Die,
    Stop,
    Starve,
    /// It is started again with a wall clock that is a day ahead, or behind.
    Skew,
    /// Its links fall silent while it holds a lock.
    Partition,
}

/// What happens to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnServer {
    Freeze,
    /// Killed, and started again with its data.
    Crash,
    /// Killed, and started again without.
    Empty,
    /// It gets no more file descriptors, and its clients have to connect again.
    NoFiles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Worker(OnWorker, Span),
    Link(OnLink, Span),
    Server(Which, OnServer, Span),
    Once(Verb),
    While(Switch, Span),
    /// One member cannot reach the others.
    CutOff(Span),
    /// An operator takes a lock from its holder.
    Force,
    /// The wall clock of all servers is so many seconds ahead.
    Clock(i64, Span),
}
