//! A model check of locks on the master of a replicated Redis, over failovers.
//!
//! A group has two servers. One is the master, and the other has what the master had some time ago. The link between them
//! may be cut; then the replica may be promoted, and the old master goes on for clients that reach it until it has missed
//! its replica for the *lag*. Later it becomes the replica of the new one, loses what that one has not, and may be
//! promoted again. Two clients try, renew and release one lock at either server. A request may be carried out in a
//! later tick than it was sent in, and its answer may be lost; belief counts from when it was sent. Whatever may happen, in
//! any order, is explored.
//!
//! The rule: a server grants and renews only while a *marker* in its data names it. On a new master it names another, so
//! that one waits, for the ttl and the lag from the moment at which a client first sees it. It is checked that
//! - **E**, one client believes at a time;
//! - **F**, fences rise in the order of the grants, while the clocks of the servers differ by less than the wait without the lag, and
//!   without the lead that fences may have of a clock.
//!
//! ```
//! use failover_model::Failover;
//! use stateright::{Checker, Model};
//!
//! let once = Failover { failovers: 1, releases: 0, ..Failover::default() };
//! once.checker().spawn_bfs().join().assert_properties();
//! ```
//!
//! # What each part of the rule is for
//!
//! Without it, two clients believe, at the earliest after so many steps:
//!
//! | left out | steps |
//! |---|---|
//! | the wait | 6 |
//! | the lag as a part of the wait | 9 |
//! | that a master which is cut off stops | 10 |
//! | that renewals wait, too: the old master lets the lock end that the new one prolongs, and grants it again | 12 |
//! | the same, where they wait, but for less than the lag | 13 |
//! | that the own entry, found on the new master, is no grant during the wait | 11 |
//! | that the wait counts from the first sight, and not from the last write that the new master has | 10 |
//! | that a marker names a server | 6 |
//! | that it names the promotion, and not only the process: a master that was a replica in between, unseen, has its own marker back, but not its locks | 9 |
//!
//! Fences fall if they are made of the mark alone (10 steps), and if clocks differ by more than the wait makes up for (13).
//!
//! From the lag on, renewals could be answered to those who still believe: that holds, too, and would spare holders
//! with a long ttl the loss of their lock after a planned failover. It is not built.
//!
//! Not modelled: more than one replica. That two masters never have a majority of replicas at the same time, and that the wait
//! begins with a write, which needs one, is an argument, and a test on real servers.

mod model;
mod state;

pub use model::{Failover, Marker, Proposal, Step, Wrong};
pub use state::State;
