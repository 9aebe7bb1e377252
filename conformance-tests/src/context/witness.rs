//! What a store was asked last, and in which state: told with a failure. And what it has promised: whom
//! it has given a lock, and until when.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Attempt, Bytes, Capabilities, Claim, ClaimRequest, Clock, ClockInstant, Finding, LockAdmin,
    LockBackend, LockInfo, LockKey, OwnerId, Released, Renewal, Result, Seen, Victim,
};

use crate::context::SuiteClock;
use crate::matrix::{Call, State};

/// How many calls are told.
const LAST: usize = 6;

/// The last calls of all clients of one case.
#[derive(Clone, Debug)]
pub(crate) struct Witness {
    clock: SuiteClock,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Debug, Default)]
struct Notes {
    clients: usize,
    last: VecDeque<String>,
    /// The calls that have not ended, by when they began.
    under_way: BTreeMap<u64, String>,
    begun: u64,
    made: BTreeSet<(Call, State)>,
    promises: HashMap<(String, OwnerId), Promise>,
}

/// What the store has told a holder that has not given it back since.
#[derive(Debug)]
struct Promise {
    client: usize,
    until: ClockInstant,
}

impl Witness {
    pub(crate) fn new(clock: SuiteClock) -> Self {
        Self { clock, notes: Arc::default() }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client whose calls are noted. It prints like the one that it watches.
    pub(crate) fn watch(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> {
        let mut notes = self.notes();
        notes.clients += 1;
        Arc::new(Watched { inner, client: notes.clients, witness: self.clone() })
    }

    /// The last calls that have ended, the latest one last, and the last of those that have not.
    pub(crate) fn told(&self) -> Vec<String> {
        let notes = self.notes();
        let more = notes.under_way.len().saturating_sub(LAST);
        let under_way = notes.under_way.values().skip(more);
        let under_way = under_way.map(|call| format!("{call}: under way"));
        notes.last.iter().cloned().chain(under_way).collect()
    }

    /// Which calls were made, and in which states.
    #[cfg(test)]
    pub(crate) fn made(&self) -> BTreeSet<(Call, State)> {
        self.notes().made.clone()
    }

    /// To how many owners the store has promised this lock until later than now. However slow the
    /// machine is, nobody else may have it if it is one, and it is never more.
    pub(crate) fn holders(&self, key: &LockKey) -> usize {
        let (now, key) = (self.clock.now(), key.to_string());
        let notes = self.notes();
        let holders = notes.promises.iter();
        holders.filter(|((name, _), promise)| *name == key && promise.until > now).count()
    }

    /// Whether the store has promised any lock to two owners until later than now.
    pub(crate) fn is_crowded(&self) -> bool {
        let (now, notes, mut held) = (self.clock.now(), self.notes(), BTreeSet::new());
        let mut running = notes.promises.iter().filter(|(_, promise)| promise.until > now);
        running.any(|((name, _), _)| !held.insert(name))
    }

    fn makes(&self, call: Call, state: State) {
        self.notes().made.insert((call, state));
    }
}

/// One call. It notes when it begins, and when it ends: answered, or dropped.
struct Noted<'a> {
    witness: &'a Witness,
    begun: u64,
    answer: Option<String>,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let mut notes = self.witness.notes();
        let call = notes.under_way.remove(&self.begun).unwrap_or_default();
        let answer = self.answer.take().unwrap_or_else(|| "dropped".to_owned());
        if notes.last.len() == LAST {
            notes.last.pop_front();
        }
        notes.last.push_back(format!("{call}: {answer}"));
    }
}

impl<'a> Noted<'a> {
    fn new(witness: &'a Witness, client: usize, key: &str, call: Call, state: State) -> Self {
        witness.makes(call, state);
        let mut notes = witness.notes();
        notes.begun += 1;
        let begun = notes.begun;
        let text = format!("client {client}, {key:?}: {call:?} in the state {state:?}");
        notes.under_way.insert(begun, text);
        Self { witness, begun, answer: None }
    }

    async fn answers<T: fmt::Debug>(mut self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = call.await;
        self.answer = Some(match &answer {
            Ok(answer) => format!("{answer:?}"),
            Err(error) => format!("the error {error}"),
        });
        answer
    }
}

