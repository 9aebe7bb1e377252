//! What the replies to one call say beside the votes: for waiters, and for people.

use std::time::Duration;

use lock_core::{Error, ErrorKind};

use super::contender::Reply;
use super::reply::NodeReply;

/// The replies to one call, node by node.
#[derive(Clone, Debug)]
pub(crate) struct Replies {
    needed: usize,
    /// `None` while there is none.
    replies: Vec<Option<NodeReply>>,
}

impl Replies {
    /// `needed` of so many `nodes` decide.
    pub(crate) fn new(nodes: usize, needed: usize) -> Self {
        Self { needed, replies: vec![None; nodes] }
    }

    pub(crate) fn set(&mut self, node: usize, reply: NodeReply) {
        self.replies[node] = Some(reply);
    }

    /// For how long a quorum of the nodes keep the lock for this owner.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = |reply: &NodeReply| match reply {
            NodeReply::Mine { left, .. } => *left,
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

    /// Whether more nodes than a quorum can spare are not admitted.
    pub(crate) fn lacks_admission(&self) -> bool {
        self.replies.iter().flatten().any(|reply| matches!(reply, NodeReply::NotAdmitted(_)))
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
        let otherwise = failed().any(|reply| matches!(reply, NodeReply::Otherwise(_)));
        let hopeless: Vec<_> = failed().filter_map(final_kind).collect();
        let kind = if otherwise {
            ErrorKind::Config
        } else if hopeless.len() > spare {
            hopeless[0]
        } else if failed().all(is_slow) {
            ErrorKind::NoAnswer
        } else {
            ErrorKind::Unavailable
        };
        let error = Error::new(kind, message);
        let open = self.replies.iter().any(Option::is_none)
            || failed().any(|reply| reply.brief() == Reply::Unknown);
        if open { error.with_unknown_effect() } else { error }
    }
}

fn holder(reply: &NodeReply) -> Option<&str> {
    match reply {
        NodeReply::NotMine { who, .. } if !who.is_empty() => Some(who),
        _ => None,
    }
}

fn free_at(reply: &NodeReply) -> Option<Duration> {
    match reply {
        NodeReply::Mine { .. } => Some(Duration::ZERO),
        NodeReply::NotMine { left, who } if left.is_some() || !who.is_empty() => *left,
        NodeReply::NotMine { .. } => Some(Duration::ZERO),
        _ => None,
    }
}

fn is_slow(reply: &NodeReply) -> bool {
    matches!(reply, NodeReply::Failed(error) if error.kind() == ErrorKind::NoAnswer)
}

/// The kind of an answer that will not change on a retry.
fn final_kind(reply: &NodeReply) -> Option<ErrorKind> {
    match reply {
        NodeReply::Failed(error) if !error.is_retryable() => Some(error.kind()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lock_core::Effect;

    use super::*;

    fn mine() -> NodeReply {
        NodeReply::Mine { counter: 1, left: None }
    }

    fn taken(who: &str, secs: u64) -> NodeReply {
        NodeReply::NotMine { left: Some(Duration::from_secs(secs)), who: who.into() }
    }

    fn down() -> NodeReply {
        NodeReply::Failed(Error::new(ErrorKind::Unavailable, "refused"))
    }

    fn replies(replies: Vec<Option<NodeReply>>) -> Replies {
        Replies { needed: replies.len() / 2 + 1, replies }
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
    fn a_node_that_is_configured_otherwise_makes_an_error_final() {
        let other = NodeReply::Otherwise("q".into());
        let error = replies(vec![Some(other), Some(down()), None]).error(|_| "h", None);
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Config, false));
    }

    fn failed(kind: ErrorKind) -> Option<NodeReply> {
        Some(NodeReply::Failed(Error::new(kind, "why")))
    }

    /// The kind of the error of a try, and whether its effect is unknown.
    fn outcome(given: Vec<Option<NodeReply>>) -> (ErrorKind, bool) {
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
        let given = replies(vec![Some(mine()), None, Some(NodeReply::NotAdmitted("boot".into()))]);
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
        let left = |secs| NodeReply::Mine { counter: 1, left: Some(Duration::from_secs(secs)) };
        let mut given = Replies::new(3, 2);
        assert_eq!((given.left(), given.free_in()), (None, None));
        given.set(0, left(9));
        assert_eq!(given.left(), None, "one is no quorum");
        given.set(2, left(4));
        assert_eq!(given.left(), Some(Duration::from_secs(4)));
        assert_eq!(given.free_in(), Some(Duration::ZERO));
        let given = replies(vec![Some(taken("b", 9)), Some(taken("c", 4)), None]);
        assert!(given.is_least("a") && given.is_least("b") && !given.is_least("bb"));
        assert_eq!(given.left(), None);
        let free = NodeReply::NotMine { left: None, who: String::new() };
        let stuck = NodeReply::NotMine { left: None, who: "x".into() };
        let given = replies(vec![Some(free.clone()), Some(stuck.clone()), Some(free)]);
        assert_eq!(given.free_in(), Some(Duration::ZERO));
        assert!(!given.is_held(), "nobody has the nodes that are free");
        let given = replies(vec![Some(stuck.clone()), Some(stuck), Some(taken("a", 4))]);
        assert_eq!(given.free_in(), None);
        assert!(given.is_least("") && given.is_held());
    }
}
