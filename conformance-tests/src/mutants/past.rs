//! A client that makes one mistake with a hold that has a past: that was renewed, came by a wait, was taken over by its
//! lease token, or follows one that was taken away.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Attempt, Busy, Bytes, Capabilities, Claim, ClaimRequest, ClockInstant, Error, ErrorKind,
    Finding, HolderInfo, HolderMark, LockAdmin, LockBackend, LockInfo, LockKey, OwnerId, Released,
    Renewal, Result, Seen, Victim,
};
use tokio::sync::Notify;

use super::bug::Bug;
use super::side::{Side, admin_of, holder_of, show_the_ttl};

/// How many renewals are too many for a store that counts them.
const TOO_MANY: u32 = 100;
/// The longest name of a queue, in bytes.
const QUEUE: usize = 255;
/// The longest name of a channel, in bytes.
const LONG: usize = 63;
/// How often one asks on whose claim is gone.
const PAUSE: Duration = Duration::from_millis(300);

/// What is known about the holds and the waiters of one store, for all its clients.
#[derive(Debug, Default)]
pub(super) struct Records(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Who has waited, and since when.
    waits: HashMap<OwnerId, ClockInstant>,
    /// Who waits, alive or not.
    waiting: Vec<ClaimRequest>,
    /// Whose hold was renewed.
    renewed: HashSet<OwnerId>,
    /// Whose hold was taken over by its token, and when it was renewed last.
    resumed: HashMap<OwnerId, ClockInstant>,
    /// Locks whose holder is to learn that it has lost them.
    flags: HashSet<LockKey>,
    listeners: Vec<(LockKey, OwnerId, Arc<Notify>)>,
    /// The bytes of the last lease token of each lock.
    bytes: HashMap<LockKey, Bytes>,
}

impl Records {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct WrongPast {
    bug: Bug,
    right: Arc<dyn LockBackend>,
    side: Arc<Side>,
    /// That of its first claim.
    limit: OnceLock<Duration>,
}

impl WrongPast {
    pub(super) fn new(bug: Bug, right: Arc<dyn LockBackend>, side: Arc<Side>) -> Self {
        Self { bug, right, side, limit: OnceLock::new() }
    }

    /// The holder, as it is wrongly shown.
    fn shown(&self, mut holder: HolderInfo) -> HolderInfo {
        let known = self.side.past.known();
        let resumed = holder.owner.and_then(|owner| known.resumed.get(&owner).copied());
        let Some((since, owner)) = resumed.zip(holder.owner) else { return holder };
        match self.bug {
            Bug::ResumedIsYoung => holder.held_for = Some(self.side.clock.now().since(since)),
            Bug::ResumedHasItsMark => {
                holder.mark = HolderMark::new(format!("resumed {}", owner.to_hex()));
            }
            _ => {}
        }
        holder
    }

    fn info(&self, mut info: LockInfo) -> LockInfo {
        info.holder = info.holder.map(|holder| self.shown(holder));
        info
    }

    /// Whether a look does not see the present holder.
    async fn overlooks(&self, key: &LockKey) -> Result<bool> {
        if !matches!(self.bug, Bug::RenewedIsNotSeen | Bug::ResumedIsNotSeen) {
            return Ok(false);
        }
        let holder = holder_of(Arc::clone(&self.right), key.clone()).await?;
        let known = self.side.past.known();
        Ok(holder.is_some_and(|holder| match self.bug {
            Bug::RenewedIsNotSeen => known.renewed.contains(&holder),
            _ => known.resumed.contains_key(&holder),
        }))
    }

    /// Whether the mark of the present holder is no longer known.
    async fn misses(&self, key: &LockKey) -> Result<bool> {
        if !matches!(
            self.bug,
            Bug::ForceMissesRenewed
                | Bug::ForceMissesHanded
                | Bug::ForceMissesResumed
                | Bug::ForceMissesDetached
                | Bug::ForceMissesUnaware
        ) {
            return Ok(false);
        }
        let holder = holder_of(Arc::clone(&self.right), key.clone()).await?;
        let known = self.side.past.known();
        Ok(holder.is_some_and(|holder| match self.bug {
            Bug::ForceMissesRenewed => known.renewed.contains(&holder),
            Bug::ForceMissesResumed => known.resumed.contains_key(&holder),
            Bug::ForceMissesDetached => {
                let is_detached = self.side.later(holder).detached.is_some();
                is_detached && !known.resumed.contains_key(&holder)
            }
            Bug::ForceMissesUnaware => {
                known.waits.contains_key(&holder) && self.side.before(holder).is_none()
            }
            _ => known.waits.contains_key(&holder),
        }))
    }
}

#[async_trait]
impl LockBackend for WrongPast {
    fn name(&self) -> &'static str {
        self.right.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.right.capabilities()
    }

