//! `etcd`: one member, or a cluster of several, and its proxy.

mod builder;
mod cluster;
mod grpc_proxy;
mod member;
mod own;
mod peers;

pub use self::builder::EtcdClusterBuilder;
pub use self::cluster::EtcdCluster;
pub use self::grpc_proxy::GrpcProxy;
