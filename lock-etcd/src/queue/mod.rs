//! The queue of a lock: keys under the name of the lock, each bound to a lease, as in etcd's own `Mutex`.

mod claim;
pub(crate) mod entry;
pub(crate) mod fences;
mod look;
mod operations;
pub(crate) mod statements;
mod watches;

pub(crate) use claim::EtcdClaim;
