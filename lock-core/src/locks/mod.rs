//! What users call: the locks of a store, one lock, the guard of a held lock, and the token of a
//! lock that is handed to another process.

mod builder;
mod guard;
mod lock;

use std::sync::Arc;
use std::time::Duration;

use crate::contract::check_part;
use crate::keeper::Client;
use crate::kinds::LockPart;
use crate::{
    Capabilities, Clock, Error, ErrorKind, Feature, Finding, HolderMark, LockAdmin, LockEvent,
    LockInfo, LockKey, Operation, Released, Result, Victim, blocking,
};

pub use builder::LocksBuilder;
pub(crate) use guard::run;
pub use guard::{DetachError, LockGuard};
pub use lock::Lock;

/// What describes a hold.
pub use crate::hold::{Held, LeaseToken, LockState, LostSignal, RenewedLease};

/// All locks of one store: the starting point. Cheap to clone; clones share the connection.
///
/// In these pages a *hold* is one acquisition of a lock, from the grant to its end.
///
/// # Taking a lock
///
/// [`named`](Self::named) returns a [`Lock`], which carries the settings and sends nothing.
/// [`acquire`](Lock::acquire) waits for it, [`try_acquire`](Lock::try_acquire) does not, and
/// [`acquire_timeout`](Lock::acquire_timeout) waits with a limit. Each returns a
/// [`LockGuard`], which is renewed in the background until it is released or dropped.
///
/// ```
/// # use lock_core as distlock;
/// use std::time::Duration;
/// use distlock::{Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// let locks = Locks::new(MemoryBackend::queued()); // or distlock::connect("redis://…").await?
/// let guard = locks.named("order:42")?.acquire().await?;
/// println!("fence {}", guard.token()?);
/// drop(guard); // released in the background …
/// locks.close(Duration::from_secs(5)).await?; // … for which the end of a program waits
/// # Ok(()) }
/// ```
///
/// # When the lock is lost
///
/// A store can take a lock away: its lease ends while the process is paused or cut off, or an
/// operator releases it. [`LockGuard::run`] and [`Lock::run`] then drop the work at its next await;
/// [`Held::lost`] is a signal to select on, and [`Held::token`] is an error. No program can stop a
/// process that is paused between a check and a write. Pass the fencing token along with every
/// access, and let your data store refuse an older one: [`FenceCheck`](crate::FenceCheck) is the rule.
///
/// ```
/// # use lock_core as distlock;
/// # use lock_core::{Locks, testing::MemoryBackend};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// # async fn save(_: u64) {}
/// let order = locks.named("order:42")?;
/// let done = order.run(async |held| {
///     let fence = held.token()?;
///     save(fence.get()).await;
///     Ok::<_, distlock::Error>(())
/// });
/// done.await??;
/// # Ok(()) }
/// ```
///
/// # Without async code
///
/// [`Lock::acquire_blocking`] and the other blocking calls need no Tokio runtime.
#[derive(Clone, Debug)]
pub struct Locks(pub(crate) Arc<Client>);

impl Locks {
    /// The lock with this name, with the settings of this `Locks`. Nothing is sent, and nothing is
    /// held until it is acquired.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let order = locks.named(format!("order:{}", 42))?;
    /// assert_eq!(order.key().name(), "order:42");
    /// assert!(locks.named("").is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) unless the name has 1 to 512 bytes of UTF-8 without
    /// control characters, or if it ends as the name of a part of another kind of lock does, such as
    /// `~~p3`.
    pub fn named(&self, name: impl AsRef<str>) -> Result<Lock> {
        let key = self.key(name)?;
        LockPart::refuse(key.name())?;
        Ok(Lock::new(Arc::clone(&self.0), key))
    }

    /// What a lock of another kind with this name is made of.
    pub(crate) fn whole(&self, name: impl AsRef<str>) -> Result<Lock> {
        let key = self.key(name)?;
        LockPart::check_whole(&key)?;
        Ok(Lock::new(Arc::clone(&self.0), key))
    }

