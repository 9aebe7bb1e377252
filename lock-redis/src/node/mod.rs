//! One Redis server, as both stores use it.
//!
//! `server` runs scripts over the connection that `dial` opens and that `link` owns and keeps up
//! for waiters. All of them share the `pulse` of the server: when it was last heard, how fast it
//! answers, and who receives its pushes.

mod address;
mod connection;
mod diagnosis;
mod dial;
mod eviction;
mod link;
mod look;
mod pulse;
mod reply;
mod script;
mod server;

mod tls;

pub(crate) use address::{tcp_clients, unix_client};
pub(crate) use diagnosis::Info;
pub use eviction::Eviction;
pub(crate) use link::Interest;
pub(crate) use pulse::{Listener, NodeEvent};
pub(crate) use reply::{Reply, info_field};
pub(crate) use script::{Call, Script, scripts};
pub(crate) use server::{Node, NodeOptions};
pub(crate) use tls::Tls;
