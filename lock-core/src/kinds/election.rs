//! Who leads: a lock whose holder says who it is.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use super::{rules, settings};
use crate::backoff::Backoff;
use crate::contract::check_part;
use crate::keeper::{Client, Patience, STANDSTILL_GRACE};
use crate::mutex::Mutex;
use crate::{
    Clock, ClockInstant, Error, FencingToken, Held, Lock, LockGuard, LockKey, Locks, Operation,
    Released, Result, Seen, jitter,
};

impl Locks {
    /// The election of a leader by this name. The leader holds the lock of exactly this name, so
    /// inspecting it, releasing it by force and a plain [`named`](Self::named) lock affect the election,
    /// too. Nothing is sent until a candidate campaigns or an observer looks.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let election = locks.election("scheduler")?;
    /// assert!(election.leader().await?.is_none());
    /// let leadership = election.campaign("10.0.0.7:8080").await?;
    /// let leader = election.leader().await?.expect("it leads");
    /// assert_eq!(leader.value.as_deref(), Some("10.0.0.7:8080"));
    /// assert_eq!(leader.term, Some(leadership.term()?));
    /// leadership.resign().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`named`](Self::named).
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election> {
        // Of a cohort, others would see the first term only.
        let lock = self.named(name)?.cohort(rules::cohort());
        Ok(Election { lock, look_every: None, resigned: Arc::default() })
    }
}

/// The election of a leader, from [`Locks::election`]. Cheap to clone.
///
/// There is one leader at a time, by the promise of a lock: the periods in which two *believe* that
/// they lead do not overlap. Each has a [term](Leadership::term), which is greater than those of all
/// leaders before, and a value that others see, such as its address.
///
/// ```
/// # use lock_core as distlock;
/// use std::time::Duration;
/// use distlock::{Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// let election = locks.election("scheduler")?.ttl(Duration::from_secs(10));
/// let first = election.campaign("host-1").await?; // waits until it leads
/// assert!(election.try_campaign("host-2").await?.is_none());
/// let term = first.term()?;
/// first.resign().await?;
/// assert!(election.campaign("host-2").await?.term()? > term);
/// # Ok(()) }
/// ```
///
/// # What an observation is worth
///
/// What [`leader`](Self::leader) and [`observe`](Self::observe) show is a hint: it may be out of
/// date before it arrives. Do not base anything on it that two leaders would break. Send the term along with
/// each request to the leader, and let the leader refuse a request with a term that is not its own;
/// a leader sends its term to what it writes to, where a [`FenceCheck`](crate::FenceCheck)
/// refuses an earlier one.
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until somebody campaigns or asks"]
pub struct Election {
    lock: Lock,
    look_every: Option<Duration>,
    /// When somebody last resigned by this election.
    resigned: Arc<Mutex<Option<ClockInstant>>>,
}

