//! Several locks that are taken together, or not at all.

use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::attended::attended;
use super::calls::all;
use super::{rules, settings};
use crate::hold::LockTerms;
use crate::keeper::{Client, Patience};
use crate::{
    ClockInstant, Effect, Error, ErrorKind, FencingToken, Held, Lock, LockGuard, LockKey,
    LockState, Locks, LostReason, LostSignal, Operation, Released, Result, blocking,
};

impl Locks {
    /// The locks with these names, to be taken together. Duplicates count once, and the order of the
    /// names does not matter. Nothing is sent until the set is acquired.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// // A transfer between two accounts, in whichever direction.
    /// let both = locks.all(["account:7", "account:3"])?;
    /// let guard = both.acquire().await?;
    /// println!("fences {} and {}", guard.token("account:3")?, guard.token("account:7")?);
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a bad [name](Self::named), and unless there are
    /// 1 to 64 different ones.
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<LockSet> {
        let locks = names.into_iter().map(|name| self.named(name)).collect::<Result<_>>()?;
        let locks = rules::in_order(locks);
        match locks.len() {
            1..=LockSet::MOST_NAMES => Ok(LockSet { client: Arc::clone(&self.0), locks }),
            0 => Err(Error::invalid("a set of locks has no name: give it at least one")),
            many => Err(Error::invalid(format!(
                "a set of {many} locks is too large, the limit is {}: take fewer, or one lock that stands for all",
                LockSet::MOST_NAMES
            ))),
        }
    }
}

/// Several locks that are taken together, from [`Locks::all`]. Cheap to create; creating one sends
/// nothing, and it can be acquired any number of times. The settings are those of [`Lock`], for each
/// of the locks.
///
/// The locks are taken one after the other, in the order of their names as bytes. If one of them
/// cannot be had, those that are held already are released before the call returns, so it returns all
/// of them or none.
///
/// ```
/// # use lock_core as distlock;
/// use std::time::Duration;
/// use distlock::{ErrorKind, Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// let theirs = locks.named("b")?.acquire().await?;
/// let set = locks.all(["c", "b", "a"])?.ttl(Duration::from_secs(10));
/// let error = set.acquire_timeout(Duration::from_millis(20)).await.unwrap_err();
/// assert_eq!((error.kind(), error.key()), (ErrorKind::NotAcquired, Some("b")));
/// assert!(locks.named("a")?.try_acquire().await?.is_some(), "nothing is half held");
/// theirs.release().await?;
/// set.acquire().await?.release().await?;
/// # Ok(()) }
/// ```
///
/// # Deadlocks
///
/// Callers that take all their locks of a store by one set at a time never wait for each other in a
/// circle, whatever their names are. That holds only if they hold nothing else of this store
/// meanwhile. A set is not re-entrant, any more than a [`Lock`] is: a task that holds `named("a")` and then takes
/// a set with `a` in it waits for itself, and one that holds a set and takes a further lock may wait
/// for a task that waits for it. Where that cannot be ruled out, use
/// [`acquire_timeout`](Self::acquire_timeout), and release all before trying again.
#[derive(Clone, Debug)]
#[must_use = "a set of locks does nothing until it is acquired"]
pub struct LockSet {
    client: Arc<Client>,
    /// In the order in which they are taken.
    locks: Vec<Lock>,
}

impl LockSet {
    const MOST_NAMES: usize = 64;

    fn each(mut self, set: impl Fn(Lock) -> Lock) -> Self {
        self.locks = self.locks.into_iter().map(set).collect();
        self
    }

    settings! {
        /// As [`Lock::ttl`]. The locks that are taken first are renewed while the others are waited for.
        ttl(ttl: Duration);
        /// As [`Lock::lock_delay`].
        lock_delay(delay: Duration);
        /// As [`Lock::min_hold`], once all of the locks are held: it counts for each from its own grant.
        min_hold(least: Duration);
        /// As [`Lock::renew_every`].
        renew_every(every: Duration);
        /// As [`Lock::no_renew`]. The TTL of each lock counts from its own grant, so the wait for the
        /// others uses it up: if it ends first, the acquisition fails.
        no_renew();
        /// As [`Lock::max_hold`]. It counts from the grant of the first lock, and so includes the wait
        /// for the others: if it ends first, the acquisition fails.
        max_hold(limit: Duration);
    }

