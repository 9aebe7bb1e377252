//! One contender for a lock on a quorum.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, ClockInstant, Error, ErrorKind, FencingToken, Released,
    Renewal, Result, async_trait,
};

use super::admission::Admission;
use super::answer::Answer;
use super::ask::{Renew, Target};
use super::fanout::Fanout;
use super::ledger::Ledger;
use super::quorum::Quorum;
use super::rule::Standing;
use super::tally::{Outcome, Tally};
use super::undo::Undo;
use super::wake::{HOLDER, Registration};
use super::wrong::Wrong;
use crate::names::Keys;
use crate::node::Interest;

/// How long a differing or missing answer is waited for when a quorum has answered already.
pub(super) const SHORT_WAIT: Duration = Duration::from_millis(1);
/// How often a try is made again in which the votes were split, so that nobody got a quorum.
const TRIES: u32 = 8;

/// A contender: asks all nodes at once, and holds what a quorum grants.
#[derive(Debug)]
pub(crate) struct RedlockClaim {
    pub(super) quorum: Arc<Quorum>,
    pub(super) admission: Arc<Admission>,
    pub(super) target: Arc<Target>,
    pub(super) ttl: Duration,
    /// The limit for one answer of one node.
    pub(super) limit: Duration,
    /// After so long a node that has not answered counts as slow.
    pub(super) slow_after: Duration,
    pub(super) wait: bool,
    /// The number of the try. It stands behind the owner id, so that what takes an older try back
    /// and arrives late cannot touch a newer one.
    pub(super) attempt: u32,
    /// The fence, from the grant on.
    pub(super) token: Option<u64>,
    /// The hold is another process', by a token that no node has confirmed yet.
    unproven: bool,
    pub(super) ledger: Arc<Ledger>,
    pub(super) waiting: Option<Waiting>,
    /// Hears of a forced release.
    pub(super) holding: Option<Registration>,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) registration: Registration,
    /// Keeps the connections up, over which the pushes come.
    pub(super) interest: Vec<Interest>,
    pub(super) since: ClockInstant,
}

/// Under which key a claim hears that its lock was taken away.
pub(super) fn holder_key(target: &Target) -> String {
    format!("{HOLDER}{}", target.owner)
}

impl RedlockClaim {
    pub(crate) fn new(
        quorum: Arc<Quorum>,
        admission: Arc<Admission>,
        request: &ClaimRequest,
    ) -> Result<Self> {
        let ledger = Ledger::new(quorum.len(), request.resume.is_some());
        let keys = Keys::new(&request.key);
        let target = Target::new(keys, &request.owner, request.label.as_deref());
        let mut claim = Self {
            // A little less than the core allows, so that the error can name each node's answer.
            limit: request.call_timeout * 9 / 10,
            slow_after: quorum.node_timeout(request.ttl, request.call_timeout),
            ttl: request.ttl,
            wait: request.wait,
            attempt: 0,
            token: None,
            unproven: false,
            ledger: Arc::new(ledger),
            waiting: None,
            holding: None,
            target: Arc::new(target),
            admission,
            quorum,
        };
        if let Some(resume) = &request.resume {
            if !resume.data.is_empty() {
                return Err(Error::invalid(format!(
                    "the lease token has {} bytes of a store's own, and one of a lock on this quorum has none: attach it to the store that it was made by",
                    resume.data.len()
                )));
            }
            claim.token = Some(resume.fence.get());
            claim.unproven = true;
            let key = holder_key(&claim.target);
            claim.holding = Some(claim.quorum.hub.register(&key));
        }
        Ok(claim)
    }

    pub(super) fn now(&self) -> ClockInstant {
        self.quorum.clock().now()
    }

    /// By when a lock that a request sent now may take has ended by itself.
    pub(super) fn ends_by(&self) -> ClockInstant {
        self.now() + self.limit + self.ttl + self.ttl / 50 + Duration::from_millis(100)
    }

