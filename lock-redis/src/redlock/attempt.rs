//! One try to get the lock, and giving back what a failed one got.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ClockInstant, Error, ErrorKind};

use super::answer::Answer;
use super::ask::Ask;
use super::claim::{RedlockClaim, SHORT_WAIT, Waiting, holder_key};
use super::fanout::Fanout;
use super::quorum::Quorum;
use super::tally::{Outcome, Tally};
use super::wrong::Wrong;

/// How long the last answers are waited for when the try has failed already.
const LISTING: Duration = Duration::from_millis(10);

impl RedlockClaim {
    /// One try: all nodes at once, until the outcome is decided. Validity counts from `called`.
    pub(super) async fn attempt(&mut self, called: ClockInstant) -> (Outcome, Tally) {
        self.attempt += 1;
        if self.wait && self.token.is_none() {
            match &self.waiting {
                Some(waiting) => waiting.registration.arm(),
                None => self.waiting = Some(self.begin_to_wait()),
            }
        }
        let started = self.now();
        let mut tally = Tally::new(self.quorum.len(), self.quorum.needed(), self.token);
        let (mut acquires, mut raises) = (Fanout::default(), Fanout::default());
        let proposal = self.quorum.proposal();
        let asked = self.quorum.asked();
        let mut left_out = Vec::new();
        for node in 0..self.quorum.len() {
            if asked.contains(&node) {
                acquires.push(node, self.acquire(node, proposal));
            } else {
                tally.set(node, self.quorum.left_out(node));
                left_out.push(node);
            }
        }
        let (mut raise_at, mut fail_at) = (None, None);
        let slow_at = started + self.slow_after;
        let outcome = loop {
            let now = self.now();
            let judged = match tally.judge() {
                Outcome::Differ(highest)
                    if self.quorum.is_wrong(Wrong::MaximumWithoutAgreement) =>
                {
                    Outcome::Granted(highest)
                }
                Outcome::Failed | Outcome::Open
                    if self.quorum.is_wrong(Wrong::QuorumOfTheReachable) =>
                {
                    tally.judge_reachable()
                }
                judged => judged,
            };
            match judged {
                // Where others contend, votes are not kept from them while a node makes up its mind.
                Outcome::Open if now >= slow_at && tally.is_contended() => {
                    break tally.without_the_slow();
                }
                Outcome::Open if now < slow_at || left_out.is_empty() => {}
                Outcome::Open | Outcome::Failed if !left_out.is_empty() => {
                    // Those that were to be spared are needed after all.
                    for node in left_out.drain(..) {
                        tally.ask(node);
                        acquires.push(node, self.acquire(node, proposal));
                    }
                }
                // The error is to name each node's answer, so the last ones get a moment.
                Outcome::Failed => {
                    let grace = LISTING.max(now.since(started) * 2).min(self.slow_after);
                    if acquires.is_empty() || now >= *fail_at.get_or_insert(now + grace) {
                        break judged;
                    }
                }
                Outcome::Differ(highest) => {
                    // The answers that are still to come may make a quorum agree without a second
                    // round, so they get a moment.
                    let at = *raise_at.get_or_insert(now + SHORT_WAIT.max(now.since(started) * 2));
                    if acquires.is_empty() || now >= at {
                        for node in tally.raise_to(highest) {
                            let (quorum, target) =
                                (Arc::clone(&self.quorum), Arc::clone(&self.target));
                            raises.push(node, quorum.raise(node, target, highest, self.limit));
                        }
                    }
                }
                decided => break decided,
            }
            let pause = [raise_at, fail_at, Some(slow_at)].into_iter().flatten();
            let pause = pause.filter(|at| *at > now).min();
            tokio::select! {
                biased;
                (node, answer) = raises.next(), if !raises.is_empty() => tally.set(node, answer),
                (node, answer) = acquires.next(), if !acquires.is_empty() => {
                    tally.set(node, answer);
                }
                () = self.quorum.clock().sleep_until(pause.unwrap_or(ClockInstant::FAR_FUTURE)),
                    if pause.is_some() => {}
            }
        };
        let outcome = match outcome {
            Outcome::Granted(_)
                if self.is_over(called) && !self.quorum.is_wrong(Wrong::ValidityFromTheReply) =>
            {
                Outcome::TooLate
            }
            decided => decided,
        };
        match outcome {
            Outcome::Granted(token) => self.granted(token, &tally, acquires, raises),
            _ => self.give_back(&tally, acquires).await,
        }
        (outcome, tally)
    }