    /// As [`Lock::label`].
    pub fn label(self, label: impl AsRef<str>) -> Self {
        self.each(|lock| lock.label(&label))
    }

    /// The locks, in the order in which they are taken.
    pub fn keys(&self) -> impl Iterator<Item = &LockKey> {
        self.locks.iter().map(Lock::key)
    }

    /// Takes all of the locks, waiting for as long as it takes.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let guard = locks.all(["order:42", "stock:7"])?.acquire().await?;
    /// for (key, fence) in guard.tokens()? {
    ///     println!("{key} is held, fence {fence}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`], for the lock that the error [names](Error::key), and
    /// [`Lost`](ErrorKind::Lost) if one of the locks is lost while the others are waited for. The call
    /// returns when those that were held are released, after one call to the store at the latest. What
    /// that leaves in doubt, and the lock that failed, are cleaned up in the background.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: anything that a dropped call had taken is released in the background. Otherwise as
    /// [`Lock::acquire`].
    pub async fn acquire(&self) -> Result<LockSetGuard> {
        self.take(Patience::Forever).await
    }

    /// Takes all of the locks, waiting for at most `limit` for all of them together. With a limit of
    /// zero it is [`try_acquire`](Self::try_acquire).
    ///
    /// ```
    /// use std::time::Duration;
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// # let _theirs = locks.named("stock:7")?.label("packing").acquire().await?;
    /// let both = locks.all(["order:42", "stock:7"])?;
    /// let busy = both.acquire_timeout(Duration::from_millis(20)).await.unwrap_err();
    /// assert_eq!(busy.key(), Some("stock:7"));
    /// assert_eq!(busy.holder().and_then(|holder| holder.label.as_deref()), Some("packing"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire_timeout`] and [`acquire`](Self::acquire).
    /// [`NotAcquired`](ErrorKind::NotAcquired) names the lock that was waited for when the time ran
    /// out, and [its holder](Error::holder). The release of the others takes up to one call to the
    /// store more.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<LockSetGuard> {
        self.take(self.client.patience(limit)).await
    }

    /// Takes all of the locks if all of them are free; `None` if another client holds one. None is
    /// waited for.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let Some(guard) = locks.all(["order:42", "stock:7"])?.try_acquire().await? else {
    ///     return Ok(()); // another worker has one of them, and this one has none
    /// };
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Lock::try_acquire`], for each of the locks, and of [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LockSetGuard>> {
        Error::unless_busy(self.take(Patience::Try).await)
    }

    /// Takes all of the locks, runs `body` under them, then releases them. If one is lost, the body
    /// is dropped at its next await.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let fence = locks.all(["a", "b"])?.run(async |held| held.token("b")).await??;
    /// # assert!(fence.get() > 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire) and [`LockSetGuard::run`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body, and releases the locks in the background.
    pub async fn run<T, F>(&self, body: F) -> Result<T>
    where
        F: AsyncFnOnce(HeldSet) -> T,
    {
        self.acquire().await?.run(body).await
    }

    /// Like [`run`](Self::run), but only if all of the locks are free; `None` if another client holds
    /// one.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// assert_eq!(locks.all(["a", "b"])?.try_run(async |_| "done").await?, Some("done"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire) and [`LockSetGuard::run`].
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn try_run<T, F>(&self, body: F) -> Result<Option<T>>
    where
        F: AsyncFnOnce(HeldSet) -> T,
    {
        match self.try_acquire().await? {
            Some(guard) => guard.run(body).await.map(Some),
            None => Ok(None),
        }
    }

    /// [`acquire`](Self::acquire) for a thread that runs no async code: see
    /// [`Lock::acquire_blocking`].
    ///
    /// ```
    /// # use lock_core as distlock;
    /// use distlock::{Locks, testing::MemoryBackend};
    ///
    /// fn main() -> distlock::Result<()> {
    ///     let locks = Locks::new(MemoryBackend::queued());
    ///     locks.all(["a", "b"])?.acquire_blocking()?.release_blocking()?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and as [`Lock::acquire_blocking`].
    pub fn acquire_blocking(&self) -> Result<LockSetGuard> {
        blocking::wait(&self.client, self.acquire())
    }

    /// [`acquire_timeout`](Self::acquire_timeout) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// Those of [`acquire_timeout`](Self::acquire_timeout), and as [`Lock::acquire_blocking`].
    pub fn acquire_timeout_blocking(&self, limit: Duration) -> Result<LockSetGuard> {
        blocking::wait(&self.client, self.acquire_timeout(limit))
    }

    /// [`try_acquire`](Self::try_acquire) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire), and as [`Lock::acquire_blocking`].
    pub fn try_acquire_blocking(&self) -> Result<Option<LockSetGuard>> {
        blocking::wait(&self.client, self.try_acquire())
    }

    async fn take(&self, patience: Patience) -> Result<LockSetGuard> {
        let terms = self.terms()?;
        let steps = || self.clone().take_all(patience);
        let guard = attended(&self.client, terms.ttl, steps).await?;
        guard.set_min_hold(terms.min_hold);
        Ok(guard)
    }

    async fn take_all(self, patience: Patience) -> Result<LockSetGuard> {
        let mut guards = Vec::new();
        match self.take_each(&mut guards, patience).await {
            Ok(held) => Ok(LockSetGuard { held, guards, client: self.client }),
            Err(error) => {
                release(guards).await;
                Err(error)
            }
        }
    }

    async fn take_each(&self, guards: &mut Vec<LockGuard>, patience: Patience) -> Result<HeldSet> {
        let failed = |error, key: &LockKey| self.client.describe(error, Operation::Acquire, key);
        let mut held = HeldSet::of(guards);
        for lock in &self.locks {
            // A request that has no time for its answer would blame the store.
            if let Patience::Until(deadline) = patience
                && !guards.is_empty()
                && self.client.clock.now() >= deadline
            {
                let text = "the locks before it have taken all of the time";
                return Err(failed(Error::new(ErrorKind::NotAcquired, text), lock.key()));
            }
            // Until all are held, each is given back at once.
            let lock = lock.clone().min_hold(Duration::ZERO);
            let signal = held.lost();
            let next = tokio::select! {
                biased;
                next = lock.take(patience) => next?,
                (key, reason) = signal.wait() => {
                    return Err(failed(Error::lost(reason), &key));
                }
            };
            guards.insert(0, next);
            held = HeldSet::of(guards);
        }
        // Where the last lock was there at once, nobody has waited for the signal.
        match held.lost().loss() {
            Some((key, reason)) => Err(failed(Error::lost(reason), &key)),
            None => Ok(held),
        }
    }

    /// All of them have the same settings.
    fn terms(&self) -> Result<LockTerms> {
        let lock = &self.locks[0];
        lock.terms().map_err(|error| self.client.describe(error, Operation::Acquire, lock.key()))
    }
}

