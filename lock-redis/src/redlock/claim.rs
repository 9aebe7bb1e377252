//! One contender for a lock on a quorum.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Busy, Bytes, Claim, ClaimRequest, Error, ErrorKind, FencingToken, Released, Renewal,
    Result, async_trait,
};

use super::admission::Admission;
use super::contender::rule::Block;
use super::contender::{Contender, Outcome, Terms};
use super::driver::Driver;
use super::quorum::Quorum;
use super::replies::Replies;
use super::target::Target;
use super::wake::Waiter;
use crate::node::Interest;

/// How often to repeat a try in which the votes were split and no client got a quorum.
const TRIES: u32 = 8;

/// A contender: asks all nodes at once, and holds what a quorum grants.
#[derive(Debug)]
pub(crate) struct RedlockClaim {
    driver: Arc<Driver>,
    admission: Arc<Admission>,
    wait: bool,
    waiting: Option<Waiting>,
    /// Is notified of a forced release.
    holding: Option<Waiter>,
}

#[derive(Debug)]
struct Waiting {
    waiter: Waiter,
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
        let block = |first: FencingToken| Block::from_first(first.get(), request.fences);
        let resumed = request.resume.as_ref().map(|resume| block(resume.fence).last);
        let target = Target::new(request);
        let contender = Contender::new(quorum.len(), resumed);
        // A little less than the core allows, so that the error can name each node's answer.
        let limit = request.call_timeout * 9 / 10;
        let slow_after = quorum.node_timeout(request.ttl, request.call_timeout);
        let ttl = request.ttl;
        let terms = Terms {
            rules: quorum.config.rules.contender,
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
        let driver = Driver::new(quorum, target, (ttl, limit), terms, contender);
        let mut claim =
            Self { driver, admission, wait: request.wait, waiting: None, holding: None };
        if request.resume.is_some() {
            claim.hear_of_the_end();
        }
        Ok(claim)
    }

    fn quorum(&self) -> &Arc<Quorum> {
        &self.driver.quorum
    }

    /// From now on, this claim is notified when its lock is released by force.
    fn hear_of_the_end(&mut self) {
        let driver = &self.driver;
        self.holding.get_or_insert_with(|| driver.quorum.waiters.holder(&driver.target.owner));
    }

    /// From now on, this claim receives pushes.
    fn listen(&mut self) {
        match &self.waiting {
            Some(waiting) => waiting.waiter.arm(),
            None if self.wait => self.begin_to_wait(),
            None => {}
        }
    }

    fn begin_to_wait(&mut self) {
        let waiter = self.quorum().waiters.waiter(&self.driver.target.lock);
        let since = self.quorum().clock().now();
        self.driver.waits_since(Some(since));
        self.waiting = Some(Waiting { waiter, interest: Vec::new() });
    }

    fn end_wait(&mut self) {
        self.waiting = None;
        self.driver.waits_since(None);
    }

    /// How long to wait after the votes were split for the `tries`-th time: at random, longer each
    /// time, and shortest for the contender with the least owner id, so that one goes first.
    fn split_delay(&self, replies: &Replies, tries: u32) -> Duration {
        let (shortest, longest) = self.quorum().config.retry_delay;
        let chance = (longest - shortest).mul_f64(Quorum::chance());
        if replies.is_least(&self.driver.target.owner) {
            return shortest + chance / 4;
        }
        shortest + longest / 4 + chance * tries.min(8)
    }

    /// Another client has the lock, or the hold is over.
    fn end_hold(&mut self) {
        self.driver.tell(Contender::end_hold);
        self.holding = None;
    }

