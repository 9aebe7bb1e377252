//! Counting the answers to one try. Pure.

use lock_core::{Error, ErrorKind};

use super::answer::Answer;
use super::rule::{self, Verdict};

/// The answers to one try, node by node.
#[derive(Debug)]
pub(crate) struct Tally {
    needed: usize,
    /// `None` while the answer to the acquire is under way.
    answers: Vec<Option<Answer>>,
    /// A raise is under way, so the value that the node has shown does not count.
    raising: Vec<bool>,
    /// The nodes that have given a vote, whatever they said later.
    voted: Vec<bool>,
    /// The fence of an earlier grant to the same claim.
    kept: Option<u64>,
}

/// What the answers so far say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted(u64),
    /// A quorum has granted, but so late that the lock is over before it can be used.
    TooLate,
    /// A quorum has granted, with different values.
    Differ(u64),
    /// Somebody else has so many that a quorum cannot be had.
    Busy,
    /// So many nodes give no vote that nobody can have a quorum.
    Failed,
    Open,
}

impl Tally {
    pub(crate) fn new(nodes: usize, needed: usize, kept: Option<u64>) -> Self {
        let answers = (0..nodes).map(|_| None).collect();
        let (raising, voted) = (vec![false; nodes], vec![false; nodes]);
        Self { needed, answers, raising, voted, kept }
    }

    pub(crate) fn set(&mut self, node: usize, answer: Answer) {
        self.raising[node] = false;
        self.voted[node] |= answer.counter().is_some();
        self.answers[node] = Some(answer);
    }

    /// The node is asked after all.
    pub(crate) fn ask(&mut self, node: usize) {
        self.answers[node] = None;
    }

    pub(crate) fn answer(&self, node: usize) -> Option<&Answer> {
        self.answers[node].as_ref()
    }

    pub(crate) fn has_voted(&self, node: usize) -> bool {
        self.voted[node]
    }

    /// The nodes that have answered less than `value`, which are to be raised; they count again
    /// when they have answered.
    pub(crate) fn raise_to(&mut self, value: u64) -> Vec<usize> {
        let low = |node: &usize| {
            !self.raising[*node]
                && self.answers[*node].as_ref().and_then(Answer::counter).is_some_and(|c| c < value)
        };
        let nodes: Vec<_> = (0..self.answers.len()).filter(low).collect();
        nodes.iter().for_each(|node| self.raising[*node] = true);
        nodes
    }

    /// The value that counts for each node.
    pub(crate) fn votes(&self) -> Vec<Option<u64>> {
        let answers = self.answers.iter().zip(&self.raising);
        answers
            .map(|(answer, raising)| answer.as_ref().filter(|_| !raising).and_then(Answer::counter))
            .collect()
    }

    pub(crate) fn pending(&self) -> usize {
        self.answers.iter().filter(|answer| answer.is_none()).count()
    }

    pub(crate) fn judge(&self) -> Outcome {
        let votes = self.votes();
        let verdict = rule::judge(self.needed, &votes);
        if let Verdict::Established(fence) = verdict {
            return Outcome::Granted(fence);
        }
        if let Some(token) = self.kept
            && rule::may_return(self.needed, token, &votes, self.pending())
        {
            return Outcome::Open;
        }
        if let Verdict::Raise(highest) = verdict {
            return Outcome::Differ(highest);
        }
        let answered = || self.answers.iter().flatten();
        let granted = answered().filter(|answer| answer.counter().is_some()).count();
        let voting = answered().filter(|answer| answer.is_vote()).count();
        let failed = answered().count() - voting;
        if failed > self.answers.len() - self.needed {
            Outcome::Failed
        } else if granted + self.pending() < self.needed && voting >= self.needed {
            Outcome::Busy
        } else {
            Outcome::Open
        }
    }

    /// Whether we have a vote, and somebody else has one.
    pub(crate) fn is_contended(&self) -> bool {
        let any = |vote: fn(&Answer) -> bool| self.answers.iter().flatten().any(vote);
        any(|answer| matches!(answer, Answer::Mine { .. }))
            && any(|answer| matches!(answer, Answer::NotMine { .. }))
    }

    /// The outcome, if the nodes that have not answered are not waited for.
    pub(crate) fn without_the_slow(&self) -> Outcome {
        let voting = self.answers.iter().flatten().filter(|answer| answer.is_vote()).count();
        if voting >= self.needed { Outcome::Busy } else { Outcome::Failed }
    }

