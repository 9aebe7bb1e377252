//! The keeper owns one claim, from the first byte to the release.
//!
//! The caller's future waits on a channel, and meanwhile polls the keeper ([`polling`]). Dropping it, or the
//! guard, tells the keeper, which goes on in a task of its own. So `Drop` never blocks, and clean-up has one place.
//! A keeper outlives its caller until the store has confirmed the clean-up, or must have ended the
//! entry on its own.

mod call;
mod client;
mod holding;
mod in_doubt;
mod leaving;
mod line;
mod polling;
pub(crate) mod schedule;
mod search;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::Instrument as _;

use self::call::ClaimSlot;
use self::holding::{EndOfKeeper, HeldClaim};
use self::in_doubt::InDoubt;
use self::line::{Cohort, Pass};
use self::search::Acquisition;
use crate::contract::Fences;
use crate::hold::{LockTerms, Options, margin};
use crate::{
    ClaimRequest, ClockInstant, EndOfHold, Error, ErrorKind, FencingToken, Held, LeaseToken,
    LockEvent, LockKey, LockState, LostReason, Operation, Released, Renewal, Result,
};

pub(crate) use call::{no_answer, overrun_grace};
pub(crate) use client::{Client, STANDSTILL_GRACE, SilentStore};
pub(crate) use holding::Outbox;
pub(crate) use line::LocalLines;
pub(crate) use polling::{Answer, KeeperRuntime, PolledKeeper, Poller, make_way};
pub(crate) use search::closed;

/// How long the caller wants to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// One attempt, and one more if the outcome of the first is unknown.
    Try,
    /// Until this time.
    Until(ClockInstant),
    /// For as long as the store answers.
    Forever,
}

impl Patience {
    /// Until when a caller waits that begins `now`.
    pub(crate) fn deadline(self, now: ClockInstant, call_timeout: Duration) -> ClockInstant {
        match self {
            // For its second attempt, too.
            Self::Try => now + call_timeout,
            Self::Until(deadline) => deadline,
            Self::Forever => ClockInstant::FAR_FUTURE,
        }
    }
}

/// How the keeper gets its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    Acquire(Patience),
    /// Takes over a hold with this fence, which is one of a block.
    Attach(FencingToken, Fences),
    /// Renews such a hold, then leaves it to its lease token.
    Renew(FencingToken, Fences),
}

impl Start {
    fn operation(self) -> Operation {
        match self {
            Self::Acquire(_) => Operation::Acquire,
            Self::Attach(..) => Operation::Attach,
            Self::Renew(..) => Operation::Renew,
        }
    }
}

/// Who waits for the answer to a release.
pub(crate) type ReleaseAnswer = oneshot::Sender<Result<Released>>;

/// What the guard asks of its keeper. A closed channel means that the guard was dropped.
#[derive(Debug)]
pub(crate) enum Command {
    Release(ReleaseAnswer),
    Renew(oneshot::Sender<Result<LockState>>),
    Check(oneshot::Sender<Result<LockState>>),
    Detach(oneshot::Sender<Result<DetachAnswer>>),
    KeepAlive,
}

/// A lease token on its way to the caller, who confirms its arrival: one that is never delivered
/// would block the name for a ttl.
#[derive(Debug)]
pub(crate) struct DetachAnswer {
    pub(crate) token: LeaseToken,
    pub(crate) received: oneshot::Sender<()>,
}

/// What a caller gets: the view of the hold, and the channel to its keeper. Dropping it unread
/// tells the keeper that there is no guard.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) held: Held,
    pub(crate) commands: Outbox,
    /// The limit for each call that the keeper makes.
    pub(crate) call_timeout: Duration,
}

pub(crate) struct Keeper {
    client: Arc<Client>,
    home: Arc<KeeperRuntime>,
    /// What its claim is made from.
    request: ClaimRequest,
    claim: ClaimSlot,
    terms: LockTerms,
    /// Our entries that may be in the store, now or later.
    doubt: InDoubt,
    stage: KeeperStage,
    /// Its hold has gone from one task of this process to another.
    was_passed_on: bool,
}

/// What a keeper has come to, for those who watch. Each of them is told of the end of a stage once.
#[derive(Clone, Copy, Debug)]
enum KeeperStage {
    /// Its caller wants the lock, since then, and may wait for it.
    Wanted(ClockInstant, bool),
    /// It has the lock, since then, or from elsewhere.
    Held(Option<ClockInstant>),
    /// It has neither, or nobody watches.
    Unobserved,
}