    /// The busy answer. The first one also registers for pushes, which keeps the connections up.
    fn busy(&mut self, replies: &Replies, tries: u32) -> Attempt {
        let quorum = self.quorum();
        let interest = || (0..quorum.len()).map(|node| quorum.node(node).interest()).collect();
        if self.waiting.as_ref().is_some_and(|waiting| waiting.interest.is_empty()) {
            let interest = interest();
            if let Some(waiting) = &mut self.waiting {
                waiting.interest = interest;
            }
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
    async fn survey(&self, prolongs: bool) -> Result<Renewal> {
        let called = self.driver.now();
        let (outcome, replies) = self
            .driver
            .call(|contender, terms, now| contender.begin_survey(terms, now, prolongs))
            .await;
        let is_held = outcome == Outcome::Held;
        if replies.lacks_admission() && (outcome == Outcome::Unknown || (is_held && prolongs)) {
            self.admission.tend();
        }
        let terms = &self.driver.terms;
        match outcome {
            Outcome::Held if prolongs => {
                Ok(Renewal::Alive { valid_for: Some(terms.believed(called, self.driver.now())) })
            }
            Outcome::Held => {
                let drift = self.driver.ttl - terms.valid;
                let left = replies.left().map(|left| left.saturating_sub(drift));
                Ok(Renewal::Alive { valid_for: left })
            }
            Outcome::Lost => Ok(Renewal::Lost),
            _ => Err(self.describe(&replies).with_unknown_effect()),
        }
    }

    fn describe(&self, replies: &Replies) -> Error {
        let why = self.admission.why();
        replies.error(|node| self.quorum().node(node).endpoint(), why.as_deref())
    }
}

/// Nothing more is acquired for it.
impl Drop for RedlockClaim {
    fn drop(&mut self) {
        self.driver.tell(Contender::close);
    }
}

#[async_trait]
impl Claim for RedlockClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let started = self.quorum().clock().now();
        let (mut tries, mut has_advanced) = (0, false);
        let (outcome, replies) = loop {
            self.listen();
            let (called, proposal) = (Driver::time(started), self.quorum().proposal());
            let (outcome, replies) = self
                .driver
                .call(|contender, terms, now| contender.begin_try(terms, (called, now), proposal))
                .await;
            if replies.lacks_admission() && outcome == Outcome::Failed && !has_advanced {
                // A quorum that was never used begins to vote now, if it may.
                self.admission.advance().await?;
                has_advanced = true;
                continue;
            }
            tries += 1;
            if outcome != Outcome::Busy || replies.is_held() || tries == TRIES {
                break (outcome, replies);
            }
            let pause = self.split_delay(&replies, tries);
            self.quorum().clock().sleep(pause).await;
        };
        if replies.lacks_admission() {
            self.admission.tend();
        }
        match outcome {
            Outcome::Granted { fence, valid_for } => {
                self.end_wait();
                self.hear_of_the_end();
                let token = FencingToken::answered(fence)?;
                Ok(Attempt::Granted { token, valid_for: Some(valid_for) })
            }
            Outcome::TooLate => {
                self.end_hold();
                let took = self.quorum().clock().now().since(started);
                Err(Error::new(
                    ErrorKind::NoAnswer,
                    format!(
                        "a quorum granted the lock only after {took:.1?}, when its ttl of {:?} was over",
                        self.driver.ttl
                    ),
                )
                .with_unknown_effect())
            }
            Outcome::Busy => {
                self.end_hold();
                Ok(self.busy(&replies, tries))
            }
            Outcome::Closed => Err(Error::new(
                ErrorKind::Internal,
                "BUG: this claim was released before it tried to acquire",
            )),
            _ => Err(self.describe(&replies)),
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        // There are no places on a quorum, and a vote that is to be given back is not prolonged.
        self.survey(self.driver.has_fence()).await
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.survey(false).await
    }

    async fn release(&mut self) -> Result<Released> {
        let leaves = self.waiting.as_ref().is_some_and(|waiting| waiting.waiter.is_last());
        let (outcome, replies) = self
            .driver
            .call(|contender, terms, now| contender.begin_release(terms, now, leaves))
            .await;
        let Outcome::Released(freed) = outcome else {
            return Err(self.describe(&replies).with_unknown_effect());
        };
        self.end_wait();
        self.holding = None;
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
