//! A model check of Redlock: of the fencing token, of exclusion, of giving back, and of the admission of
//! nodes.
//!
//! The clients are the contender of `lock-redis` itself, the state machine that the product runs: this
//! crate compiles its files. Only the nodes are modelled, which in the product are scripts; a test gives both the same
//! random requests.
//!
//! Requests and replies are delayed without bound, overtake each other or are lost, and proposals are
//! arbitrary. A node may lose all its data. A lock may expire at any node at any moment, which covers a
//! short ttl and a clock that jumps; where the model knows for how long a client believes in its lock, a
//! node keeps it for longer. "Wait for the longest ttl" is modelled by what it achieves: the attempts that
//! had begun before the loss have ended. A client's clock ticks only where its contender waits for it.
//!
//! A claim asks for a block of one fence or of several, which the nodes count as one step. The model checks
//! that
//! - **F1**, fences are distinct, those of a block too, and **F2**, the first fence of a block is greater than
//!   every fence that was returned before its acquisition began;
//! - **F3**, a claim that tries again has the same block, or one that has no fence in common with it;
//! - **F4**, where a block is passed on, each holder has a greater fence than the holder before, of the same
//!   block or of another;
//! - **F5**, where a look finds the lock free, no fence that was returned before it began is above its floor, and no
//!   later one is not;
//! - **E**, two clients never believe at once that they hold the lock, and **E2**, a look finds nobody else, and no
//!   other fence, where a client believes from its beginning to its end;
//! - **R**, what was released or given back leaves nothing behind at a node, and nothing on its way.
//!
//! What is covered, on three nodes and exhaustively, with blocks of one and of two where nothing else is said.
//! What is checked "every night" is ignored in other runs, since it takes long:
//! - acquiring, with raised counters, and from unequal ones (blocks of one);
//! - a request that arrives twice (blocks of one);
//! - a node that joins a hold later, and is adopted by a renewal (blocks of one);
//! - a second try or renewal of a hold (blocks of two; those of one every night); and within twelve steps, with a
//!   request that has no answer;
//! - the loss of the data of one node, and its admission, also with late copies of it; every night, two losses (blocks of
//!   one);
//! - the same beside a hold that is believed in, and renewed (blocks of one);
//! - giving back and release, for one claim at one node (blocks of one): what is left there depends neither on
//!   other nodes nor on the fence; within twelve steps, with another client; and a hold while what gives an earlier
//!   try of its claim back arrives late; each also while a node loses its data.
//!
//! - a look, whose nodes are heard at any moments: beside a hold and an acquisition, in two rounds (blocks of one) or one
//!   (blocks of two and one); every night, beside two acquisitions (blocks of one). Within twelve steps, from unequal
//!   counters, beside a second try or renewal of a hold, and while a node loses its data (blocks of one).
//!
//! On five nodes, with blocks of two: all that happens within eleven steps after a grant, such as the expiry
//! and the grant to another client. Not covered: a hold that another process continues.
//!
//! A second model, [`Recovery`], is about quorums that are restarted, flushed or lost as a whole, whose fences
//! rest on the clocks. There a grant is one step, and what decides is the plan of `lock-redis`, which is compiled
//! in, too. It checks F2 and E, and finds wrong: seeds that are ahead of the clocks, proposals that may be
//! further ahead than a node waits, a new quorum that begins at zero, and a wait that is shorter than a lock.
//!
//! [`RedlockModel::default`] has the rules of the product; each other variant breaks one of them, and the
//! check must find the violation.
//!
//! States that differ only in the numbering of nodes and clients are counted once.

mod config;
#[allow(dead_code, reason = "the product uses more of it")]
#[path = "../../../lock-redis/src/redlock/contender/mod.rs"]
mod contender;
mod forgetting;
mod look;
mod model;
mod node;
#[allow(dead_code, unused_imports, reason = "the product uses more of it")]
#[path = "../../../lock-redis/src/redlock/admission/plan.rs"]
mod plan;
mod recovery;
#[allow(dead_code, reason = "the product uses more of it")]
mod rules;
#[cfg(test)]
mod scripts;
mod set;
mod state;
mod steps;
mod symmetry;

pub use config::{Action, RedlockModel};
pub use node::{NodeRules, Rejoin};
pub use recovery::{Fault, Happening, Moment, Recovery};
pub use rules::Variant;
pub use state::State;
