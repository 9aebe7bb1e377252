//! A claim that makes one mistake while it waits, or in what it says of itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, Error, HolderInfo, LockBackend, Released, Renewal, Result,
};

use super::bug::Bug;
use super::side::Side;

pub(super) struct WrongPlace {
    bug: Bug,
    store: Arc<dyn LockBackend>,
    side: Arc<Side>,
    right: Box<dyn Claim>,
    /// What the core has asked for, and what is asked of the store.
    asked: ClaimRequest,
    request: ClaimRequest,
    /// The last answer was a place in the queue.
    waits: bool,
    /// The last renewal or check had no answer.
    in_doubt: bool,
    has_renewed: bool,
}

impl fmt::Debug for WrongPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("WrongPlace");
        shown.field("right", &self.right);
        if self.bug == Bug::OwnerInDebug {
            shown.field("owner", &self.asked.owner.to_hex());
        }
        shown.finish_non_exhaustive()
    }
}

impl WrongPlace {
    pub(super) fn new(
        bug: Bug,
        store: Arc<dyn LockBackend>,
        side: Arc<Side>,
        asked: ClaimRequest,
        request: ClaimRequest,
    ) -> Result<Self> {
        let right = store.claim(request.clone())?;
        let (waits, in_doubt, has_renewed) = (false, false, false);
        Ok(Self { bug, store, side, right, asked, request, waits, in_doubt, has_renewed })
    }

    fn with_ttl(&self, ttl: Duration) -> Result<Box<dyn Claim>> {
        let mut request = self.request.clone();
        request.ttl = ttl;
        self.store.claim(request)
    }

    /// A place of half the ttl; a grant has all of it.
    async fn half_a_place(&mut self) -> Result<Attempt> {
        self.right = self.with_ttl(self.request.ttl / 2)?;
        let answer = self.right.try_acquire().await?;
        if let Attempt::Granted { .. } = answer {
            self.right = self.with_ttl(self.request.ttl)?;
            self.right.renew().await?;
        }
        Ok(answer)
    }

    /// What is promised, whatever the store keeps.
    fn promised(&self, valid_for: Option<Duration>) -> Option<Duration> {
        let lies = self.request.ttl != self.asked.ttl || self.bug == Bug::PlaceEndsEarly;
        if lies { valid_for.map(|_| self.asked.ttl) } else { valid_for }
    }

    fn error(&self, error: Error) -> Error {
        if self.bug != Bug::OwnerInErrors {
            return error;
        }
        let text = format!("{}, for the owner {}", error.message(), self.asked.owner.to_hex());
        let told = Error::new(error.kind(), text);
        match error.effect() {
            lock_core::Effect::Unknown => told.with_unknown_effect(),
            lock_core::Effect::None => told,
        }
    }

    /// Whether a call without an answer is wrongly taken for the end of the place.
    fn is_forgotten(&self, bug: Bug) -> bool {
        self.bug == bug && self.waits && self.in_doubt
    }
}

#[async_trait]
impl Claim for WrongPlace {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let answer = match self.bug {
            Bug::PlaceEndsEarly if self.request.wait => self.half_a_place().await,
            _ => self.right.try_acquire().await,
        };
        let answer = answer.map_err(|error| self.error(error))?;
        self.waits = matches!(&answer, Attempt::Busy(busy) if busy.valid_for.is_some());
        Ok(match answer {
            Attempt::Granted { token, valid_for } => {
                self.side.take(&self.asked.key, self.asked.owner);
                Attempt::Granted { token, valid_for: self.promised(valid_for) }
            }
            Attempt::Busy(mut busy) => {
                if self.waits {
                    self.side.wait(&self.asked.key, self.asked.owner);
                }
                if self.bug == Bug::OwnerIsTheLabel {
                    busy.holder = busy.holder.map(|holder| Box::new(labelled(*holder)));
                }
                let place = self.promised(busy.valid_for);
                Attempt::Busy(busy.with_place(place))
            }
            other => other,
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        if self.is_forgotten(Bug::DoubtForgets) {
            return Ok(Renewal::Lost);
        }
        let answer = self.right.renew().await.map_err(|error| self.error(error));
        self.in_doubt = answer.is_err();
        let has_renewed = std::mem::replace(&mut self.has_renewed, true);
        match answer? {
            Renewal::Alive { valid_for }
                if self.waits && self.bug == Bug::RenewedPlaceEndsEarly =>
            {
                Ok(Renewal::Alive { valid_for: valid_for.map(|place| place * 6 / 5) })
            }
            Renewal::Alive { valid_for } => {
                Ok(Renewal::Alive { valid_for: self.promised(valid_for) })
            }
            Renewal::Lost if has_renewed && self.bug == Bug::LossIsForgotten => {
                Ok(Renewal::Alive { valid_for: Some(self.request.ttl) })
            }
            lost => Ok(lost),
        }
    }

    async fn check(&mut self) -> Result<Renewal> {
        if self.is_forgotten(Bug::DoubtForgets) {
            return Ok(Renewal::Lost);
        }
        if self.bug == Bug::PlaceIsRemembered && self.waits {
            return Ok(Renewal::Alive { valid_for: None });
        }
        let answer = self.right.check().await.map_err(|error| self.error(error));
        self.in_doubt = answer.is_err();
        match answer? {
            _ if self.bug == Bug::PlaceIsNotSeen && self.waits => Ok(Renewal::Lost),
            answer => Ok(answer),
        }
    }

    async fn release(&mut self) -> Result<Released> {
        if self.is_forgotten(Bug::DoubtKeeps) {
            return Ok(Released::AlreadyGone);
        }
        self.side.leave(&self.asked.key, self.asked.owner);
        self.right.release().await.map_err(|error| self.error(error))
    }

    async fn changed(&mut self) -> Result<()> {
        self.right.changed().await?;
        if self.bug == Bug::ChangeIsForgotten {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn detach(&mut self) -> Result<Bytes> {
        self.right.detach().await
    }
}

/// A holder under the name of its owner id.
fn labelled(mut holder: HolderInfo) -> HolderInfo {
    holder.label = holder.owner.map(|owner| owner.to_hex());
    holder
}
