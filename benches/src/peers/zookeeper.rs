//! The recipe in `zookeeper-client`. A release is sent in the background, so that its own time is
//! none; a hand-over shows it.

use async_trait::async_trait;
use zookeeper_client as zk;

use super::{Peer, PeerHold, TTL};
use crate::Done;

const PERSISTENT: zk::CreateOptions<'static> =
    zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());

pub(super) struct Recipe(zk::Client);

impl Recipe {
    pub(super) async fn open(url: &str) -> Done<Self> {
        let hosts = url.trim_start_matches("zookeeper://");
        Ok(Self(zk::Client::connector().with_session_timeout(TTL).connect(hosts).await?))
    }
}

#[async_trait]
impl Peer for Recipe {
    async fn acquire(&self, name: &str) -> Done<Box<dyn PeerHold>> {
        let folder = format!("/peers/{name}");
        let options =
            zk::LockOptions::new(zk::Acls::anyone_all()).with_ancestor_options(PERSISTENT)?;
        let prefix = zk::LockPrefix::new_curator(&folder, "lock-")?;
        Ok(Box::new(self.0.lock(prefix, b"", options).await?.into_owned()))
    }
}

#[async_trait]
impl PeerHold for zk::OwnedLockClient {
    async fn release(self: Box<Self>) -> Done {
        drop(self);
        Ok(())
    }
}
