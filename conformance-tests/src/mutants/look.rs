//! A client that makes one mistake when it looks at locks.

use std::collections::{HashMap, HashSet};
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Capabilities, Claim, ClaimRequest, ClockInstant, Error, ErrorKind, FencingToken, LockAdmin,
    LockBackend, LockKey, OwnerId, Result, Seen,
};

use super::bug::Bug;
use super::side::{Side, holder_of};

/// How old a copy may be.
const LAG: Duration = Duration::from_millis(50);
/// How many names of one look are looked at, where the others are forgotten.
const FEW: usize = 32;
/// How long it is until the second request of a look.
const PAUSE: Duration = Duration::from_millis(1);

/// What is known of the locks of one store, for all its clients.
#[derive(Debug, Default)]
pub(super) struct Sights(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// What was asked for, by all claims so far.
    asked: Vec<ClaimRequest>,
    /// A copy of what the store has shown, and when.
    copies: HashMap<LockKey, (ClockInstant, Seen)>,
    /// The first label of each lock.
    labels: HashMap<LockKey, Option<String>>,
}

impl Sights {
    fn known(&self) -> MutexGuard<'_, Known> {
        locked(&self.0)
    }

    /// What was asked for under this name.
    fn asked(&self, key: &LockKey) -> Vec<ClaimRequest> {
        self.known().asked.iter().filter(|request| request.key == *key).cloned().collect()
    }

    fn request_of(&self, owner: Option<OwnerId>) -> Option<ClaimRequest> {
        self.known().asked.iter().find(|request| Some(request.owner) == owner).cloned()
    }
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer to a look: how many had ended by then, its names, and what it has shown.
type Answer = (u64, Vec<LockKey>, Vec<Seen>);

#[derive(Debug)]
pub(super) struct WrongLook {
    bug: Bug,
    right: Arc<dyn LockBackend>,
    side: Arc<Side>,
    /// The owners of its own claims.
    mine: Mutex<HashSet<OwnerId>>,
    /// What it remembers of each name.
    kept: Mutex<HashMap<LockKey, Seen>>,
    /// The names of a look that was not answered.
    unread: Mutex<Option<Vec<LockKey>>>,
    last: tokio::sync::Mutex<Option<Answer>>,
    ended: AtomicU64,
    has_failed: AtomicBool,
}

fn token(value: u64) -> Option<FencingToken> {
    FencingToken::new(value).ok()
}

/// A lock that is shown as free although there is this token: with a floor below it.
fn free_below(fence: Option<FencingToken>) -> Seen {
    Seen::Free { floor: fence.and_then(|fence| token(fence.get() - 1)) }
}

/// The greatest token of which this tells.
fn last_of(seen: &Seen) -> Option<FencingToken> {
    match seen {
        Seen::Held { fence: last, .. } | Seen::Free { floor: last } => *last,
        _ => None,
    }
}

impl WrongLook {
    pub(super) fn new(bug: Bug, right: Arc<dyn LockBackend>, side: Arc<Side>) -> Self {
        Self {
            bug,
            right,
            side,
            mine: Mutex::default(),
            kept: Mutex::default(),
            unread: Mutex::default(),
            last: tokio::sync::Mutex::default(),
            ended: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        }
    }

    /// The name that is looked at instead of this one.
    fn key(&self, key: &LockKey) -> Result<LockKey> {
        let (prefix, name) = (key.prefix(), key.name());
        match self.bug {
            Bug::LookFolds => LockKey::new(prefix, name.to_lowercase()),
            Bug::LookShortens => LockKey::new(prefix, name.chars().take(100).collect::<String>()),
            Bug::LookIgnoresPrefix => LockKey::new("", name),
            _ => Ok(key.clone()),
        }
    }

    /// The true answer, obtained in a wrong way.
    async fn ask(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        match self.bug {
            Bug::LookPerName => {
                let mut all = Vec::new();
                for key in keys {
                    all.extend(self.right.look(from_ref(key)).await?);
                }
                Ok(all)
            }
            Bug::LookInTwoSteps => {
                let holders = self.right.look(keys).await?;
                self.side.clock.sleep(PAUSE).await;
                let floors = self.right.look(keys).await?;
                let both = holders.into_iter().zip(&floors).map(|(seen, later)| match seen {
                    Seen::Free { .. } => Seen::Free { floor: last_of(later) },
                    held => held,
                });
                Ok(both.collect())
            }
            Bug::LooksAreJoined => self.joined(keys).await,
            Bug::LookReadsTheLast => self.answer_before(keys).await,
            _ => self.right.look(keys).await,
        }
    }

