//! Acquiring the lock: try, wait, try again.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::call::Call;
use super::client::Client;
use super::line::{Cohort, LastAnswer, LineSeat, LineTurn, Pass, SeenHolder};
use super::polling::Poller;
use super::{Caller, GrantedClaim, Keeper, Patience, SearchOutcome, call, overrun_grace, schedule};
use crate::backoff::Backoff;
use crate::contract::Fences;
use crate::hold::{LockTerms, lead};
use crate::{
    Attempt, Busy, ClockInstant, Effect, Error, ErrorKind, FencingToken, Operation, Renewal,
    Result, Wake,
};

/// What one attempt, or one wait, led to.
enum SearchStep {
    Look,
    Wait,
    End(SearchOutcome),
}

/// What a task in the line of its process does next.
enum Turn {
    /// It asks the store, for all of them.
    Now,
    /// It has the hold of another task.
    Passed(Box<Pass>),
    /// It asks the store for itself.
    InDoubt,
}

/// The search of one keeper for its lock.
pub(super) struct Acquisition<'a> {
    keeper: &'a mut Keeper,
    client: Arc<Client>,
    caller: &'a mut Caller,
    poller: &'a Arc<Poller>,
    search: Search,
    /// Once it is its turn, in the line of this process.
    seat: Option<LineSeat>,
}

impl<'a> Acquisition<'a> {
    pub(super) fn new(
        keeper: &'a mut Keeper,
        patience: Patience,
        caller: &'a mut Caller,
        poller: &'a Arc<Poller>,
    ) -> Self {
        let client = Arc::clone(&keeper.client);
        let search = Search::new(patience, client.clock.now(), keeper.terms.call_timeout);
        Self { keeper, client, caller, poller, search, seat: None }
    }

    /// Takes its place in the line of this process, if there is to be one, then tries and waits in turn.
    pub(super) async fn run(&mut self) -> SearchOutcome {
        let client = Arc::clone(&self.client);
        let cohort = self.keeper.terms.cohort;
        let mut step = SearchStep::Look;
        // Where the store is not fair, or a hold can be passed on, later tasks of this process wait
        // behind the first. A `try` never does: the line says nothing about the lock.
        let in_line = !client.capabilities.fair || cohort > 1;
        if in_line && !matches!(self.search.patience, Patience::Try) {
            if cohort == 1 && !client.lines.is_contended(self.keeper.key()) {
                step = match self.look().await {
                    SearchStep::End(outcome) => return outcome,
                    SearchStep::Look | SearchStep::Wait => SearchStep::Wait,
                };
            }
            if let end @ SearchStep::End(_) = self.line_up().await {
                step = end;
            }
        }
        loop {
            if let SearchStep::Wait | SearchStep::End(_) = step {
                self.seat.iter().for_each(|seat| self.search.tell(seat));
            }
            step = match step {
                SearchStep::Look => self.look().await,
                SearchStep::Wait => self.wait().await,
                SearchStep::End(outcome) => return outcome,
            };
        }
    }

    /// Asks the store once, and returns the next step.
    async fn look(&mut self) -> SearchStep {
        loop {
            // If the caller no longer waits, nothing is sent: it might take a lock late, for a
            // moment.
            if self.caller.has_left() || self.client.closing.is_cancelled() {
                return self.ended(closed());
            }
            let sent = self.client.clock.now();
            let request = self.keeper.doubt.sent(sent, self.keeper.gone_at(sent));
            self.search.tries += 1;
            let answer = self.call(sent, Operation::Acquire, |claim| claim.try_acquire()).await;
            match &answer {
                Ok(attempt) => self.keeper.doubt.answered(request, attempt.has_entry()),
                Err(error) if error.effect() == Effect::None => {
                    self.keeper.doubt.answered(request, false);
                    self.search.without_effect += 1;
                }
                // The request stays in doubt.
                Err(_) => {}
            }
            if self.caller.is_answered() {
                // Too late for this caller, but the others are to know that the store does answer.
                if answer.is_ok() {
                    self.search.answered(&self.client, self.client.clock.now());
                }
                return self.ended(closed());
            }
            let granted = match answer {
                Ok(Attempt::Granted { token, valid_for }) => self.granted(sent, token, valid_for),
                Ok(Attempt::Busy(busy)) => return self.busy(sent, busy),
                Err(error) => Err(error),
            };
            match granted.map_err(|error| self.failed(error)) {
                Ok(granted) => return SearchStep::End(SearchOutcome::Granted(granted)),
                // The second call of a `try`: the same claim finds what the first one left.
                Err(SearchStep::Look) => {}
                Err(step) => return step,
            }
        }
    }

