//! The advisory locks of `sqlx`: a session waits and holds, so each contender takes a connection.

use async_trait::async_trait;
use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgPool, PgPoolOptions};

use super::{Peer, PeerHold};
use crate::Done;

pub(super) struct Advisory(PgPool);

impl Advisory {
    /// The default pool has 10 connections and tests each before its use.
    pub(super) async fn open(url: &str, best: bool) -> Done<Self> {
        let options = PgPoolOptions::new();
        let options = if best {
            // Four processes of these are nearly all that the server allows.
            options.max_connections(50).test_before_acquire(false)
        } else {
            options
        };
        // The others wait for a connection longer than a pool lets them by default.
        let patience = std::time::Duration::from_secs(3600);
        Ok(Self(options.acquire_timeout(patience).connect(url).await?))
    }
}

#[async_trait]
impl Peer for Advisory {
    async fn acquire(&self, name: &str) -> Done<Box<dyn PeerHold>> {
        let connection = self.0.acquire().await?;
        Ok(Box::new(PgAdvisoryLock::new(name).acquire(connection).await?))
    }
}

#[async_trait]
impl PeerHold for PgAdvisoryLockGuard<PoolConnection<Postgres>> {
    async fn release(self: Box<Self>) -> Done {
        self.release_now().await?;
        Ok(())
    }
}
