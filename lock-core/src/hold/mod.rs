//! A hold, as its holder sees it: what was asked for, its validity, the signal of its loss, and its lease token.

mod held;
mod lease_token;
#[cfg_attr(distlock_mutants, path = "../mutants/rules.rs")]
pub(crate) mod rules;
mod terms;

pub use held::{Held, LockState, LostSignal};
pub(crate) use held::{lead, margin};
pub use lease_token::{LeaseToken, RenewedLease};
pub(crate) use terms::{Defaults, LockTerms, Options, RenewalWish};
