//! A model check of Redlock: of the fencing token, of exclusion, of giving back, and of the admission of
//! nodes.
//!
//! The clients are the contender of `lock-redis` itself, the state machine that the product runs: this
//! crate compiles its files. Only the nodes are modelled, which in the product are scripts.
//!
//! Requests and replies are delayed without bound, overtake each other or are lost, and proposals are
//! arbitrary. A node may lose all its data. A lock may expire at any node at any moment, which covers a
//! short ttl and a clock that jumps; where the model knows for how long a client believes in its lock, a
//! node keeps it for longer. "Wait for the longest ttl" is modelled by what it achieves: the attempts that
//! had begun before the loss have ended. A client's clock ticks only where its contender waits for it.
//!
//! It checks that
//! - **F1**, fences are distinct, and **F2**, a fence is greater than every fence that was returned before
//!   its acquisition began;
//! - **E**, two clients never believe at once that they hold the lock;
//! - **R**, what was released or given back leaves nothing behind at a node, and nothing on its way.
//!
//! [`RedlockModel::default`] has the rules of the product; each other variant breaks one of them, and the
//! check must find the violation.
//!
//! States that differ only in the numbering of nodes and clients are counted once.

mod config;
#[allow(dead_code, reason = "the product uses more of it")]
#[path = "../../lock-redis/src/redlock/contender/mod.rs"]
mod contender;
mod forgetting;
mod model;
mod node;
mod set;
mod state;
mod steps;
mod symmetry;
mod variants;

pub use config::{Action, RedlockModel};
pub use node::{NodeRules, Rejoin};
pub use state::State;
pub use variants::Variant;