    /// One call. The caller is answered when its time is over, and the call goes on: after its answer, one
    /// release proves that nothing is left.
    async fn call<T>(
        &mut self,
        sent: ClockInstant,
        operation: Operation,
        call: Call<T>,
    ) -> Result<T> {
        let Self { keeper, client, caller, search, seat, .. } = self;
        let Keeper { claim, request, terms, .. } = &mut **keeper;
        let answer = {
            let meanwhile = pin!(async {
                let is_late = tokio::select! {
                    biased;
                    () = stopped(client, caller) => false,
                    () = client.clock.sleep_until(search.deadline) => true,
                };
                let error = if is_late {
                    search.is_cut_short(client, sent);
                    search.refusal(client)
                } else {
                    closed()
                };
                caller.refuse(client, &request.key, error);
                // Nor does it keep those behind it waiting.
                if let Some(seat) = seat.take() {
                    search.tell(&seat);
                }
            });
            call::to_its_end(claim, (&**client, &*request), operation, call, meanwhile).await
        };
        let limit = request.call_timeout;
        search.woke(sent + limit + overrun_grace(limit), client.clock.now(), terms);
        answer
    }

    /// The store has granted the lock: if there is time left to use it, the search is over.
    fn granted(
        &mut self,
        sent: ClockInstant,
        token: FencingToken,
        valid_for: Option<Duration>,
    ) -> Result<GrantedClaim> {
        let (now, ttl) = (self.client.clock.now(), self.keeper.terms.ttl);
        self.search.heard(&self.client, now);
        let is_fresh = valid_for.is_some();
        let promised = valid_for.map(|lasts| self.keeper.terms.promised_end(sent, lasts));
        let until = promised.or(self.search.place.until);
        match until {
            Some(until) if until.minus(lead(ttl)) > now => {
                self.search.last = Some(LastAnswer::Answer(None));
                let cohort = self.keeper.terms.cohort;
                let fences = Fences { first: token, count: cohort };
                let open = || Cohort::open(&self.client.lines, self.keeper.key(), fences, now);
                let cohort = (cohort > 1).then(open);
                Ok(GrantedClaim { token, fences, until, is_fresh, cohort })
            }
            // The same call again finds the same entry, with a new end (clause C2).
            Some(_) => Err(Error::new(
                ErrorKind::NoAnswer,
                format!(
                    "the store granted the lock, but its answer came after the lease of {ttl:?} had ended"
                ),
            )),
            None => Err(call::no_end("a lock without a place in its queue")),
        }
    }

    fn busy(&mut self, sent: ClockInstant, busy: Busy) -> SearchStep {
        let (now, ttl) = (self.client.clock.now(), self.keeper.terms.ttl);
        let search = &mut self.search;
        search.heard(&self.client, now);
        let has_moved =
            search.last.as_ref().is_some_and(|last| last.is_before(busy.holder.as_deref()));
        let seen = busy.holder.map(|holder| Arc::new(SeenHolder { holder: *holder, at: now }));
        search.last = Some(LastAnswer::Answer(seen));
        if matches!(search.patience, Patience::Try) {
            // Clause C13: nothing is left behind, unless an earlier call may still take effect.
            let clean_up = !self.keeper.doubt.open(now).is_clear();
            self.caller.refuse(&self.client, self.keeper.key(), self.search.refusal(&self.client));
            return SearchStep::End(SearchOutcome::Refused { clean_up });
        }
        let notices = search.notices_within(now, &self.keeper.terms);
        // Who has a place need not look for that: its renewals travel with others. They do not say that a request
        // in doubt has got the lock.
        let longest = match busy.valid_for {
            Some(lasts) => {
                let until = self.keeper.terms.promised_end(sent, lasts);
                search.place.found(&self.client, sent, until, ttl, notices);
                if self.keeper.doubt.open(now).is_clear() {
                    Duration::MAX
                } else {
                    schedule::RELIABLE_POLL
                }
            }
            None => {
                search.place = QueuePlace::NONE;
                notices
            }
        };
        search.pace.busy(&self.client, now, busy.retry_after, has_moved, longest);
        SearchStep::Wait
    }

