//! Who polls a keeper (`lock-core/src/keeper/polling.rs`), under the schedules of [shuttle]: callers that come and
//! leave, a task that is made by whoever wakes the keeper, and a runtime that ends at any moment. In each of
//! them a keeper comes to its end: what wakes it is never lost, and nobody waits for himself.
//!
//! The file of the core is compiled in, as it is. Its mutexes are shuttle's, and the runtime is one of
//! threads of shuttle; a step of a schedule ends wherever one of these is used.
//!
//! - `schedules` — what happens, and what is always so
//! - `runtime`, `task`, `mutex`, `sync`, `thread` — what the core has from Tokio and the standard library
//!
//! [shuttle]: https://docs.rs/shuttle

#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

// The names by which the core uses it.
extern crate self as tokio;
extern crate self as tokio_util;

mod mutex;
#[allow(dead_code, reason = "the core uses more of it")]
#[path = "../../../lock-core/src/keeper/polling.rs"]
mod polling;
mod runtime;
mod schedules;
mod sync;
mod task;
mod thread;
