//! What a user holds: the locks of a store, one lock, the guard of one that is held, and the token of one
//! that is handed to another process.

mod builder;
mod guard;
pub(crate) mod hold;
mod lease_token;
mod lock;
#[allow(clippy::module_inception, reason = "the type that the room is named after")]
mod locks;
mod lost;
mod options;

pub use builder::LocksBuilder;
pub use guard::{LockGuard, SharedGuard};
pub use hold::{Held, LockState};
pub use lease_token::{LeaseToken, RenewedLease};
pub use lock::Lock;
pub use locks::Locks;
pub use lost::LostSignal;