impl Keeper {
    fn new(client: &Arc<Client>, request: ClaimRequest, terms: LockTerms) -> Result<Box<Self>> {
        let home = client.home()?;
        client.check_open()?;
        let claim = Some(client.backend.claim(request.clone())?);
        let (client, doubt) = (Arc::clone(client), InDoubt::default());
        let (stage, was_passed_on) = (KeeperStage::Unobserved, false);
        Ok(Box::new(Self { client, home, request, claim, terms, doubt, stage, was_passed_on }))
    }

    /// Of a hold that another keeper has made, and left to its lease token. For so long a request of that one may
    /// still arrive; who bears the token can edit that, so it is no longer than what this lock makes lasts.
    pub(crate) fn of_a_hold(mut self: Box<Self>, in_doubt: Duration) -> Box<Self> {
        self.doubt = InDoubt::with_entry();
        if !in_doubt.is_zero() {
            let (now, ttl) = (self.client.clock.now(), self.terms.kept_for());
            self.doubt.sent(now, now + in_doubt.min(ttl + margin(ttl)));
        }
        self
    }

    fn key(&self) -> &LockKey {
        &self.request.key
    }

    /// Whether this hold belongs to a lease token: it ends on request or with its lease, never because a guard
    /// was dropped.
    fn is_attached(&self) -> bool {
        self.request.resume.is_some()
    }

    /// By when the store must have ended whatever a request sent at `sent` makes or prolongs. A hold that
    /// was taken over lasts for the longest ttl that one of its bearers has asked for.
    fn gone_at(&self, sent: ClockInstant) -> ClockInstant {
        let ttl = if self.is_attached() { Options::LONGEST_TTL } else { self.terms.kept_for() };
        sent + ttl + margin(ttl)
    }

    fn describe(&self, error: Error, operation: Operation) -> Error {
        self.client.describe(error, operation, self.key())
    }
}

impl Keeper {
    fn tell(&self, event: LockEvent<'_>) {
        self.client.tell(Some(self.key()), event);
    }

    /// Its caller wants the lock, unless that is held already.
    fn tell_start(&mut self, start: Start) {
        if matches!(start, Start::Acquire(_)) && !self.client.observers.is_empty() {
            let waits = self.request.wait;
            self.stage = KeeperStage::Wanted(self.client.clock.now(), waits);
            self.tell(LockEvent::Wanted { waits });
        }
    }

    /// Its caller has the lock, or will have it in a moment.
    fn tell_held(&mut self, start: Start) {
        match (self.stage, start) {
            (KeeperStage::Wanted(since, waits), _) => {
                let now = self.client.clock.now();
                self.stage = KeeperStage::Held(Some(now));
                self.tell(LockEvent::Granted { waits, after: now.since(since) });
            }
            (KeeperStage::Unobserved, Start::Attach(..)) => {
                self.stage = KeeperStage::Held(None);
                self.tell(LockEvent::Attached);
            }
            _ => {}
        }
    }

    fn tell_renewed(&self, renewal: Renewal, left: Option<Duration>) {
        let is_alive = renewal != Renewal::Lost;
        self.tell(LockEvent::Renewed { is_alive, left });
    }

    /// Its stage is over: its caller does not wait any more, or its hold has ended.
    fn tell_end(&mut self, end: EndOfHold) {
        let lasted = |since| self.client.clock.now().since(since);
        match std::mem::replace(&mut self.stage, KeeperStage::Unobserved) {
            KeeperStage::Wanted(since, waits) => {
                self.tell(LockEvent::GivenUp { waits, after: lasted(since) });
            }
            KeeperStage::Held(since) => {
                self.tell(LockEvent::Ended { end, after: since.map(lasted) });
            }
            KeeperStage::Unobserved => {}
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.tell_end(EndOfHold::Dropped);
    }
}

/// Who waits for the lock, until it has been answered.
struct Caller {
    answer: Option<oneshot::Sender<Result<Handover>>>,
    asks_for: Operation,
}

impl Caller {
    fn is_answered(&self) -> bool {
        self.answer.is_none()
    }