struct Watched {
    inner: Arc<dyn LockBackend>,
    client: usize,
    witness: Witness,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Watched {
    fn noted(&self, key: &str, call: Call) -> Noted<'_> {
        Noted::new(&self.witness, self.client, key, call, State::Open)
    }

    fn below(&self) -> Result<&dyn LockAdmin> {
        let missing = || lock_core::Error::unsupported("the store below has no inspection");
        self.inner.admin().ok_or_else(missing)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        let (key, waits) = (request.key.to_string(), request.wait);
        let state = if request.resume.is_some() { State::Resumed } else { State::New };
        let witness = self.witness.clone();
        witness.makes(Call::Claim, state);
        let owner = request.owner;
        let inner = self.inner.claim(request)?;
        let trace = Trace { witness, client: self.client, key, owner, waits, state };
        Ok(Box::new(WatchedClaim { inner, trace }))
    }

    async fn ping(&self) -> Result<()> {
        self.noted("", Call::Ping).answers(self.inner.ping()).await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        let names: Vec<_> = keys.iter().map(LockKey::to_string).collect();
        self.noted(&names.join(" "), Call::Look).answers(self.inner.look(keys)).await
    }

    async fn close(&self) -> Result<()> {
        self.witness.notes().promises.retain(|_, promise| promise.client != self.client);
        self.noted("", Call::Close).answers(self.inner.close()).await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.inner.admin().is_some().then_some(self as &dyn LockAdmin)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockAdmin for Watched {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let name = key.to_string();
        self.noted(&name, Call::Inspect).answers(self.below()?.inspect(key)).await
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        // A list is long, and a case tells what is wrong with it.
        let mut listed = Vec::new();
        let count = async {
            listed = self.below()?.list(prefix, name_start).await?;
            Ok(listed.len())
        };
        self.noted(name_start, Call::List).answers(count).await?;
        Ok(listed)
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        let name = key.to_string();
        let taken = || self.witness.notes().promises.retain(|(held, _), _| *held != name);
        // Whoever names the holder may do nothing.
        if matches!(victim, Victim::Anybody) {
            taken();
        }
        let call = self.below()?.force_release(key, victim);
        let answer = self.noted(&name, Call::ForceRelease).answers(call).await;
        if !matches!(answer, Ok(Released::AlreadyGone)) {
            taken();
        }
        answer
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.below()?.diagnose().await
    }

    async fn recover(&self) -> Result<()> {
        self.below()?.recover().await
    }
}

/// A claim's place in the table of legal call sequences.
struct Trace {
    witness: Witness,
    client: usize,
    key: String,
    owner: OwnerId,
    waits: bool,
    state: State,
}

impl Trace {
    /// Makes a call, and follows the claim to the state to which its answer leads.
    async fn call<T: fmt::Debug>(
        &mut self,
        call: Call,
        future: impl Future<Output = Result<T>>,
        leads_to: impl FnOnce(&T, State) -> State,
    ) -> Result<T> {
        let before = self.state;
        // If it fails, or is dropped with its claim, it stays at that.
        match call {
            Call::TryAcquire => self.state = State::Unknown,
            Call::Release => self.state = State::Done,
            _ => {}
        }
        let Self { witness, client, key, .. } = &*self;
        let noted = Noted::new(witness, *client, key, call, before);
        let answer = noted.answers(future).await?;
        self.state = leads_to(&answer, before);
        Ok(answer)
    }

    /// Notes what an answer to a call that began then has promised, if it did.
    fn promised(&self, begun: ClockInstant, valid_for: Option<Duration>) {
        if let (State::Held, Some(valid_for)) = (self.state, valid_for) {
            let promise = Promise { client: self.client, until: begun + valid_for };
            self.witness.notes().promises.insert((self.key.clone(), self.owner), promise);
        }
    }

