//! The lock libraries that are measured, in one shape.

use std::time::Duration;

use distlock::kinds::{Permit, ReadGuard, RwLock, Semaphore, WriteGuard};
use distlock::{LockGuard, LockState, Locks};
use serde::{Deserialize, Serialize};

use crate::Done;
#[cfg(feature = "peers")]
use crate::peers::{Peer, PeerHold};
use crate::stores::Store;

/// A library with its settings, as the tables name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// Ours, as it is by default.
    Distlock,
    /// Ours, where up to 32 tasks of a process pass a hold on.
    Cohort,
    #[cfg(feature = "peers")]
    Peer(crate::peers::Kind),
}

/// What one process uses for all its locks.
#[derive(Clone)]
pub(crate) enum Client {
    Distlock(Locks),
    #[cfg(feature = "peers")]
    Peer(std::sync::Arc<dyn Peer>),
}

/// What is taken of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LockKind {
    Exclusive,
    /// One of [`PERMITS`].
    Permit,
    Read,
    Write,
}

/// How many permits a semaphore has here.
pub(crate) const PERMITS: u32 = 4;

/// A lock with a name.
#[derive(Clone)]
pub(crate) enum Lock {
    Distlock(distlock::Lock),
    Permit(Semaphore),
    Read(RwLock),
    Write(RwLock),
    #[cfg(feature = "peers")]
    Peer(std::sync::Arc<dyn Peer>, String),
}

/// A lock that is held.
pub(crate) enum Hold {
    Distlock(LockGuard),
    Permit(Permit),
    Read(ReadGuard),
    Write(WriteGuard),
    #[cfg(feature = "peers")]
    Peer(Box<dyn PeerHold>),
}

impl Library {
    /// All that work on this store, ours first.
    pub(crate) fn on(store: Store) -> Vec<Self> {
        // The fence of etcd and ZooKeeper is a revision, which cannot be granted in blocks.
        let cohort = !matches!(store, Store::Etcd | Store::Zookeeper);
        let all = [Self::Distlock].into_iter().chain(cohort.then_some(Self::Cohort));
        #[cfg(feature = "peers")]
        let all = all.chain(crate::peers::on(store).iter().copied().map(Self::Peer));
        all.collect()
    }

    /// The one with this name.
    pub(crate) fn named(store: Store, name: &str) -> Done<Self> {
        let found = Self::on(store).into_iter().find(|library| library.name() == name);
        found.ok_or_else(|| format!("no library {name} on {}", store.name()).into())
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Distlock => "distlock",
            Self::Cohort => "distlock, cohort(32)",
            #[cfg(feature = "peers")]
            Self::Peer(kind) => kind.name(),
        }
    }

    pub(crate) async fn open(self, url: &str) -> Done<Client> {
        Ok(match self {
            Self::Distlock => Client::Distlock(distlock::connect(url).await?),
            Self::Cohort => Client::Distlock(distlock::builder(url).cohort(32).connect().await?),
            #[cfg(feature = "peers")]
            Self::Peer(kind) => Client::Peer(kind.open(url).await?),
        })
    }
}

impl Client {
    /// An exclusive lock.
    pub(crate) fn lock(&self, name: impl Into<String>) -> Done<Lock> {
        self.lock_of(LockKind::Exclusive, name)
    }

    pub(crate) fn lock_of(&self, kind: LockKind, name: impl Into<String>) -> Done<Lock> {
        let name = name.into();
        Ok(match (self, kind) {
            (Self::Distlock(locks), LockKind::Exclusive) => Lock::Distlock(locks.named(name)?),
            (Self::Distlock(locks), LockKind::Permit) => {
                Lock::Permit(locks.semaphore(name, PERMITS)?)
            }
            (Self::Distlock(locks), LockKind::Read) => Lock::Read(locks.rw_lock(name)?),
            (Self::Distlock(locks), LockKind::Write) => Lock::Write(locks.rw_lock(name)?),
            #[cfg(feature = "peers")]
            (Self::Peer(peer), LockKind::Exclusive) => {
                Lock::Peer(std::sync::Arc::clone(peer), name)
            }
            #[cfg(feature = "peers")]
            (Self::Peer(_), _) => {
                return Err("of a peer only the exclusive lock is measured".into());
            }
        })
    }

    /// For what only ours can do.
    pub(crate) fn ours(&self) -> Option<&Locks> {
        match self {
            Self::Distlock(locks) => Some(locks),
            #[cfg(feature = "peers")]
            Self::Peer(_) => None,
        }
    }

    pub(crate) async fn close(self) -> Done {
        match self {
            Self::Distlock(locks) => Ok(locks.close(Duration::from_secs(20)).await?),
            #[cfg(feature = "peers")]
            Self::Peer(_) => Ok(()),
        }
    }
}

impl Lock {
    pub(crate) async fn acquire(&self) -> Done<Hold> {
        Ok(match self {
            Self::Distlock(lock) => Hold::Distlock(lock.acquire().await?),
            Self::Permit(semaphore) => Hold::Permit(semaphore.acquire().await?),
            Self::Read(lock) => Hold::Read(lock.read().await?),
            Self::Write(lock) => Hold::Write(lock.write().await?),
            #[cfg(feature = "peers")]
            Self::Peer(peer, name) => Hold::Peer(peer.acquire(name).await?),
        })
    }
}

impl Hold {
    pub(crate) async fn release(self) -> Done {
        match self {
            Self::Distlock(guard) => guard.release().await.map(drop)?,
            Self::Permit(permit) => permit.release().await.map(drop)?,
            Self::Read(guard) => guard.release().await.map(drop)?,
            Self::Write(guard) => guard.release().await.map(drop)?,
            #[cfg(feature = "peers")]
            Self::Peer(hold) => hold.release().await?,
        }
        Ok(())
    }

    /// Whether it was lost; a peer is not asked.
    pub(crate) fn is_lost(&self) -> bool {
        let state = match self {
            Self::Distlock(guard) => guard.state(),
            Self::Permit(permit) => permit.state(),
            Self::Read(guard) => guard.state(),
            Self::Write(guard) => guard.state(),
            #[cfg(feature = "peers")]
            Self::Peer(_) => return false,
        };
        matches!(state, LockState::Lost(_))
    }
}
