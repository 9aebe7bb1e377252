//! One contender for a lock on a quorum.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Busy, Bytes, Claim, ClaimRequest, ClockInstant, Error, ErrorKind, FencingToken,
    Released, Renewal, Result, async_trait,
};

use super::admission::Admission;
use super::contender::{CallOutcome, Contender, ContenderTerms};
use super::quorum::answers::AnswerTally;
use super::quorum::waiters::QuorumWaiter;
use super::quorum::{LockKeys, Quorum};
use super::rules::{self, FenceBlock};
use super::runner::ContenderRunner;
use crate::node::Interest;

/// How often to repeat a try in which the votes were split and no client got a quorum.
const TRIES: u32 = 8;

/// A contender: asks all nodes at once, and holds what a quorum grants.
#[derive(Debug)]
pub(crate) struct RedlockClaim {
    runner: Arc<ContenderRunner>,
    wait: bool,
    /// A call runs that makes several of the contender.
    is_trying: bool,
    waiting: Option<PushWait>,
    /// Is notified of a forced release.
    holding: Option<QuorumWaiter>,
}

#[derive(Debug)]
struct PushWait {
    waiter: QuorumWaiter,
    since: ClockInstant,
    /// Keeps up the connections over which pushes arrive.
    interest: Vec<Interest>,
}

impl RedlockClaim {
    pub(crate) fn new(
        quorum: Arc<Quorum>,
        admission: Arc<Admission>,
        request: &ClaimRequest,
    ) -> Result<Self> {
        if let Some(resume) = request.resume.as_ref().filter(|resume| !resume.data.is_empty()) {
            return Err(Error::invalid(format!(
                "the lease token has {} bytes of store data, and a token of a lock on this quorum has none: attach it to the store that issued it",
                resume.data.len()
            )));
        }
        let block = |first: FencingToken| FenceBlock::from_first(first.get(), request.fences);
        let resumed = request.resume.as_ref().map(|resume| block(resume.fence).last);
        let keys = LockKeys::new(request);
        // A little less than the core allows, so that the error can name each node's answer.
        let limit = request.call_timeout * 9 / 10;
        let slow_after = quorum.node_timeout(request.ttl, request.call_timeout);
        let ttl = request.ttl;
        let terms = ContenderTerms {
            fences: request.fences,
            // The core subtracts 1 % and 2 ms itself.
            valid: ttl.saturating_sub(ttl.mul_f64((quorum.config.drift - 0.01).max(0.0))),
            margin: ttl / 100 + Duration::from_millis(2),
            lasts: limit + ttl + ttl / 50 + Duration::from_millis(100),
            slow_after,
            short_wait: Duration::from_millis(1),
            listing: Duration::from_millis(10),
            join_after: (ttl / 20).min(Duration::from_millis(250)),
            pauses: (Duration::from_millis(50), Duration::from_secs(1)),
        };
        let runner = ContenderRunner::new((quorum, admission), keys, limit, terms, resumed);
        let (wait, is_trying) = (request.wait, false);
        let mut claim = Self { runner, wait, is_trying, waiting: None, holding: None };
        if request.resume.is_some() {
            claim.hear_of_the_end();
        }
        Ok(claim)
    }

    fn quorum(&self) -> &Arc<Quorum> {
        &self.runner.quorum
    }

    /// From now on, this claim is notified when its lock is released by force.
    fn hear_of_the_end(&mut self) {
        let runner = &self.runner;
        self.holding.get_or_insert_with(|| runner.quorum.waiters.holder(&runner.keys.owner));
    }

    /// From now on, this claim receives pushes, if it is to wait. Returns for how long it has waited.
    fn listen(&mut self) -> Option<Duration> {
        let (runner, now) = (&self.runner, self.runner.quorum.clock().now());
        if self.wait {
            let waiting = self.waiting.get_or_insert_with(|| {
                let waiter = runner.quorum.waiters.waiter(&runner.keys.lock);
                PushWait { waiter, since: now, interest: Vec::new() }
            });
            waiting.waiter.arm();
        }
        self.waiting.as_ref().map(|waiting| now.since(waiting.since))
    }

    /// How long to wait after the votes were split for the `tries`-th time: at random, longer each
    /// time, and shortest for the contender with the least owner id, so that one goes first.
    fn split_delay(&self, replies: &AnswerTally, tries: u32) -> Duration {
        let (shortest, longest) = self.quorum().config.retry_delay;
        let chance = (longest - shortest).mul_f64(Quorum::chance());
        if replies.is_least(&self.runner.keys.owner) {
            return shortest + chance / 4;
        }
        shortest + longest / 4 + chance * tries.min(8)
    }

    /// Another client has the lock, or the hold is over.
    fn end_hold(&mut self) {
        self.runner.tell(Contender::end_hold);
        self.holding = None;
    }

    /// The busy answer. The first one also registers for pushes, which keeps the connections up.
    fn busy(&mut self, replies: &AnswerTally, tries: u32) -> Attempt {
        let quorum = &self.runner.quorum;
        if let Some(waiting) = self.waiting.as_mut().filter(|waiting| waiting.interest.is_empty()) {
            waiting.interest = (0..quorum.len()).map(|node| quorum.node(node).interest()).collect();
        }
        let free_in = replies.free_in();
        let retry_after = if replies.is_held() {
            free_in
        } else {
            let split = self.split_delay(replies, tries);
            Some(free_in.map_or(split, |free_in| free_in.min(split)))
        };
        Attempt::Busy(Busy::default().with_retry_after(retry_after))
    }

