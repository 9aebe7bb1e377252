//! What `run` can take: a lock, a permit of a semaphore, or one side of a readers–writer lock.

use std::ops::Deref;
use std::time::Duration;

use distlock::kinds::{Permit, ReadGuard, RwLock, Semaphore, WriteGuard};
use distlock::{Held, Lock, LockGuard, Released, Result};

use super::waiting;
use crate::args::RunArgs;
use crate::exit::ExitError;
use crate::store::OpenStore;

/// What can be waited for.
pub(crate) trait Wanted {
    type Hold: Deref<Target = Held>;

    fn name(&self) -> &str;

    /// Whether one client at most has it, who can be named as the one in the way.
    fn is_exclusive(&self) -> bool;

    /// Why it was not acquired, if nobody can say who has it.
    fn busy(&self) -> &'static str;

    async fn attempt(&self) -> Result<Option<Self::Hold>>;

    async fn wait_for(&self, limit: Duration) -> Result<Self::Hold>;

    async fn wait(&self) -> Result<Self::Hold>;
}

impl Wanted for Lock {
    type Hold = LockGuard;

    fn name(&self) -> &str {
        self.key().name()
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn busy(&self) -> &'static str {
        "another client held it until just now"
    }

    async fn attempt(&self) -> Result<Option<LockGuard>> {
        self.try_acquire().await
    }

    async fn wait_for(&self, limit: Duration) -> Result<LockGuard> {
        self.acquire_timeout(limit).await
    }

    async fn wait(&self) -> Result<LockGuard> {
        self.acquire().await
    }
}

/// What a command needs, by its options.
pub(super) enum Wish {
    Lock(Lock),
    Permit(Semaphore),
    Read(RwLock),
    Write(RwLock),
}

/// What it has then.
pub(super) enum Hold {
    Lock(LockGuard),
    Permit(Permit),
    Read(ReadGuard),
    Write(WriteGuard),
}

/// What all kinds have, and only `run` sets.
macro_rules! delayed {
    ($lock:expr, $args:expr) => {
        match $args.lock_delay {
            Some(delay) => $lock.lock_delay(delay),
            None => $lock,
        }
    };
}

/// The settings, which all kinds have.
macro_rules! set {
    ($lock:expr, $args:expr) => {{
        let (mut lock, want) = ($lock.min_hold(Duration::ZERO), &$args.want);
        if let Some(ttl) = want.ttl {
            lock = lock.ttl(ttl);
        }
        if let Some(label) = &want.label {
            lock = lock.label(label);
        }
        delayed!(lock, $args)
    }};
}

impl Wish {
    pub(super) fn new(name: &str, args: &RunArgs, store: &OpenStore) -> Result<Self, ExitError> {
        store.check_ttl(args.want.ttl)?;
        Ok(match args.permits {
            Some(permits) => Self::Permit(set!(store.locks.semaphore(name, permits)?, args)),
            None if args.read => Self::Read(set!(store.locks.rw_lock(name)?, args)),
            None if args.write => Self::Write(set!(store.locks.rw_lock(name)?, args)),
            None => Self::Lock(delayed!(waiting::lock(name, &args.want, store)?, args)),
        })
    }

    pub(super) fn max_hold(self, limit: Duration) -> Self {
        match self {
            Self::Lock(lock) => Self::Lock(lock.max_hold(limit)),
            Self::Permit(semaphore) => Self::Permit(semaphore.max_hold(limit)),
            Self::Read(lock) => Self::Read(lock.max_hold(limit)),
            // Its limit would begin before the readers have left.
            Self::Write(lock) => Self::Write(lock),
        }
    }
}

impl Wanted for Wish {
    type Hold = Hold;

    fn name(&self) -> &str {
        match self {
            Self::Lock(lock) => lock.name(),
            Self::Permit(semaphore) => semaphore.key().name(),
            Self::Read(lock) | Self::Write(lock) => lock.key().name(),
        }
    }

    fn is_exclusive(&self) -> bool {
        matches!(self, Self::Lock(_))
    }

    fn busy(&self) -> &'static str {
        match self {
            Self::Lock(lock) => lock.busy(),
            Self::Permit(_) => "all its permits are taken",
            Self::Read(_) => "another client writes, or is about to",
            Self::Write(_) => "other clients read or write",
        }
    }

    async fn attempt(&self) -> Result<Option<Hold>> {
        Ok(match self {
            Self::Lock(lock) => lock.attempt().await?.map(Hold::Lock),
            Self::Permit(semaphore) => semaphore.try_acquire().await?.map(Hold::Permit),
            Self::Read(lock) => lock.try_read().await?.map(Hold::Read),
            Self::Write(lock) => lock.try_write().await?.map(Hold::Write),
        })
    }

    async fn wait_for(&self, limit: Duration) -> Result<Hold> {
        Ok(match self {
            Self::Lock(lock) => Hold::Lock(lock.wait_for(limit).await?),
            Self::Permit(semaphore) => Hold::Permit(semaphore.acquire_timeout(limit).await?),
            Self::Read(lock) => Hold::Read(lock.read_timeout(limit).await?),
            Self::Write(lock) => Hold::Write(lock.write_timeout(limit).await?),
        })
    }

    async fn wait(&self) -> Result<Hold> {
        Ok(match self {
            Self::Lock(lock) => Hold::Lock(lock.wait().await?),
            Self::Permit(semaphore) => Hold::Permit(semaphore.acquire().await?),
            Self::Read(lock) => Hold::Read(lock.read().await?),
            Self::Write(lock) => Hold::Write(lock.write().await?),
        })
    }
}

impl Hold {
    /// Which of the permits it is.
    pub(super) fn slot(&self) -> Option<u32> {
        match self {
            Self::Permit(permit) => Some(permit.slot()),
            _ => None,
        }
    }

    pub(super) fn set_min_hold(&self, least: Duration) {
        match self {
            Self::Lock(guard) => guard.set_min_hold(least),
            Self::Permit(permit) => permit.set_min_hold(least),
            Self::Read(guard) => guard.set_min_hold(least),
            Self::Write(guard) => guard.set_min_hold(least),
        }
    }

    pub(super) async fn release(self) -> Result<Released> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Permit(permit) => permit.release().await,
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        }
    }
}

impl Deref for Hold {
    type Target = Held;

    fn deref(&self) -> &Held {
        match self {
            Self::Lock(guard) => guard,
            Self::Permit(permit) => permit,
            Self::Read(guard) => guard,
            Self::Write(guard) => guard,
        }
    }
}