    /// What the store supports, to show it or to choose by it. To refuse a store that lacks
    /// something, use [`require`](Self::require).
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    /// The kind of store, such as `sqlite`.
    pub fn backend_name(&self) -> &'static str {
        self.0.backend.name()
    }

    /// For how long its locks are kept from others at least, unless they set their own time:
    /// [`LocksBuilder::min_hold`].
    pub fn min_hold(&self) -> Duration {
        self.0.defaults.min_hold
    }

    /// The clock by which all validity is counted.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    /// Fails if the store lacks one of these features. Stating requirements at start-up surfaces the
    /// error early, not in production.
    ///
    /// ```
    /// # use lock_core as distlock;
    /// use distlock::{Feature, Locks, testing::MemoryBackend};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// let locks = Locks::new(MemoryBackend::queued());
    /// locks.require([Feature::Fair, Feature::Detach])?;
    /// let error = locks.require([Feature::DurableFences]).unwrap_err();
    /// assert!(error.to_string().contains("memory"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported), naming the store and all the features that it
    /// lacks.
    pub fn require(&self, features: impl IntoIterator<Item = Feature>) -> Result<()> {
        let store = self.backend_name();
        let lacks: Vec<_> = features
            .into_iter()
            .filter(|feature| !self.0.capabilities.has(*feature))
            .map(|feature| feature.to_string())
            .collect();
        if lacks.is_empty() {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "{store} lacks {}, which this program requires: use another store, or do without",
            lacks.join(" and ")
        ))
        .on_backend(store))
    }

    /// Checks with one request, which takes no lock, that the store responds and grants access. The
    /// result tells nothing about any lock.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let health = locks.health().await?;
    /// println!("{:?}, {} locks in use", health.answered_in, health.in_use);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As any call to the store; [`NoAnswer`](ErrorKind::NoAnswer) after the call timeout.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn health(&self) -> Result<Health> {
        let sent = self.0.clock.now();
        let operation = Operation::Ping;
        let failed = |error: &Error| self.0.tell(None, LockEvent::CallFailed { operation, error });
        let ping = self.0.within(self.0.call_limit(), operation, self.0.backend.ping());
        ping.await.inspect_err(failed)?;
        let answered_in = self.0.clock.now().since(sent);
        Ok(Health { answered_in, in_use: self.0.keepers.len() })
    }

    /// What the store knows about the lock with exactly this name; `None` if it has no holder and no
    /// waiters. [`inspect_whole`](Self::inspect_whole) shows permits, readers and writers, too. The result is
    /// out of date by the time it arrives: show it, but do not base decisions on it.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let _guard = locks.named("order:42")?.label("import").acquire().await?;
    /// let holder = locks.inspect("order:42").await?.and_then(|info| info.holder);
    /// assert_eq!(holder.and_then(|holder| holder.label).as_deref(), Some("import"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) if the store cannot show its locks, and the errors of
    /// any call.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Option<LockInfo>> {
        let key = self.key(name)?;
        self.0.within(self.0.call_limit(), Operation::Inspect, self.admin()?.inspect(&key)).await
    }

    /// The locks with a holder or waiters whose names start with `name_start`, ordered by name. Those of other
    /// kinds are shown as what they are made of: [`WholeLock::group`](crate::kinds::WholeLock::group) puts them
    /// together.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let _guard = locks.named("order:42")?.acquire().await?;
    /// let names: Vec<_> = locks.list("order:").await?.iter().map(|i| i.key.to_string()).collect();
    /// assert_eq!(names, ["order:42"]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn list(&self, name_start: &str) -> Result<Vec<LockInfo>> {
        check_part("name prefix", name_start)?;
        self.0
            .within(
                self.0.call_limit(),
                Operation::List,
                self.admin()?.list(&self.0.prefix, name_start),
            )
            .await
    }

    /// Ends the hold that [`inspect`](Self::inspect) showed, by its
    /// [`mark`](crate::HolderInfo::mark): the store compares, so no later holder loses the lock. The
    /// next holder gets a greater fencing token; the old holder learns of it at its next renewal at
    /// the latest.
    ///
    /// ```
    /// # use lock_core::{Locks, Released, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// # let _guard = locks.named("order:42")?.acquire().await?;
    /// let shown = locks.inspect("order:42").await?.and_then(|info| info.holder);
    /// if let Some(holder) = shown {
    ///     // An operator has confirmed this holder, not a later one.
    ///     let released = locks.force_release("order:42", &holder.mark).await?;
    ///     assert_eq!(released, Released::Freed);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the release may or may not have happened.
    pub async fn force_release(
        &self,
        name: impl AsRef<str>,
        mark: &HolderMark,
    ) -> Result<Released> {
        self.force(name, &Victim::Shown(mark.clone())).await
    }

    /// Takes the lock away from whoever holds it when the call reaches the store, even if nobody has seen
    /// that holder. Use [`force_release`](Self::force_release) if an operator decides, and this for a
    /// clean-up without one. Otherwise the two calls are alike.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the release may or may not have happened.
    pub async fn force_release_any(&self, name: impl AsRef<str>) -> Result<Released> {
        self.force(name, &Victim::Anybody).await
    }

    async fn force(&self, name: impl AsRef<str>, victim: &Victim) -> Result<Released> {
        let key = self.key(name)?;
        self.0
            .within(
                self.0.call_limit(),
                Operation::ForceRelease,
                self.admin()?.force_release(&key, victim),
            )
            .await
    }

    /// Ends the use of the store: nothing more can be acquired, waiters give up, and locks that are
    /// held or being released are waited for, up to `timeout`. Guards that are then still alive are
    /// lost ([`LostReason::Closed`](crate::LostReason::Closed)), and the backend is closed.
    ///
    /// A program that exits without this may leave a lock whose guard it has just dropped held for
    /// the rest of its TTL.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    ///
    /// drop(locks.named("order:42")?.acquire().await?);
    /// locks.close(Duration::from_secs(5)).await?; // released for certain
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Timeout`](ErrorKind::Timeout) if locks were still held or being cleaned up when the time
    /// ran out; any error of the backend while it closes.
    ///
    /// # Cancel safety
    ///
    /// If dropped, closing has begun; call this again to continue.
    pub async fn close(&self, timeout: Duration) -> Result<()> {
        let end = self.0.clock.now() + timeout;
        self.0.closing.cancel();
        self.0.keepers.close();
        let in_time = tokio::select! {
            biased;
            () = self.0.keepers.wait() => true,
            () = self.0.clock.sleep(timeout) => false,
        };
        let left = self.0.keepers.len();
        self.0.killed.cancel();
        // Closing may take more than one call, and no lease runs out meanwhile: it gets the time
        // that is left.
        let limit = self.0.call_limit().max(end.since(self.0.clock.now()));
        self.0.within(limit, Operation::Close, self.0.backend.close()).await?;
        if in_time {
            return Ok(());
        }
        let locks = if left == 1 { "1 lock was".to_owned() } else { format!("{left} locks were") };
        Err(Error::new(
            ErrorKind::Timeout,
            format!("{locks} held or not yet cleaned up after {timeout:?}; the store ends what is left with its lease"),
        )
        .in_operation(Operation::Close)
        .on_backend(self.0.backend.name()))
    }

    /// [`close`](Self::close) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// Those of [`close`](Self::close), and as [`Lock::acquire_blocking`].
    pub fn close_blocking(&self, timeout: Duration) -> Result<()> {
        blocking::wait(&self.0, self.close(timeout))
    }

    pub(crate) fn key(&self, name: impl AsRef<str>) -> Result<LockKey> {
        LockKey::new(Arc::clone(&self.0.prefix), name.as_ref())
    }

    pub(crate) fn admin(&self) -> Result<&dyn LockAdmin> {
        self.0.backend.admin().ok_or_else(|| {
            Error::unsupported(format!("{} cannot show its locks", self.0.backend.name()))
        })
    }
}

/// It may take several requests to several servers, one of which is silent.
const LIMIT: Duration = Duration::from_secs(15);

impl Locks {
    /// What an operator should know about this store, worst first: versions with known defects,
    /// settings that lose locks, members that do not serve. Changes nothing.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// for finding in locks.diagnose().await? {
    ///     println!("{}: {finding}", finding.severity);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        let asked = self.0.within(LIMIT, Operation::Diagnose, self.admin()?.diagnose()).await;
        asked.map(|mut findings| {
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
            findings
        })
    }

    /// Lets a store that waits for an operator grant locks again, such as a Redlock quorum with
    /// `lock_recover=manual` whose nodes have lost their data. Call it only if you are certain that the
    /// servers that respond are the right ones.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store that never waits for an operator;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) while a lock may still be held that the store
    /// has forgotten: the message tells when to repeat the call.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the recovery may have begun: call this again.
    pub async fn recover(&self) -> Result<()> {
        self.0.within(LIMIT, Operation::Recover, self.admin()?.recover()).await
    }
}

/// The answer of [`Locks::health`](crate::Locks::health).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// How long the store took to answer.
    pub answered_in: Duration,
    /// How many locks this `Locks` and its clones hold, wait for, or still have to clean up. If it
    /// keeps rising, guards are leaking, or the store cannot be reached to release them.
    pub in_use: usize,
}
