//! A contender for a lock of the memory store.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;

use super::store::{Flavour, Me, MemoryEntry, MemoryStore};
use super::{FaultLink, request};
use crate::contract::Fences;
use crate::{
    Attempt, Claim, ClaimRequest, ClockInstant, Error, ErrorKind, Released, Renewal, Result, Resume,
};

#[derive(Debug)]
pub(super) struct MemoryClaim {
    store: Arc<MemoryStore>,
    link: Arc<FaultLink>,
    request: ClaimRequest,
    changed: Arc<Notify>,
}

impl MemoryClaim {
    pub(super) fn new(
        store: Arc<MemoryStore>,
        link: Arc<FaultLink>,
        request: ClaimRequest,
    ) -> Result<Self> {
        if request.resume.as_ref().is_some_and(|resume| !resume.data.is_empty()) {
            return Err(Error::invalid(
                "this lease token was edited: lease tokens of the memory store carry no data",
            ));
        }
        Ok(Self { store, link, request, changed: Arc::default() })
    }

    /// One request of this claim, which has no answer after its `call_timeout` (clause C12).
    async fn ask<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Arc<MemoryStore>) -> T + Send + 'static,
    ) -> Result<T> {
        let limit = self.request.call_timeout;
        tokio::select! {
            biased;
            answer = request(&self.link, &self.store, act) => answer,
            // Armed only if the answer is not there at once.
            () = async { self.store.clock.sleep(limit).await } => {
                let why = format!("the store did not answer within {limit:?}");
                Err(Error::new(ErrorKind::NoAnswer, why).with_unknown_effect())
            }
        }
    }

    fn me(&self) -> Me {
        let ClaimRequest { owner, ttl, fences, resume, .. } = &self.request;
        let block = |resume: &Resume| Fences { first: resume.fence, count: *fences };
        Me { owner: *owner, ttl: *ttl, resumed: resume.as_ref().map(block) }
    }
}

#[async_trait]
impl Claim for MemoryClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let (key, wait) = (self.request.key.clone(), self.request.wait);
        let me = MemoryEntry {
            owner: self.request.owner,
            ttl: self.request.ttl,
            fences: self.request.fences,
            label: self.request.label.clone(),
            changed: Arc::clone(&self.changed),
            since: ClockInstant::from_nanos(0),
            until: ClockInstant::from_nanos(0),
        };
        self.ask(move |store| store.try_acquire(&key, me, wait)).await?
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let (key, me) = (self.request.key.clone(), self.me());
        self.ask(move |store| store.renew(&key, &me)).await?
    }

    async fn check(&mut self) -> Result<Renewal> {
        let (key, me) = (self.request.key.clone(), self.me());
        self.ask(move |store| store.check(&key, &me)).await?
    }

    async fn release(&mut self) -> Result<Released> {
        let (key, me) = (self.request.key.clone(), self.me());
        self.ask(move |store| store.release(&key, &me)).await?
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
                // The change is seen when the link is back, even if this call is dropped now.
                self.changed.notify_one();
            },
        }
    }

    async fn detach(&mut self) -> Result<Bytes> {
        Ok(Bytes::new())
    }
}
