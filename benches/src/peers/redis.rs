//! Libraries for Redis. All of them try again after a pause.

use std::time::Duration;

use async_trait::async_trait;
use distkit::DistkitRedisKey;
use distkit::lock::{LockOptions, Mutex, MutexGuard};
use distributed_lock_core::{DistributedLock as _, LockHandle, LockProvider};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use redis::aio::ConnectionManager;
use rslock::{LockGuard, LockManager};

use super::{Peer, PeerHold, TTL};
use crate::Done;
use crate::stores::redis::servers;

pub(super) struct Rslock(LockManager);

impl Rslock {
    /// By default it pauses for up to 200 ms.
    pub(super) fn open(url: &str, pause: Option<Duration>) -> Self {
        let mut manager = LockManager::new(servers(url));
        if let Some(pause) = pause {
            manager.set_retry(u32::MAX, pause);
        }
        Self(manager)
    }
}

#[async_trait]
impl Peer for Rslock {
    async fn acquire(&self, name: &str) -> Done<Box<dyn PeerHold>> {
        Ok(Box::new(self.0.acquire(name, TTL).await?))
    }
}

#[async_trait]
impl PeerHold for LockGuard {
    async fn release(self: Box<Self>) -> Done {
        (*self).release().await;
        Ok(())
    }
}

pub(super) struct Distkit {
    connection: ConnectionManager,
    pause: Option<Duration>,
}

impl Distkit {
    /// By default it pauses for 50 ms.
    pub(super) async fn open(url: &str, pause: Option<Duration>) -> Done<Self> {
        let connection = redis::Client::open(url)?.get_connection_manager().await?;
        Ok(Self { connection, pause })
    }
}

#[async_trait]
impl Peer for Distkit {
    async fn acquire(&self, name: &str) -> Done<Box<dyn PeerHold>> {
        // The name becomes a part of a longer key with colons of its own.
        let key = DistkitRedisKey::try_from(name.replace(':', "-"))?;
        let options = LockOptions::builder(key, self.connection.clone()).ttl(TTL);
        let options = match self.pause {
            Some(pause) => options.retry_interval(pause),
            None => options,
        };
        Ok(Box::new(Mutex::new(options.build()).lock().await?))
    }
}

#[async_trait]
impl PeerHold for MutexGuard {
    async fn release(self: Box<Self>) -> Done {
        (*self).release().await?;
        Ok(())
    }
}

/// Its pause cannot be chosen.
pub(super) struct DistributedLock(RedisLockProvider);

impl DistributedLock {
    pub(super) async fn open(url: &str) -> Done<Self> {
        Ok(Self(RedisLockProvider::builder().urls(&servers(url)).expiry(TTL).build().await?))
    }
}

#[async_trait]
impl Peer for DistributedLock {
    async fn acquire(&self, name: &str) -> Done<Box<dyn PeerHold>> {
        Ok(Box::new(self.0.create_lock(name).acquire(None).await?))
    }
}

#[async_trait]
impl PeerHold for RedisLockHandle {
    async fn release(self: Box<Self>) -> Done {
        Ok(LockHandle::release(*self).await?)
    }
}
