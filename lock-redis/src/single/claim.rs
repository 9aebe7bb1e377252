//! One contender for a lock on one server, and what the server answers to its tries.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Busy, Bytes, Claim, ClaimRequest, Effect, Error, ErrorKind, FencingToken, Released,
    Renewal, Result, async_trait,
};
use redis::Value;

use super::client::ServerClient;
use super::renewals::{RenewalAnswer, RenewalItem, RenewalKind};
use super::scripts::{ACQUIRE, MARK, RELEASE};
use super::waiters::{PushSubscription, SLOW_POLL};
use super::{first_of, holder, in_record};
use crate::names::Keys;
use crate::node::{Interest, ReplyReader};

/// The first waiter of every client checks again after this, even if it is far behind.
const RARE_POLL: Duration = Duration::from_secs(10);
/// How much later the next client checks at the end of a lease: they must not all check at once.
const STAGGER: Duration = Duration::from_millis(100);
/// How long the mark of an owner that gave up is kept (shortest, longest): longer than the kernel
/// tries to deliver what an abandoned connection has sent. The core repeats a release while a try
/// may still land, but the process may end before that; the mark does not need it.
const GONE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// The grace is doubled after each missed turn, at most this many times.
const DOUBLINGS: u32 = 4;

pub(crate) struct RedisClaim {
    client: Arc<ServerClient>,
    request: ClaimRequest,
    keys: Keys,
    /// The lock's other keys, in the order of the scripts.
    parts: [String; 2],
    owner: String,
    /// The owner as the scripts compare it, with a bar; for a lock that was taken over also the fences, with
    /// another one.
    who: String,
    /// The place in the order of arrival, as the server gave it: a lost place is taken again.
    ticket: u64,
    missed: u32,
    held: bool,
    /// A try had no answer: it may land at any time, even after the release.
    in_doubt: bool,
    /// It receives pushes, and their connection is kept up for it.
    pushes: Option<(PushSubscription, Interest)>,
}

/// Without the owner, which is the holder's secret.
impl fmt::Debug for RedisClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClaim")
            .field("node", &self.client.node)
            .field("request", &self.request)
            .field("ticket", &self.ticket)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

impl RedisClaim {
    pub(crate) fn new(client: Arc<ServerClient>, request: ClaimRequest) -> Result<Self> {
        let keys = Keys::new(&request.key);
        let owner = request.owner.to_hex();
        let who = match &request.resume {
            Some(resume) => format!("{owner}|{}|", in_record(resume.fence, request.fences)),
            None => format!("{owner}|"),
        };
        Ok(Self {
            parts: keys.parts(),
            owner,
            who,
            ticket: 0,
            missed: 0,
            held: request.resume.is_some(),
            in_doubt: false,
            pushes: None,
            keys,
            client,
            request,
        })
    }

    fn listen(&mut self) -> &mut PushSubscription {
        let pushes = match self.pushes.take() {
            Some(pushes) => pushes,
            None => {
                let place = self.item(RenewalKind::CheckPlace, &self.parts, self.own());
                let subscription = self.client.waiters.subscribe(self.request.owner, place);
                (subscription, self.client.node.interest())
            }
        };
        &mut self.pushes.insert(pushes).0
    }

    /// What names it in the scripts where it has taken nothing over.
    fn own(&self) -> &str {
        &self.who[..=self.owner.len()]
    }

    fn item(&self, kind: RenewalKind, others: &[String], who: &str) -> RenewalItem {
        RenewalItem {
            kind,
            lock: self.keys.lock.clone(),
            others: others.to_vec(),
            who: who.to_owned(),
            ttl: self.request.ttl,
            limit: self.request.call_timeout,
        }
    }

    fn grace(&self) -> Duration {
        let least = self.client.node.round_trip() * 4;
        self.client.grace.max(least) * (1 << self.missed.min(DOUBLINGS))
    }

    async fn call_acquire(&self, for_all: bool) -> Result<TryAnswer> {
        let ttl = millis(self.request.ttl);
        let grace = millis(self.grace()).min(ttl.max(1));
        let gone = self.keys.gone(&self.request.owner);
        let label = self.request.label.as_deref().unwrap_or_default();
        let call = ACQUIRE
            .call()
            .key(&self.keys.lock)
            .keys(&self.parts)
            .key(MARK)
            .key(&gone)
            .arg(&self.owner)
            .number(ttl)
            .arg(&*self.client.id)
            .flag(self.request.wait)
            .number(self.ticket)
            .number(grace)
            .flag(self.client.may_pause)
            .number(self.request.fences.into())
            .arg(label)
            .flag(for_all);
        let read = |value: Value| TryAnswer::read(&value, &self.owner);
        self.client.node.ask(call, self.request.call_timeout, read).await
    }