    /// For how long the lock can be believed in, where the nodes keep it for `left`. The core subtracts
    /// 1 % and 2 ms itself.
    fn valid_for(&self, left: Duration) -> Duration {
        left.saturating_sub(self.ttl.mul_f64((self.quorum.config.drift - 0.01).max(0.0)))
    }

    /// Whether a grant that was asked for at `started` is over before it can be used.
    pub(super) fn is_over(&self, started: ClockInstant) -> bool {
        let margin = self.ttl / 100 + Duration::from_millis(2);
        self.now().since(started) + margin >= self.valid_for(self.ttl)
    }

    pub(super) fn undo(&self, attempt: Option<u32>) -> Undo {
        Undo {
            quorum: Arc::clone(&self.quorum),
            target: Arc::clone(&self.target),
            ledger: Arc::clone(&self.ledger),
            attempt,
            fence: self.token.filter(|_| self.unproven),
            limit: self.limit,
        }
    }

    /// Somebody else has the lock, or it is given back.
    fn end_hold(&mut self) {
        self.token = None;
        self.holding = None;
    }

    /// After a renewal that a quorum has answered: asks the nodes that are not in the hold to join it,
    /// and adopts those that have joined.
    fn widen(&self, answers: &[Option<Answer>]) {
        let (mut adopted, mut missing) = (Fanout::default(), Vec::new());
        for (node, answer) in answers.iter().enumerate() {
            match answer {
                Some(Answer::Unproven { counter }) => {
                    let ask = Renew { fence: self.token, adopt: Some(*counter), ttl: self.ttl };
                    let (quorum, target) = (Arc::clone(&self.quorum), Arc::clone(&self.target));
                    adopted.push(node, quorum.renew(node, target, ask, self.limit));
                }
                Some(Answer::NotMine { .. }) => missing.push(node),
                Some(Answer::NotAdmitted(_)) => self.admission.tend(),
                _ => {}
            }
        }
        self.top_up(adopted, missing);
    }

    pub(super) fn describe(&self, tally: &Tally) -> Error {
        let why = self.admission.why();
        tally.error(|node| self.quorum.node(node).endpoint(), why.as_deref())
    }
}

