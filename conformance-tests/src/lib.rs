#![doc = include_str!("../README.md")]

mod cancel;
mod case;
mod cases;
mod check;
mod child;
mod cx;
mod harness;
mod history;
mod main_fn;
mod matrix;
mod memory_harness;
pub mod mutants;
pub mod mutation;
mod pace;
mod register;
mod registry;
mod report;
mod require;
mod runner;
mod seed;
#[cfg(unix)]
pub mod server;
mod simulated;
mod witness;

pub use harness::{Client, Fault, Faults, Harness, Store, Time, Unavailable};
pub use main_fn::main;
pub use memory_harness::{MemoryFaults, MemoryHarness, MemoryStore};
pub use report::{CaseResult, Outcome, Report};
pub use runner::{all_cases, run};

/// What distlock's own soak has in common with the suite. No part of the public API.
#[doc(hidden)]
pub mod shared {
    pub use crate::cancel::{Cut, drop_after};
    pub use crate::history::{HoldRecord, Violation, check, check_fences, overlaps};
    pub use crate::register::{Compares, Register};
    pub use crate::seed::Seeded;
}