    /// Whether it has been answered, or does not wait any more.
    fn has_left(&self) -> bool {
        self.answer.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Ready when it has left.
    async fn left(&mut self) {
        if let Some(answer) = &mut self.answer {
            answer.closed().await;
        }
    }

    fn refuse(&mut self, client: &Client, key: &LockKey, error: Error) {
        self.answer(Err(client.describe(error, self.asks_for, key)));
    }

    fn answer(&mut self, answer: Result<Handover>) {
        if let Some(waits) = self.answer.take() {
            let _ = waits.send(answer);
        }
    }
}

/// A lock that the store has granted.
struct GrantedClaim {
    token: FencingToken,
    /// The fences that it has in the store.
    fences: Fences,
    until: ClockInstant,
    /// Its ttl has begun with the grant, and not with a place in the queue, or with another holder.
    is_fresh: bool,
    cohort: Option<Cohort>,
}

/// How an acquisition ended.
enum SearchOutcome {
    Granted(GrantedClaim),
    /// The hold of another task of this process.
    Passed(Box<Pass>),
    /// The caller has been told.
    Refused {
        /// Whether an entry of ours may exist, now or later.
        clean_up: bool,
    },
}

/// Makes the keeper of a new claim, which lives as `life` says, and returns the answer for which its caller waits.
/// The whole life of the claim, from its first attempt to its clean-up, is one span, a child of the caller's.
///
/// # Errors
///
/// If the backend cannot make the claim, the `Locks` is closed, or there is no runtime.
pub(crate) fn begin<T: Send + 'static, L: Future<Output = ()> + Send + 'static>(
    client: &Arc<Client>,
    request: ClaimRequest,
    terms: LockTerms,
    life: impl FnOnce(Box<Keeper>, oneshot::Sender<T>, Arc<Poller>) -> L + Send + 'static,
) -> Result<(Arc<PolledKeeper>, Answer<T>)> {
    let keeper = Keeper::new(client, request, terms)?;
    let (answer, receiver) = oneshot::channel();
    let span = tracing::debug_span!(
        target: "distlock",
        "lock",
        lock.name = keeper.key().name(),
        lock.backend = client.backend.name(),
        lock.fence = tracing::field::Empty,
    );
    let home = Arc::clone(&keeper.home);
    let polled = PolledKeeper::new(Arc::clone(&home), |poller| {
        let whole = until_it_ends(home, move || life(keeper, answer, poller));
        client.keepers.track_future(whole.instrument(span))
    });
    let answer = polled.answer(receiver);
    Ok((polled, answer))
}

/// With its runtime, or when the backend is closed, a keeper ends as a whole, and its claim with it (clause C8).
/// Its future is made in here: one that is given would have a second place in this one.
async fn until_it_ends<L: Future<Output = ()>>(
    home: Arc<KeeperRuntime>,
    keeper: impl FnOnce() -> L,
) {
    tokio::select! {
        biased;
        () = home.ended().cancelled() => {}
        () = keeper() => {}
    }
}

impl Keeper {
    /// A lock that is held mostly rests, and its task should then be small. So what comes before and
    /// after is boxed, and what need not wait is no future: each would have a place in the task.
    pub(crate) async fn run(
        mut self: Box<Self>,
        start: Start,
        answer: oneshot::Sender<Result<Handover>>,
        poller: Arc<Poller>,
    ) {
        self.tell_start(start);
        let mut caller = Caller { answer: Some(answer), asks_for: start.operation() };
        let outcome = match start {
            Start::Acquire(patience) => {
                let mut search = Acquisition::new(&mut self, patience, &mut caller, &poller);
                Box::pin(search.run()).await
            }
            Start::Attach(fence, fences) | Start::Renew(fence, fences) => {
                Box::pin(self.resume((fence, fences), &mut caller)).await
            }
        };
        let (keeper, granted) = match outcome {
            SearchOutcome::Granted(granted) => (self, granted),
            SearchOutcome::Passed(pass) => self.replaced(*pass),
            SearchOutcome::Refused { clean_up } => {
                self.tell_end(EndOfHold::Dropped);
                if clean_up {
                    Box::pin(self.clean_up()).await;
                }
                return;
            }
        };
        // They are dropped in this order: first the hold.
        let Some((_end, mut holding)) = keeper.hand_over(start, caller, granted) else { return };
        poller.end();
        let leaving = holding.run().await;
        Box::pin(holding.leave(leaving, &poller)).await;
    }

    /// Another task of this process passes its hold on, with the claim that it has.
    fn replaced(mut self: Box<Self>, pass: Pass) -> (Box<Self>, GrantedClaim) {
        let Pass { mut keeper, cohort, token, until } = pass;
        // It goes on in this task, so it ends with this one's runtime, and not with the passer's.
        keeper.home = Arc::clone(&self.home);
        keeper.tell_end(EndOfHold::PassedOn);
        keeper.was_passed_on = true;
        // This one has sent nothing, so it goes without a release.
        keeper.stage = std::mem::replace(&mut self.stage, KeeperStage::Unobserved);
        let (fences, cohort) = (cohort.fences, Some(cohort));
        (keeper, GrantedClaim { token, fences, until, is_fresh: false, cohort })
    }