    pub(super) fn begin_to_wait(&self) -> Waiting {
        let registration = self.quorum.hub.register(&self.target.lock);
        Waiting { registration, interest: Vec::new(), since: self.now() }
    }

    pub(super) fn granted(
        &mut self,
        token: u64,
        tally: &Tally,
        mut acquires: Fanout<Answer>,
        raises: Fanout<Answer>,
    ) {
        self.token = Some(token);
        self.waiting = None;
        self.holding.get_or_insert_with(|| self.quorum.hub.register(&holder_key(&self.target)));
        let missing = (0..self.quorum.len())
            .filter(|node| tally.answer(*node).is_some_and(|answer| answer.counter().is_none()));
        acquires.absorb(raises);
        self.top_up(acquires, missing.collect());
    }

    /// Gives the votes of a failed try back at once, on all nodes that may have voted for it: those
    /// that did are waited for, those that have not answered are seen to in the background.
    pub(super) async fn give_back(&self, tally: &Tally, acquires: Fanout<Answer>) {
        if self.quorum.is_wrong(Wrong::KeepsPartialVotes) {
            return;
        }
        let undo = self.undo(Some(self.attempt));
        let until = self.ends_by();
        let (mut voted, mut late) = (Vec::new(), Vec::new());
        for node in 0..self.quorum.len() {
            match tally.answer(node) {
                None => late.push(node),
                Some(answer) if answer.may_land() => late.push(node),
                Some(_) if tally.has_voted(node) => voted.push(node),
                Some(_) => {}
            }
        }
        if !late.is_empty() && !self.quorum.is_wrong(Wrong::ForgetsTheUnanswered) {
            self.quorum.spawn_undo(undo.clone().late(acquires, late, until));
        }
        let mut releases = Fanout::default();
        for node in voted {
            releases.push(node, undo.release(node, false));
        }
        let mut unsure = Vec::new();
        let give_up = self.now() + self.slow_after;
        while !releases.is_empty() {
            tokio::select! {
                biased;
                (node, taken) = releases.next() => if !taken.settled {
                    unsure.push(node);
                },
                () = self.quorum.clock().sleep_until(give_up) => {
                    unsure.extend(releases.nodes());
                    break;
                }
            }
        }
        if !unsure.is_empty() {
            self.quorum.spawn_undo(undo.repeat(unsure, until));
        }
    }

    /// How long to wait after the votes were split for the `tries`-th time: at random, longer each
    /// time, and shortest for the contender with the least owner id, so that one goes first.
    pub(super) fn split_delay(&self, tally: &Tally, tries: u32) -> Duration {
        let (shortest, longest) = self.quorum.config.retry_delay;
        let chance = (longest - shortest).mul_f64(Quorum::chance());
        if tally.is_least(&self.target.owner) {
            return shortest + chance / 4;
        }
        shortest + longest / 4 + chance * tries.min(8)
    }

    pub(super) fn acquire(
        &self,
        node: usize,
        proposal: u64,
    ) -> impl Future<Output = Answer> + Send + use<> {
        let debt = self.ledger.owe(node, self.attempt, self.now(), self.ends_by());
        let ask = Ask {
            attempt: self.attempt,
            ttl: self.ttl,
            proposal,
            waited: self.waiting.as_ref().map(|waiting| self.now().since(waiting.since)),
            limit: self.limit,
        };
        let request = Arc::clone(&self.quorum).acquire(node, Arc::clone(&self.target), ask);
        let ledger = Arc::clone(&self.ledger);
        async move {
            let Some(debt) = debt else {
                let bug = "BUG: this claim was released before it tried to acquire";
                return Answer::Failed(Error::new(ErrorKind::Internal, bug));
            };
            let answer = request.await;
            if !answer.may_land() {
                ledger.settle(node, debt, answer.counter().is_some());
            }
            answer
        }
    }
}