    fn claim(&self, mut request: ClaimRequest) -> Result<Box<dyn Claim>> {
        let first = *self.limit.get_or_init(|| request.call_timeout);
        if self.bug == Bug::LimitOfTheFirst {
            request.call_timeout = first;
        }
        if let (Bug::LastBytesOnly, Some(resume)) = (self.bug, &mut request.resume) {
            let last = self.side.past.known().bytes.get(&request.key).cloned();
            if last != Some(std::mem::take(&mut resume.data)) {
                return Err(Error::invalid("this lease token is out of date"));
            }
        }
        let news: Arc<Notify> = Arc::default();
        let listener = (request.key.clone(), request.owner, Arc::clone(&news));
        self.side.past.known().listeners.push(listener);
        Ok(Box::new(PastClaim {
            bug: self.bug,
            right: self.right.claim(request.clone())?,
            store: Arc::clone(&self.right),
            side: Arc::clone(&self.side),
            request,
            news,
            looks: 0,
            renewals: 0,
            is_granted: false,
        }))
    }

    async fn ping(&self) -> Result<()> {
        self.right.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        if self.bug == Bug::LookWakes {
            let known = self.side.past.known();
            let all = known.listeners.iter().filter(|(key, ..)| keys.contains(key));
            all.for_each(|(_, _, news)| news.notify_one());
        }
        let mut all = self.right.look(keys).await?;
        for (key, seen) in keys.iter().zip(&mut all) {
            if self.overlooks(key).await? {
                *seen = Seen::Free { floor: None };
            }
        }
        Ok(all)
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
impl LockAdmin for WrongPast {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let found = admin_of(&*self.right)?.inspect(key).await?;
        Ok(found.map(|info| self.info(info)))
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let list = admin_of(&*self.right)?.list(prefix, name_start).await?;
        Ok(list.into_iter().map(|info| self.info(info)).collect())
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        let below = admin_of(&*self.right)?;
        let mut key = key.clone();
        if let (Bug::ForceByMarkAlone, Victim::Shown(mark)) = (self.bug, victim) {
            let is_it = |holder: &HolderInfo| holder.mark == *mark;
            let mut list = below.list(key.prefix(), "").await?.into_iter();
            key =
                list.find(|info| info.holder.as_ref().is_some_and(is_it)).map_or(key, |it| it.key);
        }
        if *victim != Victim::Anybody && self.misses(&key).await? {
            return Ok(Released::AlreadyGone);
        }
        let answer = below.force_release(&key, victim).await?;
        let stays = match self.bug {
            Bug::ForceFlagStays => answer == Released::Freed,
            Bug::ForceFlagsInAdvance => answer == Released::AlreadyGone,
            _ => false,
        };
        if stays {
            self.side.past.known().flags.insert(key);
        }
        Ok(answer)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        admin_of(&*self.right)?.diagnose().await
    }

    async fn recover(&self) -> Result<()> {
        admin_of(&*self.right)?.recover().await
    }
}

#[derive(Debug)]
struct PastClaim {
    bug: Bug,
    right: Box<dyn Claim>,
    store: Arc<dyn LockBackend>,
    side: Arc<Side>,
    request: ClaimRequest,
    news: Arc<Notify>,
    looks: u32,
    renewals: u32,
    is_granted: bool,
}

impl PastClaim {
    /// A claim of the true store for another request.
    fn other(&self, change: impl FnOnce(&mut ClaimRequest)) -> Result<Box<dyn Claim>> {
        let mut request = self.request.clone();
        change(&mut request);
        self.store.claim(request)
    }

    fn alive(&self) -> Renewal {
        Renewal::Alive { valid_for: Some(self.request.ttl) }
    }

    fn is_resumed(&self) -> bool {
        self.request.resume.is_some()
    }

    /// Whether its token is no longer known.
    fn is_outdated(&self) -> bool {
        let (known, owner) = (self.side.past.known(), self.request.owner);
        let is_so = match self.bug {
            Bug::RenewedIsNotResumed => known.renewed.contains(&owner),
            Bug::HandedBlockIsNotResumed => {
                self.request.fences > 1 && known.waits.contains_key(&owner)
            }
            _ => false,
        };
        is_so && self.is_resumed()
    }