/// For so long a candidate that has resigned stays back where the store does not serve its waiters in
/// order: the others poll, and find the lock free within that time.
const TURN: Duration = Duration::from_millis(250);
/// The longest pause after a leadership that was lost, or a campaign that has failed.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause between two looks of an observer, unless it is set.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Election {
    fn each(mut self, set: impl Fn(Lock) -> Lock) -> Self {
        self.lock = set(self.lock);
        self
    }

    settings! {
        /// As [`Lock::ttl`]: a leader that has crashed is replaced after this long.
        ttl(ttl: Duration);
        /// As [`Lock::renew_every`].
        renew_every(every: Duration);
        /// The longest time for which one candidate leads: see [`Lock::max_hold`].
        max_hold(limit: Duration);
    }

    /// How often an [observer](Self::observe) looks: more than zero. By default a third of the TTL, at
    /// most a second. An invalid interval is reported by `observe`.
    pub fn look_every(mut self, every: Duration) -> Self {
        self.look_every = Some(every);
        self
    }

    /// The name of the lock that the leader holds, with its prefix.
    pub fn key(&self) -> &LockKey {
        self.lock.key()
    }

    /// Waits for as long as it takes until this candidate leads. The `value` is what others see of the leader for this
    /// term, such as its address: 1 to 512 bytes without control characters. It is the label of the
    /// lock.
    ///
    /// A candidate that has [resigned](Leadership::resign) and campaigns again by this `Election`, or a
    /// clone of it, lets others go first: it queues behind them if the store is
    /// [fair](crate::Capabilities), and otherwise waits for a moment.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let leadership = locks.election("scheduler")?.campaign("host-1").await?;
    /// println!("leads, term {}", leadership.term()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`], and [`InvalidInput`](crate::ErrorKind::InvalidInput) for a bad value.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn campaign(&self, value: impl AsRef<str>) -> Result<Leadership> {
        self.take(value.as_ref(), Patience::Forever).await
    }

    /// As [`campaign`](Self::campaign), for at most `limit`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let election = locks.election("scheduler")?;
    /// let _leads = election.campaign("host-1").await?;
    /// let error = election.campaign_timeout("host-2", Duration::from_millis(20)).await.unwrap_err();
    /// assert_eq!(error.holder().and_then(|leader| leader.label.as_deref()), Some("host-1"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire_timeout`] and [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    ///
    /// As [`campaign`](Self::campaign).
    pub async fn campaign_timeout(
        &self,
        value: impl AsRef<str>,
        limit: Duration,
    ) -> Result<Leadership> {
        self.take(value.as_ref(), self.client().patience(limit)).await
    }

    /// Leads if nobody else does; `None` if another candidate leads. It never waits.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// if let Some(leadership) = locks.election("scheduler")?.try_campaign("host-1").await? {
    ///     leadership.resign().await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Lock::try_acquire`] and [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    ///
    /// As [`campaign`](Self::campaign).
    pub async fn try_campaign(&self, value: impl AsRef<str>) -> Result<Option<Leadership>> {
        Error::unless_busy(self.take(value.as_ref(), Patience::Try).await)
    }

    /// Campaigns, and runs `body` while it leads. When the leadership is lost, the body is dropped at its next
    /// await; after a pause it campaigns again, and the body begins anew in the next term. Once a body returns
    /// while it leads, it resigns, and this ends with the value.
    ///
    /// The pauses are a quarter of a second at first and 10 s at last, begin anew after a leadership of a
    /// whole TTL, and differ by chance. A value that a body returns after the loss is dropped, and the body
    /// runs again: let it check its [`Held`] before it returns what must not be lost.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// # async fn schedule(_: u64) {}
    /// # let mut rounds = 1..3;
    /// locks.election("scheduler")?.run("host-1", async |held| {
    ///     while let Ok(term) = held.token() {
    ///         schedule(term.get()).await;
    /// #       if rounds.next().is_none() { return }
    ///     }
    /// }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`campaign`](Self::campaign) that are not
    /// [worth another attempt](Error::is_retryable). While the store cannot be reached, it keeps
    /// campaigning; each failure and each loss is reported as a `tracing` event.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body, and resigns in the background.
    pub async fn run<T, F>(&self, value: impl AsRef<str>, mut body: F) -> Result<T>
    where
        F: AsyncFnMut(Held) -> T,
    {
        let (client, ttl) = (self.client(), self.lock.terms()?.ttl);
        let mut pauses = Backoff::new(TURN, LONGEST_PAUSE);
        loop {
            let error = match self.campaign(value.as_ref()).await {
                Ok(leadership) => {
                    let begun = client.clock.now();
                    let lost = match rules::lead(leadership.guard, &mut body).await {
                        Ok(value) => return Ok(value),
                        Err(lost) => lost,
                    };
                    if client.clock.now().since(begun) >= ttl {
                        pauses.reset();
                    }
                    lost
                }
                Err(error) if error.is_retryable() => error,
                Err(error) => return Err(error),
            };
            tracing::warn!(target: "distlock", key = %self.key(), %error, "it does not lead; it will campaign again");
            client.clock.sleep(pauses.failed(&*client.rng)).await;
        }
    }

    /// Who leads, by one look; `None` if nobody does. A [hint](Self#what-an-observation-is-worth).
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// match locks.election("scheduler")?.leader().await? {
    ///     Some(leader) => println!("{:?} leads, term {:?}", leader.value, leader.term),
    ///     None => println!("nobody leads"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot show
    /// [who has a lock](crate::Capabilities::look), and the errors of any call.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        look(self.client(), self.key()).await
    }

    /// Watches who leads: see [`Observer`]. Nothing is sent until its [`next`](Observer::next) is called.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) as [`leader`](Self::leader), and
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for bad settings.
    pub fn observe(&self) -> Result<Observer> {
        let client = self.client();
        client.check_look()?;
        let ttl = self.lock.terms()?.ttl;
        let every = self.look_every.unwrap_or_else(|| (ttl / 3).min(LOOK_EVERY));
        if every.is_zero() {
            return Err(Error::invalid(
                "look_every is zero: allow at least a millisecond, or omit it",
            ));
        }
        let now = client.clock.now();
        Ok(Observer {
            client: Arc::clone(client),
            key: self.key().clone(),
            ttl,
            every,
            look_at: now,
            looking: None,
            silent_from: None,
            answered_at: now,
            last_term: None,
            shown: None,
            asked_at: now,
        })
    }

    fn client(&self) -> &Arc<Client> {
        &self.lock.client
    }

    async fn take(&self, value: &str, patience: Patience) -> Result<Leadership> {
        check_value(value)
            .map_err(|error| self.client().describe(error, Operation::Acquire, self.key()))?;
        let lock = self.lock.clone().label(value);
        self.stay_back(patience).await;
        let guard = lock.take(patience).await?;
        Ok(Leadership { guard, value: value.into(), resigned: Arc::clone(&self.resigned) })
    }

    /// Leaves others their turn after a resignation; at most half of the time that there is.
    async fn stay_back(&self, patience: Patience) {
        let Client { clock, capabilities, .. } = &**self.client();
        let Some(resigned) = *self.resigned.lock() else { return };
        let (now, end) = (clock.now(), resigned + TURN);
        let end = match patience {
            Patience::Try => return,
            Patience::Until(deadline) => end.min(now + deadline.since(now) / 2),
            Patience::Forever => end,
        };
        if !capabilities.fair && now < end {
            clock.sleep_until(end).await;
        }
    }
}

