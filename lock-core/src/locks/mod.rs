//! The user's types: the locks of a store, one lock, the guard of a held lock, and the token of a
//! lock that is handed to another process.

mod builder;
mod guard;
mod lock;
#[allow(clippy::module_inception, reason = "the type that the room is named after")]
mod locks;

pub use builder::LocksBuilder;
pub use guard::{DetachError, LockGuard};
pub use lock::Lock;
pub use locks::{Health, Locks};

/// What they say of a hold.
pub use crate::hold::{Held, LeaseToken, LockState, LostSignal, RenewedLease};
