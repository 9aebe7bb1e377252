//! ZooKeeper: one server, or an ensemble of three.

mod ensemble;
mod member;

pub use self::ensemble::{PeerLink, ZooKeeper};
pub use self::member::TICK;