/// What no holder of a plain lock has by accident.
fn check_value(value: &str) -> Result<()> {
    if value.is_empty() {
        return Err(Error::invalid(
            "the value of a candidate is empty: give at least one character",
        ));
    }
    check_part("the value of a candidate", value)
}

async fn look(client: &Client, key: &LockKey) -> Result<Option<Leader>> {
    let seen = client.look(std::slice::from_ref(key)).await.map_err(|error| error.for_key(key))?;
    Ok(seen.into_iter().find_map(|seen| match seen {
        Seen::Held { fence, label } => Some(Leader { term: fence, value: label }),
        Seen::Free { .. } => None,
    }))
}

/// This candidate leads, until the guard is dropped or [resigns](Self::resign), or the leadership is lost.
///
/// It dereferences to the [`LockGuard`] of the lock that it holds, so it can be
/// [renewed](LockGuard::renew) and [checked](LockGuard::check), and to [`Held`], which shows whether
/// it still leads and [signals](Held::lost) when it does not.
///
/// ```
/// # use lock_core::{Locks, testing::MemoryBackend};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// # async fn schedule(_: u64) -> bool { false }
/// let leadership = locks.election("scheduler")?.campaign("host-1").await?;
/// while let Ok(term) = leadership.term() {
///     if !schedule(term.get()).await {
///         break;
///     }
/// }
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard gives the leadership up"]
pub struct Leadership {
    guard: LockGuard,
    value: Arc<str>,
    resigned: Arc<Mutex<Option<ClockInstant>>>,
}

impl Leadership {
    /// The number of this term, to be sent along with all that the leader does: the fencing token of its
    /// lock.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if it no longer leads.
    pub fn term(&self) -> Result<FencingToken> {
        rules::term_of(&self.guard)
    }

    /// What others see of it.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Ends this term, and waits for the store's answer. If this candidate [campaigns](Election::campaign)
    /// again, other candidates get their turn first.
    ///
    /// ```
    /// # use lock_core::{Locks, Released, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let leadership = locks.election("scheduler")?.campaign("host-1").await?;
    /// assert_eq!(leadership.resign().await?, Released::Freed);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it resigns in the background.
    pub async fn resign(self) -> Result<Released> {
        let clock = Arc::clone(&self.guard.client().clock);
        let _marked = MarksResignation { at: self.resigned, clock };
        rules::resign(self.guard).await
    }
}

