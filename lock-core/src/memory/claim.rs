//! A contender for a lock of the memory store.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;

use super::store::{Flavour, MemoryStore};
use super::{FaultLink, request};
use crate::{Attempt, Claim, ClaimRequest, Error, ErrorKind, Released, Renewal, Result};

#[derive(Debug)]
pub(super) struct MemoryClaim {
    store: Arc<MemoryStore>,
    link: Arc<FaultLink>,
    request: Arc<ClaimRequest>,
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
        Ok(Self { store, link, request: Arc::new(request), changed: Arc::default() })
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
}

#[async_trait]
impl Claim for MemoryClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let (request, changed) = (Arc::clone(&self.request), Arc::clone(&self.changed));
        self.ask(move |store| store.try_acquire(&request, changed)).await?
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let request = Arc::clone(&self.request);
        self.ask(move |store| store.renew(&request)).await?
    }

    async fn check(&mut self) -> Result<Renewal> {
        let request = Arc::clone(&self.request);
        self.ask(move |store| store.check(&request)).await?
    }

    async fn release(&mut self) -> Result<Released> {
        let request = Arc::clone(&self.request);
        self.ask(move |store| store.release(&request)).await?
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
