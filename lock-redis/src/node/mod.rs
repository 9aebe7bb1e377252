//! One Redis server, as a store of either kind uses it: the connection, calls of scripts, replies,
//! and how a URL leads there.

mod address;
mod connection;
mod dial;
mod eviction;
mod link;
mod pulse;
mod reply;
mod script;
mod server;
mod tend;
mod tls;

pub(crate) use address::{tcp_client, unix_client};
pub use eviction::Eviction;
pub(crate) use pulse::{Listener, NodeEvent};
pub(crate) use reply::{Reply, info_field};
pub(crate) use script::{Call, Script};
pub(crate) use server::{Node, NodeOptions};
pub(crate) use tend::Interest;
pub(crate) use tls::Tls;
