//! One Redis server, as a store of either kind uses it.
//!
//! `server` runs scripts over the connection that `link` has and keeps up for those who wait for pushes,
//! and that `dial` makes. All of them share the `pulse` of the server: when it was last heard, how fast
//! it answers, who hears its pushes.

mod address;
mod connection;
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
pub use eviction::Eviction;
pub(crate) use link::Interest;
pub(crate) use pulse::{Listener, NodeEvent};
pub(crate) use reply::{Reply, info_field};
pub(crate) use script::{Call, Script, scripts};
pub(crate) use server::{Node, NodeOptions};
pub(crate) use tls::Tls;