/// The releases begin in this order, and none waits for the one before: so a store that is silent costs the time of one
/// call.
async fn release(guards: Vec<LockGuard>) -> Vec<Result<Released>> {
    all(guards.into_iter().map(LockGuard::release), |_| false).await
}

/// Several locks that are held together, renewed in the background until the guard is dropped or
/// released.
///
/// It dereferences to [`HeldSet`], which answers for all of the locks: once one of them is lost, so is
/// the set. The others are still renewed then, until the guard is dropped or released. Dropping it
/// releases them in the background, as that of a [`LockGuard`] does.
///
/// ```
/// # use lock_core as distlock;
/// use distlock::{LockState, Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let store = MemoryBackend::queued();
/// # let locks = Locks::new(store.clone());
/// let guard = locks.all(["a", "b"])?.acquire().await?;
/// assert_eq!(guard.check().await?, LockState::Secure);
/// store.lose_now("b");
/// let error = guard.check().await.unwrap_err();
/// assert_eq!(error.key(), Some("b"));
/// assert!(guard.token("a").is_err(), "one is lost, so the set is");
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard releases the locks"]
pub struct LockSetGuard {
    held: HeldSet,
    /// The last one that was taken is the first one here, and is given up first: whoever waits for the first of them
    /// then finds the others free.
    guards: Vec<LockGuard>,
    client: Arc<Client>,
}