    /// Whether no other contender that a node has named has a lesser owner id.
    pub(crate) fn is_least(&self, owner: &str) -> bool {
        self.answers.iter().flatten().filter_map(holder).all(|who| owner <= who)
    }

    /// What a client says that counts the reachable nodes only: see
    /// [`Wrong::QuorumOfTheReachable`](super::wrong::Wrong::QuorumOfTheReachable).
    pub(crate) fn judge_reachable(&self) -> Outcome {
        let reachable = self.answers.iter().flatten().filter(|answer| answer.is_vote()).count();
        match rule::judge(rule::quorum_of(reachable), &self.votes()) {
            Verdict::Established(fence) if self.pending() == 0 => Outcome::Granted(fence),
            _ => self.judge(),
        }
    }

    /// Whether so many of the nodes that are not ours name the same holder that it has a quorum.
    pub(crate) fn is_held(&self) -> bool {
        let holders: Vec<_> = self.answers.iter().flatten().filter_map(holder).collect();
        holders
            .iter()
            .any(|who| holders.iter().filter(|other| other == &who).count() >= self.needed)
    }

    /// How long until so many nodes are free that a quorum could be had, if nobody renews.
    pub(crate) fn free_in(&self) -> Option<std::time::Duration> {
        let mut times: Vec<_> = self.answers.iter().flatten().filter_map(free_at).collect();
        times.sort();
        times.get(self.needed - 1).copied()
    }

    /// Whether more nodes than a quorum can spare are not admitted.
    pub(crate) fn lacks_admission(&self) -> bool {
        self.answers.iter().flatten().any(|answer| matches!(answer, Answer::NotAdmitted(_)))
    }

    /// The error of a try that no quorum has answered. It names each node's answer.
    pub(crate) fn error<'a>(
        &self,
        endpoint: impl Fn(usize) -> &'a str,
        why: Option<&str>,
    ) -> Error {
        let nodes = self.answers.len();
        let mut message = format!("no quorum: {} of {nodes} nodes must vote", self.needed);
        for (node, answer) in self.answers.iter().enumerate() {
            let endpoint = endpoint(node);
            message.push_str(&match answer {
                Some(answer) => format!("; {endpoint}: {answer}"),
                None => format!("; {endpoint}: slow, no answer yet"),
            });
        }
        if let Some(why) = why.filter(|_| self.lacks_admission()) {
            message.push_str(". ");
            message.push_str(why);
        }
        let spare = nodes - self.needed;
        let failed = || self.answers.iter().flatten().filter(|answer| !answer.is_vote());
        let otherwise = failed().any(|answer| matches!(answer, Answer::Otherwise(_)));
        let hopeless: Vec<_> = failed().filter_map(final_kind).collect();
        let kind = if otherwise {
            ErrorKind::Config
        } else if hopeless.len() > spare {
            hopeless[0]
        } else if failed().all(
            |answer| matches!(answer, Answer::Failed(error) if error.kind() == ErrorKind::Timeout),
        ) {
            ErrorKind::Timeout
        } else {
            ErrorKind::Unavailable
        };
        let error = Error::new(kind, message);
        let open = self.pending() > 0 || failed().any(Answer::may_land);
        if open { error.with_unknown_effect() } else { error }
    }
}

fn holder(answer: &Answer) -> Option<&str> {
    match answer {
        Answer::NotMine { who, .. } if !who.is_empty() => Some(who),
        _ => None,
    }
}

fn free_at(answer: &Answer) -> Option<std::time::Duration> {
    match answer {
        Answer::Mine { .. } => Some(std::time::Duration::ZERO),
        Answer::NotMine { left, who } if left.is_some() || !who.is_empty() => *left,
        Answer::NotMine { .. } => Some(std::time::Duration::ZERO),
        _ => None,
    }
}

