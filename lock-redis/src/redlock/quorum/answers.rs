//! What the nodes have answered: one of them to one request, and all of them to one call.

use std::fmt;
use std::time::Duration;

use lock_core::{Effect, Error, ErrorKind, Result};
use redis::Value;

use super::fan_out::{self, decisive};
use super::rules::{self, AnswerBrief};
use crate::node::{ReplyReader, is_one};

/// The reply of one node to a request of a claim.
#[derive(Clone, Debug)]
pub(crate) enum NodeAnswer {
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
    /// It has answered a look.
    Shown,
    /// No usable reply.
    Failed(Error),
}

impl NodeAnswer {
    /// Reads what a script answers, and the greatest mark that the node has shown; 0 if none.
    pub(crate) fn read(reply: ReplyReader<'_>) -> Result<(Self, u64)> {
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
            _ => return Err(reply.wrong()),
        })
    }

    /// The same for a request about one lock alone.
    pub(crate) fn of_a_lock(answer: Value) -> Result<(Self, u64)> {
        Self::read(ReplyReader::new("a script", &answer)?)
    }

    /// Reads what a release answers, which shows no mark.
    pub(crate) fn of_a_release(answer: Value) -> Result<(Self, u64)> {
        is_one("a release", &answer).map(|freed| (Self::Freed(freed), 0))
    }

    /// What it says to the contender.
    pub(crate) fn brief(&self) -> AnswerBrief {
        match self {
            Self::Mine { counter, .. } => AnswerBrief::Mine { counter: *counter },
            Self::Unproven { counter } => AnswerBrief::Unproven { counter: *counter },
            Self::NotMine { .. } | Self::Shown => AnswerBrief::NotMine,
            Self::Freed(freed) => AnswerBrief::Freed(*freed),
            Self::Failed(error) => rules::of_error(error.effect() == Effect::Unknown),
            Self::NotAdmitted(_) | Self::Otherwise(_) => AnswerBrief::NoVote,
        }
    }

    pub(crate) fn lacks_admission(&self) -> bool {
        matches!(self, Self::NotAdmitted(_))
    }

    /// Whether the node has not done what it was asked for.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.brief(), AnswerBrief::NoVote | AnswerBrief::Unknown)
    }
}

fn exhausted(mark: u64) -> Error {
    let text = format!(
        "its mark stands at {mark}, and fences cannot rise any further: something else has written to it; delete it"
    );
    Error::new(ErrorKind::Store, text).with_retryable(false)
}

/// As worded in an error that lists all nodes.
impl fmt::Display for NodeAnswer {
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
            Self::Shown => f.write_str("shows its votes"),
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

/// The replies to one call, node by node.
#[derive(Debug, Default)]
pub(crate) struct AnswerTally {
    needed: usize,
    /// `None` while there is none.
    replies: Vec<Option<NodeAnswer>>,
}

impl AnswerTally {
    /// `needed` of so many `nodes` decide.
    pub(crate) fn new(nodes: usize, needed: usize) -> Self {
        Self { needed, replies: vec![None; nodes] }
    }

    pub(crate) fn set(&mut self, node: usize, reply: NodeAnswer) {
        self.replies[node] = Some(reply);
    }

    /// For how long a quorum of the nodes keep the lock for this owner.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = |reply: &NodeAnswer| match reply {
            NodeAnswer::Mine { left, .. } => *left,
            _ => None,
        };
        let mut left: Vec<_> = self.replies.iter().flatten().filter_map(left).collect();
        left.sort_by(|a, b| b.cmp(a));
        left.get(self.needed - 1).copied()
    }

    /// Whether no other contender that a node has named has a lesser owner id.
    pub(crate) fn is_least(&self, owner: &str) -> bool {
        self.replies.iter().flatten().filter_map(holder).all(|who| owner <= who)
    }

    /// Whether so many of the nodes that are not ours name the same holder that it has a quorum.
    pub(crate) fn is_held(&self) -> bool {
        let holders: Vec<_> = self.replies.iter().flatten().filter_map(holder).collect();
        holders
            .iter()
            .any(|who| holders.iter().filter(|other| other == &who).count() >= self.needed)
    }

    /// How long until enough nodes are free for a quorum, if no lock is renewed.
    pub(crate) fn free_in(&self) -> Option<Duration> {
        let mut times: Vec<_> = self.replies.iter().flatten().filter_map(free_at).collect();
        times.sort();
        times.get(self.needed - 1).copied()
    }

    /// Whether a node is not admitted.
    pub(crate) fn lacks_admission(&self) -> bool {
        self.replies.iter().flatten().any(NodeAnswer::lacks_admission)
    }

    /// The error of a try that no quorum has answered. It lists each node's answer.
    pub(crate) fn error<'a>(
        &self,
        endpoint: impl Fn(usize) -> &'a str,
        why: Option<&str>,
    ) -> Error {
        let nodes = self.replies.len();
        let mut message = format!("no quorum: {} of {nodes} nodes must vote", self.needed);
        for (node, reply) in self.replies.iter().enumerate() {
            let endpoint = endpoint(node);
            message.push_str(&match reply {
                Some(reply) => format!("; {endpoint}: {reply}"),
                None => format!("; {endpoint}: slow, no answer yet"),
            });
        }
        if let Some(why) = why.filter(|_| self.lacks_admission()) {
            message.push_str(". ");
            message.push_str(why);
        }
        let spare = nodes - self.needed;
        let failed = || self.replies.iter().flatten().filter(|reply| reply.has_failed());
        let kind = match decisive(failed().filter_map(final_kind), spare) {
            Some(kind) => kind,
            None if failed().all(is_slow) => ErrorKind::NoAnswer,
            None => ErrorKind::Unavailable,
        };
        let error = Error::new(kind, message);
        let open = self.replies.iter().any(Option::is_none)
            || failed().any(|reply| reply.brief() == AnswerBrief::Unknown);
        if open { error.with_unknown_effect() } else { error }
    }
}