    /// Hands the lock over to the caller. Returns the hold that is to be kept from now on, if any is.
    fn hand_over(
        mut self: Box<Self>,
        start: Start,
        mut caller: Caller,
        granted: GrantedClaim,
    ) -> Option<(EndOfKeeper, HeldClaim)> {
        self.tell_held(start);
        let (commands, inbox) = holding::channel();
        let token = granted.token;
        let held = Held::new(
            Arc::clone(&self.client.clock),
            &self.request,
            &self.terms,
            token,
            granted.until,
            self.home.ended().clone(),
        );
        let by = start.operation();
        tracing::Span::current().record("lock.fence", token.get());
        tracing::debug!(target: "distlock", key = %self.key(), fence = token.get(), %by, "held");
        // If the caller has left, the handover is dropped here, and the closed channel tells the hold.
        let call_timeout = self.terms.call_timeout;
        // A hold that was taken over has been held elsewhere.
        if let Start::Acquire(_) = start {
            held.keep_for(self.terms.min_hold);
        }
        let handover = Handover { held: held.clone(), commands, call_timeout };
        caller.answer(Ok(handover));
        if let Start::Renew(..) = start {
            return None;
        }
        let end = EndOfKeeper(held.clone());
        let plan = self.first_plan(&held, granted.is_fresh);
        let GrantedClaim { fences, cohort, .. } = granted;
        let (asked, detaches) = (Vec::new(), None);
        let holding =
            HeldClaim { keeper: self, held, inbox, plan, fences, cohort, asked, detaches };
        Some((end, holding))
    }
}

impl Keeper {
    /// One renewal proves that the hold is still there, with this fence. If it fails, nothing is
    /// released: the hold belongs to the token, and the token may be forged.
    async fn resume(
        &mut self,
        (token, fences): (FencingToken, Fences),
        caller: &mut Caller,
    ) -> SearchOutcome {
        let sent = self.client.clock.now();
        self.doubt.lasts_until(self.gone_at(sent));
        match self.proven_until(sent, caller).await {
            Ok(until) if !caller.is_answered() => {
                let (is_fresh, cohort) = (true, None);
                SearchOutcome::Granted(GrantedClaim { token, fences, until, is_fresh, cohort })
            }
            Ok(_) => SearchOutcome::Refused { clean_up: false },
            Err(error) => {
                caller.refuse(&self.client, self.key(), error);
                SearchOutcome::Refused { clean_up: false }
            }
        }
    }

    /// Until when the hold is valid, as a renewal has proven.
    async fn proven_until(
        &mut self,
        sent: ClockInstant,
        caller: &mut Caller,
    ) -> Result<ClockInstant> {
        let Self { client, request, claim, terms, .. } = self;
        let (clock, call_timeout) = (&*client.clock, terms.call_timeout);
        let renewal = {
            let meanwhile = pin!(async {
                clock.sleep_until(sent + call_timeout).await;
                caller.refuse(client, &request.key, no_answer(call_timeout));
            });
            let (by, operation) = ((&**client, &*request), Operation::Renew);
            call::to_its_end(claim, by, operation, |claim| claim.renew(), meanwhile).await?
        };
        self.tell_renewed(renewal, None);
        let valid_for = match renewal {
            Renewal::Alive { valid_for } => {
                valid_for.ok_or_else(|| call::no_end("a renewal of a lock that is taken over"))?
            }
            Renewal::Lost => return Err(Error::lost(LostReason::Taken)),
        };
        let until = self.terms.promised_end(sent, valid_for);
        if until > self.client.clock.now() {
            return Ok(until);
        }
        Err(Error::new(
            ErrorKind::NoAnswer,
            "the store's answer to the renewal came after the lease had ended",
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::memory::MemoryBackend;
    use crate::{LockKey, Locks, OwnerId};

    /// The largest task of a lock with its keeper, in bytes: an application may hold ten thousand.
    const LARGEST: usize = 3 * 512;

    #[tokio::test]
    async fn the_task_of_a_held_lock_is_small() {
        let locks = Locks::new(MemoryBackend::queued());
        let (owner, terms) = (OwnerId::from_bytes([1; 16]), LockTerms::for_a_test());
        let request = ClaimRequest::new(LockKey::new("", "a").unwrap(), owner, terms.ttl)
            .with_call_timeout(Duration::from_secs(1));
        let keeper = Keeper::new(&locks.0, request, terms).unwrap();
        let (answer, _receiver) = oneshot::channel();
        let keeper = || keeper.run(Start::Acquire(Patience::Try), answer, Arc::default());
        let task = until_it_ends(locks.0.home().unwrap(), keeper);
        let size = size_of_val(&task) + size_of::<Keeper>();
        println!("the task of a lock has {size} bytes");
        assert!(size <= LARGEST, "the task of a lock has {size} bytes");
    }
}
