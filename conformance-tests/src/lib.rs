//! - `harness` — what a store's author writes; the one of the memory store, and a layer that makes faults
//! - `server` — a real server for each case, and the proxy that disturbs its link
//! - `proxied` — the harness of a store on real servers that the cases share
//! - `cases` — the cases, by topic
//! - `context` — what a case works with: the store and its clients, time, and who was promised what
//! - `runner` — runs cases, judges what they saw, and reports it
//! - `matrix` — which case decides what, for each call, state and event
//! - `mutants` — stores and guards that are wrong on purpose
//! - `mutation.rs` — runs what must catch each mistake of a store, with and without it
//!
#![doc = include_str!("../README.md")]

mod cases;
mod context;
mod harness;
mod matrix;
pub mod mutants;
pub mod mutation;
#[cfg(unix)]
pub mod proxied;
mod runner;
#[cfg(unix)]
pub mod server;

pub use harness::memory::{MemoryFaults, MemoryHarness, MemoryStore};
pub use harness::{Client, Fault, Faults, Harness, Store, Time, Unavailable};
pub use runner::junit::junit;
pub use runner::main_fn::main;
pub use runner::report::{CaseResult, Outcome, Report};
pub use runner::{all_cases, run};

/// What distlock's own soak has in common with the suite. No part of the public API.
#[doc(hidden)]
pub mod shared {
    pub use crate::context::cancel::{Cut, drop_after};
    pub use crate::context::history::{
        HoldRecord, Violation, check, check_fences, check_marks, conflicts, crowd, overlaps,
    };
    pub use crate::context::register::{Compares, Register};
    pub use crate::context::seed::Seeded;
}