#[async_trait]
impl Claim for RedlockClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let started = self.now();
        let (mut outcome, mut tally) = self.attempt(started).await;
        if tally.lacks_admission() {
            if outcome == Outcome::Failed {
                // A quorum that nobody has used yet begins to vote now, if it may.
                self.admission.advance().await?;
                (outcome, tally) = self.attempt(started).await;
            }
            if tally.lacks_admission() {
                self.admission.tend();
            }
        }
        let mut tries = 1;
        while outcome == Outcome::Busy && !tally.is_held() && tries < TRIES {
            let pause = self.split_delay(&tally, tries);
            tries += 1;
            self.quorum.clock().sleep(pause).await;
            (outcome, tally) = self.attempt(started).await;
        }
        match outcome {
            Outcome::TooLate => {
                self.end_hold();
                Err(Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "a quorum granted the lock only after {:.1?}, when its ttl of {:?} was over",
                        self.now().since(started),
                        self.ttl
                    ),
                )
                .with_unknown_effect())
            }
            Outcome::Granted(token) => Ok(Attempt::Granted {
                token: FencingToken::new(token)?,
                valid_for: Some(if self.quorum.is_wrong(Wrong::ValidityFromTheReply) {
                    self.ttl + self.now().since(started)
                } else {
                    self.valid_for(self.ttl)
                }),
            }),
            Outcome::Busy => {
                self.end_hold();
                if let Some(waiting) = self.waiting.as_mut().filter(|w| w.interest.is_empty()) {
                    waiting.interest = (0..self.quorum.len())
                        .map(|node| self.quorum.node(node).interest())
                        .collect();
                }
                let free_in = tally.free_in();
                let retry_after = if tally.is_held() {
                    free_in
                } else {
                    let split = self.split_delay(&tally, tries);
                    Some(free_in.map_or(split, |free_in| free_in.min(split)))
                };
                Ok(Attempt::Busy { valid_for: None, retry_after })
            }
            _ => Err(self.describe(&tally)),
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        if self.token.is_none() {
            // There are no places on a quorum, and a vote that is to be given back is not prolonged.
            return self.check().await;
        }
        let (standing, answers) = self.survey(self.ttl).await;
        match standing {
            Standing::Held => {
                self.unproven = false;
                self.widen(&answers);
                Ok(Renewal::Alive { valid_for: Some(self.valid_for(self.ttl)) })
            }
            Standing::Lost => Ok(Renewal::Lost),
            Standing::Unknown => Err(self.survey_error(answers)),
        }
    }

    async fn check(&mut self) -> Result<Renewal> {
        let (standing, answers) = self.survey(Duration::ZERO).await;
        match standing {
            Standing::Held => {
                self.unproven = false;
                let mut left: Vec<_> = answers
                    .iter()
                    .flatten()
                    .filter_map(|answer| match answer {
                        Answer::Mine { left, .. } => *left,
                        _ => None,
                    })
                    .collect();
                left.sort_by(|a, b| b.cmp(a));
                let left = left.get(self.quorum.needed() - 1);
                Ok(Renewal::Alive { valid_for: left.map(|left| self.valid_for(*left)) })
            }
            Standing::Lost => Ok(Renewal::Lost),
            Standing::Unknown => Err(self.survey_error(answers)),
        }
    }

    async fn release(&mut self) -> Result<Released> {
        self.ledger.close();
        let leave = self.waiting.as_ref().is_some_and(|waiting| waiting.registration.is_last());
        let undo = self.undo(None);
        let until = self.ends_by();
        let mut fanout = Fanout::default();
        for node in 0..self.quorum.len() {
            fanout.push(node, undo.release(node, leave));
        }
        let mut tally = Tally::new(self.quorum.len(), self.quorum.needed(), None);
        let forgets = self.quorum.is_wrong(Wrong::ForgetsTheUnanswered);
        let (mut answered, mut freed, mut rest) = (0, false, Vec::new());
        let started = self.now();
        let mut close_at = None;
        while !fanout.is_empty() {
            let now = self.now();
            if answered >= self.quorum.needed() {
                // The last ones mostly come with the others.
                close_at.get_or_insert(now + SHORT_WAIT.max(now.since(started)));
            }
            if close_at.is_some_and(|at| now >= at) {
                break;
            }
            let (node, taken) = tokio::select! {
                biased;
                next = fanout.next() => next,
                () = self.quorum.clock().sleep_until(close_at.unwrap_or(ClockInstant::FAR_FUTURE)),
                    if close_at.is_some() => continue,
            };
            match taken.freed {
                Ok(done) => {
                    answered += 1;
                    freed |= done;
                }
                Err(error) => tally.set(node, Answer::Failed(error)),
            }
            if !taken.settled {
                rest.push(node);
            }
        }
        if (!rest.is_empty() || !fanout.is_empty()) && !forgets {
            // A node that has not answered is released when it does.
            self.quorum.spawn_undo(async move {
                while !fanout.is_empty() {
                    let (node, taken) = fanout.next().await;
                    if !taken.settled {
                        rest.push(node);
                    }
                }
                undo.repeat(rest, until).await;
            });
        }
        if answered < self.quorum.needed() {
            return Err(self.describe(&tally).with_unknown_effect());
        }
        self.waiting = None;
        self.holding = None;
        Ok(if freed { Released::Freed } else { Released::AlreadyGone })
    }

    async fn changed(&mut self) -> Result<()> {
        let (needed, clock) = (self.quorum.needed(), self.quorum.clock());
        if let Some(waiting) = &self.waiting {
            waiting.registration.rung(needed, clock, Quorum::chance()).await;
        } else if let Some(holding) = &self.holding {
            holding.rung(needed, clock, 0.0).await;
            // The look that follows hears what was published before it.
            holding.arm();
        } else {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    /// Nothing: the nodes know the owner and its fence.
    async fn detach(&mut self) -> Result<Bytes> {
        Ok(Bytes::new())
    }
}
