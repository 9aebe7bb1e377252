//! Kinds of lock that are composed of exclusive ones. No store knows of them.

mod all;

pub use all::{HeldSet, LockSet, LockSetGuard, SetLostSignal};
