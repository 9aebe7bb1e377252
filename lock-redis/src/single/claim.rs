//! One contender for a lock on one Redis node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Busy, Bytes, Claim, ClaimRequest, Effect, Error, ErrorKind, FencingToken, Released,
    Renewal, Result, async_trait,
};
use redis::Value;

use super::holder::{first_of, holder, in_record};
use super::renewals::{Item, Kind, Outcome};
use super::scripts::{ACQUIRE, MARK, RELEASE};
use super::store::Store;
use super::wake::Listening;
use crate::names::Keys;
use crate::node::Interest;
use crate::node::Reply;
use crate::node::{Call, Script};

/// The first waiters of the first clients check again after this, even if nothing was pushed: a
/// client that uses a plain `SET NX` does not announce its release.
const SLOW_POLL: Duration = Duration::from_millis(900);
/// How much later the next client checks at the end of a lease: they must not all check at once.
const STAGGER: Duration = Duration::from_millis(100);
/// How long the mark of an owner that gave up is kept (shortest, longest): longer than the kernel
/// tries to deliver what an abandoned connection has sent. The core repeats a release while a try
/// may still land, but the process may end before that; the mark does not need it.
const GONE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// The grace is doubled after each missed turn, at most this many times.
const DOUBLINGS: u32 = 4;

pub(crate) struct RedisClaim {
    store: Arc<Store>,
    request: ClaimRequest,
    keys: Keys,
    /// The lock's other keys, in the order of the scripts.
    parts: [String; 4],
    owner: String,
    /// The owner as passed to the scripts; for a lock that was taken over it is preceded by the
    /// fences, which they compare.
    who: String,
    /// The place in the order of arrival, as the server gave it: a lost place is taken again.
    ticket: u64,
    missed: u32,
    held: bool,
    /// A try is under way, or was dropped.
    trying: bool,
    /// A try had no answer: it may land at any time, even after the release.
    unsure: bool,
    /// This claim polls on behalf of all of its client's waiters for the lock.
    looks: bool,
    pushes: Option<Pushes>,
}

/// This claim receives pushes, and their connection is kept up for it.
#[derive(Debug)]
struct Pushes {
    listening: Listening,
    _interest: Interest,
}

/// Without the owner, which is the holder's secret.
impl fmt::Debug for RedisClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClaim")
            .field("node", &self.store.node)
            .field("request", &self.request)
            .field("ticket", &self.ticket)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

impl RedisClaim {
    pub(crate) fn new(store: Arc<Store>, request: ClaimRequest) -> Result<Self> {
        let keys = Keys::new(&request.key);
        let owner = request.owner.to_hex();
        let who = match &request.resume {
            Some(resume) => format!("{}|{owner}", in_record(resume.fence, request.fences)),
            None => owner.clone(),
        };
        Ok(Self {
            parts: keys.parts(),
            owner,
            who,
            ticket: 0,
            missed: 0,
            held: request.resume.is_some(),
            trying: false,
            unsure: false,
            looks: false,
            pushes: None,
            keys,
            store,
            request,
        })
    }

    fn listen(&mut self) -> &Listening {
        let Self { store, request, keys, pushes, .. } = self;
        let pushes = pushes.get_or_insert_with(|| Pushes {
            listening: store.waiters.listen(request.owner, &keys.lock),
            _interest: store.node.interest(),
        });
        &pushes.listening
    }

    /// Stops receiving pushes. If this claim polled for its whole client, the next one takes over.
    fn leave(&mut self) {
        if self.pushes.take().is_some() && self.looks && !self.held {
            self.store.waiters.wake_next(&self.keys.lock);
        }
    }

    fn grace(&self) -> Duration {
        let least = self.store.node.round_trip() * 4;
        self.store.grace.max(least) * (1 << self.missed.min(DOUBLINGS))
    }

