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

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "why")
    }

    /// What it says to the contender, to people, and the mark.
    fn said(answer: Vec<Value>) -> (Reply, String, u64) {
        let (reply, mark) = NodeReply::from_script(Ok(Value::Array(answer)));
        (reply.brief(), reply.to_string(), mark)
    }

    #[test]
    fn each_answer_of_a_script_is_read() {
        let (int, text) = (Value::Int, |text: &str| Value::BulkString(text.into()));
        for (answer, brief, words, mark) in [
            (vec![int(1), int(7), int(5), int(90)], Reply::Mine { counter: 7 }, "granted it", 7),
            (vec![int(1), int(7), int(9), int(90)], Reply::Mine { counter: 7 }, "granted it", 9),
            (vec![int(0), int(-2), text(""), int(3)], Reply::NotMine, "does not hold it for us", 3),
            (
                vec![int(0), int(1500), text("ab"), int(0)],
                Reply::NotMine,
                "taken by another client for another 1.5s",
                0,
            ),
            (
                vec![int(0), int(-1), text("ab"), int(0)],
                Reply::NotMine,
                "taken by another client, without an expiry",
                0,
            ),
            (
                vec![int(2), int(7)],
                Reply::Unproven { counter: 7 },
                "holds it for us with another fence",
                0,
            ),
            (vec![int(-2), text("q")], Reply::NoVote, "belongs to another quorum, \"q\"", 0),
        ] {
            assert_eq!(said(answer), (brief, words.to_owned(), mark));
        }
        for (why, part) in [
            ("none", "it is new"),
            ("restarted", "it was restarted"),
            ("quarantine", "it lost its data"),
            ("boot", "the quorum is new"),
            ("?", "cannot be read"),
        ] {
            let (brief, words, _) = said(vec![int(-1), text(why)]);
            assert_eq!(brief, Reply::NoVote);
            assert!(words.starts_with("not admitted: ") && words.contains(part), "{words}");
        }
        for (answer, part) in [
            (vec![int(-3), int(5)], "stands at 5"),
            (vec![int(-4)], "is of another type"),
            (vec![int(9)], "a script"),
        ] {
            let (_, words, _) = said(answer);
            assert!(words.contains(part), "{words}");
        }
    }

    #[test]
    fn only_an_answer_is_a_vote_and_only_no_answer_is_unknown() {
        let failed = |kind| NodeReply::Failed(error(kind));
        for (reply, brief, words) in [
            (failed(ErrorKind::NoAnswer), Reply::Unknown, "slow: why"),
            (failed(ErrorKind::Unavailable), Reply::NoVote, "unreachable: why"),
            (failed(ErrorKind::Denied), Reply::NoVote, "why"),
        ] {
            assert_eq!((reply.brief(), reply.to_string().as_str()), (brief, words));
            assert!(reply.has_failed());
        }
        let released = |answer| NodeReply::from_release(answer).brief();
        assert_eq!(released(Ok(Value::Int(1))), Reply::Freed(true));
        assert_eq!(released(Ok(Value::Int(0))), Reply::Freed(false));
        assert_eq!(released(Err(error(ErrorKind::NoAnswer))), Reply::Unknown);
        assert!(NodeReply::from_release(Ok(Value::Nil)).has_failed());
        assert!(!NodeReply::Freed(false).has_failed());
    }
}
