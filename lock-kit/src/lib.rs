//! Tools for store authors: whatever two stores need is here, once. Users of locks need none of it,
//! and it is specific to no store.
//!
//! - `url` — a store URL: its parameters ([`url`]), each declared once ([`settings`]), and its user, hosts and path
//!   ([`endpoint`])
//! - `runtime` — what a driver needs from the Tokio runtime
//! - `link` — one connection, made once and shared by all its users ([`connect_once`]), and a server that is down, which
//!   is asked a few times a second, however many callers there are ([`outage`])
//! - `server` — is a server too old, or its clock wrong
//! - `tasks` — work in the background that ends with the store
//! - `attendant` — one task in the background while somebody needs it, for each runtime if need be
//! - `batch` — requests made at about the same time travel as one
//! - `neighbours` — claims of a client that hand a lock on among themselves, without a look
//! - `wake` — waking a client's waiters when the store pushes

pub mod attendant;
pub mod batch;
mod link;
pub mod neighbours;
pub mod runtime;
pub mod server;
pub mod tasks;
pub mod url;
pub mod wake;

pub use link::{connect_once, outage};
pub use url::{endpoint, settings};
