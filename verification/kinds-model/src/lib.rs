//! A model check of the kinds of lock that are composed of exclusive locks: the readers–writer lock and the semaphore.
//!
//! The exclusive locks are given: one holder at a time, a fence that rises, and a lease that ends only after its holder
//! has ceased to believe in it. Beliefs may end at any step, and leases after them; any acquire and any wait may be
//! given up, and requests that were given up land at any time. A process that stops is one that takes no more steps, and one
//! that acts late still has its old token. Nothing is bounded: states that no rule tells apart are counted once, and all
//! others are explored, the nearest first.
//!
//! Not modelled: who is first in a queue, for a free lock may go to any of its waiters; cohorts; and the time between a
//! grant or a look and its answer. Whoever concludes something from an answer that comes late has to believe at that time in
//! what it had when it asked.
//!
//! # Readers and writers
//!
//! One lock is the *gate*, others are *slots* ([`RwLock`]). A reader takes a slot, then looks at the gate. If no writer has
//! it, the read is granted; else the reader gives its slot back and queues for the gate. When it has the gate, it takes a
//! slot and lets the gate go, if it still believes in the gate then. A writer takes the gate, then sees each slot free once,
//! if need be by waiting for it. Tasks of one process may share a slot: each looks at the gate for itself. A writer's token is
//! its fence of the gate, a reader's the floor of its look, or the fence of the reader that has the gate. It is checked that
//! - **E**, who writes is alone, as long as it believes in it;
//! - **T**, of two conflicting holds the later one has no smaller token, and a writer always a greater one;
//! - **F**, a resource with two marks, one of readers and one of writers, admits whoever believes in a hold, and refuses
//!   whoever acts after a later hold that conflicts;
//! - **N**, nobody begins to read while a writer has the gate;
//! - **L**, each lock that does not end by itself is somebody's;
//! - **D**, whoever waits can be granted, if nothing happens but that the others go on and leave.
//!
//! # Semaphore
//!
//! Each slot is a permit, and one more lock is the *turnstile* ([`Semaphore`]). Who has the turnstile waits for all slots at
//! once, makes the first grant its permit, gives the other places and grants up, then lets the turnstile go. If the turnstile is
//! lost meanwhile, the search begins again. It is checked that
//! - **E**, there are no more permits than slots, and **P**, no two of one slot;
//! - **O**, one at a time waits for slots, as long as it believes in the turnstile;
//! - **L**, as above: where nobody wants anything, nothing is held;
//! - **D**, where a permit is free and somebody waits, one can be granted, even if no holder leaves.
//!
//! # Quorum
//!
//! The first two kinds rest on a look that shows every grant before it. [`Quorum`] shows that reading a quorum of nodes is
//! such a look: of two parties which each have the votes of a quorum before they look for the other's, at least one sees
//! the other. Nodes may lose their data, and then neither vote nor show anything until whoever believed has ceased to.
//!
//! # How much
//!
//! Two writers and two readers on two slots are 46 404 states, with joined readers 47 833, and with one more reader
//! 670 802. Three contenders for two permits are 213 states, two parties on three nodes 14 905, and on five that keep their
//! data 55 098. Each wrong rule (`Wrong` of each kind) is found out, by the shortest way. All of it takes some fifteen seconds
//! of processor time.

mod explore;
pub mod quorum;
pub mod rwlock;
pub mod semaphore;
mod store;

pub use explore::{Explored, Fact, Model, Step, explore};
pub use quorum::Quorum;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
