//! A client that makes one mistake in what comes later: after a renewal, a detach or a forced release, or after a
//! long wait.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Attempt, Bytes, Capabilities, Claim, ClaimRequest, ClockInstant, Finding, HolderInfo,
    LockAdmin, LockBackend, LockInfo, LockKey, Released, Renewal, Result, Seen, Victim,
};

use super::bug::Bug;
use super::claim::FOR_EVER;
use super::side::{Side, admin_of, holder_of};

/// As long as a lease lasts that was renewed for longer.
const MOST: Duration = Duration::from_secs(3);
/// How old a hold gets.
const OLD: Duration = Duration::from_secs(60);
/// For how long a subscription lasts.
const HEARS: Duration = Duration::from_secs(30);
/// How often one looks that says that it is told.
const LOOKS: Duration = Duration::from_millis(400);
/// How many bytes of a label, and of a mark, are kept.
const BYTES: (usize, usize) = (255, 8);

#[derive(Debug)]
pub(super) struct WrongLater {
    bug: Bug,
    right: Arc<dyn LockBackend>,
    side: Arc<Side>,
    /// The locks that this client has taken away from their holders.
    forced: Arc<Mutex<BTreeSet<LockKey>>>,
}

fn keys(forced: &Mutex<BTreeSet<LockKey>>) -> MutexGuard<'_, BTreeSet<LockKey>> {
    forced.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WrongLater {
    pub(super) fn new(bug: Bug, right: Arc<dyn LockBackend>, side: Arc<Side>) -> Self {
        Self { bug, right, side, forced: Arc::default() }
    }

    /// What is shown of a lock, wrongly.
    fn shown(&self, mut info: LockInfo) -> LockInfo {
        let Some(HolderInfo { owner: Some(owner), label, held_for, .. }) = &mut info.holder else {
            return info;
        };
        let later = self.side.later(*owner);
        match self.bug {
            Bug::RenewedLabelIsGone if later.is_renewed && self.side.before(*owner).is_some() => {
                *label = None;
            }
            Bug::LabelsShortened => {
                let cut = |label: String| label.chars().take(BYTES.0).collect();
                *label = label.take().map(cut);
            }
            Bug::DetachedIsYoung => {
                if let Some(detached) = later.detached {
                    *held_for = Some(self.side.clock.now().since(detached));
                }
            }
            _ => {}
        }
        info
    }
}

#[async_trait]
impl LockBackend for WrongLater {
    fn name(&self) -> &'static str {
        self.right.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.right.capabilities()
    }

    fn claim(&self, mut request: ClaimRequest) -> Result<Box<dyn Claim>> {
        if self.bug == Bug::NoLimitByToken && request.resume.is_some() {
            request.call_timeout = FOR_EVER;
        }
        Ok(Box::new(LaterClaim {
            bug: self.bug,
            right: self.right.claim(request.clone())?,
            store: Arc::clone(&self.right),
            side: Arc::clone(&self.side),
            forced: Arc::clone(&self.forced),
            request,
            granted: None,
            has_waited: false,
            is_renewed: false,
        }))
    }

    async fn ping(&self) -> Result<()> {
        self.right.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.right.look(keys).await
    }

    async fn close(&self) -> Result<()> {
        self.right.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.right.admin().is_some().then_some(self as &dyn LockAdmin)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockAdmin for WrongLater {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let found = admin_of(&*self.right)?.inspect(key).await?;
        Ok(found.map(|info| self.shown(info)))
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let prefix = match self.bug {
            Bug::ListByPattern => prefix.replace('_', "a"),
            _ => prefix.to_owned(),
        };
        let list = admin_of(&*self.right)?.list(&prefix, name_start).await?;
        let times = |info: &LockInfo| match self.bug {
            Bug::ListJoinsWaiters => 1.max(info.waiters.unwrap_or(0)),
            _ => 1,
        };
        let each =
            list.into_iter().flat_map(|info| std::iter::repeat_n(info.clone(), times(&info)));
        Ok(each.map(|info| self.shown(info)).collect())
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        let below = admin_of(&*self.right)?;
        let mut victim = victim.clone();
        if let (Bug::MarkIsShort, Victim::Shown(mark)) = (self.bug, &victim)
            && let Some(holder) = below.inspect(key).await?.and_then(|info| info.holder)
            && holder.mark.as_bytes().get(..BYTES.1) == mark.as_bytes().get(..BYTES.1)
        {
            victim = Victim::Shown(holder.mark);
        }
        let second = self.side.waiting(key).into_iter().nth(1);
        if self.bug == Bug::ForceWakesTheOnlyOne && second.is_some() {
            self.side.silence(key);
        }
        keys(&self.forced).insert(key.clone());
        let released = below.force_release(key, &victim).await?;
        if let (Bug::ForceTakesAPlace, Some(second)) = (self.bug, second) {
            self.right.claim(second)?.release().await?;
        }
        Ok(released)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        admin_of(&*self.right)?.diagnose().await
    }

    async fn recover(&self) -> Result<()> {
        admin_of(&*self.right)?.recover().await
    }
}