    fn failed(&mut self, error: Error) -> SearchStep {
        let now = self.client.clock.now();
        tracing::debug!(target: "distlock", key = %self.keeper.key(), %error, "an attempt to acquire failed");
        let search = &mut self.search;
        search.place.renew_at = ClockInstant::FAR_FUTURE;
        search.pace.failed(&self.client, now);
        let is_final = !error.is_retryable() || self.keeper.claim.is_none();
        search.failed(&self.client, error, now);
        let is_over = is_final
            || match search.patience {
                Patience::Try if search.tries < 2 && now < search.deadline => {
                    return SearchStep::Look;
                }
                Patience::Try => true,
                Patience::Until(deadline) => now >= deadline,
                Patience::Forever => now >= self.gives_up_at(),
            };
        if is_over { self.refused() } else { SearchStep::Wait }
    }

    fn refused(&mut self) -> SearchStep {
        self.ended(self.search.refusal(&self.client))
    }

    /// Tells the caller, unless that has been answered. There is nothing to clean up if nothing was sent, or
    /// nothing that was sent had an effect.
    fn ended(&mut self, error: Error) -> SearchStep {
        self.caller.refuse(&self.client, self.keeper.key(), error);
        let clean_up = self.search.tries > self.search.without_effect;
        SearchStep::End(SearchOutcome::Refused { clean_up })
    }
}

/// The caller has left, or the `Locks` was closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the connection to the store was closed while waiting")
}

/// Ready when the answer is no longer awaited.
async fn stopped(client: &Client, caller: &mut Caller) {
    tokio::select! {
        biased;
        () = caller.left() => {}
        () = client.closing.cancelled() => {}
    }
}

