//! One Redis server, as both stores use it.
//!
//! `server` runs scripts over the connection that `connection` opens, and keeps it up for waiters. Both share
//! the `server_health`. Where the server may be another one with each connection, `group` finds it.

mod address;
mod connection;
mod doctor;
mod group;
mod reply;
mod script;
mod server;
mod server_health;

pub(crate) use address::{ServerLogin, Tls, tcp_clients, unix_client};
pub use doctor::Eviction;
pub(crate) use doctor::{EVICTION, Info};
pub(crate) use group::{GroupTerms, MasterGroup, ServerAddress};
#[cfg(test)]
pub(crate) use reply::process_in;
pub(crate) use reply::{ReplyReader, info_field, is_one, setting};
pub(crate) use script::{Script, ScriptCall, compiled, scripts};
pub(crate) use server::{CONNECT_TIMEOUT, Interest, LONGEST_TIMEOUT, Node};
pub(crate) use server_health::{Listener, NodeEvent};