impl LockSetGuard {
    /// A view of these holds to pass around; it does not keep the locks.
    pub fn held(&self) -> &HeldSet {
        &self.held
    }

    /// Releases all of the locks, the last one first, and waits for the store's answers.
    /// [`AlreadyGone`](Released::AlreadyGone) if the store reported that for any of them.
    ///
    /// ```
    /// # use lock_core::{Locks, Released, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let guard = locks.all(["a", "b"])?.acquire().await?;
    /// assert_eq!(guard.release().await?, Released::Freed);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::release`]. Each lock is released whatever becomes of the others, and the error
    /// names all that failed; its kind is [`Lost`](ErrorKind::Lost) if one of them was lost.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the locks are released in the background.
    pub async fn release(self) -> Result<Released> {
        let answers = release(self.guards).await;
        let released = settle(&self.client, Operation::Release, answers)?;
        let all_freed = released.iter().all(|released| *released == Released::Freed);
        Ok(if all_freed { Released::Freed } else { Released::AlreadyGone })
    }

    /// Renews all of the locks now, in addition to the background renewals.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let guard = locks.all(["a", "b"])?.no_renew().acquire().await?;
    /// guard.renew().await?; // before a long step: now they last for a whole ttl
    /// assert!(guard.remaining().as_secs() > 20);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::renew`], reported as by [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// If dropped, each renewal may or may not have happened.
    pub async fn renew(&self) -> Result<LockState> {
        let answers = all(self.guards.iter().rev().map(LockGuard::renew), |_| false).await;
        settle(&self.client, Operation::Renew, answers)?;
        Ok(self.state())
    }

    /// Keeps each of the locks from others until `least` after its grant, even if it is released sooner:
    /// see [`LockGuard::set_min_hold`].
    pub fn set_min_hold(&self, least: Duration) {
        self.guards.iter().for_each(|guard| guard.set_min_hold(least));
    }

    /// Asks the store whether all of the locks are still held.
    ///
    /// ```
    /// # use lock_core::{LockState, Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let guard = locks.all(["a", "b"])?.acquire().await?;
    /// assert_eq!(guard.check().await?, LockState::Secure);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::check`], reported as by [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn check(&self) -> Result<LockState> {
        let answers = all(self.guards.iter().rev().map(LockGuard::check), |_| false).await;
        settle(&self.client, Operation::Check, answers)?;
        Ok(self.state())
    }

    /// Runs `body` under the locks, then releases them. If one is lost, the body is dropped at its
    /// next await.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let guard = locks.all(["a", "b"])?.acquire().await?;
    /// let moved = guard.run(async |held| held.tokens().map(Iterator::count)).await??;
    /// assert_eq!(moved, 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost), naming the lock, if one was lost before the body ended. If the body
    /// ended in time, its value is returned even if a release then fails; the failure is reported as a
    /// `tracing` event.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body, and releases the locks in the background.
    pub async fn run<T, F>(self, body: F) -> Result<T>
    where
        F: AsyncFnOnce(HeldSet) -> T,
    {
        let signal = self.lost();
        let value = tokio::select! {
            biased;
            (key, reason) = signal.wait() => Err(Error::lost(reason).for_key(&key)),
            // A body that never yields can outlast a lock.
            value = body(self.held.clone()) => self.held.check_state().map(|()| value),
        };
        let value = value.map_err(|error| error.on_backend(self.client.backend.name()))?;
        if let Err(error) = self.release().await {
            tracing::warn!(target: "distlock", %error, "the work has ended, but its locks were not released cleanly");
        }
        Ok(value)
    }

    /// [`release`](Self::release) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release), and [`NoAnswer`](ErrorKind::NoAnswer) as
    /// [`Lock::acquire_blocking`].
    pub fn release_blocking(self) -> Result<Released> {
        let client = Arc::clone(&self.client);
        blocking::wait(&client, self.release())
    }
}

