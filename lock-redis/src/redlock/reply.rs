//! What one node said.

use std::fmt;
use std::time::Duration;

use lock_core::{Effect, Error, ErrorKind, Result};
use redis::Value;

use super::contender::Reply;
use crate::error::unexpected;
use crate::node;

/// The reply of one node to a request of a claim.
#[derive(Clone, Debug)]
pub(crate) enum NodeReply {
    /// The lock is ours there: its counter, and how long it lasts if that was asked for.
    Mine { counter: u64, left: Option<Duration> },
    /// It is not ours: who has it (the first characters of the value, empty if it is free), and for
    /// how much longer.
    NotMine { left: Option<Duration>, who: String },
    /// It is this owner's there, but not with the fence of the claim: it joined later.
    Unproven { counter: u64 },
    /// The node gives no vote, for this reason.
    NotAdmitted(String),
    /// The node belongs to a quorum with a different configuration.
    Otherwise(String),
    /// The release is carried out, and there was something to release.
    Freed(bool),
    /// No usable reply.
    Failed(Error),
}

impl NodeReply {
    /// Reads what a script answers, and the greatest mark that the node has shown; 0 if none.
    pub(crate) fn read(reply: &node::Reply<'_>) -> Result<(Self, u64)> {
        Ok(match reply.number(0)? {
            1 => {
                let (counter, mark) = (reply.count(1)?, reply.count(2)?);
                (Self::Mine { counter, left: reply.millis(3)? }, mark.max(counter))
            }
            0 => (Self::NotMine { left: reply.millis(1)?, who: reply.text(2)? }, reply.count(3)?),
            2 => (Self::Unproven { counter: reply.count(1)? }, 0),
            -1 => (Self::NotAdmitted(reply.text(1)?), 0),
            -2 => (Self::Otherwise(reply.text(1)?), 0),
            -3 => (Self::Failed(exhausted(reply.count(1)?)), 0),
            -4 => (Self::Failed(overwritten()), 0),
            _ => return Err(reply.wrong()),
        })
    }

    /// The same for a request about one lock alone.
    pub(crate) fn from_script(answer: Result<Value>) -> (Self, u64) {
        let read = |value: &Value| Self::read(&node::Reply::new("a script", value)?);
        let read = answer.and_then(|value| read(&value));
        read.unwrap_or_else(|error| (Self::Failed(error), 0))
    }

    /// Reads what a release answers.
    pub(crate) fn from_release(answer: Result<Value>) -> Self {
        match answer {
            Ok(Value::Int(freed)) => Self::Freed(freed == 1),
            Ok(other) => Self::Failed(unexpected("a release", &other)),
            Err(error) => Self::Failed(error),
        }
    }

    /// What it says to the contender.
    pub(crate) fn brief(&self) -> Reply {
        match self {
            Self::Mine { counter, .. } => Reply::Mine { counter: *counter },
            Self::Unproven { counter } => Reply::Unproven { counter: *counter },
            Self::NotMine { .. } => Reply::NotMine,
            Self::Freed(freed) => Reply::Freed(*freed),
            Self::Failed(error) if error.effect() == Effect::Unknown => Reply::Unknown,
            Self::NotAdmitted(_) | Self::Otherwise(_) | Self::Failed(_) => Reply::NoVote,
        }
    }

    /// Whether the node has not done what it was asked for.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.brief(), Reply::NoVote | Reply::Unknown)
    }
}

fn exhausted(counter: u64) -> Error {
    let text = format!(
        "its fence counter stands at {counter} and cannot rise any further: something else has written to it; delete the lock's auxiliary keys and the node's mark"
    );
    Error::new(ErrorKind::Store, text).with_retryable(false)
}

fn overwritten() -> Error {
    let text = "the key of the lock that ends in \"vote\" is of another type: something else has written to it; delete it";
    Error::new(ErrorKind::Store, text).with_retryable(false)
}

/// As worded in an error that lists all nodes.
impl fmt::Display for NodeReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mine { .. } => f.write_str("granted it"),
            Self::Unproven { .. } => f.write_str("holds it for us with another fence"),
            Self::NotMine { who, .. } if who.is_empty() => f.write_str("does not hold it for us"),
            Self::NotMine { left: Some(left), .. } => {
                write!(f, "taken by another client for another {left:.1?}")
            }
            Self::NotMine { left: None, .. } => {
                f.write_str("taken by another client, without an expiry")
            }
            Self::NotAdmitted(why) => {
                write!(f, "not admitted: {}", explain(why))
            }
            Self::Freed(_) => f.write_str("released it"),
            Self::Otherwise(quorum) => {
                write!(f, "belongs to another quorum, {quorum:?}")
            }
            Self::Failed(error) if error.kind() == ErrorKind::NoAnswer => {
                write!(f, "slow: {error}")
            }
            Self::Failed(error) if error.kind() == ErrorKind::Unavailable => {
                write!(f, "unreachable: {error}")
            }
            Self::Failed(error) => error.fmt(f),
        }
    }
}

fn explain(why: &str) -> &'static str {
    match why {
        "none" => "it has no marker, so it is new, or it has lost its data",
        "restarted" => "it was restarted, and may have lost its last writes",
        "quarantine" => "it lost its data or was restarted, and waits until older locks have ended",
        "boot" => "the quorum is new, and the node waits until older locks must have ended",
        _ => "its marker cannot be read",
    }
}
