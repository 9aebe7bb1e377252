//! A deterministic simulation of distlock's core.
//!
//! The keepers, the guards and the gate of `lock-core` run as they are shipped, in virtual time, on a
//! store and a network that are simulated. One thread does everything, and a [seed](Choices::seeded)
//! decides what comes next: which of the tasks that are ready, how long each request and each reply
//! takes, which is lost, refused, late, or silent, which link is cut, which process is suspended, whose
//! runtime stands still or ends, and what an operator takes away. The clocks of the processes run at
//! different rates. After a while the faults end, and everything must work again.
//!
//! [`Property`] lists what must hold. A run that breaks one is [shrunk](shrink), and its decisions are
//! kept as a file that is replayed from then on. The seed also chooses the [`Scenario`]: what a run has
//! besides the ordinary. The wrong [`Variant`]s show that each property can be
//! found broken.
//!
//! Each runtime of Tokio is driven only when it is its turn, and reads no time but the virtual one. So
//! what a run does depends on its decisions alone.
//!
//! - `choices.rs` — the decisions of a run
//! - `property.rs` — what must hold, and the wrong variants that break it
//! - `run.rs` — one run: what is ready, what comes next, what goes wrong
//! - `world.rs` — virtual time, and who decides
//! - `process.rs` — a process: its `Locks`, its runtime, its clock
//! - `user.rs` — what its tasks do with locks
//! - `sharer.rs` — what they do with permits, as readers and as writers
//! - `set.rs` — what they do with sets of locks
//! - `election.rs` — what they do as candidates, and as those who watch who leads
//! - `crowd.rs` — what more than a thousand tasks do with one lock
//! - `store` — the store, the network before it, and the order of the calls that reach it
//! - `observer.rs` — sees what the store and the users do, and what that breaks
//! - `sharing.rs` — the same of those who share a name; `order.rs` — and who passes whom
//! - `shrink.rs` — how the decisions of a run that failed are made fewer

mod choices;
mod crowd;
mod election;
mod observer;
mod order;
mod process;
mod property;
mod run;
mod set;
mod sharer;
mod sharing;
mod shrink;
mod store;
mod user;
mod world;

pub use choices::{Choices, Decisions, Scenario};
pub use observer::Counts;
pub use property::{Property, Variant, Violation};
pub use run::{Outcome, narrate, simulate};
pub use shrink::shrink;