impl Deref for LockSetGuard {
    type Target = HeldSet;

    fn deref(&self) -> &HeldSet {
        &self.held
    }
}

/// A view of several locks that are held together. Cheap to clone.
///
/// ```
/// # use lock_core as distlock;
/// use distlock::{kinds::HeldSet, Locks, testing::MemoryBackend};
///
/// /// A step of the work, somewhere deep inside: it stops if one of the locks is gone.
/// fn step(held: &HeldSet) -> distlock::Result<u64> {
///     Ok(held.token("stock:7")?.get())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// let guard = locks.all(["order:42", "stock:7"])?.acquire().await?;
/// let held = guard.held().clone();
/// step(&held)?;
/// guard.release().await?;
/// assert!(step(&held).is_err());
/// # Ok(()) }
/// ```
///
/// It stays accurate for as long as it lives, but does not keep the locks: only the guard does.
/// Everything here is answered from the local clock and never waits.
#[derive(Clone, Debug)]
pub struct HeldSet(Arc<SharedSet>);

#[derive(Debug)]
struct SharedSet {
    holds: Vec<Held>,
    /// Cancelled with the first loss; created on demand.
    token: OnceLock<CancellationToken>,
}

/// Holds of any kind as one, such as a lock and a permit: lost with the first.
impl FromIterator<Held> for HeldSet {
    fn from_iter<T: IntoIterator<Item = Held>>(holds: T) -> Self {
        let holds = holds.into_iter().collect();
        Self(Arc::new(SharedSet { holds, token: OnceLock::new() }))
    }
}

impl HeldSet {
    fn of(guards: &[LockGuard]) -> Self {
        guards.iter().rev().map(|guard| guard.held().clone()).collect()
    }

    /// The locks, in the order in which they were taken: that of their names, from a [`LockSet`].
    pub fn keys(&self) -> impl Iterator<Item = &LockKey> {
        self.0.holds.iter().map(Held::key)
    }

    /// The fencing token of the lock with this name, without the prefix, to be presented to the resource
    /// that it protects.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if any of the locks is no longer held;
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a name that is not in the set.
    pub fn token(&self, name: impl AsRef<str>) -> Result<FencingToken> {
        let name = name.as_ref();
        let found = self.tokens()?.find(|(key, _)| key.name() == name);
        found.map(|(_, token)| token).ok_or_else(|| {
            Error::invalid(format!(
                "{name:?} is not in this set of locks: ask for a name with which the set was made"
            ))
        })
    }

    /// The fencing tokens of all locks.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if any of the locks is no longer held.
    pub fn tokens(&self) -> Result<impl Iterator<Item = (&LockKey, FencingToken)>> {
        self.check_state()?;
        Ok(self.0.holds.iter().map(|held| (held.key(), held.fence())))
    }

    /// How long the store keeps each of the locks after a renewal, as [`Held::ttl`].
    pub fn ttl(&self) -> Duration {
        self.0.holds.iter().map(Held::ttl).min().unwrap_or_default()
    }

    /// The time until which all of the locks count as held: the earliest of [`Held::valid_until`].
    pub fn valid_until(&self) -> ClockInstant {
        self.0.holds.iter().map(Held::valid_until).min().unwrap_or(ClockInstant::FAR_FUTURE)
    }

