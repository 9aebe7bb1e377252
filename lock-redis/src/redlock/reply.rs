//! What one node said.

use std::fmt;
use std::time::Duration;

use lock_core::{Effect, Error, ErrorKind, Result};
use redis::Value;

use super::contender::Reply;
use crate::error::unexpected;

/// The reply of one node to a request of a claim.
#[derive(Clone, Debug)]
pub(crate) enum NodeReply {
    /// The lock is ours there: its counter, and how long it lasts where that was asked for.
    Mine { counter: u64, left: Option<Duration> },
    /// It is not ours: who has it (the first characters of the value, empty if nobody), and for how
    /// much longer.
    NotMine { left: Option<Duration>, who: String },
    /// It is this owner's there, but not with the fence of the claim: it joined later.
    Unproven { counter: u64 },
    /// The node gives no vote, for this reason.
    NotAdmitted(String),
    /// The node belongs to a quorum that is configured otherwise.
    Otherwise(String),
    /// The release is carried out, and there was something to release.
    Freed(bool),
    /// No reply that could be used.
    Failed(Error),
}

/// A reply together with the greatest mark that the node showed; 0 if it showed none.
pub(crate) type Marked = (NodeReply, u64);

impl NodeReply {
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

    /// Whether the node takes part: it has voted, for this claim or for somebody else.
    pub(crate) fn is_vote(&self) -> bool {
        self.brief().is_vote()
    }

    /// Whether the node has not done what it was asked for.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.brief(), Reply::NoVote | Reply::Unknown)
    }

    pub(crate) fn from_acquire(answer: Result<Value>) -> Marked {
        match parse(answer) {
            Err(error) => (Self::Failed(error), 0),
            Ok((1, rest)) => {
                (Self::Mine { counter: number(&rest, 0), left: None }, number(&rest, 1))
            }
            Ok((0, rest)) => {
                (Self::NotMine { left: millis(&rest, 0), who: text(&rest, 1) }, number(&rest, 2))
            }
            Ok((code, rest)) => (Self::refused(code, &rest), 0),
        }
    }

    pub(crate) fn from_raise(answer: Result<Value>) -> Marked {
        match parse(answer) {
            Err(error) => (Self::Failed(error), 0),
            Ok((1, rest)) => {
                (Self::Mine { counter: number(&rest, 0), left: None }, number(&rest, 1))
            }
            Ok((0, _)) => (Self::nobody(), 0),
            Ok((code, rest)) => (Self::refused(code, &rest), 0),
        }
    }

    pub(crate) fn from_renew(answer: Result<Value>) -> Self {
        match parse(answer) {
            Err(error) => Self::Failed(error),
            Ok((1, rest)) => Self::Mine { counter: number(&rest, 0), left: millis(&rest, 1) },
            Ok((2, rest)) => Self::Unproven { counter: number(&rest, 0) },
            Ok((0, _)) => Self::nobody(),
            Ok((code, rest)) => Self::refused(code, &rest),
        }
    }

    pub(crate) fn from_release(answer: Result<Value>) -> Self {
        match answer {
            Ok(Value::Int(freed)) => Self::Freed(freed == 1),
            Ok(other) => Self::Failed(unexpected("a release", &other)),
            Err(error) => Self::Failed(error),
        }
    }

    fn nobody() -> Self {
        Self::NotMine { left: None, who: String::new() }
    }

    fn refused(code: i64, rest: &[Value]) -> Self {
        match code {
            -1 => Self::NotAdmitted(text(rest, 0)),
            -2 => Self::Otherwise(text(rest, 0)),
            -3 => Self::Failed(
                Error::new(
                    ErrorKind::Store,
                    format!(
                        "its fence counter stands at {} and cannot rise any more: somebody has written to it; delete the lock's auxiliary keys and the node's mark",
                        number(rest, 0)
                    ),
                )
                .with_retryable(false),
            ),
            _ => Self::Failed(unexpected("a script", &Value::Int(code))),
        }
    }
}

/// In the words of an error that lists all nodes.
impl fmt::Display for NodeReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mine { .. } => f.write_str("granted it"),
            Self::Unproven { .. } => f.write_str("holds it for us with another fence"),
            Self::NotMine { who, .. } if who.is_empty() => f.write_str("does not hold it for us"),
            Self::NotMine { left: Some(left), .. } => {
                write!(f, "taken by somebody else for another {left:.1?}")
            }
            Self::NotMine { left: None, .. } => {
                f.write_str("taken by somebody else, without an end")
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

fn parse(answer: Result<Value>) -> Result<(i64, Vec<Value>)> {
    match answer? {
        Value::Array(mut parts) => match parts.first() {
            Some(Value::Int(code)) => {
                let code = *code;
                parts.remove(0);
                Ok((code, parts))
            }
            _ => Err(unexpected("a script", &Value::Array(parts))),
        },
        other => Err(unexpected("a script", &other)),
    }
}

fn number(parts: &[Value], place: usize) -> u64 {
    match parts.get(place) {
        Some(Value::Int(number)) => u64::try_from(*number).unwrap_or(0),
        _ => 0,
    }
}

/// Redis says -1 for a key without an end.
fn millis(parts: &[Value], place: usize) -> Option<Duration> {
    match parts.get(place) {
        Some(Value::Int(ms)) => u64::try_from(*ms).ok().map(Duration::from_millis),
        _ => None,
    }
}

/// What stands in a reply for people to read, made harmless.
pub(crate) fn text(parts: &[Value], place: usize) -> String {
    let bytes = match parts.get(place) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Some(Value::SimpleString(text)) => text.clone(),
        _ => String::new(),
    };
    bytes.chars().take(400).collect()
}
