//! One named lock, and the ways to take it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::contract::{Fences, check_part};
use crate::hold::{LockTerms, Options, RenewalWish};
use crate::keeper::{
    Client, Handover, Keeper, Patience, PolledKeeper, Poller, STANDSTILL_GRACE, Start,
};
use crate::kinds::{LockPart, rules};
use crate::{
    ClaimRequest, Error, FencingToken, Held, LeaseToken, LockGuard, LockKey, Operation, OwnerId,
    Released, RenewedLease, Result, Resume, blocking, keeper,
};

/// One named lock with its settings, from [`Locks::named`](crate::Locks::named). Cheap to clone.
/// Creating one sends nothing, and it can be acquired any number of times. It is not re-entrant: a
/// task that holds the lock and acquires it again waits for itself.
///
/// ```
/// # use lock_core as distlock;
/// use std::time::Duration;
/// use distlock::{ErrorKind, Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// let order = locks.named("order:42")?.ttl(Duration::from_secs(10)).label("import");
/// let guard = order.acquire().await?;                          // waits
/// assert!(order.try_acquire().await?.is_none());               // does not wait: it is held
/// let error = order.acquire_timeout(Duration::from_millis(20)).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotAcquired);            // has waited
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    pub(crate) client: Arc<Client>,
    key: LockKey,
    options: Options,
    label: Option<Arc<str>>,
}

impl Lock {
    pub(crate) fn new(client: Arc<Client>, key: LockKey) -> Self {
        let label = client.defaults.label.clone();
        Self { client, key, options: Options::default(), label }
    }