impl Acquisition<'_> {
    /// Takes its place in the line of this process, and waits there until it is its turn to ask the store, or the
    /// search is over.
    async fn line_up(&mut self) -> SearchStep {
        let (key, terms) = (self.keeper.key(), self.keeper.terms.clone());
        let seat = self.client.lines.enter(key, terms, Arc::clone(self.poller));
        let mut asks_at = self.search.pace.look_at;
        loop {
            match self.wait_for_turn(&seat, asks_at).await {
                Ok(Turn::Now) => {
                    self.seat = Some(seat);
                    return SearchStep::Look;
                }
                Ok(Turn::Passed(pass)) => return SearchStep::End(SearchOutcome::Passed(pass)),
                Ok(Turn::InDoubt) => {
                    if let end @ SearchStep::End(_) = self.look().await {
                        return end;
                    }
                    asks_at = self.client.clock.now() + schedule::IN_DOUBT;
                }
                // A hold may have been passed to it at this very moment.
                Err(error) => {
                    let pass = seat.leave().map(SearchOutcome::Passed).map(SearchStep::End);
                    return pass.unwrap_or_else(|| self.ended(error));
                }
            }
        }
    }

    /// Waits behind the other tasks of this process, until it is this task's turn to ask the store, or
    /// a hold is passed to it. The first in line asks for all of them, so all of them give up on a
    /// store that does not answer. But if a request of its own is in doubt it also asks itself, from `asks_at`
    /// on: the store may have granted it the lock, which nobody else can find.
    async fn wait_for_turn(&mut self, seat: &LineSeat, asks_at: ClockInstant) -> Result<Turn> {
        self.poller.end();
        let clock = Arc::clone(&self.client.clock);
        let line = seat.line();
        loop {
            let mut failed = std::pin::pin!(line.failed.notified());
            failed.as_mut().enable();
            let now = clock.now();
            if let Some((last, answered_at)) = line.last(now) {
                self.search.last = Some(last);
                self.search.answered_at = self.search.answered_at.max(answered_at);
                self.search.silent_from = self.search.silent_from.max(answered_at);
            }
            let turn_at = match seat.turn(&*clock) {
                LineTurn::Now => return Ok(Turn::Now),
                LineTurn::Passed(pass) => return Ok(Turn::Passed(pass)),
                LineTurn::At(at) => at,
            };
            if self.is_over(now) {
                return Err(self.search.refusal(&self.client));
            }
            let is_in_doubt = !self.keeper.doubt.open(now).is_clear();
            if is_in_doubt && now >= asks_at {
                return Ok(Turn::InDoubt);
            }
            let asks_at = if is_in_doubt { asks_at } else { ClockInstant::FAR_FUTURE };
            let wake_at = turn_at.min(asks_at).min(self.ends_at(now));
            tokio::select! {
                biased;
                () = stopped(&self.client, self.caller) => return Err(closed()),
                () = seat.turned() => {}
                () = failed => {}
                () = clock.sleep_until(wake_at) => {}
            }
            self.search.woke(wake_at.max(now), clock.now(), &self.keeper.terms);
        }
    }

    /// Waits until another attempt is worthwhile: a push, the store's own hint, the slow poll, a
    /// lost place. Renews the place while waiting.
    async fn wait(&mut self) -> SearchStep {
        self.poller.end();
        let clock = Arc::clone(&self.client.clock);
        let mut has_renewed = false;
        loop {
            let now = clock.now();
            if self.is_over(now) {
                return self.refused();
            }
            if now >= self.search.pace.look_at {
                let pauses = match self.client.capabilities.wake {
                    Wake::Poll => 0,
                    _ => self.client.silent_store.pauses_before(now),
                };
                if pauses == 0 {
                    return SearchStep::Look;
                }
                self.search.pace.look_at = now + schedule::a_moment(&self.client) * pauses;
            }
            // Where a renewal takes as long as its interval, the next one is due at once: what was pushed meanwhile
            // comes first.
            has_renewed = now >= self.search.place.renew_at && !has_renewed;
            if has_renewed {
                match self.renew_place().await {
                    _ if self.caller.is_answered() => return self.ended(closed()),
                    Ok(Renewal::Lost) => return SearchStep::Look,
                    Ok(_) => continue,
                    Err(error) => return self.failed(error),
                }
            }
            let push = now >= self.search.pace.push_from;
            let wake_at = self.search.wake_at(now).min(self.ends_at(now));
            if let Some(seat) = &self.seat {
                seat.asks_at(wake_at);
            }
            // A store that is fair says itself when it is a waiter's turn.
            let seat = self.seat.as_ref().filter(|_| !self.client.capabilities.fair);
            let looks = tokio::select! {
                biased;
                () = stopped(&self.client, self.caller) => return self.ended(closed()),
                pushed = call::changed(&mut self.keeper.claim), if push => match pushed {
                    Ok(()) => {
                        // A change is kept until it is asked for, so asking a little later misses nothing, and a
                        // store that pushes endlessly is not asked endlessly.
                        self.search.pace.push_from = now + PUSH_SPACING;
                        true
                    }
                    Err(error) => {
                        tracing::debug!(target: "distlock", key = %self.keeper.key(), %error, "no pushes: polling");
                        self.search.pace.no_pushes(&self.client, now);
                        false
                    }
                },
                () = local_release(seat) => true,
                () = clock.sleep_until(wake_at) => false,
            };
            self.search.woke(wake_at.max(now), clock.now(), &self.keeper.terms);
            if looks {
                return SearchStep::Look;
            }
        }
    }

    /// When a store that is silent is given up.
    fn gives_up_at(&self) -> ClockInstant {
        match self.search.patience {
            Patience::Forever => self.search.silent_from + self.keeper.terms.unavailable_after,
            Patience::Try | Patience::Until(_) => ClockInstant::FAR_FUTURE,
        }
    }

    /// When [`is_over`](Self::is_over) may have changed.
    fn ends_at(&self, now: ClockInstant) -> ClockInstant {
        let gives_up_at = Some(self.gives_up_at()).filter(|at| *at > now);
        gives_up_at.unwrap_or(ClockInstant::FAR_FUTURE).min(self.search.deadline)
    }

    /// Whether the time is over. A silent store is asked by few, so what they have met counts for all.
    fn is_over(&mut self, now: ClockInstant) -> bool {
        let (deadline, gives_up_at) = (self.search.deadline, self.gives_up_at());
        if now < deadline.min(gives_up_at) {
            return false;
        }
        if let Some(error) = self.client.silent_store.failure(self.search.answered_at) {
            self.search.failed_last(error);
        }
        now >= deadline || matches!(self.search.last, Some(LastAnswer::Failure(_)))
    }

    /// Renews the place in the queue. If it is lost, the next attempt takes a new one.
    async fn renew_place(&mut self) -> Result<Renewal> {
        let sent = self.client.clock.now();
        self.keeper.doubt.lasts_until(self.keeper.gone_at(sent));
        let renewal = self.call(sent, Operation::Renew, |claim| claim.renew()).await?;
        let Self { keeper, client, search, .. } = self;
        keeper.tell_renewed(renewal, None);
        let ttl = keeper.terms.ttl;
        search.answered(client, client.clock.now());
        match renewal {
            Renewal::Alive { valid_for } => {
                let until = valid_for.map(|lasts| keeper.terms.promised_end(sent, lasts));
                let notices = search.notices_within(sent, &keeper.terms);
                search.place.renewed(client, sent, until, ttl, notices);
            }
            Renewal::Lost => search.place = QueuePlace::NONE,
        }
        Ok(renewal)
    }
}