    /// Asks all nodes about the hold, and extends it if `prolongs`. Returns how long it is valid,
    /// if it still is.
    async fn renew_or_check(&self, prolongs: bool) -> Result<Renewal> {
        let called = self.runner.now();
        let end = called + self.runner.limit;
        let begin = |contender: &mut Contender, _: &_, now| contender.begin_renewal(now, prolongs);
        let (outcome, replies) = self.runner.call(end, None, begin).await;
        let terms = &self.runner.terms;
        match outcome {
            CallOutcome::Held if prolongs => {
                let took = self.runner.now() - called;
                Ok(Renewal::Alive { valid_for: Some(rules::valid_for(terms.valid, took)) })
            }
            CallOutcome::Held => {
                let drift = self.runner.keys.ttl - terms.valid;
                let left = replies.left().map(|left| left.saturating_sub(drift));
                Ok(Renewal::Alive { valid_for: left })
            }
            CallOutcome::Lost => Ok(Renewal::Lost),
            _ => Err(self.describe(&replies).with_unknown_effect()),
        }
    }

    fn describe(&self, replies: &AnswerTally) -> Error {
        let why = self.runner.admission.why();
        replies.error(|node| self.quorum().node(node).endpoint(), why.as_deref())
    }
}

impl Drop for RedlockClaim {
    fn drop(&mut self) {
        self.runner.close(self.is_trying);
    }
}

#[async_trait]
impl Claim for RedlockClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let started = self.quorum().clock().now();
        let (called, limit) = (ContenderRunner::time(started), self.runner.limit);
        let (mut tries, mut has_advanced) = (0, false);
        self.is_trying = true;
        let (outcome, replies) = loop {
            let waited = self.listen();
            let proposal = self.quorum().proposal();
            let begin = |contender: &mut Contender, terms: &_, now| {
                contender.begin_try(terms, (called, now), proposal)
            };
            let (outcome, replies) = self.runner.call(called + limit, waited, begin).await;
            if replies.lacks_admission() && outcome == CallOutcome::Failed && !has_advanced {
                // A quorum that was never used begins to vote now, if it may.
                has_advanced = true;
                tokio::select! {
                    advanced = self.runner.admission.advance() => if let Err(error) = advanced {
                        self.is_trying = false;
                        return Err(error);
                    },
                    () = self.quorum().clock().sleep_until(started + limit) => {
                        break (outcome, replies);
                    }
                }
                continue;
            }
            tries += 1;
            let pause = self.split_delay(&replies, tries);
            // What is left of the call behind the pause must be enough for another try.
            let is_late = self.quorum().clock().now() + pause > started + limit * 3 / 4;
            if outcome != CallOutcome::Busy || replies.is_held() || is_late || tries == TRIES {
                break (outcome, replies);
            }
            self.quorum().clock().sleep(pause).await;
        };
        self.is_trying = false;
        match outcome {
            CallOutcome::Granted { fence, valid_for } => {
                self.waiting = None;
                self.hear_of_the_end();
                let token = FencingToken::answered(fence)?;
                Ok(Attempt::Granted { token, valid_for: Some(valid_for) })
            }
            CallOutcome::TooLate => {
                self.end_hold();
                let took = self.quorum().clock().now().since(started);
                Err(Error::new(
                    ErrorKind::NoAnswer,
                    format!(
                        "a quorum granted the lock only after {took:.1?}, when its TTL of {:?} was over",
                        self.runner.keys.ttl
                    ),
                )
                .with_unknown_effect())
            }
            CallOutcome::Busy => {
                self.end_hold();
                Ok(self.busy(&replies, tries))
            }
            CallOutcome::Closed => Err(Error::new(
                ErrorKind::Internal,
                "BUG: this claim was released before it tried to acquire",
            )),
            _ => Err(self.describe(&replies)),
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        // There are no places on a quorum, and a vote that is to be given back is not prolonged.
        self.renew_or_check(self.runner.has_fence()).await
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.renew_or_check(false).await
    }

    async fn release(&mut self) -> Result<Released> {
        let leaves = self.waiting.as_ref().is_some_and(|waiting| waiting.waiter.is_last());
        let end = self.runner.now() + self.runner.limit;
        let begin =
            |contender: &mut Contender, terms: &_, now| contender.begin_release(terms, now, leaves);
        let (outcome, replies) = self.runner.call(end, None, begin).await;
        let CallOutcome::Released(freed) = outcome else {
            return Err(self.describe(&replies).with_unknown_effect());
        };
        (self.waiting, self.holding) = (None, None);
        Ok(if freed { Released::Freed } else { Released::AlreadyGone })
    }

    async fn changed(&mut self) -> Result<()> {
        let quorum = self.quorum();
        let (needed, clock) = (quorum.needed(), quorum.clock());
        if let Some(waiting) = &self.waiting {
            waiting.waiter.due(needed, clock, Quorum::chance()).await;
        } else if let Some(holding) = &self.holding {
            holding.due(needed, clock, 0.0).await;
            // The try that follows sees what was published before it.
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