/// Marks the time of a resignation at its end, or when its caller has left it.
struct MarksResignation {
    at: Arc<Mutex<Option<ClockInstant>>>,
    clock: Arc<dyn Clock>,
}

impl Drop for MarksResignation {
    fn drop(&mut self) {
        *self.at.lock() = Some(self.clock.now());
    }
}

impl Deref for Leadership {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

/// A leader, as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Leader {
    /// Its term; `None` if a client of another kind has the lock, which has no fencing token, and
    /// where the store is not certain of it, such as Redlock without one of its nodes.
    pub term: Option<FencingToken>,
    /// The value with which it campaigned: that of this very term. `None` if a client of another kind
    /// has the lock, and on some stores until the leader knows that it was elected.
    pub value: Option<String>,
}

/// What an [`Observer`] has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observation {
    /// Somebody leads.
    Leader(Leader),
    /// Nobody leads.
    Vacant {
        /// The last term that this observer has seen; `None` if it has seen none.
        last_term: Option<FencingToken>,
    },
    /// The store has not answered for a whole TTL, so it is not known whether anybody leads.
    Unknown {
        /// When what it answered last was asked; when the observation began, if it has answered
        /// nothing.
        since: ClockInstant,
    },
}

/// Watches who leads, from [`Election::observe`], by a look from [time to time](Election::look_every).
///
/// It reports changes only. A leadership that begins and ends between two looks is not seen, and
/// what is seen is a [hint](Election#what-an-observation-is-worth). A term is never followed by a
/// smaller one: an answer with a smaller term, from a store that has lost its data, is ignored.
///
/// ```
/// # use lock_core as distlock;
/// use distlock::{Locks, kinds::Observation, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// let election = locks.election("scheduler")?;
/// let mut observer = election.observe()?;
/// assert_eq!(observer.next().await?, Observation::Vacant { last_term: None });
/// let _leadership = election.campaign("host-1").await?;
/// match observer.next().await? {
///     Observation::Leader(leader) => assert_eq!(leader.value.as_deref(), Some("host-1")),
///     Observation::Vacant { last_term } => println!("nobody leads since term {last_term:?}"),
///     _ => println!("the store does not answer"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "an observer does nothing until it is asked"]
pub struct Observer {
    client: Arc<Client>,
    key: LockKey,
    ttl: Duration,
    every: Duration,
    /// When it looks next.
    look_at: ClockInstant,
    looking: Option<LookUnderWay>,
    /// When the first look was sent that the store has not answered, if it has answered none since.
    silent_from: Option<ClockInstant>,
    /// When the last look that was answered was sent.
    answered_at: ClockInstant,
    last_term: Option<FencingToken>,
    shown: Option<Observation>,
    /// When the caller last ceased to ask.
    asked_at: ClockInstant,
}

impl Observer {
    /// Waits for the next change, and returns the state that it leads to; the first call returns at once. If no
    /// look has been answered for a whole TTL of such waiting, that is reported once, and then the next answer in
    /// any case.
    ///
    /// # Errors
    ///
    /// Those of a look that are not [worth another attempt](Error::is_retryable), such as
    /// [`Denied`](crate::ErrorKind::Denied), and [`Closed`](crate::ErrorKind::Closed). You can call
    /// this again: it then looks again at the next due time, and continues where it was.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the next call continues, and misses no change if it comes within a TTL. A look that is under way goes
    /// on meanwhile, so what that call tells may have been seen before it, by a TTL at most.
    pub async fn next(&mut self) -> Result<Observation> {
        let now = self.client.clock.now();
        // While the caller does not ask, that is no silence of the store.
        let pause = now.since(self.asked_at);
        self.silent_from = self.silent_from.map(|from| from + pause);
        // After a long pause, a new look says more.
        let ttl = self.ttl;
        if self.looking.take_if(|looking| now >= looking.sent + ttl).is_some() {
            self.look_at = now;
        }
        Asking(self).0.watch().await
    }

