//! The user's types: the locks of a store, one lock, the guard of a held lock, and the token of a
//! lock that is handed to another process.

mod attach;
mod builder;
mod detach;
mod guard;
mod health;
pub(crate) mod held;
mod lease_token;
mod lock;
#[allow(clippy::module_inception, reason = "the type that the room is named after")]
mod locks;
mod lost;
mod operate;
mod options;

pub use builder::LocksBuilder;
pub use detach::DetachError;
pub use guard::LockGuard;
pub use health::Health;
pub use held::{Held, LockState};
pub use lease_token::{LeaseToken, RenewedLease};
pub use lock::Lock;
pub use locks::Locks;
pub use lost::LostSignal;
