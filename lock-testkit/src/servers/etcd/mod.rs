//! `etcd`: one member, or a cluster of several.

mod builder;
mod cluster;
mod member;
mod own;
mod peers;

pub use self::builder::EtcdClusterBuilder;
pub use self::cluster::EtcdCluster;
