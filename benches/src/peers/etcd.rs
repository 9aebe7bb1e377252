//! The lock service of etcd, as `etcd-client` calls it. Two calls with one lease are one
//! acquisition, so each contender needs a lease.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use etcd_client::{Client, LockOptions};

use super::{Peer, PeerHold};
use crate::Done;

pub(super) struct Rpc {
    client: Client,
    /// Of locks that were released, to be used again.
    spare: Option<Leases>,
}

type Leases = Arc<Mutex<Vec<i64>>>;

struct Held {
    client: Client,
    key: Vec<u8>,
    lease: i64,
    spare: Option<Leases>,
}

impl Rpc {
    pub(super) async fn open(url: &str, reuse: bool) -> Done<Self> {
        let hosts: Vec<_> = url.trim_start_matches("etcd://").split(',').collect();
        let client = Client::connect(hosts, None).await?;
        Ok(Self { client, spare: reuse.then(Leases::default) })
    }
}

#[async_trait]
impl Peer for Rpc {
    async fn acquire(&self, name: &str) -> Done<Box<dyn PeerHold>> {
        let mut client = self.client.clone();
        let spare = self.spare.as_ref();
        let spare = spare.and_then(|all| all.lock().unwrap_or_else(PoisonError::into_inner).pop());
        let lease = match spare {
            Some(lease) => lease,
            // So long that it needs no renewal while it is measured.
            None => client.lease_grant(3600, None).await?.id(),
        };
        let options = LockOptions::new().with_lease(lease);
        let key = client.lock(name, Some(options)).await?.key().to_vec();
        Ok(Box::new(Held { client, key, lease, spare: self.spare.clone() }))
    }
}

#[async_trait]
impl PeerHold for Held {
    async fn release(mut self: Box<Self>) -> Done {
        match self.spare {
            Some(spare) => {
                self.client.unlock(self.key).await?;
                spare.lock().unwrap_or_else(PoisonError::into_inner).push(self.lease);
            }
            // This removes the key, too.
            None => {
                self.client.lease_revoke(self.lease).await?;
            }
        }
        Ok(())
    }
}