    /// How long the store keeps the lock without a renewal: 10 ms to 366 days, rounded up to what
    /// the store can keep; if it is not set, the [default](crate::LocksBuilder::default_ttl) of the
    /// `Locks`. A crashed holder blocks the others for this long. An invalid TTL is reported by the
    /// acquisition.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// How long others are kept away after the lease has ended and this holder has counted the lock as
    /// lost. Its last requests arrive or fail in this time, for resources that do not check a
    /// [fencing token](Held::token). That of the `Locks` by default. (Chubby's lock-delay, OSDI 2006.)
    ///
    /// The store is asked for the TTL plus this delay, and 1 % more because clocks drift apart, so it
    /// keeps the lock of a crashed holder for both. The holder itself relies on the TTL alone.
    /// It is at most ten times the TTL, and together they obey the limits of a TTL; a delay that does
    /// not is reported by the acquisition. A release frees the lock at once, and an operator or a store that loses its data takes
    /// it away at once, too.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let (ttl, delay) = (Duration::from_secs(10), Duration::from_secs(5));
    /// let guard = locks.named("order:42")?.ttl(ttl).lock_delay(delay).acquire().await?;
    /// assert!(guard.remaining() < ttl);
    /// // While this holder lives, it is renewed. If it crashes now, others wait for 15 seconds.
    /// # Ok(()) }
    /// ```
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.options.lock_delay = Some(delay);
        self
    }

    /// How often the lock is renewed while it is held: more than zero, and at most two thirds of
    /// the TTL; a third by default. An invalid interval is reported by the acquisition.
    pub fn renew_every(mut self, every: Duration) -> Self {
        self.options.renewal = RenewalWish::Every(every);
        self
    }

    /// Turns off renewal while the lock is held, so it ends one TTL after the grant. A place in a
    /// queue is still renewed.
    pub fn no_renew(mut self) -> Self {
        self.options.renewal = RenewalWish::Never;
        self
    }

    /// The least time for which the lock is kept from others, counted from the grant, even if it is
    /// released sooner: for a short job that a machine whose clock is behind must not run again. That of the
    /// `Locks` by default, and at most [`max_hold`](Self::max_hold); an invalid time is reported by the
    /// acquisition. [`LockGuard::set_min_hold`] sets it once the lock is held.
    ///
    /// The guard counts as released at once, but its release takes effect when the time is over:
    /// [`release`](LockGuard::release) waits for that, and a dropped guard is released in the
    /// background. The lock is renewed until then. A process that ends before leaves the lock to its
    /// TTL, so a TTL of this length keeps it in any case. A lock that is lost, or
    /// [attached](Self::attach), is not kept, and no cohort passes it on before.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let report = locks.named("nightly-report")?.min_hold(Duration::from_secs(120));
    /// drop(report.try_acquire().await?.expect("it is free")); // the report is written
    /// assert!(report.try_acquire().await?.is_none(), "for two minutes");
    /// # Ok(()) }
    /// ```
    pub fn min_hold(mut self, least: Duration) -> Self {
        self.options.min_hold = Some(least);
        self
    }

    /// The longest time for which a guard may hold the lock, renewals included: a cap on a holder
    /// that hangs. More than zero; none by default. When it is reached, the lock is lost; the store
    /// frees it when the guard is dropped or the lease ends.
    ///
    /// It counts from the grant, or for an [attached](Self::attach) lock from the attach. It does
    /// not survive a [detach](LockGuard::detach): nothing in a lease token is trusted, and a start
    /// time in it could be edited. To cap a lock that is handed over, record the time of the first
    /// grant on the server, under the [fence](crate::RenewedLease::fence) that a renewal has
    /// confirmed, and release the lock when its time is up.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.options.max_hold = Some(limit);
        self
    }

    /// How many tasks of this `Locks` may have the lock one after the other, in a *cohort*, without a
    /// request to the store for each: 1 to 1024, where 1 turns it off. By default that of the `Locks`.
    ///
    /// Tasks that wait for the same name then queue within the process, and whoever releases the lock
    /// passes it on to the first of them, with its own fencing token. After so many holders, or 50 ms,
    /// the lock is released, and clients that wait elsewhere get their turn. This makes a lock that many
    /// tasks want many times as fast, and has a price:
    ///
    /// - Order of arrival holds among the tasks of a process, not among those of all processes.
    /// - Only tasks that ask for the same TTL, renewals, [`max_hold`](Self::max_hold), label and
    ///   cohort join. [`try_acquire`](Self::try_acquire) does not wait in the line.
    /// - A release that passes the lock on does not ask the store. If an operator has taken the lock
    ///   away, a later holder may be the one that learns of it.
    /// - The holders of one cohort have one [owner](Held::owner). A forced release that names it
    ///   takes the lock from whoever of them has it.
    ///
    /// A number out of range, and a store that has no [fences](crate::Capabilities::fence_block) for a
    /// cohort, are reported by the acquisition.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let counter = locks.named("counter")?.cohort(32);
    /// let tasks = (0..100).map(|_| {
    ///     let counter = counter.clone();
    ///     tokio::spawn(async move { counter.run(async |held| held.token()).await })
    /// });
    /// for task in tasks.collect::<Vec<_>>() {
    ///     task.await.unwrap()??;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn cohort(mut self, holders: u32) -> Self {
        self.options.cohort = Some(holders);
        self
    }

    /// The holder's name as shown to people who inspect the lock; that of the `Locks` by default.
    /// With an empty label no name is shown. At most 512 bytes without control characters; an
    /// invalid label is reported by the acquisition.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        let label = label.as_ref();
        self.label = (!label.is_empty()).then(|| label.into());
        self
    }

    /// The lock's name with its prefix.
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Takes the lock, waiting for as long as it takes.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let guard = locks.named("order:42")?.acquire().await?;
    /// println!("held, fence {}", guard.token()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Invalid settings, and any permanent error of the store. If the store does not answer at all,
    /// this gives up after [`unavailable_after`](crate::LocksBuilder::unavailable_after). Whatever
    /// an error leaves in doubt is cleaned up in the background, for as long as the TTL. A server that stands still for
    /// longer, and then goes on, may still grant the lock, to nobody: it is free again after its TTL.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call loses its place, and anything it had taken is released in the
    /// background. Waiting needs no polling. But a call that is neither polled nor dropped while the store
    /// grants it the lock keeps the lock from others until its TTL ends.
    pub async fn acquire(&self) -> Result<LockGuard> {
        self.take(Patience::Forever).await
    }

    /// Takes the lock, waiting for at most `limit`. With a limit of zero it is
    /// [`try_acquire`](Self::try_acquire), which gives a silent store up after the call timeout.
    ///
    /// ```
    /// # use lock_core as distlock;
    /// use std::time::Duration;
    /// use distlock::ErrorKind;
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// # let _theirs = locks.named("order:42")?.acquire().await?;
    ///
    /// match locks.named("order:42")?.acquire_timeout(Duration::from_millis(50)).await {
    ///     Ok(guard) => drop(guard),
    ///     Err(error) if error.kind() == ErrorKind::NotAcquired => println!("busy: {error}"),
    ///     Err(error) => return Err(error), // the store is unusable
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotAcquired`](crate::ErrorKind::NotAcquired) if the time ran out and the store's last answer to this call
    /// was that another client holds the lock, and it has not failed to answer others of this `Locks`
    /// since; otherwise the last error.
    /// [`NoAnswer`](crate::ErrorKind::NoAnswer), a quarter of a second later, if the runtime of the
    /// `Locks` is not driven.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<LockGuard> {
        self.take(self.client.patience(limit)).await
    }

    /// Takes the lock if it is free; `None` if another client holds it. To learn who holds it, use
    /// [`acquire_timeout`](Self::acquire_timeout) with a limit of zero: its error [shows the
    /// holder](Error::holder). To limit the time for the answer, too, put it into a `tokio::time::timeout`.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let Some(guard) = locks.named("order:42")?.try_acquire().await? else {
    ///     return Ok(()); // another worker has it
    /// };
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Invalid settings, or no usable answer from the store after one attempt, and one more if the
    /// outcome of the first was unknown or the store was unreachable; both have one
    /// [call timeout](crate::LocksBuilder::call_timeout) together.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        Error::unless_busy(self.take(Patience::Try).await)
    }

    /// Takes the lock, runs `body` under it, then releases it. If the lock is lost, the body is
    /// dropped at its next await.
    ///
    /// ```
    /// # use lock_core::{Locks, memory::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let fence = locks.named("nightly-report")?.run(async |held| held.token()).await??;
    /// # assert!(fence.get() > 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`Lost`](crate::ErrorKind::Lost) if the lock was lost
    /// before the body ended. If it ended in time, its value is returned even if the release then
    /// fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body, and releases the lock in the background.
    pub async fn run<T, F>(&self, body: F) -> Result<T>
    where
        F: AsyncFnOnce(Held) -> T,
    {
        self.acquire().await?.run(body).await
    }

    /// Like [`run`](Self::run), but only if the lock is free; `None` if another client holds it.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// match locks.named("nightly-report")?.try_run(async |_| "written").await? {
    ///     Some(report) => assert_eq!(report, "written"),
    ///     None => println!("another machine writes it"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire) and [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn try_run<T, F>(&self, body: F) -> Result<Option<T>>
    where
        F: AsyncFnOnce(Held) -> T,
    {
        match self.try_acquire().await? {
            Some(guard) => guard.run(body).await.map(Some),
            None => Ok(None),
        }
    }

    /// [`acquire`](Self::acquire) for a thread that runs no async code: it sleeps until the lock is
    /// acquired. It needs no Tokio runtime: if the `Locks` has none, its work is done on a thread
    /// of this library.
    ///
    /// In async code use `acquire`, or call this through `tokio::task::spawn_blocking`. Anywhere
    /// else in async code it blocks a thread of the runtime; if that leaves the runtime undriven,
    /// it returns an error after three seconds. It never panics.
    ///
    /// ```
    /// # use lock_core as distlock;
    /// use distlock::{Locks, testing::MemoryBackend};
    ///
    /// fn main() -> distlock::Result<()> {
    ///     let locks = Locks::new(MemoryBackend::queued());
    ///     let guard = locks.named("order:42")?.acquire_blocking()?;
    ///     assert!(guard.token()?.get() > 0);
    ///     guard.release_blocking()?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`NoAnswer`](crate::ErrorKind::NoAnswer) if the runtime of
    /// the `Locks` is not driven.
    pub fn acquire_blocking(&self) -> Result<LockGuard> {
        blocking::wait(&self.client, self.acquire())
    }

    /// [`acquire_timeout`](Self::acquire_timeout) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// Those of [`acquire_timeout`](Self::acquire_timeout), and as
    /// [`acquire_blocking`](Self::acquire_blocking).
    pub fn acquire_timeout_blocking(&self, limit: Duration) -> Result<LockGuard> {
        blocking::wait(&self.client, self.acquire_timeout(limit))
    }

    /// [`try_acquire`](Self::try_acquire) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire), and as
    /// [`acquire_blocking`](Self::acquire_blocking).
    pub fn try_acquire_blocking(&self) -> Result<Option<LockGuard>> {
        blocking::wait(&self.client, self.try_acquire())
    }

    pub(crate) async fn take(&self, patience: Patience) -> Result<LockGuard> {
        let taken = async {
            let owner = OwnerId::generate(&*self.client.rng)?;
            let (request, terms) = self.request(owner)?;
            let request = request.with_wait(!matches!(patience, Patience::Try));
            let life = move |keeper: Box<Keeper>, answer, poller| {
                keeper.run(Start::Acquire(patience), answer, poller)
            };
            let kept = self.keeper(request, terms, patience, life).await?;
            LockGuard::new(Arc::clone(&self.client), kept)
        };
        taken.await.map_err(|error| self.client.describe(error, Operation::Acquire, &self.key))
    }

    /// Begins a keeper, and waits for its answer. The clock needs no runtime, so this ends soon after the keeper's
    /// own limit even if its runtime is not driven.
    async fn keeper<T: Send + 'static, L: Future<Output = ()> + Send + 'static>(
        &self,
        request: ClaimRequest,
        terms: LockTerms,
        patience: Patience,
        life: impl FnOnce(Box<Keeper>, oneshot::Sender<Result<T>>, Arc<Poller>) -> L + Send + 'static,
    ) -> Result<(Arc<PolledKeeper>, T)> {
        let clock = &self.client.clock;
        let begun = clock.now();
        let limit = patience.deadline(begun, terms.call_timeout) + STANDSTILL_GRACE;
        let (polled, answer) = keeper::begin(&self.client, request, terms, life)?;
        tokio::select! {
            biased;
            answer = answer => match answer {
                Ok(answer) => Ok((polled, answer?)),
                Err(_) => Err(self.client.keeper_gone()),
            },
            () = clock.sleep_until(limit) => Err(self.client.standstill(limit.since(begun))),
        }
    }

    /// What it asks for, checked and rounded.
    pub(crate) fn terms(&self) -> Result<LockTerms> {
        let Client { defaults, capabilities, backend, .. } = &*self.client;
        check_part("label", self.label.as_deref().unwrap_or_default())?;
        self.options.terms(defaults, capabilities, backend.name(), self.label.clone())
    }

    fn request(&self, owner: OwnerId) -> Result<(ClaimRequest, LockTerms)> {
        let terms = self.terms()?;
        let request = ClaimRequest::new(self.key.clone(), owner, terms.kept_for())
            .with_call_timeout(terms.call_timeout)
            .with_fences(terms.cohort)
            .with_label(self.label.as_deref().map(str::to_owned));
        Ok((request, terms))
    }
}

