//! Stores that draw the wrong conclusion from an answer that is missing or late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Attempt, Busy, Bytes, Capabilities, Claim, ClaimRequest, Error, ErrorKind, Finding, LockAdmin,
    LockBackend, LockInfo, LockKey, Released, Renewal, Result, Seen, Victim,
};

use super::bug::Bug;
use super::side::{Side, admin_of};

#[derive(Debug)]
pub(super) struct HastyBackend {
    bug: Bug,
    right: Arc<dyn LockBackend>,
    side: Arc<Side>,
    /// A forced release was begun and has had no answer.
    forcing: AtomicBool,
    /// No call gets through any more.
    poisoned: Arc<AtomicBool>,
}

impl HastyBackend {
    pub(super) fn new(bug: Bug, right: Arc<dyn LockBackend>, side: Arc<Side>) -> Self {
        Self { bug, right, side, forcing: AtomicBool::default(), poisoned: Arc::default() }
    }
}

#[async_trait]
impl LockBackend for HastyBackend {
    fn name(&self) -> &'static str {
        self.right.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.right.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(HastyClaim {
            bug: self.bug,
            store: Arc::clone(&self.right),
            side: Arc::clone(&self.side),
            right: self.right.claim(request.clone())?,
            request,
            poisoned: Arc::clone(&self.poisoned),
            is_granted: false,
            under_way: None,
            unanswered: 0,
            place_lost: false,
            releasing: false,
        }))
    }

    async fn ping(&self) -> Result<()> {
        self.right.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.right.look(keys).await
    }

    async fn close(&self) -> Result<()> {
        if self.bug == Bug::CloseEndsAll {
            for info in self.list("", "").await? {
                admin_of(&*self.right)?.force_release(&info.key, &Victim::Anybody).await?;
            }
        }
        self.right.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.right.admin().is_some().then_some(self as &dyn LockAdmin)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockAdmin for HastyBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        admin_of(&*self.right)?.inspect(key).await
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        admin_of(&*self.right)?.list(prefix, name_start).await
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        if self.forcing.swap(true, Ordering::Relaxed) && self.bug == Bug::ForcedOnce {
            return Ok(Released::Freed);
        }
        let answer = admin_of(&*self.right)?.force_release(key, victim).await;
        self.forcing.store(answer.is_err(), Ordering::Relaxed);
        answer
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        admin_of(&*self.right)?.diagnose().await
    }

    async fn recover(&self) -> Result<()> {
        admin_of(&*self.right)?.recover().await
    }
}

#[derive(Debug)]
struct HastyClaim {
    bug: Bug,
    store: Arc<dyn LockBackend>,
    side: Arc<Side>,
    request: ClaimRequest,
    right: Box<dyn Claim>,
    poisoned: Arc<AtomicBool>,
    is_granted: bool,
    /// The call that was begun and has not ended.
    under_way: Option<Call>,
    /// How many tries in a row had no answer.
    unanswered: u32,
    place_lost: bool,
    /// A release was begun.
    releasing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Try,
    Other,
}

impl HastyClaim {
    fn begin(&mut self, call: Call) -> Result<()> {
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "the connection is out of step"));
        }
        self.under_way = Some(call);
        Ok(())
    }

    /// What it makes of the answer to a renewal or a check.
    fn concluded(&mut self, answer: Result<Renewal>) -> Result<Renewal> {
        self.place_lost |= !self.is_granted && matches!(answer, Ok(Renewal::Lost));
        match answer {
            Err(_) if self.bug == Bug::PlaceErrorIsLost && !self.is_granted => Ok(Renewal::Lost),
            answer => self.judged(answer),
        }
    }

    /// What it makes of an answer that is missing.
    fn judged<T>(&self, answer: Result<T>) -> Result<T> {
        match answer {
            Err(_) if self.bug == Bug::ErrorsAreFinal => {
                Err(Error::new(ErrorKind::InvalidInput, "the request failed"))
            }
            answer => answer,
        }
    }
}

#[async_trait]
impl Claim for HastyClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        if self.bug == Bug::LostPlaceIsFinal && self.place_lost {
            return Ok(Attempt::Busy(Busy::default()));
        }
        self.begin(Call::Try)?;
        let answer = self.right.try_acquire().await;
        self.under_way = None;
        self.is_granted |= matches!(answer, Ok(Attempt::Granted { .. }));
        self.unanswered = if answer.is_err() { self.unanswered + 1 } else { 0 };
        if self.bug == Bug::TwoErrorsAreBusy && self.unanswered > 1 {
            return Ok(Attempt::Busy(Busy::default()));
        }
        self.judged(answer)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.begin(Call::Other)?;
        let answer = self.right.renew().await;
        self.under_way = None;
        self.concluded(answer)
    }

    async fn check(&mut self) -> Result<Renewal> {
        if self.bug == Bug::DoubtIsAlive && self.unanswered > 0 {
            return Ok(Renewal::Alive { valid_for: Some(self.request.ttl) });
        }
        let start = self.side.clock.now();
        match self.right.check().await {
            Ok(Renewal::Alive { valid_for }) if self.bug == Bug::CheckFromReply => {
                let took = self.side.clock.now().since(start);
                Ok(Renewal::Alive { valid_for: valid_for.map(|left| left + took) })
            }
            answer => self.concluded(answer),
        }
    }

    async fn release(&mut self) -> Result<Released> {
        if self.bug == Bug::ReleasedOnce && self.releasing {
            return Ok(Released::AlreadyGone);
        }
        self.releasing = true;
        if self.bug == Bug::ReleasedLater {
            let mut later = self.store.claim(self.request.clone())?;
            let pause = self.side.clock.sleep(Duration::from_secs(1));
            tokio::spawn(async move {
                pause.await;
                later.release().await
            });
            return Ok(Released::Freed);
        }
        if self.bug == Bug::DoubtReleasesAnybody && self.unanswered > 0 {
            let admin = self.store.admin();
            let admin = admin.ok_or_else(|| Error::unsupported("there is no inspection"))?;
            return admin.force_release(&self.request.key, &Victim::Anybody).await;
        }
        self.right.release().await
    }

    async fn changed(&mut self) -> Result<()> {
        self.right.changed().await
    }

    async fn detach(&mut self) -> Result<Bytes> {
        self.right.detach().await
    }
}

impl Drop for HastyClaim {
    fn drop(&mut self) {
        match (self.bug, self.under_way) {
            (Bug::DropPoisons, Some(_)) => self.poisoned.store(true, Ordering::Relaxed),
            (Bug::TriesOn, Some(Call::Try)) => {
                let pause = self.side.clock.sleep(self.request.ttl / 2);
                if let Ok(mut again) = self.store.claim(self.request.clone())
                    && let Ok(runtime) = tokio::runtime::Handle::try_current()
                {
                    runtime.spawn(async move {
                        pause.await;
                        again.try_acquire().await
                    });
                }
            }
            _ => {}
        }
    }
}