    /// The answer to a look that was under way when this one began, if there was one.
    async fn joined(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        let ended = self.ended.load(Ordering::Relaxed);
        let mut last = self.last.lock().await;
        if let Some((nth, of, seen)) = &*last
            && *nth > ended
            && of == keys
        {
            return Ok(seen.clone());
        }
        let seen = self.right.look(keys).await?;
        let nth = self.ended.fetch_add(1, Ordering::Relaxed) + 1;
        *last = Some((nth, keys.to_vec(), seen.clone()));
        Ok(seen)
    }

    /// The answer that was not read before, if there is one.
    async fn answer_before(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        let before = locked(&self.unread).replace(keys.to_vec());
        let is_behind = before.is_some();
        let seen = self.right.look(&before.unwrap_or_else(|| keys.to_vec())).await?;
        if !is_behind {
            *locked(&self.unread) = None;
        }
        Ok(seen)
    }

    /// What is answered although the store has not.
    fn made_up(&self, keys: &[LockKey], error: Error) -> Result<Vec<Seen>> {
        self.has_failed.store(true, Ordering::Relaxed);
        let kept = locked(&self.kept);
        match self.bug {
            Bug::UnansweredLookIsFree => Ok(vec![Seen::Free { floor: None }; keys.len()]),
            Bug::UnansweredLookIsOld => {
                keys.iter().map(|key| kept.get(key).cloned().ok_or(error.clone())).collect()
            }
            _ => Err(error),
        }
    }

