//! One contender for a lock on a quorum.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, ClockInstant, Error, FencingToken, Released, Renewal,
    Result, async_trait,
};

use super::admission::Admission;
use super::answer::Answer;
use super::fanout::Fanout;
use super::ledger::Ledger;
use super::quorum::{Quorum, Target};
use super::rule::Standing;
use super::tally::{Outcome, Tally};
use super::undo::Undo;
use super::wake::Registration;
use super::wrong::Wrong;
use crate::keys::Keys;
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
    /// The members of the hold are not known: it was taken over without them.
    pub(super) adopts: bool,
    pub(super) ledger: Arc<Ledger>,
    pub(super) waiting: Option<Waiting>,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) registration: Registration,
    /// Keeps the connections up, over which the pushes come.
    pub(super) interest: Vec<Interest>,
    /// Since when, in µs of the wall clock.
    pub(super) ticket: u64,
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
            adopts: false,
            ledger: Arc::new(ledger),
            waiting: None,
            target: Arc::new(target),
            admission,
            quorum,
        };
        if let Some(resume) = &request.resume {
            claim.token = Some(resume.fence.get());
            claim.resume(&resume.data)?;
        }
        Ok(claim)
    }

    /// Takes over what [`detach`](Claim::detach) has written.
    fn resume(&mut self, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            self.adopts = true;
            return Ok(());
        }
        let wrong = || Error::invalid("the lease token was not made by a lock on this quorum");
        let text = std::str::from_utf8(data).map_err(|_| wrong())?;
        let (attempt, members) = text.split_once(' ').ok_or_else(wrong)?;
        self.attempt = attempt.parse().map_err(|_| wrong())?;
        let members: Vec<Option<u64>> = members
            .split(',')
            .map(|member| if member == "-" { Ok(None) } else { member.parse().map(Some) })
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| wrong())?;
        if members.len() != self.quorum.len() {
            return Err(wrong());
        }
        self.ledger.set_members(&members);
        Ok(())
    }

    pub(super) fn now(&self) -> ClockInstant {
        self.quorum.clock().now()
    }

    /// By when a lock that a request sent now may take has ended by itself.
    pub(super) fn ends_by(&self) -> ClockInstant {
        self.now() + self.limit + self.ttl + self.ttl / 50 + Duration::from_millis(100)
    }

    /// How long a quorum keeps what it has just granted. The core subtracts 1 % and 2 ms itself.
    pub(super) fn valid_for(&self) -> Duration {
        self.ttl.saturating_sub(self.ttl.mul_f64((self.quorum.config.drift - 0.01).max(0.0)))
    }

    pub(super) fn undo(&self, attempt: Option<u32>) -> Undo {
        Undo {
            quorum: Arc::clone(&self.quorum),
            target: Arc::clone(&self.target),
            ledger: Arc::clone(&self.ledger),
            attempt,
            limit: self.limit,
        }
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
        let (mut outcome, mut tally) = self.attempt().await;
        if tally.lacks_admission() {
            if outcome == Outcome::Failed {
                // A quorum that nobody has used yet begins to vote now, if it may.
                self.admission.advance().await?;
                (outcome, tally) = self.attempt().await;
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
            (outcome, tally) = self.attempt().await;
        }
        match outcome {
            Outcome::Granted(token) => Ok(Attempt::Granted {
                token: FencingToken::new(token)?,
                valid_for: Some(if self.quorum.is_wrong(Wrong::ValidityFromTheReply) {
                    self.valid_for() + self.now().since(started)
                } else {
                    self.valid_for()
                }),
            }),
            Outcome::Busy => {
                self.token = None;
                self.ledger.set_members(&vec![None; self.quorum.len()]);
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
        let (standing, answers) = self.survey(self.ttl).await;
        match standing {
            Standing::Held => {
                self.adopts = false;
                if self.token.is_some() {
                    let mut missing = Vec::new();
                    for (node, answer) in answers.iter().enumerate() {
                        match answer {
                            Some(answer @ Answer::Mine { .. }) => {
                                self.ledger.set_member(node, answer.counter());
                            }
                            Some(Answer::NotMine { .. }) => {
                                self.ledger.set_member(node, None);
                                missing.push(node);
                            }
                            Some(Answer::NotAdmitted(_)) => self.admission.tend(),
                            _ => {}
                        }
                    }
                    self.top_up(Fanout::default(), None, missing);
                }
                Ok(Renewal::Alive { valid_for: Some(self.valid_for()) })
            }
            Standing::Lost => Ok(Renewal::Lost),
            Standing::Unknown => Err(self.survey_error(answers)),
        }
    }

    async fn check(&mut self) -> Result<Renewal> {
        let (standing, answers) = self.survey(Duration::ZERO).await;
        match standing {
            Standing::Held => {
                let mut left: Vec<_> = answers
                    .iter()
                    .flatten()
                    .filter_map(|answer| match answer {
                        Answer::Mine { left, .. } => *left,
                        _ => None,
                    })
                    .collect();
                left.sort_by(|a, b| b.cmp(a));
                Ok(Renewal::Alive { valid_for: left.get(self.quorum.needed() - 1).copied() })
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
        Ok(if freed { Released::Freed } else { Released::AlreadyGone })
    }

    async fn changed(&mut self) -> Result<()> {
        match &self.waiting {
            Some(waiting) => {
                let clock = self.quorum.clock();
                waiting.registration.rung(self.quorum.needed(), clock, Quorum::chance()).await;
                Ok(())
            }
            None => std::future::pending().await,
        }
    }

    async fn detach(&mut self) -> Result<Bytes> {
        let members: Vec<_> = self
            .ledger
            .members()
            .into_iter()
            .map(|member| member.map_or_else(|| "-".to_owned(), |counter| counter.to_string()))
            .collect();
        Ok(Bytes::from(format!("{} {}", self.attempt, members.join(","))))
    }
}
