//! A look at locks: what the nodes show, round by round, until it tells who has each.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ClockInstant, Error, ErrorKind, FencingToken, LockKey, Result, Seen};

use super::LIMIT;
use super::admission::Admission;
use super::quorum::Quorum;
use super::quorum::answers::{AnswerTally, NodeAnswer};
use super::quorum::look::{LabelledVote, NodeLook};
use super::rules::{self, NodeView, Sight};

/// How often the nodes are asked at most where attempts are under way, and the first pause in between, each next one of
/// which is twice as long.
const ROUNDS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(2);
/// For how long at least a slow node is waited for, where the others do not tell.
const MOMENT: Duration = Duration::from_millis(100);

/// One look.
struct Looking<'a> {
    quorum: &'a Quorum,
    admission: &'a Arc<Admission>,
    locks: Arc<Vec<String>>,
    /// For each lock: no greater fence was established before the look began, as far as is known.
    given: Vec<u64>,
    end: ClockInstant,
}

/// Who has these locks, by what a quorum shows.
///
/// A look writes nothing. But where nodes give no votes, the client sees to that as after any call.
pub(super) async fn look(
    quorum: &Quorum,
    admission: &Arc<Admission>,
    keys: &[LockKey],
) -> Result<Vec<Seen>> {
    let locks = Arc::new(keys.iter().map(LockKey::encode).collect());
    let begun = quorum.clock().now();
    let given = vec![u64::MAX; keys.len()];
    let mut look = Looking { quorum, admission, locks, given, end: begun + LIMIT };
    let mut round = 1;
    loop {
        let (answers, tally) = look.ask().await;
        if answers.len() < rules::look_needs(quorum.len()) {
            let why = admission.why();
            return Err(tally.error(|node| quorum.node(node).endpoint(), why.as_deref()));
        }
        // What is left must be enough for another round.
        let is_last = round == ROUNDS || quorum.clock().now() > begun + LIMIT / 2;
        if let Some(seen) = look.conclude(&answers, is_last) {
            return seen;
        }
        quorum.clock().sleep(PAUSE * 2_u32.pow(round - 1)).await;
        round += 1;
    }
}

/// Has a node brought back that does not vote.
fn tend_after(answer: &std::result::Result<NodeLook, NodeAnswer>, admission: &Arc<Admission>) {
    if matches!(answer, Err(answer) if answer.lacks_admission()) {
        admission.tend();
    }
}

impl Looking<'_> {
    /// Asks all nodes, and hears them until they tell of each lock who has it. Once enough have answered, slow ones
    /// are waited for as long again, and a [`MOMENT`] at least.
    async fn ask(&mut self) -> (Vec<NodeLook>, AnswerTally) {
        let (quorum, clock) = (self.quorum, self.quorum.clock());
        let (nodes, needed) = (quorum.len(), rules::look_needs(quorum.len()));
        let begun = clock.now();
        let mut asked = quorum.look(&self.locks, self.end.since(begun));
        let (mut answers, mut tally) = (Vec::new(), AnswerTally::new(nodes, needed));
        let mut close_at = None;
        loop {
            if answers.len() >= needed {
                if self.conclude(&answers, false).is_some() {
                    break;
                }
                let now = clock.now();
                close_at.get_or_insert(now + now.since(begun).max(MOMENT));
            }
            let closes = clock.sleep_until(close_at.unwrap_or(ClockInstant::FAR_FUTURE));
            let (node, answer) = tokio::select! {
                next = asked.next() => match next {
                    Some(next) => next,
                    None => break,
                },
                () = closes, if close_at.is_some() => break,
            };
            tend_after(&answer, self.admission);
            tally.set(
                node,
                match answer {
                    Ok(look) => {
                        quorum.note_vote();
                        quorum.note_mark(look.mark);
                        answers.push(look);
                        NodeAnswer::Shown
                    }
                    Err(answer) => answer,
                },
            );
        }
        // A request that is dropped makes its node's connection suspect. And a node that does not vote needs longer to
        // say so than the others for their answers.
        let admission = Arc::clone(self.admission);
        quorum.tasks.spawn(async move {
            while let Some((_, answer)) = asked.next().await {
                tend_after(&answer, &admission);
            }
        });
        (answers, tally)
    }

    /// What the nodes show of the locks; `None` if that does not tell of each who has it, and other answers may. Where
    /// this is the `last` round, a lock that somebody may have is held.
    fn conclude(&mut self, answers: &[NodeLook], is_last: bool) -> Option<Result<Vec<Seen>>> {
        let seen: Option<Vec<_>> =
            (0..self.locks.len()).map(|at| self.seen(answers, at, is_last)).collect();
        Some(seen?.into_iter().collect())
    }

    fn seen(&mut self, answers: &[NodeLook], at: usize, is_last: bool) -> Option<Result<Seen>> {
        let view = |answer: &NodeLook| NodeView {
            mark: answer.mark,
            vote: answer.votes[at].as_ref().map(|shown| shown.vote.clone()),
        };
        let views: Vec<_> = answers.iter().map(view).collect();
        let (nodes, given) = (self.quorum.len(), &mut self.given[at]);
        *given = rules::given(nodes, &views).min(*given);
        let votes = || answers.iter().filter_map(|answer| answer.votes[at].as_ref());
        match rules::sight(nodes, *given, &views) {
            Sight::Free { floor } => Some(Ok(Seen::Free { floor: FencingToken::new(floor).ok() })),
            Sight::Held { owner, first } => Some(held(votes(), Some(&owner), first)),
            Sight::MayBeHeld { owner } if is_last => Some(held(votes(), owner.as_ref(), None)),
            Sight::NoFloor if is_last => Some(Err(no_floor(answers))),
            Sight::MayBeHeld { .. } | Sight::NoFloor => None,
        }
    }
}

/// The lock is this owner's, with this first fence, as far as is known.
fn held<'a>(
    mut votes: impl Iterator<Item = &'a LabelledVote>,
    owner: Option<&Vec<u8>>,
    first: Option<u64>,
) -> Result<Seen> {
    let label =
        votes.find_map(|shown| shown.label.clone().filter(|_| Some(&shown.vote.owner) == owner));
    let fence = first.map(FencingToken::answered).transpose()?;
    Ok(Seen::Held { fence, label })
}

fn no_floor(answers: &[NodeLook]) -> Error {
    let marks: Vec<_> = answers.iter().map(|answer| answer.mark).collect();
    let text = format!(
        "the lock is free, but too few nodes answer to know which fences were given: they have counted to {marks:?}"
    );
    Error::new(ErrorKind::Unavailable, text)
}