    /// `for_all`: the try was made for all waiters of this client.
    fn attempt(&mut self, answer: TryAnswer, for_all: bool) -> Result<Attempt> {
        let place = match answer {
            TryAnswer::Granted { token, missed } => {
                self.note_missed(missed);
                self.held = true;
                self.listen().leave();
                // The store has confirmed that it is ours, and with which fence.
                self.who.truncate(self.own().len());
                return Ok(Attempt::Granted { token, valid_for: Some(self.request.ttl) });
            }
            TryAnswer::Busy(place) => place,
            TryAnswer::Gone => {
                let text = "BUG: this claim was released before it tried to acquire";
                return Err(Error::new(ErrorKind::Internal, text));
            }
        };
        // An earlier hold has ended: now there is a place, or nothing.
        self.held = false;
        self.note_missed(place.missed);
        self.client.hand_overs.check_after(&self.keys, place.again);
        if !self.request.wait {
            return Ok(Attempt::Busy(place.busy.with_retry_after(place.left)));
        }
        self.ticket = place.ticket;
        self.listen().stand(place.ticket);
        let retry_after = retry_after(&place, for_all, self.grace());
        let busy = place.busy.with_place(self.request.ttl).with_retry_after(retry_after);
        Ok(Attempt::Busy(busy))
    }

    /// Our whole client was taken for dead, so the other claims may have lost their places too.
    fn note_missed(&self, missed: bool) {
        if missed {
            self.client.ask_for_places(&self.keys.lock);
        }
    }

    async fn ask(&self, lock: RenewalKind, place: RenewalKind) -> Result<RenewalAnswer> {
        let item = if self.held {
            self.item(lock, &[], &self.who)
        } else {
            self.item(place, &self.parts, &self.who)
        };
        self.client.renew(item).await
    }

    fn read(&self, answer: RenewalAnswer) -> Renewal {
        match answer {
            RenewalAnswer::Gone => Renewal::Lost,
            RenewalAnswer::Lock(left) | RenewalAnswer::Place(left) => {
                Renewal::Alive { valid_for: Some(left) }
            }
            RenewalAnswer::Doubted(left) => {
                self.client.ask_for_places(&self.keys.lock);
                Renewal::Alive { valid_for: Some(left) }
            }
            RenewalAnswer::Handed(_) => {
                // The push was lost, or is on its way: try now.
                if let Some((subscription, _)) = &self.pushes {
                    subscription.wake();
                }
                Renewal::Alive { valid_for: None }
            }
        }
    }
}

/// When the waiter with this place tries again.
///
/// The first waiter of each of the first four clients tries when the holder's lease ends, and polls
/// slowly as well. One try that finds the lock free makes the store skip the dead, so a process with many
/// waiters costs no more than one waiter. All others try one grace later for each waiter ahead of them, in
/// case all those clients are dead; if they polled, the cost of a hand-over would grow with the queue.
/// Whoever tries for all of its client does so now and then from the end of a long queue too, since that queue
/// may be lost.
fn retry_after(place: &BusyAnswer, for_all: bool, grace: Duration) -> Option<Duration> {
    let times = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    match place.ahead {
        Some(ahead) => {
            let end = place.left.map(|left| left + STAGGER.saturating_mul(times(ahead)));
            Some(end.unwrap_or(SLOW_POLL).min(SLOW_POLL))
        }
        None => {
            let end = place.left.map(|left| left + grace.saturating_mul(times(place.rank)));
            if for_all { Some(end.unwrap_or(RARE_POLL).min(RARE_POLL)) } else { end }
        }
    }
}