    /// [`valid_until`](Self::valid_until) on the wall clock, for people and logs.
    pub fn valid_until_wall_clock(&self) -> SystemTime {
        let ends = self.0.holds.iter().map(Held::valid_until_wall_clock);
        ends.min().unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// How much longer all of the locks count as held; zero once one is lost.
    pub fn remaining(&self) -> Duration {
        self.0.holds.iter().map(Held::remaining).min().unwrap_or_default()
    }

    /// Held, at risk or lost, by the local clock: the worst of all. Of several that are lost, the
    /// first one says why.
    pub fn state(&self) -> LockState {
        match self.first_loss() {
            Some((_, reason)) => LockState::Lost(reason),
            None if self.0.holds.iter().any(|held| held.state() == LockState::AtRisk) => {
                LockState::AtRisk
            }
            None => LockState::Secure,
        }
    }

    /// A signal that fires when the first of the locks is lost, in time as [`Held::lost`].
    pub fn lost(&self) -> SetLostSignal {
        SetLostSignal(self.clone())
    }

    fn check_state(&self) -> Result<()> {
        match self.first_loss() {
            Some((held, reason)) => Err(Error::lost(reason).for_key(held.key())),
            None => Ok(()),
        }
    }

    fn first_loss(&self) -> Option<(&Held, LostReason)> {
        rules::first_loss(&self.0.holds)
    }
}

/// Fires when the first of several locks is lost; awaiting it returns which one, and the reason. Cheap
/// to clone, and any number of tasks may await it.
///
/// ```
/// # use lock_core::{Locks, LostReason, memory::MemoryBackend};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let store = MemoryBackend::queued();
/// # let locks = Locks::new(store.clone());
/// let guard = locks.all(["a", "b"])?.acquire().await?;
/// # store.lose_now("b");
/// tokio::select! {
///     (key, reason) = guard.lost() => {
///         assert_eq!((key.name(), reason), ("b", LostReason::Taken));
///     }
///     () = async { /* the work */ std::future::pending().await } => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a signal does nothing unless it is awaited or asked"]
pub struct SetLostSignal(HeldSet);

impl SetLostSignal {
    /// Which lock was lost first, and why, if one is.
    pub fn loss(&self) -> Option<(LockKey, LostReason)> {
        self.0.first_loss().map(|(held, reason)| (held.key().clone(), reason))
    }

    /// A token that is cancelled when the first of the locks is lost: see
    /// [`LostSignal::cancellation_token`].
    #[must_use = "a token does nothing unless it is asked or awaited"]
    pub fn cancellation_token(&self) -> CancellationToken {
        let SharedSet { holds, token } = &*self.0.0;
        let token = token.get_or_init(|| Held::set_token(holds)).child_token();
        // A loss that nobody has noticed yet is marked by that.
        self.0.state();
        token
    }

    /// Waits until the first of the locks is lost: see [`LostSignal::wait`]. Of no locks, none is ever lost.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn wait(&self) -> (LockKey, LostReason) {
        let signals: Vec<_> = self.0.0.holds.iter().map(Held::lost).collect();
        all(signals.iter().map(LostSignal::wait), |_| true).await;
        match self.loss() {
            Some(loss) => loss,
            // There are no locks.
            None => std::future::pending().await,
        }
    }
}

impl IntoFuture for SetLostSignal {
    type Output = (LockKey, LostReason);
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.wait().await })
    }
}

/// What all of the locks have answered, or one error that tells of all that failed. Its kind is that
/// of a loss, if there is one, else of the first failure.
fn settle<T>(client: &Client, operation: Operation, answers: Vec<Result<T>>) -> Result<Vec<T>> {
    let asked = answers.len();
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    for answer in answers {
        answer.map_or_else(|error| errors.push(error), |value| values.push(value));
    }
    let worst = match &*errors {
        [] => return Ok(values),
        [only] => return Err(only.clone()),
        [first, ..] => errors.iter().find(|error| error.lost_reason().is_some()).unwrap_or(first),
    };
    let told: Vec<_> = errors.iter().map(Error::to_string).collect();
    let text = format!("{} of {asked} locks failed: {}", errors.len(), told.join("; "));
    let error = Error::new(worst.kind(), text)
        .with_retryable(errors.iter().all(Error::is_retryable))
        .in_operation(operation)
        .on_backend(client.backend.name());
    let is_known = errors.iter().all(|error| error.effect() == Effect::None);
    Err(if is_known { error } else { error.with_unknown_effect() })
}
