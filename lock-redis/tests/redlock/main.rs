//! What a quorum must do, in one program. Beside it are those that need processes of their own (`redlock_soak`) or
//! their own `main`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "../redlock_common/mod.rs"]
mod redlock_common;

mod admission;
mod faults;
mod holds;
mod looks;
mod renewals;
mod rights;
