//! What one Redis server must do, in one program. Beside it are those that need processes of their own
//! (`queue`), a feature (`tls`), or their own `main`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "../common/mod.rs"]
mod common;

mod attach;
mod connecting;
mod faults;
mod golden;
mod holders;
mod interop;
mod looks;
mod refusals;
mod shared_link;
mod turns;