async fn local_release(seat: Option<&LineSeat>) {
    match seat {
        Some(seat) => seat.line().released.notified().await,
        None => std::future::pending().await,
    }
}

/// As many pauses grow while the lock goes from holder to holder: whoever polls more rarely is never there
/// when it is free for a moment.
const LOOKS_AT_MOVING: u32 = 3;

/// The shortest time between two attempts caused by pushes.
const PUSH_SPACING: Duration = Duration::from_micros(100);

/// However soon a silent store is given up, it is not asked more often for that.
const SHORTEST_NOTICE: Duration = Duration::from_secs(1);

struct Search {
    patience: Patience,
    started: ClockInstant,
    deadline: ClockInstant,
    /// When the store last answered anything.
    answered_at: ClockInstant,
    /// From then on, a store without an answer is silent.
    silent_from: ClockInstant,
    /// What the store said last.
    last: Option<LastAnswer>,
    tries: u32,
    /// How many of them had no effect, as their errors say.
    without_effect: u32,
    place: QueuePlace,
    pace: Pace,
}

/// The place in the store's queue.
struct QueuePlace {
    /// Until when the store keeps it; `None` if there is none.
    until: Option<ClockInstant>,
    renew_at: ClockInstant,
}

/// When to try again, and when to ask for pushes.
struct Pace {
    /// Busy answers in a row.
    busy: u32,
    backoff: Backoff,
    /// When to try again, whatever happens.
    look_at: ClockInstant,
    /// Pushes are not asked for until then, since they failed or came too fast.
    push_from: ClockInstant,
}

impl Search {
    fn new(patience: Patience, now: ClockInstant, call_timeout: Duration) -> Self {
        let deadline = patience.deadline(now, call_timeout);
        Self {
            patience,
            started: now,
            deadline,
            answered_at: now,
            silent_from: now,
            last: None,
            tries: 0,
            without_effect: 0,
            place: QueuePlace::NONE,
            pace: Pace { busy: 0, backoff: schedule::backoff(), look_at: now, push_from: now },
        }
    }

    /// The store has answered a look.
    fn heard(&mut self, client: &Client, now: ClockInstant) {
        self.answered(client, now);
        self.pace.backoff.reset();
    }

    /// The store has answered anything.
    fn answered(&mut self, client: &Client, now: ClockInstant) {
        client.silent_store.answered();
        (self.answered_at, self.silent_from) = (now, now);
    }

    /// Something was `due`.
    fn woke(&mut self, due: ClockInstant, now: ClockInstant, terms: &LockTerms) {
        if schedule::has_stood_still(due, now, terms.unavailable_after) {
            self.silent_from = now;
        }
    }

    /// The deadline has come before the answer to a call that was sent at `sent`. That says less than what came
    /// before, but the call may be carried out.
    fn is_cut_short(&mut self, client: &Client, sent: ClockInstant) {
        let now = client.clock.now();
        match &mut self.last {
            Some(LastAnswer::Answer(_)) => {}
            Some(LastAnswer::Failure(before)) => *before = before.clone().with_unknown_effect(),
            None => self.failed(client, call::no_answer(now.since(sent)), now),
        }
    }

    /// Tells those behind this task in line what the store said last.
    fn tell(&self, seat: &LineSeat) {
        if let Some(last) = &self.last {
            seat.line().note(last.clone(), self.answered_at);
        }
    }

    /// A call has failed.
    fn failed(&mut self, client: &Client, error: Error, now: ClockInstant) {
        client.silent_store.failed(&error, now);
        self.failed_last(error);
    }

    /// That the last call had no effect says nothing about one before it.
    fn failed_last(&mut self, error: Error) {
        let in_doubt = match &self.last {
            Some(LastAnswer::Failure(before)) => before.effect() == Effect::Unknown,
            _ => false,
        };
        let error = if in_doubt { error.with_unknown_effect() } else { error };
        self.last = Some(LastAnswer::Failure(error));
    }