fn millis(duration: Duration) -> u64 {
    // Rounded up: the store must not end it before the promised time.
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[async_trait]
impl Claim for RedisClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let (waits, ticket) = (self.request.wait && !self.held, self.ticket);
        let subscription = self.listen();
        if waits {
            subscription.stand(ticket);
        }
        let (for_all, handed) = subscription.begin_try();
        // Its grace counts only if this try comes too late to take the lock up.
        self.missed += u32::from(handed);
        let answer = self.call_acquire(for_all).await;
        let attempt = answer.and_then(|answer| self.attempt(answer, for_all));
        if let Err(error) = &attempt {
            self.in_doubt |= error.effect() == Effect::Unknown;
        }
        attempt
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.listen();
        let answer = self.ask(RenewalKind::RenewLock, RenewalKind::RenewPlace).await?;
        Ok(self.read(answer))
    }

    async fn check(&mut self) -> Result<Renewal> {
        let answer = self.ask(RenewalKind::CheckLock, RenewalKind::CheckPlace).await?;
        Ok(self.read(answer))
    }

    async fn release(&mut self) -> Result<Released> {
        let keep =
            if self.in_doubt { millis((self.request.ttl * 2).clamp(GONE.0, GONE.1)) } else { 0 };
        let gone = self.keys.gone(&self.request.owner);
        let call = RELEASE.call().arg(&self.who).number(keep);
        let limit = self.request.call_timeout;
        let released = self.client.hand_overs.free(&self.keys, Some(&gone), call, limit).await?;
        self.pushes = None;
        Ok(released)
    }

    async fn changed(&mut self) -> Result<()> {
        self.listen().woken().await;
        Ok(())
    }

    async fn detach(&mut self) -> Result<Bytes> {
        Ok(Bytes::new())
    }
}

/// How much of its owner a grant repeats.
const ECHO: usize = 8;

/// The answer to a try.
enum TryAnswer {
    Granted {
        token: FencingToken,
        /// This client was taken for dead.
        missed: bool,
    },
    Busy(BusyAnswer),
    /// This owner was released before.
    Gone,
}

/// A lock that another one has, and the place in its queue, if the try was to wait.
struct BusyAnswer {
    busy: Busy,
    ticket: u64,
    /// How many waiters are ahead, and how many other clients if that matters.
    rank: u64,
    ahead: Option<u64>,
    /// How long the holder has at most.
    left: Option<Duration>,
    /// This client was taken for dead.
    missed: bool,
    /// In how many ms to look after a lock that was handed over; negative for never.
    again: i64,
}

impl TryAnswer {
    /// A grant is believed only if it is for this `owner`: nothing else tells that answers have come to
    /// belong to other requests.
    fn read(value: &Value, owner: &str) -> Result<Self> {
        let reply = ReplyReader::new("a try to acquire", value)?;
        match reply.number(0)? {
            1 => {
                let first = first_of(&reply.text(1)?).ok_or_else(|| reply.wrong())?;
                if reply.bytes(3)? != &owner.as_bytes()[..ECHO] {
                    return Err(reply.wrong());
                }
                let token = FencingToken::answered(first)?;
                Ok(Self::Granted { token, missed: reply.number(2)? == 1 })
            }
            0 => {
                let left = reply.millis(3)?;
                Ok(Self::Busy(BusyAnswer {
                    busy: named(&reply.list(4)?, left)?,
                    ticket: reply.count(1)?,
                    rank: reply.count(2)?,
                    ahead: u64::try_from(reply.number(7)?).ok(),
                    left,
                    missed: reply.number(5)? == 1,
                    again: reply.number(6)?,
                }))
            }
            2 => Ok(Self::Gone),
            _ => Err(reply.wrong()),
        }
    }
}

/// With the holder, if the attempt has shown one: `{mark, record, now}`.
fn named(shown: &ReplyReader<'_>, left: Option<Duration>) -> Result<Busy> {
    let busy = Busy::default();
    if shown.len() == 0 {
        return Ok(busy);
    }
    Ok(busy.with_holder(holder(shown.bytes(0)?, shown.bytes(1)?, left, shown.count(2)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_of_another_claim_is_not_believed() {
        let owner = "00112233445566778899aabbccddeeff";
        let grant = |echo: &str| {
            let text = |text: &str| Value::BulkString(text.into());
            TryAnswer::read(
                &Value::Array(vec![Value::Int(1), text("7"), Value::Int(0), text(echo)]),
                owner,
            )
        };
        assert!(matches!(grant("00112233"), Ok(TryAnswer::Granted { missed: false, .. })));
        for other in ["0011223f", "0011223", "", owner] {
            assert!(grant(other).is_err(), "{other}");
        }
    }
}