    /// A call of a script that moves the lock: their keys are the same, in the same order.
    fn call<'a>(&'a self, script: &'a Script, gone: &'a str) -> Call<'a> {
        script.call().key(&self.keys.lock).keys(&self.parts).key(MARK).key(gone)
    }

    async fn call_acquire(&self) -> Result<Value> {
        let ttl = millis(self.request.ttl);
        let grace = millis(self.grace()).min(ttl.max(1));
        let gone = self.keys.gone(&self.request.owner);
        let label = self.request.label.as_deref().unwrap_or_default();
        let call = self
            .call(&ACQUIRE, &gone)
            .arg(&self.owner)
            .number(ttl)
            .arg(&*self.store.client)
            .flag(self.request.wait)
            .number(self.ticket)
            .number(grace)
            .flag(self.store.may_pause)
            .number(self.request.fences.into())
            .arg(label);
        self.store.node.run(call, self.request.call_timeout).await
    }

    fn read_attempt(&mut self, value: &Value) -> Result<Attempt> {
        let reply = Reply::new("a try to acquire", value)?;
        match reply.number(0)? {
            1 => {
                let first = first_of(&reply.text(1)?).ok_or_else(|| reply.wrong())?;
                let token = FencingToken::answered(first)?;
                self.note_missed(reply.number(2)?);
                self.held = true;
                // The store has confirmed that it is ours, and with which fence.
                self.who.clone_from(&self.owner);
                Ok(Attempt::Granted { token, valid_for: Some(self.request.ttl) })
            }
            0 => {
                // An earlier hold has ended: now there is a place, or nothing.
                self.held = false;
                let (ticket, rank, left) = (reply.count(1)?, reply.count(2)?, reply.number(3)?);
                self.note_missed(reply.number(5)?);
                self.store.look_after(&self.keys, reply.number(6)?);
                let left = u64::try_from(left).ok().map(Duration::from_millis);
                let busy = named(&reply.list(4)?, left)?;
                if !self.request.wait {
                    return Ok(Attempt::Busy(busy.with_retry_after(left)));
                }
                self.ticket = ticket;
                let ahead = u64::try_from(reply.number(7)?).ok();
                self.looks = ahead.is_some();
                self.listen().set_ticket(ticket);
                let retry_after = retry_after(rank, ahead, left, self.grace());
                let busy = busy.with_place(self.request.ttl).with_retry_after(retry_after);
                Ok(Attempt::Busy(busy))
            }
            2 => Err(Error::new(
                ErrorKind::Internal,
                "BUG: this claim was released before it tried to acquire",
            )),
            _ => Err(reply.wrong()),
        }
    }

    /// 1: our whole client was taken for dead, so the other claims have lost their places too. 2:
    /// this claim did not take up a lock that was handed to it.
    fn note_missed(&mut self, what: i64) {
        match what {
            1 => self.store.waiters.wake_lock(&self.keys.lock),
            2 => self.missed += 1,
            _ => {}
        }
    }

    async fn ask(&self, lock: Kind, place: Kind) -> Result<Outcome> {
        let (kind, others) = if self.held {
            (lock, self.parts[..1].to_vec())
        } else {
            (place, self.parts[1..3].to_vec())
        };
        let item = Item {
            kind,
            lock: self.keys.lock.clone(),
            others,
            owner: self.who.clone(),
            ttl: self.request.ttl,
            limit: self.request.call_timeout,
        };
        let store = &self.store;
        store.renewals.ask(&store.node, &store.client, item).await
    }

    fn read_outcome(&self, outcome: Outcome) -> Renewal {
        match outcome {
            Outcome::Gone => Renewal::Lost,
            Outcome::Lock(left) | Outcome::Place(left) => Renewal::Alive { valid_for: Some(left) },
            Outcome::Handed(_) => {
                // The push was lost, or is on its way: try now.
                if let Some(pushes) = &self.pushes {
                    pushes.listening.wake();
                }
                Renewal::Alive { valid_for: None }
            }
        }
    }
}

/// With the holder, if the attempt has shown one: `{mark, record, now}`.
fn named(shown: &Reply<'_>, left: Option<Duration>) -> Result<Busy> {
    let busy = Busy::default();
    if shown.len() == 0 {
        return Ok(busy);
    }
    Ok(busy.with_holder(holder(shown.bytes(0)?, shown.bytes(1)?, left, shown.count(2)?)))
}

/// When the waiter with `rank` waiters ahead of it tries again.
///
/// The first waiter of each of the first four clients tries when the holder's lease ends, and polls
/// slowly as well: `ahead` is the number of clients ahead of it. One try that finds the lock free
/// makes the store skip the dead, so a process with many waiters costs no more than one waiter. All
/// others try one grace later for each waiter ahead of them, in case all those clients are dead; if
/// they polled, the cost of a hand-over would grow with the queue.
fn retry_after(
    rank: u64,
    ahead: Option<u64>,
    left: Option<Duration>,
    grace: Duration,
) -> Option<Duration> {
    let times = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    match (ahead, left) {
        (Some(ahead), left) => {
            let end = left.map(|left| left + STAGGER.saturating_mul(times(ahead)));
            Some(end.unwrap_or(SLOW_POLL).min(SLOW_POLL))
        }
        (None, Some(left)) => Some(left + grace.saturating_mul(times(rank))),
        (None, None) => None,
    }
}

fn millis(duration: Duration) -> u64 {
    // Rounded up: the store must not end it before the promised time.
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[async_trait]
impl Claim for RedisClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        self.listen().looked();
        self.unsure |= self.trying;
        self.trying = true;
        let answer = self.call_acquire().await;
        self.trying = false;
        let attempt = answer.and_then(|value| self.read_attempt(&value));
        if let Err(error) = &attempt {
            self.unsure |= error.effect() == Effect::Unknown;
        }
        attempt
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.listen();
        let outcome = self.ask(Kind::RenewLock, Kind::RenewPlace).await?;
        Ok(self.read_outcome(outcome))
    }

    async fn check(&mut self) -> Result<Renewal> {
        let outcome = self.ask(Kind::CheckLock, Kind::CheckPlace).await?;
        Ok(self.read_outcome(outcome))
    }

    async fn release(&mut self) -> Result<Released> {
        let keep = if self.unsure || self.trying {
            millis((self.request.ttl * 2).clamp(GONE.0, GONE.1))
        } else {
            0
        };
        let gone = self.keys.gone(&self.request.owner);
        let call = self.call(&RELEASE, &gone).arg(&self.who).number(keep);
        let call = call.flag(self.store.may_pause);
        let value = self.store.node.run(call, self.request.call_timeout).await?;
        let reply = Reply::new("a release", &value)?;
        self.store.look_after(&self.keys, reply.number(1)?);
        self.leave();
        match reply.number(0)? {
            0 => Ok(Released::AlreadyGone),
            _ => Ok(Released::Freed),
        }
    }

    async fn changed(&mut self) -> Result<()> {
        let clock = Arc::clone(self.store.node.clock());
        self.listen().woken(&*clock).await;
        Ok(())
    }

    async fn detach(&mut self) -> Result<Bytes> {
        Ok(Bytes::new())
    }
}

impl Drop for RedisClaim {
    fn drop(&mut self) {
        self.leave();
    }
}