    /// Why the search ends without the lock: "not acquired" only if the store's last answer was "busy".
    fn refusal(&self, client: &Client) -> Error {
        let now = client.clock.now();
        match &self.last {
            Some(LastAnswer::Answer(seen)) => self.not_acquired(seen.as_deref(), now),
            Some(LastAnswer::Failure(error)) => error.clone(),
            None => call::no_answer(now.since(self.started)),
        }
    }

    fn not_acquired(&self, seen: Option<&SeenHolder>, now: ClockInstant) -> Error {
        let mut text = "another client holds it".to_owned();
        if !matches!(self.patience, Patience::Try) {
            text += &format!(", after {:.1?} of waiting", now.since(self.started));
        }
        let error = Error::new(ErrorKind::NotAcquired, text);
        match seen {
            Some(SeenHolder { holder, at }) => error.held_by(holder.clone().after(now.since(*at))),
            None => error,
        }
    }

    /// Within what time from `now` on this waiter is to notice that the store answers nobody.
    fn notices_within(&self, now: ClockInstant, terms: &LockTerms) -> Duration {
        let within = match self.patience {
            Patience::Try => None,
            Patience::Forever => Some(terms.unavailable_after / 2),
            // Once, so early that a call without an answer is over before the deadline.
            Patience::Until(deadline) => {
                deadline.since(now).checked_sub(terms.call_timeout * 5 / 4)
            }
        };
        within.map_or(Duration::MAX, |within| within.max(SHORTEST_NOTICE))
    }

    /// When something is due while nothing is heard.
    fn wake_at(&self, now: ClockInstant) -> ClockInstant {
        let wake_at = self.pace.look_at.min(self.place.renew_at).min(self.deadline);
        if self.pace.push_from > now { wake_at.min(self.pace.push_from) } else { wake_at }
    }
}

impl QueuePlace {
    const NONE: Self = Self { until: None, renew_at: ClockInstant::FAR_FUTURE };

    /// A look has found it. That need not have renewed it, so a look never puts the renewal off: a waiter who
    /// looks more often than a renewal is due would lose its place. `sent` is when the store was asked.
    fn found(
        &mut self,
        client: &Client,
        sent: ClockInstant,
        until: ClockInstant,
        ttl: Duration,
        notices: Duration,
    ) {
        self.until = Some(until);
        self.renew_at = self.renew_at.min(schedule::renew_place_at(client, sent, ttl, notices));
    }

    /// The store has renewed it: records its end, if the store gave one, and plans the next renewal.
    fn renewed(
        &mut self,
        client: &Client,
        sent: ClockInstant,
        until: Option<ClockInstant>,
        ttl: Duration,
        notices: Duration,
    ) {
        self.until = until.or(self.until);
        self.renew_at = schedule::renew_place_at(client, sent, ttl, notices);
    }
}

impl Pace {
    /// Another client has the lock; the store proposes to retry after `hint`, and the next look comes after
    /// `longest` at the latest.
    fn busy(
        &mut self,
        client: &Client,
        now: ClockInstant,
        hint: Option<Duration>,
        has_moved: bool,
        longest: Duration,
    ) {
        self.busy += 1;
        if has_moved {
            self.busy = self.busy.min(LOOKS_AT_MOVING);
        }
        let wake = client.capabilities.wake;
        self.look_at = now + schedule::after_busy(client, wake, self.busy, longest, hint);
    }

    /// An attempt has failed.
    fn failed(&mut self, client: &Client, now: ClockInstant) {
        self.busy = 0;
        self.look_at = now + self.backoff.failed(&*client.rng);
    }

    /// Pushes are unavailable for now.
    fn no_pushes(&mut self, client: &Client, now: ClockInstant) {
        self.push_from = now + self.backoff.failed(&*client.rng);
        self.look_at = self.look_at.min(self.push_from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Locks;
    use crate::memory::MemoryBackend;

    #[test]
    fn polls_grow_rare_only_while_one_holder_has_the_lock() {
        let locks = Locks::new(MemoryBackend::poll_only());
        let now = ClockInstant::from_nanos(0);
        let mut pace = Search::new(Patience::Forever, now, Duration::ZERO).pace;
        let mut pause = |has_moved| {
            pace.busy(&locks.0, now, None, has_moved, Duration::MAX);
            pace.look_at.since(now)
        };
        assert!((0..20).all(|_| pause(true) <= Duration::from_millis(10)));
        assert!((0..20).map(|_| pause(false)).last() >= Some(Duration::from_millis(75)));
        assert!(pause(true) <= Duration::from_millis(10));
    }
}
