//! What a proxy does to which requests and replies.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::{OsRng, jitter};
use tokio::sync::watch;

use super::wire::Wire;

#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) http2: bool,
    pub(super) stall_requests: bool,
    pub(super) stall_replies: bool,
    /// Connections up to this number are silent in both directions.
    pub(super) stall_up_to: u64,
    pub(super) connections: u64,
    pub(super) refuse: bool,
    pub(super) delay: Duration,
    pub(super) jitter: Duration,
    /// Incremented by every cut; a connection made under a smaller number ends.
    pub(super) cuts: u64,
    pub(super) reset: bool,
    pub(super) requests: u64,
    pub(super) replies: u64,
    pub(super) cut_after_request: Option<u64>,
    pub(super) cut_before_reply: Option<u64>,
    /// What happens to each of the next requests; nothing to those that are skipped.
    pub(super) next: VecDeque<Option<Next>>,
    /// How many plans for one request or reply have been carried out.
    pub(super) struck: u64,
}

/// What happens to the next request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    LoseRequest,
    LoseReply,
    DelayReply(Duration),
    HoldRequest(Duration),
}

/// What happens to the replies of one connection.
#[derive(Clone, Copy, Debug, Default)]
enum ReplyFate {
    #[default]
    Pass,
    /// The next one is discarded, and the connection with it.
    Lose,
    DelayOnce(Duration),
}

/// One connection, from both sides.
pub(super) struct Line {
    pub(super) rules: Arc<watch::Sender<Rules>>,
    pub(super) wire: Wire,
    /// The number of cuts when it was made.
    born: u64,
    pub(super) number: u64,
    fate: Mutex<ReplyFate>,
    /// Set when a plan ends only this connection.
    pub(super) ended: watch::Sender<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Requests,
    Replies,
}

impl Line {
    pub(super) fn new(rules: Arc<watch::Sender<Rules>>, wire: Wire) -> Self {
        let (mut born, mut number) = (0, 0);
        rules.send_modify(|rules| {
            rules.connections += 1;
            (born, number) = (rules.cuts, rules.connections);
        });
        let (fate, ended) = (Mutex::default(), watch::Sender::new(false));
        Self { born, number, rules, wire, fate, ended }
    }

    /// Ready when this connection is to be cut.
    pub(super) async fn cut(&self) {
        let mut rules = self.rules.subscribe();
        let mut ended = self.ended.subscribe();
        tokio::select! {
            _ = rules.wait_for(|rules| rules.cuts > self.born) => {}
            _ = ended.wait_for(|ended| *ended) => {}
        }
    }

    /// Ready when nothing stalls this direction.
    pub(super) async fn open(&self, direction: Direction) {
        let mut rules = self.rules.subscribe();
        let open = |rules: &Rules| {
            let stalled = match direction {
                Direction::Requests => rules.stall_requests,
                Direction::Replies => rules.stall_replies,
            };
            !stalled && self.number > rules.stall_up_to
        };
        let _ = rules.wait_for(open).await;
    }

    fn set_fate(&self, fate: ReplyFate) {
        *self.fate.lock().unwrap_or_else(PoisonError::into_inner) = fate;
    }

    fn take_fate(&self) -> ReplyFate {
        std::mem::take(&mut *self.fate.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What happens to a piece that is neither a request nor a reply.
    pub(super) fn let_pass(&self) -> Verdict {
        let rules = self.rules.borrow();
        Verdict { delay: spread(rules.delay, rules.jitter), lose: false, cut: false }
    }

    /// What happens to one more piece that has just been read.
    pub(super) fn judge(&self, direction: Direction) -> Verdict {
        let mut verdict = Verdict { delay: Duration::ZERO, lose: false, cut: false };
        self.rules.send_if_modified(|rules| {
            verdict.delay = spread(rules.delay, rules.jitter);
            match direction {
                Direction::Requests => {
                    rules.requests += 1;
                    if rules.cut_after_request == Some(rules.requests) {
                        rules.cut_after_request = None;
                        verdict.cut = true;
                    }
                    let next = rules.next.pop_front().flatten();
                    if matches!(next, Some(Next::LoseRequest | Next::HoldRequest(_))) {
                        rules.struck += 1;
                    }
                    match next {
                        None => {}
                        Some(Next::LoseRequest) => (verdict.lose, verdict.cut) = (true, true),
                        Some(Next::LoseReply) => self.set_fate(ReplyFate::Lose),
                        Some(Next::DelayReply(delay)) => {
                            self.set_fate(ReplyFate::DelayOnce(delay));
                        }
                        Some(Next::HoldRequest(delay)) => verdict.delay += delay,
                    }
                }
                Direction::Replies => {
                    rules.replies += 1;
                    if rules.cut_before_reply == Some(rules.replies) {
                        rules.cut_before_reply = None;
                        (verdict.lose, verdict.cut) = (true, true);
                    }
                    let fate = self.take_fate();
                    if !matches!(fate, ReplyFate::Pass) {
                        rules.struck += 1;
                    }
                    match fate {
                        ReplyFate::Pass => {}
                        ReplyFate::Lose => (verdict.lose, verdict.cut) = (true, true),
                        ReplyFate::DelayOnce(delay) => verdict.delay += delay,
                    }
                }
            }
            // Nothing waits for the counters.
            false
        });
        verdict
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    pub(super) delay: Duration,
    pub(super) lose: bool,
    pub(super) cut: bool,
}

/// `delay`, more or less by up to `by`.
fn spread(delay: Duration, by: Duration) -> Duration {
    (delay + jitter(&OsRng, by * 2)).saturating_sub(by)
}