    /// What it should not do besides.
    async fn meddle(&self, keys: &[LockKey], seen: &[Seen]) -> Result<()> {
        for (key, seen) in keys.iter().zip(seen) {
            let is_free = matches!(seen, Seen::Free { .. });
            match self.bug {
                Bug::LookTakes | Bug::LookTakesForAMoment if is_free => {
                    let (owner, ttl) = (self.side.another_owner(), Duration::from_secs(60));
                    let request = ClaimRequest::new(key.clone(), owner, ttl);
                    let mut claim = self.right.claim(request)?;
                    claim.try_acquire().await?;
                    if self.bug == Bug::LookTakesForAMoment {
                        claim.release().await?;
                    }
                }
                Bug::LookProlongs | Bug::LookProlongsPlaces => {
                    let holder = self.holder(key).await?;
                    for request in self.side.sights.asked(key) {
                        let holds = holder == Some(request.owner);
                        if holds == (self.bug == Bug::LookProlongs) {
                            self.right.claim(request)?.renew().await?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn holder(&self, key: &LockKey) -> Result<Option<OwnerId>> {
        holder_of(Arc::clone(&self.right), key.clone()).await
    }

    /// One answer, as it is wrongly shown.
    async fn shown(&self, key: &LockKey, seen: Seen) -> Result<Seen> {
        match seen {
            Seen::Held { fence, label } => self.shown_held(key, fence, label).await,
            Seen::Free { floor } => Ok(self.shown_free(key, floor)),
            other => Ok(other),
        }
    }

    async fn shown_held(
        &self,
        key: &LockKey,
        fence: Option<FencingToken>,
        label: Option<String>,
    ) -> Result<Seen> {
        let seen = Seen::Held { fence, label: label.clone() };
        let is_unknown = fence != self.side.last_fence(key);
        let holder = match self.bug {
            Bug::LookAtOwn
            | Bug::SeenFenceIsTheLast
            | Bug::HandedSeenFenceIsOld
            | Bug::HandedSeenLabelIsOld
            | Bug::WaiterIsSeen => self.holder(key).await?,
            _ => None,
        };
        let before = holder.and_then(|owner| self.side.before(owner));
        Ok(match self.bug {
            Bug::ReleasedIsSeen => {
                locked(&self.kept).insert(key.clone(), seen.clone());
                seen
            }
            Bug::LookAtOwn if !holder.is_some_and(|owner| locked(&self.mine).contains(&owner)) => {
                free_below(fence)
            }
            Bug::UnknownIsNotSeen if is_unknown => free_below(fence),
            Bug::UnknownIsPassed if is_unknown => Seen::Free { floor: fence },
            Bug::SeenFenceIsTheNext => {
                Seen::Held { fence: fence.and_then(|fence| token(fence.get() + 1)), label }
            }
            Bug::SeenFenceIsTheLast => {
                let fences = self.side.sights.request_of(holder).map_or(1, |it| it.fences);
                let last = fence.and_then(|fence| token(fence.get() + u64::from(fences) - 1));
                Seen::Held { fence: last, label }
            }
            Bug::SeenLabelIsMissing => Seen::Held { fence, label: None },
            Bug::SeenLabelIsTheFirst => {
                let mut known = self.side.sights.known();
                let label = known.labels.entry(key.clone()).or_insert(label).clone();
                Seen::Held { fence, label }
            }
            Bug::HandedSeenFenceIsOld => {
                Seen::Held { fence: before.and_then(|it| it.fence).or(fence), label }
            }
            Bug::HandedSeenLabelIsOld => {
                Seen::Held { fence, label: before.and_then(|it| it.label).or(label) }
            }
            Bug::WaiterIsSeen => {
                let others = self.side.sights.asked(key).into_iter();
                let last = others.filter(|it| it.wait && Some(it.owner) != holder).last();
                Seen::Held { fence, label: last.map_or(label, |waiter| waiter.label) }
            }
            _ => seen,
        })
    }

    fn shown_free(&self, key: &LockKey, floor: Option<FencingToken>) -> Seen {
        let free = |floor| Seen::Free { floor };
        let by = |more: u64, less: u64| {
            let floor = floor.map_or(0, FencingToken::get);
            free(token((floor + more).saturating_sub(less)))
        };
        match self.bug {
            Bug::ReleasedIsSeen => {
                locked(&self.kept).get(key).cloned().unwrap_or_else(|| free(floor))
            }
            Bug::TakenIsSeen if self.side.taken().contains(key) => {
                Seen::Held { fence: self.side.last_fence(key), label: None }
            }
            Bug::FloorTooLow => by(0, 1),
            Bug::FloorTooHigh => by(1, 0),
            Bug::FloorIsMissing => free(None),
            Bug::FloorEnds if self.side.rests(key) => free(None),
            Bug::FloorIsTheFirst => free(self.side.last_fence(key).or(floor)),
            Bug::FloorIsKept => {
                locked(&self.kept).entry(key.clone()).or_insert_with(|| free(floor)).clone()
            }
            _ => free(floor),
        }
    }

    /// All answers, as they are wrongly shown together.
    fn together(&self, keys: &[LockKey], mut all: Vec<Seen>) -> Vec<Seen> {
        match self.bug {
            Bug::LookIsKept | Bug::UnansweredLookIsOld => {
                let mut kept = locked(&self.kept);
                for (key, seen) in keys.iter().zip(&mut all) {
                    if self.bug == Bug::LookIsKept {
                        *seen = kept.entry(key.clone()).or_insert_with(|| seen.clone()).clone();
                    } else {
                        kept.insert(key.clone(), seen.clone());
                    }
                }
            }
            Bug::LookIsOld => {
                let (now, mut known) = (self.side.clock.now(), self.side.sights.known());
                for (key, seen) in keys.iter().zip(&mut all) {
                    let copy = known.copies.get(key).filter(|(at, _)| now.since(*at) < LAG);
                    match copy.cloned() {
                        Some((_, copy)) => *seen = copy,
                        None => drop(known.copies.insert(key.clone(), (now, seen.clone()))),
                    }
                }
            }
            Bug::FloorOfTheFirstName => {
                let floor = keys.first().and_then(|key| self.side.last_fence(key));
                for seen in all.iter_mut().filter(|seen| matches!(seen, Seen::Free { .. })) {
                    *seen = Seen::Free { floor };
                }
            }
            Bug::LookOfFew => {
                all.iter_mut().skip(FEW).for_each(|seen| *seen = Seen::Free { floor: None });
            }
            _ => {}
        }
        all
    }
}

#[async_trait]
impl LockBackend for WrongLook {
    fn name(&self) -> &'static str {
        self.right.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.right.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        locked(&self.mine).insert(request.owner);
        self.side.sights.known().asked.push(request.clone());
        self.right.claim(request)
    }

    async fn ping(&self) -> Result<()> {
        self.right.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        let mut asked = keys.iter().map(|key| self.key(key)).collect::<Result<Vec<_>>>()?;
        match self.bug {
            Bug::LookSorts => asked.sort(),
            Bug::LookTellsOnce => {
                let mut seen = HashSet::new();
                asked.retain(|key| seen.insert(key.clone()));
            }
            Bug::LookAtNothingFails if keys.is_empty() => {
                return Err(Error::invalid("a look at no name"));
            }
            Bug::FailedLookIsTheLast if self.has_failed.load(Ordering::Relaxed) => {
                return Err(Error::new(ErrorKind::Store, "the connection is out of step"));
            }
            _ => {}
        }
        let seen = match self.ask(&asked).await {
            Ok(seen) => seen,
            Err(error) => return self.made_up(keys, error),
        };
        self.meddle(&asked, &seen).await?;
        let mut all = Vec::new();
        for (key, seen) in asked.iter().zip(seen) {
            all.push(self.shown(key, seen).await?);
        }
        Ok(self.together(keys, all))
    }

    async fn close(&self) -> Result<()> {
        self.right.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.right.admin()
    }
}