    async fn watch(&mut self) -> Result<Observation> {
        let clock = Arc::clone(&self.client.clock);
        loop {
            let unknown_at = self.unknown_at();
            let Some(looking) = &mut self.looking else {
                tokio::select! {
                    biased;
                    () = clock.sleep_until(unknown_at) => return Ok(self.unknown()),
                    () = clock.sleep_until(self.look_at) => self.begin_look(),
                }
                continue;
            };
            let sent = looking.sent;
            // It ends by itself by then, unless nobody drives the runtime of its task.
            let over_at = sent + self.client.call_limit() + STANDSTILL_GRACE;
            let seen = tokio::select! {
                biased;
                seen = looking.answer.get_mut() => seen,
                () = clock.sleep_until(unknown_at) => return Ok(self.unknown()),
                () = clock.sleep_until(over_at) => None,
            };
            self.looking = None;
            let Some(seen) = seen else {
                self.look_at = clock.now();
                continue;
            };
            match seen {
                Ok(leader) => {
                    if let Some(change) = self.see(sent, leader) {
                        return Ok(change);
                    }
                }
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn begin_look(&mut self) {
        let sent = self.client.clock.now();
        self.look_at = sent + self.every + jitter(&*self.client.rng, self.every / 10);
        self.silent_from.get_or_insert(sent);
        let (client, key) = (Arc::clone(&self.client), self.key.clone());
        let answer = Mutex::new(Box::pin(async move { Some(look(&client, &key).await) }) as _);
        self.looking = Some(LookUnderWay { sent, answer, has_task: false });
    }

    fn unknown(&mut self) -> Observation {
        self.looking = None;
        let unknown = Observation::Unknown { since: self.answered_at };
        self.shown.insert(unknown).clone()
    }

    /// When nobody knows any more who leads.
    fn unknown_at(&self) -> ClockInstant {
        match (&self.shown, self.silent_from) {
            (Some(Observation::Unknown { .. }), _) | (_, None) => ClockInstant::FAR_FUTURE,
            (_, Some(from)) => from + self.ttl,
        }
    }

    /// Takes an answer to a look that was sent then; returns what it changes.
    fn see(&mut self, sent: ClockInstant, leader: Option<Leader>) -> Option<Observation> {
        let term = leader.as_ref().and_then(|leader| leader.term);
        if rules::is_past(term, self.last_term) {
            return None;
        }
        self.last_term = self.last_term.max(term);
        (self.answered_at, self.silent_from) = (sent, None);
        let last_term = self.last_term;
        let seen = leader.map_or(Observation::Vacant { last_term }, Observation::Leader);
        let is_new = self.shown.as_ref() != Some(&seen);
        is_new.then(|| self.shown.insert(seen).clone())
    }
}

/// `None` if it ended with the runtime of its task.
type LookAnswer = Pin<Box<dyn Future<Output = Option<Result<Option<Leader>>>> + Send>>;

/// A look that the store has not answered yet, or whose answer nobody has asked for.
struct LookUnderWay {
    sent: ClockInstant,
    answer: Mutex<LookAnswer>,
    /// It is polled even while nobody asks.
    has_task: bool,
}

impl LookUnderWay {
    /// It may have one of the store's few connections, which it must not keep until somebody asks again.
    fn in_task(self, client: &Arc<Client>) -> Self {
        let home = if self.has_task { None } else { client.home().ok() };
        let Some(home) = home else { return self };
        let task = AbortOnDropHandle::new(home.handle().spawn(self.answer.into_inner()));
        let answer = async move { task.await.ok().flatten() };
        Self { answer: Mutex::new(Box::pin(answer)), has_task: true, ..self }
    }
}

impl fmt::Debug for LookUnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookUnderWay").field("sent", &self.sent).finish_non_exhaustive()
    }
}

/// A call for the next change.
struct Asking<'a>(&'a mut Observer);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let Observer { client, asked_at, looking, .. } = &mut *self.0;
        *asked_at = client.clock.now();
        // One that has panicked is over.
        let left = looking.take().filter(|_| !std::thread::panicking());
        *looking = left.map(|looking| looking.in_task(client));
    }
}