/// What locks of other kinds need, which are made of several.
impl Lock {
    /// A part of this lock, with the same settings, and a hold for each task. Not every hold of a part becomes one of
    /// the whole, so only the whole has a least time.
    pub(crate) fn part(&self, part: LockPart) -> Result<Self> {
        let cohort = Some(rules::cohort());
        let options = Options { cohort, min_hold: Some(Duration::ZERO), ..self.options };
        Ok(Self { key: part.key(&self.key)?, options, ..self.clone() })
    }

    /// The same for a moment of at most so long, at whatever interval the lock is renewed.
    pub(crate) fn for_a_turn(mut self, longest: Duration) -> Self {
        let ttl = self.options.ttl.or(self.client.defaults.ttl);
        let ttl = Some(ttl.unwrap_or(longest).min(longest));
        let (lock_delay, min_hold) = (Some(Duration::ZERO), Some(Duration::ZERO));
        let cohort = self.options.cohort;
        self.options = Options { ttl, lock_delay, min_hold, cohort, ..Options::default() };
        self
    }

    /// The same with a mark in front of its label.
    pub(crate) fn marked(mut self, mark: &str) -> Self {
        self.label = Some(format!("{mark}{}", self.label.as_deref().unwrap_or_default()).into());
        self
    }

    /// Whether a hold of that one may be used for this one: it is kept in the same way, and for as long.
    pub(crate) fn is_kept_as(&self, other: &Self) -> bool {
        self.options == other.options
            && self.options.max_hold.is_none()
            && self.label == other.label
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

impl Lock {
    /// Takes over a lock that was [detached](LockGuard::detach), here or in another process. It
    /// starts with one renewal, by which the store confirms owner and fence.
    ///
    /// All settings come from this `Lock`, not from the one that was detached, so use the same
    /// ones; [`max_hold`](Self::max_hold) counts from now. The guard is not renewed in the
    /// background; see [`LockGuard::keep_alive`]. **Nor does dropping it release the lock**, since
    /// the lock belongs to the bearer of the token: an error, or a request cancelled between here
    /// and the answer, must not take it away. It lapses one TTL after its last renewal, or is
    /// released by [`LockGuard::release`] or [`release`](Self::release).
    ///
    /// For a heartbeat, which only renews, use [`renew`](Self::renew).
    ///
    /// ```
    /// # use lock_core::{LeaseToken, Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let text = locks.named("import")?.acquire().await?.detach().await?.to_text();
    /// // In another process:
    /// let token: LeaseToken = text.parse()?;
    /// let guard = locks.named("import")?.attach(&token).await?;
    /// guard.keep_alive(); // from now on this process renews it
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the token belongs to another lock or
    /// another kind of store, or was edited; [`Lost`](crate::ErrorKind::Lost) if the lease has
    /// ended or never matched the token; and any error of a renewal. The lock then stays as it is.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the lock stays held, and may or may not have been renewed.
    pub async fn attach(&self, token: &LeaseToken) -> Result<LockGuard> {
        let kept = self.resume(token, Start::Attach).await;
        let attached = kept.and_then(|kept| LockGuard::new(Arc::clone(&self.client), kept));
        attached.map_err(|error| self.client.describe(error, Operation::Attach, &self.key))
    }

    /// Renews a lock that was [detached](LockGuard::detach), once, as a heartbeat does. The TTL is
    /// that of this `Lock`, and the token stays the same.
    ///
    /// ```
    /// # use lock_core::{LeaseToken, Locks, Result, memory::MemoryBackend};
    /// /// A heartbeat of a page that edits an order; returns for how long the page may go on.
    /// async fn heartbeat(locks: &Locks, order: u32, text: &str) -> Result<std::time::Duration> {
    ///     let token: LeaseToken = text.parse()?;
    ///     Ok(locks.named(format!("order:{order}"))?.renew(&token).await?.remaining)
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let text = locks.named("order:42")?.acquire().await?.detach().await?.to_text();
    /// assert!(heartbeat(&locks, 42, &text).await?.as_secs() > 20);
    /// assert!(heartbeat(&locks, 43, &text).await.is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the lock stays held, and may or may not have been renewed.
    pub async fn renew(&self, token: &LeaseToken) -> Result<RenewedLease> {
        let kept = self.resume(token, Start::Renew).await;
        let renewed = kept.and_then(|(_, handover)| RenewedLease::of(&handover.held));
        renewed.map_err(|error| self.client.describe(error, Operation::Renew, &self.key))
    }

    /// Releases a lock that was [detached](LockGuard::detach).
    ///
    /// [`AlreadyGone`](Released::AlreadyGone) means that the store no longer has such a hold: it
    /// was already released, its lease has ended, or the token was edited.
    ///
    /// ```
    /// # use lock_core::{Locks, Released, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let order = locks.named("order:42")?;
    /// let token = order.acquire().await?.detach().await?;
    /// assert_eq!(order.release(token.clone()).await?, Released::Freed);
    /// assert_eq!(order.release(token).await?, Released::AlreadyGone);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) as for [`attach`](Self::attach). After any
    /// other error the lock may or may not have been released; the release is repeated in the
    /// background until the store has confirmed it or the lease must have ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: once this has been polled, the lock is released in the background.
    pub async fn release(&self, token: LeaseToken) -> Result<Released> {
        let released = async {
            let (request, terms) = self.resumed(&token)?;
            let in_doubt = token.in_doubt();
            let life = move |keeper: Box<Keeper>, asked, _| {
                keeper.of_a_hold(in_doubt).release(Some(asked), None)
            };
            self.keeper(request, terms, Patience::Try, life).await.map(|(_, released)| released)
        };
        released.await.map_err(|error| self.client.describe(error, Operation::Release, &self.key))
    }

    /// Renews the hold of `token`, and does with it what `start` says.
    async fn resume(
        &self,
        token: &LeaseToken,
        start: impl FnOnce(FencingToken, Fences) -> Start,
    ) -> Result<(Arc<PolledKeeper>, Handover)> {
        let (request, mut terms) = self.resumed(token)?;
        terms.renew_every = None;
        let (start, in_doubt) = (start(token.fence(), token.fences()), token.in_doubt());
        let life = move |keeper: Box<Keeper>, answer, poller| {
            keeper.of_a_hold(in_doubt).run(start, answer, poller)
        };
        self.keeper(request, terms, Patience::Try, life).await
    }

    /// A request that continues the hold of `token`. Owner, fence and data are the token's, for the
    /// store to compare; everything else is this lock's.
    fn resumed(&self, token: &LeaseToken) -> Result<(ClaimRequest, LockTerms)> {
        let backend = self.client.backend.name();
        token.check_is_of(&self.key, backend)?;
        if !self.client.capabilities.detachable {
            return Err(Error::unsupported(format!(
                "{backend} binds a lock to its session, so no other process can take it over"
            )));
        }
        let (request, terms) = self.request(token.owner())?;
        let Fences { first, count } = token.fences();
        if count > 1 && !self.client.capabilities.fence_block {
            return Err(Error::invalid(format!(
                "this lease token was edited: {backend} grants no fencing tokens in blocks"
            )));
        }
        let resume = Resume::new(first, token.data().clone());
        Ok((request.with_fences(count).with_resume(resume), terms))
    }
}
