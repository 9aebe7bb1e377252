#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod connect;
mod scheme;

pub use connect::connect;
#[cfg(feature = "metrics")]
pub use lock_core::MetricsLayer;
pub use lock_core::{
    Attempt, Bytes, Capabilities, Claim, ClaimRequest, Clock, ClockInstant, DataLoss, Effect,
    Error, ErrorKind, FenceCheck, Fencing, FencingToken, Held, Hold, HolderInfo, LeaseToken, Lock,
    LockAdmin, LockBackend, LockGuard, LockInfo, LockKey, LockLayer, LockState, Locks,
    LocksBuilder, LostReason, LostSignal, ManualClock, Mode, Operation, OsRng, OwnerId, Released,
    Renewal, RenewedLease, Result, Resume, Rng, Sleep, SystemClock, TokioClock, Wake, async_trait,
    backend, memory,
};
pub use scheme::schemes;

/// Locks in an SQL table: the typed constructors, for a pool that is there already, or settings without a URL.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use lock_sql as sql;

/// Locks on Redis: the typed constructors, for a client that is there already, or settings without a URL.
#[cfg(any(feature = "redis", feature = "redlock"))]
pub use lock_redis as redis;

/// Locks in etcd: the typed constructors, for a client that is there already, or settings without a URL.
#[cfg(feature = "etcd")]
pub use lock_etcd as etcd;

/// Locks in ZooKeeper: the typed constructors, for a client that is there already, or settings without a URL.
#[cfg(feature = "zookeeper")]
pub use lock_zk as zookeeper;