    /// Whether it has the lock after a wait, and has not looked since, if that matters.
    async fn is_at_its_turn(&mut self) -> Result<bool> {
        let matters =
            matches!(self.bug, Bug::TurnIsNotRenewed | Bug::TurnIsNotSeen | Bug::DeclineIsNotSeen);
        if !matters || self.is_granted || self.looks == 0 || !self.request.wait {
            return Ok(false);
        }
        let holder = holder_of(Arc::clone(&self.store), self.request.key.clone()).await?;
        Ok(holder == Some(self.request.owner))
    }

    /// Whether somebody waits in the same queue for a lock of another name.
    fn is_behind_another(&self) -> bool {
        let queue = |key: &LockKey| match self.bug {
            Bug::QueuesFolded => key.name().to_lowercase(),
            _ => key.name().chars().take(QUEUE).collect(),
        };
        let (key, known) = (&self.request.key, self.side.past.known());
        let mut others = known.waiting.iter().filter(|other| other.key != *key);
        others.any(|other| queue(&other.key) == queue(key))
    }

    /// Whether another lock has the name under which its queue is kept.
    fn has_no_queue(&self) -> impl Future<Output = Result<bool>> + Send + 'static {
        let (store, key) = (Arc::clone(&self.store), self.request.key.clone());
        async move {
            let queue = LockKey::new(key.prefix(), format!("{}:queue", key.name()))?;
            Ok(holder_of(store, queue).await?.is_some())
        }
    }

    /// The true answer, obtained in a wrong way.
    async fn ask(&mut self) -> Result<Attempt> {
        let (is_first, wait, ttl) = (self.looks == 0, self.request.wait, self.request.ttl);
        match self.bug {
            Bug::QueuesFolded | Bug::QueuesShortened if is_first && self.is_behind_another() => {
                return Ok(Attempt::Busy(Busy::default()));
            }
            Bug::QueueIsAName if wait && self.has_no_queue().await? => {
                return Err(Error::new(ErrorKind::Store, "the key holds a value of another kind"));
            }
            Bug::RefusedTwiceWaits if !wait && !is_first => {
                self.right = self.other(|request| request.wait = true)?;
                let answer = self.right.try_acquire().await?;
                return Ok(match answer {
                    Attempt::Busy(busy) => Attempt::Busy(busy.with_place(None)),
                    answer => answer,
                });
            }
            Bug::WaiterGetsHalf if wait && is_first => {
                let mut half =
                    self.other(|request| (request.wait, request.ttl) = (false, ttl / 2))?;
                if let Attempt::Granted { token, .. } = half.try_acquire().await? {
                    return Ok(Attempt::Granted { token, valid_for: Some(ttl) });
                }
            }
            _ => {}
        }
        self.right.try_acquire().await
    }

    /// Remembers a place, and tells those who wait.
    fn waits(&self) {
        let (key, owner) = (&self.request.key, self.request.owner);
        let mut known = self.side.past.known();
        known.waits.entry(owner).or_insert_with(|| self.side.clock.now());
        known.waiting.retain(|other| other.owner != owner);
        known.waiting.push(self.request.clone());
        if self.bug == Bug::LooksAreTold {
            let others = known.listeners.iter().filter(|it| it.0 == *key && it.1 != owner);
            others.for_each(|(_, _, news)| news.notify_one());
        }
    }

    /// The holder in a busy answer, as it is wrongly shown.
    fn answered(&self, busy: &mut Busy) {
        let Some(holder) = &mut busy.holder else { return };
        if self.bug == Bug::AnswersNameNobody {
            holder.label.get_or_insert_default();
        }
        let waits = holder.owner.and_then(|it| self.side.past.known().waits.get(&it).copied());
        match (self.bug, waits) {
            (Bug::AnswersCountTheWait, Some(since)) => {
                holder.held_for = Some(self.side.clock.now().since(since));
            }
            (Bug::AnswersShowTheTtl, _) => {
                show_the_ttl(holder);
            }
            _ => {}
        }
    }

    /// Prolongs the places of all others who wait for the lock, alive or not.
    async fn others_live_on(&mut self) -> Result<()> {
        let (key, owner) = (self.request.key.clone(), self.request.owner);
        let holder = holder_of(Arc::clone(&self.store), key.clone()).await?;
        let mut others = self.side.past.known().waiting.clone();
        others.retain(|it| it.key == key && it.owner != owner && Some(it.owner) != holder);
        for other in others {
            self.store.claim(other)?.renew().await?;
        }
        Ok(())
    }