    /// The hold ends, if the claim has it: one that was refused, or resumed in vain, ends nothing.
    fn given_up(&self, before: State) {
        if matches!(before, State::Lost | State::Refused | State::Done) {
            return;
        }
        self.witness.notes().promises.remove(&(self.key.clone(), self.owner));
    }
}

struct WatchedClaim {
    inner: Box<dyn Claim>,
    trace: Trace,
}

impl fmt::Debug for WatchedClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

fn renewed(answer: &Renewal, before: State) -> State {
    match (answer, before) {
        (Renewal::Lost, State::Waiting) => State::PlaceLost,
        (Renewal::Lost, _) => State::Lost,
        (_, State::Resumed) => State::Held,
        _ => before,
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Claim for WatchedClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let Self { inner, trace } = self;
        let busy = if trace.waits { State::Waiting } else { State::Refused };
        let leads_to = |answer: &Attempt, _| match answer {
            Attempt::Granted { .. } => State::Held,
            _ => busy,
        };
        let begun = trace.witness.clock.now();
        let answer = trace.call(Call::TryAcquire, inner.try_acquire(), leads_to).await?;
        if let Attempt::Granted { valid_for, .. } = &answer {
            trace.promised(begun, *valid_for);
        }
        Ok(answer)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let Self { inner, trace } = self;
        let (begun, before) = (trace.witness.clock.now(), trace.state);
        let answer = trace.call(Call::Renew, inner.renew(), renewed).await?;
        match answer {
            Renewal::Alive { valid_for } => trace.promised(begun, valid_for),
            _ if before == State::Resumed => {}
            _ => trace.given_up(before),
        }
        Ok(answer)
    }

    async fn check(&mut self) -> Result<Renewal> {
        let Self { inner, trace } = self;
        trace.call(Call::Check, inner.check(), renewed).await
    }

    async fn release(&mut self) -> Result<Released> {
        let Self { inner, trace } = self;
        let before = trace.state;
        if before != State::Resumed {
            trace.given_up(before);
        }
        let answer = trace.call(Call::Release, inner.release(), |_, _| State::Done).await;
        if !matches!(answer, Ok(Released::AlreadyGone)) {
            trace.given_up(before);
        }
        answer
    }

    async fn changed(&mut self) -> Result<()> {
        let Self { inner, trace } = self;
        trace.call(Call::Changed, inner.changed(), |(), before| before).await
    }

    async fn detach(&mut self) -> Result<Bytes> {
        let Self { inner, trace } = self;
        let detached = inner.detach();
        // What it returns is for the bearer only.
        let mut bytes = Bytes::new();
        let kept = async {
            bytes = detached.await?;
            Ok(bytes.len())
        };
        trace.call(Call::Detach, kept, |_, _| State::Detached).await?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use lock_core::OsRng;
    use lock_core::memory::MemoryBackend;

    use super::*;
    use crate::context::cancel::drop_after;

    #[tokio::test]
    async fn the_last_calls_are_told_with_their_states() {
        let (witness, store) =
            (Witness::new(SuiteClock::real()), MemoryBackend::queued().stepwise());
        let [a, b] = [0, 1].map(|_| witness.watch(Arc::new(store.client())));
        let request = || {
            let key = LockKey::new("", "lock").unwrap();
            let owner = OwnerId::generate(&OsRng).unwrap();
            ClaimRequest::new(key, owner, Duration::from_secs(9))
        };
        let mut holder = a.claim(request()).unwrap();
        let mut waiter = b.claim(request().with_wait(true)).unwrap();
        let mut asked = holder.try_acquire();
        let mut unwoken = Context::from_waker(Waker::noop());
        assert!(asked.as_mut().poll(&mut unwoken).is_pending());
        let under_way = "client 1, \"lock\": TryAcquire in the state New: under way";
        assert_eq!(witness.told(), [under_way]);
        asked.await.unwrap();
        waiter.try_acquire().await.unwrap();
        let _ = drop_after(1, waiter.try_acquire()).await;
        waiter.check().await.unwrap();
        let told = witness.told();
        let seen = [
            ("client 1, \"lock\": TryAcquire in the state New: Granted", 0),
            ("client 2, \"lock\": TryAcquire in the state New: Busy", 1),
            ("client 2, \"lock\": TryAcquire in the state Waiting: dropped", 2),
            ("client 2, \"lock\": Check in the state Unknown: Alive", 3),
        ];
        for (start, at) in seen {
            assert!(told[at].starts_with(start), "{told:?}");
        }
        for _ in 0..LAST {
            holder.renew().await.unwrap();
        }
        assert_eq!(witness.told().len(), LAST);
        assert!(witness.told()[0].contains("Renew in the state Held"), "{:?}", witness.told());
    }
}
