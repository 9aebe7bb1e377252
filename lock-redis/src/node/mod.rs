//! One Redis server, as a store of either kind uses it: the connection, calls of scripts, replies,
//! and how a URL leads there.

mod address;
mod connect;
mod connection;
mod eviction;
mod reply;
mod script;
mod tend;
mod tls;

pub(crate) use address::{tcp_client, unix_client};
pub(crate) use connection::{Listener, Node, NodeEvent, NodeOptions};
pub use eviction::Eviction;
pub(crate) use reply::{Reply, info_field};
pub(crate) use script::{Call, Script};
pub(crate) use tend::Interest;
pub(crate) use tls::Tls;