    /// What it answers to a renewal that it does not make.
    async fn unrenewed(&mut self) -> Result<Option<Renewal>> {
        let owner = self.request.owner;
        let (has_waited, is_flagged) = {
            let mut known = self.side.past.known();
            let is_flagged = known.flags.remove(&self.request.key);
            (known.waits.contains_key(&owner), is_flagged)
        };
        let ends = match self.bug {
            Bug::HandedIsNotRenewed if has_waited && self.is_granted => {
                return Ok(Some(self.alive()));
            }
            Bug::RenewalsAreCounted => self.renewals == TOO_MANY && self.is_granted,
            Bug::RenewalsOfAPlaceAreCounted => self.renewals == TOO_MANY && !self.is_granted,
            _ => is_flagged,
        };
        if ends {
            self.right.release().await?;
        }
        Ok((ends || self.is_outdated()).then_some(Renewal::Lost))
    }
}

#[async_trait]
impl Claim for PastClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let answer = self.ask().await;
        self.looks += 1;
        let mut answer = answer?;
        self.is_granted = matches!(answer, Attempt::Granted { .. });
        if let Attempt::Busy(busy) = &mut answer {
            self.answered(busy);
            if busy.valid_for.is_some() {
                self.waits();
                if self.bug == Bug::LooksKeepTheQueue {
                    self.others_live_on().await?;
                }
            }
        }
        Ok(answer)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        if let Some(answer) = self.unrenewed().await? {
            return Ok(answer);
        }
        if self.bug == Bug::TurnIsNotRenewed && self.is_at_its_turn().await? {
            return Ok(self.alive());
        }
        let answer = self.right.renew().await?;
        if matches!(answer, Renewal::Alive { .. }) {
            self.renewals += 1;
            {
                let mut known = self.side.past.known();
                known.renewed.extend(self.is_granted.then_some(self.request.owner));
                if self.request.resume.is_some() {
                    known.resumed.insert(self.request.owner, self.side.clock.now());
                }
            }
            if self.bug == Bug::RenewalsKeepTheQueue && self.is_granted {
                self.others_live_on().await?;
            }
        }
        Ok(answer)
    }

    async fn check(&mut self) -> Result<Renewal> {
        if self.is_outdated() || self.bug == Bug::TurnIsNotSeen && self.is_at_its_turn().await? {
            return Ok(Renewal::Lost);
        }
        if self.bug == Bug::ResumedCheckRenews && self.is_resumed() {
            return self.right.renew().await;
        }
        let answer = self.right.check().await?;
        let has_waited = self.side.past.known().waits.contains_key(&self.request.owner);
        let lies = match self.bug {
            Bug::ResumedCheckPromises => self.is_resumed(),
            Bug::HandedCheckPromises => self.is_granted && has_waited,
            _ => false,
        };
        Ok(if lies && answer != Renewal::Lost { self.alive() } else { answer })
    }

    async fn release(&mut self) -> Result<Released> {
        let owner = self.request.owner;
        self.side.past.known().waiting.retain(|other| other.owner != owner);
        if self.is_outdated() {
            return Ok(Released::AlreadyGone);
        }
        let hides = self.bug == Bug::DeclineIsNotSeen && self.is_at_its_turn().await?;
        let released = self.right.release().await?;
        Ok(if hides { Released::AlreadyGone } else { released })
    }

    async fn changed(&mut self) -> Result<()> {
        if self.bug == Bug::LongNamesAreNotTold && self.request.key.name().len() > LONG {
            return std::future::pending().await;
        }
        tokio::select! {
            changed = self.right.changed() => changed,
            () = self.news.notified() => Ok(()),
        }
    }

    async fn detach(&mut self) -> Result<Bytes> {
        let bytes = self.right.detach().await?;
        if self.bug != Bug::LastBytesOnly {
            return Ok(bytes);
        }
        let new = Bytes::copy_from_slice(self.side.another_owner().as_bytes());
        self.side.past.known().bytes.insert(self.request.key.clone(), new.clone());
        Ok(new)
    }
}

impl Drop for PastClaim {
    fn drop(&mut self) {
        if self.bug == Bug::AsksOn
            && self.is_granted
            && let Ok(mut left) = self.other(|_| {})
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let clock = Arc::clone(&self.side.clock);
            runtime.spawn(async move {
                loop {
                    clock.sleep(PAUSE).await;
                    // Whatever it is answered.
                    let _ = left.check().await;
                }
            });
        }
    }
}
