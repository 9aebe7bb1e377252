//! Kinds of lock that are composed of exclusive ones. No store knows of them.

mod all;
mod election;

pub use all::{HeldSet, LockSet, LockSetGuard, SetLostSignal};
pub use election::{Election, Leader, Leadership, Observation, Observer};