/// The kind of an answer that will not change by trying again.
fn final_kind(answer: &Answer) -> Option<ErrorKind> {
    match answer {
        Answer::Failed(error) if !error.is_retryable() => Some(error.kind()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn mine(counter: u64) -> Answer {
        Answer::Mine { counter, left: None }
    }

    fn taken(who: &str, secs: u64) -> Answer {
        Answer::NotMine { left: Some(Duration::from_secs(secs)), who: who.into() }
    }

    fn down() -> Answer {
        Answer::Failed(Error::new(ErrorKind::Unavailable, "refused"))
    }

    fn tally(answers: Vec<Option<Answer>>) -> Tally {
        let mut tally = Tally::new(answers.len(), rule::quorum_of(answers.len()), None);
        tally.answers = answers;
        tally
    }

    #[test]
    fn a_quorum_is_one_of_all_nodes_and_not_of_the_reachable() {
        assert_eq!(tally(vec![Some(mine(3)), Some(mine(3)), None]).judge(), Outcome::Granted(3));
        assert_eq!(tally(vec![Some(mine(3)), Some(down()), None]).judge(), Outcome::Open);
        assert_eq!(tally(vec![Some(mine(3)), Some(down()), Some(down())]).judge(), Outcome::Failed);
        assert_eq!(tally(vec![None, Some(down()), Some(down())]).judge(), Outcome::Failed);
    }

    #[test]
    fn busy_needs_a_quorum_that_works() {
        assert_eq!(
            tally(vec![Some(taken("a", 1)), Some(taken("a", 1)), None]).judge(),
            Outcome::Busy
        );
        assert_eq!(
            tally(vec![Some(taken("a", 1)), Some(mine(1)), Some(down())]).judge(),
            Outcome::Busy
        );
        assert_eq!(tally(vec![Some(taken("a", 1)), Some(down()), None]).judge(), Outcome::Open);
        assert_eq!(
            tally(vec![Some(taken("a", 1)), Some(down()), Some(down())]).judge(),
            Outcome::Failed
        );
    }

    #[test]
    fn a_split_vote_is_told_from_a_holder() {
        let held = tally(vec![Some(taken("a", 9)), Some(taken("a", 4)), Some(mine(1))]);
        assert!(held.is_held());
        assert_eq!(held.free_in(), Some(Duration::from_secs(4)));
        let split = tally(vec![Some(taken("a", 9)), Some(taken("b", 4)), Some(mine(1))]);
        assert!(!split.is_held());
    }

    #[test]
    fn a_raise_under_way_takes_the_vote_back() {
        let mut tally = tally(vec![Some(mine(3)), Some(mine(5)), None]);
        assert_eq!(tally.judge(), Outcome::Differ(5));
        assert_eq!(tally.raise_to(5), [0]);
        assert_eq!(tally.judge(), Outcome::Open);
        tally.set(2, mine(3));
        assert_eq!(
            tally.judge(),
            Outcome::Differ(5),
            "3 was answered by a node that is being raised"
        );
        assert_eq!(tally.raise_to(5), [2]);
        tally.set(0, mine(5));
        assert_eq!(tally.judge(), Outcome::Granted(5));
    }

    #[test]
    fn a_repeated_try_finds_the_same_fence() {
        let mut tally = Tally::new(3, 2, Some(3));
        tally.set(0, mine(3));
        tally.set(2, mine(8));
        assert_eq!(tally.judge(), Outcome::Open, "the third node decides");
        tally.set(1, mine(3));
        assert_eq!(tally.judge(), Outcome::Granted(3));
        tally.set(1, mine(9));
        assert_eq!(tally.judge(), Outcome::Differ(9), "the first hold has been broken");
        // A node that joined after somebody else has held the lock brings the old fence not back.
        let mut tally = Tally::new(3, 2, Some(3));
        tally.set(0, mine(8));
        tally.set(1, mine(3));
        tally.set(2, down());
        assert_eq!(tally.judge(), Outcome::Differ(8));
    }

    #[test]
    fn a_vote_is_remembered_when_the_raise_fails() {
        let mut tally = tally(vec![None, None, Some(taken("a", 1))]);
        tally.set(0, mine(3));
        tally.set(1, mine(5));
        assert_eq!(tally.raise_to(5), [0]);
        tally.set(0, down());
        assert!(tally.has_voted(0) && tally.has_voted(1) && !tally.has_voted(2));
    }

    #[test]
    fn the_error_lists_every_answer() {
        let slow = Answer::Failed(Error::new(ErrorKind::Timeout, "no answer"));
        let all = tally(vec![
            Some(taken("a", 2)),
            Some(down()),
            Some(Answer::NotAdmitted("none".into())),
            Some(slow),
            None,
        ]);
        let error = all.error(|node| ["h0", "h1", "h2", "h3", "h4"][node], Some("Because."));
        let text = error.to_string();
        for part in [
            "3 of 5",
            "h0: taken",
            "h1: unreachable",
            "h2: not admitted",
            "h3: slow",
            "h4: slow",
            "Because.",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
        let other = tally(vec![Some(Answer::Otherwise("q".into())), Some(down()), Some(down())]);
        assert_eq!(other.error(|_| "h", None).kind(), ErrorKind::Config);
    }
}