fn holder(reply: &NodeAnswer) -> Option<&str> {
    match reply {
        NodeAnswer::NotMine { who, .. } if !who.is_empty() => Some(who),
        _ => None,
    }
}

fn free_at(reply: &NodeAnswer) -> Option<Duration> {
    match reply {
        NodeAnswer::Mine { .. } => Some(Duration::ZERO),
        NodeAnswer::NotMine { left, who } if left.is_some() || !who.is_empty() => *left,
        NodeAnswer::NotMine { .. } => Some(Duration::ZERO),
        _ => None,
    }
}

fn is_slow(reply: &NodeAnswer) -> bool {
    matches!(reply, NodeAnswer::Failed(error) if error.kind() == ErrorKind::NoAnswer)
}

/// The kind of an answer that will not change on a retry.
fn final_kind(reply: &NodeAnswer) -> Option<ErrorKind> {
    match reply {
        NodeAnswer::Otherwise(_) => Some(ErrorKind::Config),
        NodeAnswer::Failed(error) => fan_out::final_kind(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "why")
    }

    /// What it says to the contender, to people, and the mark.
    fn said(answer: Vec<Value>) -> (AnswerBrief, String, u64) {
        let read = NodeAnswer::of_a_lock(Value::Array(answer));
        let (reply, mark) = read.unwrap_or_else(|error| (NodeAnswer::Failed(error), 0));
        (reply.brief(), reply.to_string(), mark)
    }

    #[test]
    fn each_answer_of_a_script_is_read() {
        let (int, text) = (Value::Int, |text: &str| Value::BulkString(text.into()));
        for (answer, brief, words, mark) in [
            (
                vec![int(1), int(7), int(5), int(90)],
                AnswerBrief::Mine { counter: 7 },
                "granted it",
                7,
            ),
            (
                vec![int(1), int(7), int(9), int(90)],
                AnswerBrief::Mine { counter: 7 },
                "granted it",
                9,
            ),
            (
                vec![int(0), int(-2), text(""), int(3)],
                AnswerBrief::NotMine,
                "does not hold it for us",
                3,
            ),
            (
                vec![int(0), int(1500), text("ab"), int(0)],
                AnswerBrief::NotMine,
                "taken by another client for another 1.5s",
                0,
            ),
            (
                vec![int(0), int(-1), text("ab"), int(0)],
                AnswerBrief::NotMine,
                "taken by another client, without an expiry",
                0,
            ),
            (
                vec![int(2), int(7)],
                AnswerBrief::Unproven { counter: 7 },
                "holds it for us with another fence",
                0,
            ),
            (vec![int(-2), text("q")], AnswerBrief::NoVote, "belongs to another quorum, \"q\"", 0),
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
            assert_eq!(brief, AnswerBrief::NoVote);
            assert!(words.starts_with("not admitted: ") && words.contains(part), "{words}");
        }
        for (answer, part) in [(vec![int(-3), int(5)], "stands at 5"), (vec![int(9)], "a script")] {
            let (_, words, _) = said(answer);
            assert!(words.contains(part), "{words}");
        }
    }

    #[test]
    fn only_an_answer_is_a_vote_and_only_no_answer_is_unknown() {
        let failed = |kind| NodeAnswer::Failed(error(kind));
        for (reply, brief, words) in [
            (failed(ErrorKind::NoAnswer), AnswerBrief::Unknown, "slow: why"),
            (failed(ErrorKind::Unavailable), AnswerBrief::NoVote, "unreachable: why"),
            (failed(ErrorKind::Denied), AnswerBrief::NoVote, "why"),
        ] {
            assert_eq!((reply.brief(), reply.to_string().as_str()), (brief, words));
            assert!(reply.has_failed());
        }
        let released = |freed| NodeAnswer::of_a_release(Value::Int(freed)).unwrap().0.brief();
        assert_eq!(released(1), AnswerBrief::Freed(true));
        assert_eq!(released(0), AnswerBrief::Freed(false));
        assert!(NodeAnswer::of_a_release(Value::Nil).is_err());
        assert!(!NodeAnswer::Freed(false).has_failed());
    }

    fn mine() -> NodeAnswer {
        NodeAnswer::Mine { counter: 1, left: None }
    }

    fn taken(who: &str, secs: u64) -> NodeAnswer {
        NodeAnswer::NotMine { left: Some(Duration::from_secs(secs)), who: who.into() }
    }

    fn down() -> NodeAnswer {
        NodeAnswer::Failed(Error::new(ErrorKind::Unavailable, "refused"))
    }

    fn replies(replies: Vec<Option<NodeAnswer>>) -> AnswerTally {
        AnswerTally { needed: replies.len() / 2 + 1, replies }
    }

    #[test]
    fn a_split_vote_is_told_from_a_holder() {
        let held = replies(vec![Some(taken("a", 9)), Some(taken("a", 4)), Some(mine())]);
        assert!(held.is_held());
        assert_eq!(held.free_in(), Some(Duration::from_secs(4)));
        let split = replies(vec![Some(taken("a", 9)), Some(taken("b", 4)), Some(mine())]);
        assert!(!split.is_held());
    }

    #[test]
    fn nodes_that_are_configured_otherwise_make_an_error_final_if_they_cannot_be_spared() {
        let other = || Some(NodeAnswer::Otherwise("q".into()));
        let error = replies(vec![other(), Some(down()), None]).error(|_| "h", None);
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
        let error = replies(vec![other(), other(), None]).error(|_| "h", None);
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Config, false));
    }

    fn failed(kind: ErrorKind) -> Option<NodeAnswer> {
        Some(NodeAnswer::Failed(Error::new(kind, "why")))
    }

    /// The kind of the error of a try, and whether its effect is unknown.
    fn outcome(given: Vec<Option<NodeAnswer>>) -> (ErrorKind, bool) {
        let error = replies(given).error(|_| "h", None);
        (error.kind(), error.effect() == Effect::Unknown)
    }

    #[test]
    fn the_error_of_a_try_says_whether_it_may_still_take_effect() {
        use ErrorKind::{Denied, NoAnswer, Unavailable};
        let (denied, slow) = (|| failed(Denied), || failed(NoAnswer));
        for (given, kind, is_open) in [
            (vec![denied(), denied(), Some(mine())], Denied, false),
            (vec![denied(), Some(down()), Some(mine())], Unavailable, false),
            (vec![slow(), slow(), Some(mine())], NoAnswer, true),
            (vec![slow(), Some(down()), Some(mine())], Unavailable, true),
            (vec![Some(down()), None, Some(down())], Unavailable, true),
            (vec![Some(down()), Some(down()), Some(mine())], Unavailable, false),
            (
                vec![denied(), denied(), Some(down()), Some(mine()), Some(mine())],
                Unavailable,
                false,
            ),
        ] {
            let seen = format!("{given:?}");
            assert_eq!(outcome(given), (kind, is_open), "{seen}");
        }
    }

    #[test]
    fn the_error_of_a_try_lists_the_nodes_and_why_they_do_not_vote() {
        let why = Some("they wait");
        let given = replies(vec![Some(mine()), None, Some(NodeAnswer::NotAdmitted("boot".into()))]);
        assert!(given.lacks_admission());
        let text = given.error(|node| ["a", "b", "c"][node], why).to_string();
        for part in [
            "2 of 3 nodes",
            "; a: granted it",
            "; b: slow, no answer yet",
            "; c: not",
            ". they wait",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let given = replies(vec![Some(mine()), Some(down()), Some(down())]);
        assert!(!given.lacks_admission());
        assert!(!given.error(|_| "h", why).to_string().contains("they wait"));
    }

    #[test]
    fn what_is_left_and_who_is_least_counts_what_was_answered() {
        let left = |secs| NodeAnswer::Mine { counter: 1, left: Some(Duration::from_secs(secs)) };
        let mut given = AnswerTally::new(3, 2);
        assert_eq!((given.left(), given.free_in()), (None, None));
        given.set(0, left(9));
        assert_eq!(given.left(), None, "one is no quorum");
        given.set(2, left(4));
        assert_eq!(given.left(), Some(Duration::from_secs(4)));
        assert_eq!(given.free_in(), Some(Duration::ZERO));
        let given = replies(vec![Some(taken("b", 9)), Some(taken("c", 4)), None]);
        assert!(given.is_least("a") && given.is_least("b") && !given.is_least("bb"));
        assert_eq!(given.left(), None);
        let free = NodeAnswer::NotMine { left: None, who: String::new() };
        let stuck = NodeAnswer::NotMine { left: None, who: "x".into() };
        let given = replies(vec![Some(free.clone()), Some(stuck.clone()), Some(free)]);
        assert_eq!(given.free_in(), Some(Duration::ZERO));
        assert!(!given.is_held(), "nobody has the nodes that are free");
        let given = replies(vec![Some(stuck.clone()), Some(stuck), Some(taken("a", 4))]);
        assert_eq!(given.free_in(), None);
        assert!(given.is_least("") && given.is_held());
    }
}