#[derive(Debug)]
struct LaterClaim {
    bug: Bug,
    right: Box<dyn Claim>,
    store: Arc<dyn LockBackend>,
    side: Arc<Side>,
    forced: Arc<Mutex<BTreeSet<LockKey>>>,
    request: ClaimRequest,
    /// Its first grant, and when that was.
    granted: Option<(Attempt, ClockInstant)>,
    has_waited: bool,
    is_renewed: bool,
}

impl LaterClaim {
    fn is_resumed(&self) -> bool {
        self.request.resume.is_some()
    }

    fn alive(&self) -> Renewal {
        Renewal::Alive { valid_for: Some(self.request.ttl) }
    }

    /// Whether it came as the bearer of a lease token, and has a place only.
    fn has_a_place(&self) -> impl Future<Output = Result<bool>> + Send + 'static {
        let (store, mut place) = (Arc::clone(&self.store), self.request.clone());
        place.resume = None;
        async move {
            let (key, owner) = (place.key.clone(), place.owner);
            let is_known = store.claim(place)?.check().await? != Renewal::Lost;
            Ok(is_known && holder_of(store, key).await? != Some(owner))
        }
    }

    /// For how long a renewal keeps the lock, whatever it says.
    fn kept(&self) -> Duration {
        let ttl = self.request.ttl;
        match self.bug {
            Bug::RenewalIsCut => Duration::from_secs(ttl.as_secs().max(1)).min(ttl),
            Bug::RenewalIsClamped => ttl.min(MOST),
            Bug::TokenRenewalIsClamped if self.is_resumed() => ttl.min(MOST),
            _ => ttl,
        }
    }
}

#[async_trait]
impl Claim for LaterClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        if let (Bug::RepeatOfAHandOverIsKept, true, Some((answer, _))) =
            (self.bug, self.has_waited, &self.granted)
        {
            return Ok(answer.clone());
        }
        let answer = self.right.try_acquire().await?;
        match &answer {
            Attempt::Granted { .. } if self.granted.is_none() => {
                self.granted = Some((answer.clone(), self.side.clock.now()));
            }
            Attempt::Busy(_) => self.has_waited |= self.request.wait,
            _ => {}
        }
        Ok(answer)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let is_old = |since: ClockInstant| self.side.clock.now().since(since) > OLD;
        if self.bug == Bug::HoldsGrowOld && self.granted.as_ref().is_some_and(|it| is_old(it.1)) {
            self.right.release().await?;
        }
        if self.bug == Bug::PlaceIsTakenOver && self.is_resumed() && self.has_a_place().await? {
            return Ok(self.alive());
        }
        let mut request = self.request.clone();
        request.ttl = self.kept();
        let is_short = request.ttl < self.request.ttl;
        let answer = match is_short {
            true => self.store.claim(request)?.renew().await?,
            false => self.right.renew().await?,
        };
        if answer != Renewal::Lost {
            self.is_renewed = true;
            self.side.is_renewed(self.request.owner);
        }
        Ok(if is_short && answer != Renewal::Lost { self.alive() } else { answer })
    }

    async fn check(&mut self) -> Result<Renewal> {
        let answer = self.right.check().await?;
        let lies = self.bug == Bug::RenewedCheckPromises && self.is_renewed;
        Ok(if lies && answer != Renewal::Lost { self.alive() } else { answer })
    }

    async fn release(&mut self) -> Result<Released> {
        if self.bug == Bug::ReleaseByTokenIsSilent && self.is_resumed() {
            self.side.silence(&self.request.key);
        }
        self.right.release().await
    }

    async fn changed(&mut self) -> Result<()> {
        match self.bug {
            Bug::ForceTellsNotItself => {
                self.right.changed().await?;
                let is_forced = keys(&self.forced).contains(&self.request.key);
                match is_forced && self.granted.is_some() {
                    true => std::future::pending().await,
                    false => Ok(()),
                }
            }
            Bug::DeafInTime => tokio::select! {
                changed = self.right.changed() => changed,
                () = tokio::time::sleep(HEARS) => std::future::pending().await,
            },
            Bug::ChangesAreLookedFor => {
                self.right.changed().await?;
                let now = self.side.clock.now().since(ClockInstant::from_nanos(0)).as_millis();
                let passed = u64::try_from(now % LOOKS.as_millis()).unwrap_or(0);
                tokio::time::sleep(LOOKS.saturating_sub(Duration::from_millis(passed))).await;
                Ok(())
            }
            _ => self.right.changed().await,
        }
    }

    async fn detach(&mut self) -> Result<Bytes> {
        if self.bug == Bug::DetachRenews {
            self.right.renew().await?;
        }
        let bytes = self.right.detach().await?;
        self.side.is_detached(self.request.owner);
        Ok(bytes)
    }
}
