//! A client that makes one mistake the second time, after a hand-over, or for other claims than the one that was
//! asked: what a short look at a store does not see.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Attempt, Bytes, Capabilities, Claim, ClaimRequest, Error, ErrorKind, FencingToken, Finding,
    LockAdmin, LockBackend, LockInfo, LockKey, OwnerId, Released, Renewal, Result, Seen, Victim,
};

use super::bug::Bug;
use super::side::{Side, admin_of, holder_of, release_behind};

/// How many holds a client renews that forgets the others.
const FEW: usize = 8;

/// What the claims of one client share.
#[derive(Debug, Default)]
struct Shared {
    waiting: Vec<ClaimRequest>,
    held: Vec<ClaimRequest>,
    is_closed: bool,
    is_poisoned: bool,
}

#[derive(Debug)]
pub(super) struct WrongHabit {
    bug: Bug,
    right: Arc<dyn LockBackend>,
    side: Arc<Side>,
    shared: Arc<Mutex<Shared>>,
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(what: &str) -> Error {
    Error::new(ErrorKind::Store, what.to_owned())
}

impl WrongHabit {
    pub(super) fn new(bug: Bug, right: Arc<dyn LockBackend>, side: Arc<Side>) -> Self {
        Self { bug, right, side, shared: Arc::default() }
    }

    /// Asks by a lock of its own, and leaves it.
    async fn probe(&self) -> Result<()> {
        let (key, ttl) = (LockKey::new("", "probe")?, Duration::from_secs(60));
        let request = ClaimRequest::new(key, self.side.another_owner(), ttl);
        self.right.claim(request)?.try_acquire().await.map(drop)
    }

    /// Makes a call, which must not be dropped if `poison` is the mistake.
    async fn unbroken<T>(&self, poison: Bug, call: impl Future<Output = T>) -> T {
        let (shared, is_done) = (Arc::clone(&self.shared), self.bug != poison);
        let mut under_way = UnderWay { shared, is_done };
        let answer = call.await;
        under_way.is_done = true;
        answer
    }
}

#[async_trait]
impl LockBackend for WrongHabit {
    fn name(&self) -> &'static str {
        self.right.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.right.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(HabitClaim {
            bug: self.bug,
            right: self.right.claim(request.clone())?,
            store: Arc::clone(&self.right),
            side: Arc::clone(&self.side),
            shared: Arc::clone(&self.shared),
            request,
            past: Past::default(),
        }))
    }

    async fn ping(&self) -> Result<()> {
        if self.bug == Bug::PingLeavesALock {
            self.probe().await?;
        }
        self.right.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.unbroken(Bug::DroppedLookPoisons, self.right.look(keys)).await
    }

    async fn close(&self) -> Result<()> {
        if self.bug == Bug::CloseDeafens {
            self.side.deafen();
        }
        let was_closed = std::mem::replace(&mut locked(&self.shared).is_closed, true);
        if was_closed && self.bug == Bug::SecondCloseFails {
            return Err(broken("it is closed"));
        }
        self.right.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.right.admin().is_some().then_some(self as &dyn LockAdmin)
    }
}

/// Leaves the client unusable if it is dropped before its call is done.
struct UnderWay {
    shared: Arc<Mutex<Shared>>,
    is_done: bool,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        locked(&self.shared).is_poisoned |= !self.is_done;
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockAdmin for WrongHabit {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let found = admin_of(&*self.right)?.inspect(key);
        self.unbroken(Bug::DroppedInspectPoisons, found).await
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        admin_of(&*self.right)?.list(prefix, name_start).await
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        let released = admin_of(&*self.right)?.force_release(key, victim);
        self.unbroken(Bug::DroppedForcePoisons, released).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        if self.bug == Bug::DiagnoseLeavesALock {
            self.probe().await?;
        }
        admin_of(&*self.right)?.diagnose().await
    }

    async fn recover(&self) -> Result<()> {
        admin_of(&*self.right)?.recover().await
    }
}

/// What a claim remembers of its own past.
#[derive(Debug, Default)]
struct Past {
    looks: u32,
    changes: u32,
    has_failed: bool,
    is_granted: bool,
    was_handed: bool,
    has_released: bool,
    has_detached: bool,
}

#[derive(Debug)]
struct HabitClaim {
    bug: Bug,
    right: Box<dyn Claim>,
    store: Arc<dyn LockBackend>,
    side: Arc<Side>,
    shared: Arc<Mutex<Shared>>,
    request: ClaimRequest,
    past: Past,
}

impl HabitClaim {
    fn usable(&self) -> Result<()> {
        let is_poisoned = locked(&self.shared).is_poisoned;
        if is_poisoned { Err(broken("the connection is out of step")) } else { Ok(()) }
    }

    fn waits(&self) -> bool {
        self.request.wait && !self.past.is_granted
    }

    fn granted(&mut self, token: FencingToken) {
        if std::mem::replace(&mut self.past.is_granted, true) {
            return;
        }
        self.past.was_handed = self.past.looks > 1;
        self.side.hold(&self.request, token, self.past.was_handed);
        let mut shared = locked(&self.shared);
        shared.waiting.retain(|other| other.owner != self.request.owner);
        shared.held.push(self.request.clone());
    }

