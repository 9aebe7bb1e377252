// Relative links in the README work only in a clone. Of two definitions of a label the first one
// counts.
//! [docs/SUMMARY.md]: https://docs.rs/crate/distlock/latest/source/docs/SUMMARY.md
//! [docs/guarantees.md]: https://docs.rs/crate/distlock/latest/source/docs/guarantees.md
//! [docs/guide/errors.md]: https://docs.rs/crate/distlock/latest/source/docs/guide/errors.md
//! [docs/guide/stores.md]: https://docs.rs/crate/distlock/latest/source/docs/guide/stores.md
//! [docs/guide/semaphores.md]: https://docs.rs/crate/distlock/latest/source/docs/guide/semaphores.md
//! [docs/guide/readers-and-writers.md]: https://docs.rs/crate/distlock/latest/source/docs/guide/readers-and-writers.md
//! [docs/guide/several-names.md]: https://docs.rs/crate/distlock/latest/source/docs/guide/several-names.md
//! [docs/guide/election.md]: https://docs.rs/crate/distlock/latest/source/docs/guide/election.md
//! [docs/guide/observability.md]: https://docs.rs/crate/distlock/latest/source/docs/guide/observability.md
//! [docs/testing.md]: https://docs.rs/crate/distlock/latest/source/docs/testing.md
//! [docs/api.md]: https://docs.rs/crate/distlock/latest/source/docs/api.md
//! [docs/design.md]: https://docs.rs/crate/distlock/latest/source/docs/design.md
//! [docs/performance.md]: https://docs.rs/crate/distlock/latest/source/docs/performance.md
//! [docs/matrix.md]: https://docs.rs/crate/distlock/latest/source/docs/matrix.md
//! [docs/writing-a-backend.md]: https://docs.rs/crate/distlock/latest/source/docs/writing-a-backend.md
//! [lock-cli/README.md]: https://docs.rs/crate/lock-cli/latest/source/README.md
//! [SQL]: https://docs.rs/lock-sql
//! [Redis]: https://docs.rs/lock-redis
//! [Redlock]: https://docs.rs/lock-redis/latest/lock_redis/redlock/index.html
//! [Sentinel]: https://docs.rs/lock-redis/latest/lock_redis/sentinel/index.html
//! [etcd]: https://docs.rs/lock-etcd
//! [ZooKeeper]: https://docs.rs/lock-zk
//! [conformance-tests]: https://docs.rs/conformance-tests
//! [CONTRIBUTING.md]: https://docs.rs/crate/distlock/latest/source/CONTRIBUTING.md
//! [SECURITY.md]: https://docs.rs/crate/distlock/latest/source/SECURITY.md
//! [CHANGELOG.md]: https://docs.rs/crate/distlock/latest/source/CHANGELOG.md
//! [Apache-2.0]: https://docs.rs/crate/distlock/latest/source/LICENSE-APACHE
//! [MIT]: https://docs.rs/crate/distlock/latest/source/LICENSE-MIT
//!
// The picture of the README by the same rule, as its label with the picture itself: `tests/docs.rs` writes it.
#![doc = include_str!("picture.md")]
//!
#![doc = include_str!("../README.md")]
//!
//! ## The code of this crate
//!
//! All else is in [`lock_core`] and in the crates of the stores.
//!
//! - `connect` — connecting by URL, now or later, and the builder with settings besides it
//! - `url` — what a URL says: which store, and with which settings
//! - `stores` — the table of stores: schemes, features, and what opens each
//! - `picture` — the picture of the README, for this page
#![cfg_attr(docsrs, feature(doc_cfg))]

mod connect;
mod stores;
mod url;

pub use connect::{ConnectBuilder, LazyLocks, builder, connect, connect_blocking};
#[doc(inline)]
pub use lock_core::{
    DetachError, Effect, Error, ErrorKind, Feature, FenceCheck, FencingToken, Held, LeaseToken,
    Lock, LockGuard, LockKey, LockState, Locks, LostReason, LostSignal, Released, RenewedLease,
    Result,
};
#[doc(inline)]
pub use lock_core::{blocking, clock, kinds, testing};
pub use stores::{StoreKind, schemes, stores};

/// What people are shown who run a store: who has a lock, whether the store answers, and what is wrong with it.
pub mod admin {
    #[doc(inline)]
    pub use lock_core::{Finding, Health, HolderInfo, HolderMark, LockInfo, OwnerId, Severity};
}

/// What a store supports and promises.
pub mod capabilities {
    #[doc(inline)]
    pub use lock_core::{Binding, Capabilities, DataLoss, Fencing, Wake};
}

/// For authors of a store or a layer: the contract, and what is needed to implement and to use it.
pub mod backend {
    #[cfg(feature = "metrics")]
    pub use lock_core::MetricsLayer;
    #[doc(no_inline)]
    pub use lock_core::contract::*;
    #[doc(no_inline)]
    pub use lock_core::{Bytes, EndOfHold, LockEvent, LockObserver, LocksBuilder, async_trait};
}

/// Locks in an SQL table: typed constructors, for callers that already have a pool, or for settings
/// without a URL.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use lock_sql as sql;

/// Locks on Redis: typed constructors, for callers that already have a client, or for settings
/// without a URL.
#[cfg(any(feature = "redis", feature = "redlock"))]
pub use lock_redis as redis;

/// Locks in etcd: typed constructors, for callers that already have a client, or for settings
/// without a URL.
#[cfg(feature = "etcd")]
pub use lock_etcd as etcd;

/// Locks in ZooKeeper: typed constructors, for callers that already have a client, or for settings
/// without a URL.
#[cfg(feature = "zookeeper")]
pub use lock_zk as zookeeper;

/// The code of the guide is compiled like that of the README.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/quick-start.md")]
#[doc = include_str!("../docs/guide/fencing.md")]
#[doc = include_str!("../docs/guide/semaphores.md")]
#[doc = include_str!("../docs/guide/readers-and-writers.md")]
#[doc = include_str!("../docs/guide/several-names.md")]
#[doc = include_str!("../docs/guide/election.md")]
#[doc = include_str!("../docs/guide/choosing-a-store.md")]
#[cfg_attr(feature = "metrics", doc = include_str!("../docs/guide/observability.md"))]
mod guide {}
