//! What all claims of a backend share.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, LockKey, Result};

use crate::config::ZkConfig;
use crate::error::no_answer;
use crate::names;
use crate::sessions::Sessions;

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) config: Arc<ZkConfig>,
}

impl Store {
    /// The node of a lock.
    pub(crate) fn parent(&self, key: &LockKey) -> String {
        format!("{}/{}", self.config.root, names::encode(key))
    }

    /// How long the session of a lock with this ttl lasts.
    pub(crate) fn session_timeout(&self, ttl: Duration) -> Duration {
        ttl.max(self.sessions.limits().least)
    }

    pub(crate) fn refuse_too_long(&self, ttl: Duration) -> Result<()> {
        let most = self.sessions.limits().most;
        if ttl <= most {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a ttl of {ttl:?} is longer than the sessions that the ZooKeeper ensemble at {} allows, {most:?}: shorten it, or raise the servers' maxSessionTimeout",
            self.sessions.endpoint()
        )))
    }

    /// Bounds a call, so that the driver's own queue of requests does not keep it for ever.
    ///
    /// # Errors
    ///
    /// Those of `call`, or that there was no answer within `limit`.
    pub(crate) async fn bounded<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(no_answer(limit, self.sessions.endpoint())),
        }
    }
}
