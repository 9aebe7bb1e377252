//! A contender for a lock of the memory store.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;

use super::store::{Entry, Flavour, Store};
use super::{FaultLink, request};
use crate::{Attempt, Claim, ClaimRequest, ClockInstant, Error, Mode, Released, Renewal, Result};

#[derive(Debug)]
pub(super) struct MemoryClaim {
    store: Arc<Store>,
    link: Arc<FaultLink>,
    request: ClaimRequest,
    changed: Arc<Notify>,
}

impl MemoryClaim {
    pub(super) fn new(
        store: Arc<Store>,
        link: Arc<FaultLink>,
        request: ClaimRequest,
    ) -> Result<Self> {
        match request.mode {
            Mode::Exclusive => Ok(Self { store, link, request, changed: Arc::default() }),
            #[allow(unreachable_patterns, reason = "modes may be added")]
            _ => Err(Error::unsupported("the memory store has exclusive locks only")),
        }
    }
}

#[async_trait]
impl Claim for MemoryClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let (key, wait) = (self.request.key.clone(), self.request.wait);
        let me = Entry {
            owner: self.request.owner,
            ttl: self.request.ttl,
            label: self.request.label.clone(),
            changed: Arc::clone(&self.changed),
            since: ClockInstant::from_nanos(0),
            until: ClockInstant::from_nanos(0),
        };
        request(&self.link, &self.store, move |store| store.try_acquire(&key, me, wait)).await?
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let (key, owner) = (self.request.key.clone(), self.request.owner);
        request(&self.link, &self.store, move |store| store.renew(&key, &owner)).await?
    }

    async fn check(&mut self) -> Result<Renewal> {
        let (key, owner) = (self.request.key.clone(), self.request.owner);
        request(&self.link, &self.store, move |store| store.check(&key, &owner)).await?
    }

    async fn release(&mut self) -> Result<Released> {
        let (key, owner) = (self.request.key.clone(), self.request.owner);
        request(&self.link, &self.store, move |store| store.release(&key, &owner)).await?
    }

    async fn changed(&mut self) -> Result<()> {
        match self.store.flavour {
            Flavour::PollOnly => std::future::pending().await,
            Flavour::Queued => loop {
                self.link.open().await;
                self.changed.notified().await;
                if !self.link.is_cut() {
                    return Ok(());
                }
                // It is heard when the link is there again, also if this call is dropped now.
                self.changed.notify_one();
            },
        }
    }

    async fn detach(&mut self) -> Result<Bytes> {
        Ok(Bytes::new())
    }
}