    fn is_forgotten(&self) -> bool {
        let mine = |other: &ClaimRequest| other.owner == self.request.owner;
        let place = locked(&self.shared).held.iter().position(mine);
        self.bug == Bug::FewAreRenewed && place.is_some_and(|place| place >= FEW)
    }

    /// The first claim of this client that waits for the same lock.
    fn waits_beside(&self) -> Option<ClaimRequest> {
        let is_another = |other: &&ClaimRequest| {
            other.key == self.request.key && other.owner != self.request.owner
        };
        locked(&self.shared).waiting.iter().find(is_another).cloned()
    }

    fn holder(&self) -> impl Future<Output = Result<Option<OwnerId>>> + Send + 'static {
        holder_of(Arc::clone(&self.store), self.request.key.clone())
    }

    /// What is released when this claim is dropped, which should be nothing.
    fn left_when_dropped(&self) -> Option<ClaimRequest> {
        match self.bug {
            _ if !self.waits() => None,
            Bug::DropLeaves => Some(self.request.clone()),
            Bug::DropFreesOthers => {
                let of_this_lock = |other: &&ClaimRequest| other.key == self.request.key;
                locked(&self.shared).held.iter().find(of_this_lock).cloned()
            }
            _ => None,
        }
    }

    /// Gives up the places of all who wait at this client.
    async fn all_leave(&mut self) -> Result<()> {
        let others = locked(&self.shared).waiting.clone();
        for other in others {
            let is_other = other.key == self.request.key && other.owner != self.request.owner;
            if is_other && self.holder().await? != Some(other.owner) {
                self.store.claim(other)?.release().await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Claim for HabitClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        self.usable()?;
        let answer = self.right.try_acquire().await;
        self.past.looks += 1;
        self.past.has_failed |= answer.is_err();
        let mut answer = answer?;
        match &mut answer {
            Attempt::Granted { token, .. } => self.granted(*token),
            Attempt::Busy(busy) => {
                self.past.is_granted = false;
                if self.request.wait && self.past.looks == 1 {
                    locked(&self.shared).waiting.push(self.request.clone());
                }
                if self.bug == Bug::HintOfZeroLater && self.past.looks > 1 {
                    busy.retry_after = Some(Duration::ZERO);
                }
                if self.bug == Bug::AnswersNameAWaiter
                    && let Some(holder) = &mut busy.holder
                    && let Some(waiter) = self.waits_beside()
                {
                    (holder.owner, holder.label) = (Some(waiter.owner), waiter.label);
                }
                if self.bug == Bug::HandedLabelIsOldInAnswers
                    && let Some(holder) = &mut busy.holder
                    && let Some(before) = holder.owner.and_then(|owner| self.side.before(owner))
                {
                    holder.label = before.label;
                }
            }
            _ => {}
        }
        Ok(answer)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.usable()?;
        if self.is_forgotten() {
            return Ok(Renewal::Alive { valid_for: Some(self.request.ttl) });
        }
        let answer = self.right.renew().await;
        self.past.has_failed |= answer.is_err();
        answer
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.usable()?;
        let answer = self.right.check().await;
        self.past.has_failed |= answer.is_err();
        answer
    }

    async fn release(&mut self) -> Result<Released> {
        self.usable()?;
        if self.bug == Bug::OneLeavesForAll && self.waits() {
            self.all_leave().await?;
        }
        let owner = self.request.owner;
        locked(&self.shared).waiting.retain(|other| other.owner != owner);
        let was_told = self.bug == Bug::DeclineKeeps && self.waits() && self.past.changes > 0;
        if was_told && self.holder().await? == Some(owner) {
            return Ok(Released::Freed);
        }
        let again = std::mem::replace(&mut self.past.has_released, true);
        let released = self.right.release().await?;
        let hides = self.bug == Bug::SecondReleaseIsGone && again;
        Ok(if hides { Released::AlreadyGone } else { released })
    }

    async fn changed(&mut self) -> Result<()> {
        let holds_by_hand_over = self.past.is_granted && self.past.was_handed;
        let is_deaf = match self.bug {
            Bug::ChangedOnce => self.past.changes > 0,
            Bug::WaiterIsToldOnce => self.past.changes > 0 && !self.past.is_granted,
            Bug::HandedIsNotTold => holds_by_hand_over,
            Bug::UnhandedIsNotTold => self.past.is_granted && !self.past.was_handed,
            Bug::DeafAfterError => self.past.has_failed,
            Bug::HolderDeafAfterError => self.past.has_failed && self.past.is_granted,
            _ => false,
        };
        if is_deaf {
            return std::future::pending().await;
        }
        if self.bug == Bug::HandedIsToldAlways && holds_by_hand_over {
            return Ok(());
        }
        self.right.changed().await?;
        if self.bug == Bug::CloseDeafens && self.side.is_deaf() {
            return std::future::pending().await;
        }
        self.past.changes += 1;
        Ok(())
    }

    async fn detach(&mut self) -> Result<Bytes> {
        let again = std::mem::replace(&mut self.past.has_detached, true);
        if again && self.bug == Bug::SecondDetachFails {
            return Err(Error::unsupported("it is detached already"));
        }
        self.right.detach().await
    }
}

impl Drop for HabitClaim {
    fn drop(&mut self) {
        if let Some(left) = self.left_when_dropped() {
            release_behind(self.store.claim(left));
        }
    }
}
