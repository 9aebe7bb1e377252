//! What the mistakes need besides the correct store.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lock_core::{
    Bytes, Claim, ClaimRequest, Clock, ClockInstant, Error, FencingToken, HolderInfo, LockAdmin,
    LockBackend, LockKey, OsRng, OwnerId, Result,
};

use super::look::Sights;
use super::past::Records;

/// What the mistakes need to remember, for all clients of one store.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) past: Records,
    pub(super) sights: Sights,
    counters: Mutex<HashMap<LockKey, u64>>,
    client_counters: Mutex<HashMap<u64, u64>>,
    clients: AtomicU64,
    first_holder: Mutex<Option<Box<HolderInfo>>>,
    waiting: Mutex<Vec<ClaimRequest>>,
    forced: Mutex<HashMap<LockKey, Option<FencingToken>>>,
    silent: Mutex<HashSet<LockKey>>,
    first_label: OnceLock<Option<String>>,
    first_look: OnceLock<ClockInstant>,
    /// The last holder of each lock.
    last: Mutex<HashMap<LockKey, Before>>,
    /// Who has got the lock after a wait, and from whom.
    handed: Mutex<Vec<(OwnerId, Before)>>,
    later: Mutex<HashMap<OwnerId, Later>>,
    is_deaf: AtomicBool,
    ends: Mutex<HashMap<LockKey, ClockInstant>>,
    /// Whoever has taken a lock, or a place, and has not given it up.
    contenders: Mutex<BTreeSet<Contender>>,
}

/// What was shown of the holder before.
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    pub(super) label: Option<String>,
    pub(super) fence: Option<FencingToken>,
}

/// What has become of a hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Later {
    pub(super) is_renewed: bool,
    pub(super) detached: Option<ClockInstant>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Contender {
    key: LockKey,
    owner: [u8; 16],
    waits: bool,
}

impl Side {
    pub(super) fn new(clock: impl Clock) -> Self {
        Self {
            clock: Arc::new(clock),
            past: Records::default(),
            sights: Sights::default(),
            counters: Mutex::default(),
            client_counters: Mutex::default(),
            clients: AtomicU64::new(0),
            first_holder: Mutex::default(),
            waiting: Mutex::default(),
            forced: Mutex::default(),
            silent: Mutex::default(),
            first_label: OnceLock::new(),
            first_look: OnceLock::new(),
            last: Mutex::default(),
            handed: Mutex::default(),
            later: Mutex::default(),
            is_deaf: AtomicBool::new(false),
            ends: Mutex::default(),
            contenders: Mutex::default(),
        }
    }

    pub(super) fn next_client(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn next_of(&self, key: &LockKey, at_least: u64) -> Result<FencingToken> {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = counters.entry(key.clone()).or_default();
        *counter = (*counter + 1).max(at_least);
        FencingToken::new(*counter)
    }

    pub(super) fn next_of_client(&self, client: u64) -> Result<FencingToken> {
        let mut counters = self.client_counters.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = counters.entry(client).or_default();
        *counter += 1;
        FencingToken::new(*counter)
    }

    pub(super) fn forget(&self, key: &LockKey) {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// The first holder that was ever shown.
    pub(super) fn first_holder(&self, now: Option<Box<HolderInfo>>) -> Option<Box<HolderInfo>> {
        let mut first = self.first_holder.lock().unwrap_or_else(PoisonError::into_inner);
        *first = first.take().or(now);
        first.clone()
    }

    /// Remembers a claim that waits.
    pub(super) fn waits(&self, request: &ClaimRequest) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
    }

    /// The claims that have ever waited for this lock.
    pub(super) fn waiting(&self, key: &LockKey) -> Vec<ClaimRequest> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.iter().filter(|request| request.key == *key).cloned().collect()
    }

    /// Remembers that this lock was taken away from the holder of `fence`.
    pub(super) fn forced(&self, key: &LockKey, fence: Option<FencingToken>) {
        let mut forced = self.forced.lock().unwrap_or_else(PoisonError::into_inner);
        forced.insert(key.clone(), fence);
    }

    pub(super) fn was_forced(&self, key: &LockKey) -> bool {
        self.forced.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key)
    }

    pub(super) fn kept_fence(&self, key: &LockKey) -> Option<FencingToken> {
        self.forced.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied().flatten()
    }

    /// From now on no waiter for this lock is told anything.
    pub(super) fn silence(&self, key: &LockKey) {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
    }

    pub(super) fn is_silent(&self, key: &LockKey) -> bool {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    /// The first label that was ever shown.
    pub(super) fn first_label(&self, now: Option<String>) -> Option<String> {
        self.first_label.get_or_init(|| now).clone()
    }

    pub(super) fn since_first_look(&self) -> Duration {
        let now = self.clock.now();
        now.since(*self.first_look.get_or_init(|| now))
    }

    /// Remembers a grant.
    pub(super) fn hold(&self, request: &ClaimRequest, fence: FencingToken, was_handed: bool) {
        let now = Before { label: request.label.clone(), fence: Some(fence) };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.insert(request.key.clone(), now).unwrap_or_default();
        if was_handed {
            let mut handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner);
            handed.push((request.owner, before));
        }
    }

    /// The token of the last holder that knows of its grant.
    pub(super) fn last_fence(&self, key: &LockKey) -> Option<FencingToken> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.get(key).and_then(|before| before.fence)
    }

    /// The one from whom this owner has got the lock, after a wait.
    pub(super) fn before(&self, owner: OwnerId) -> Option<Before> {
        let handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner);
        handed.iter().find(|(to, _)| *to == owner).map(|(_, before)| before.clone())
    }

    /// From now on nobody is told anything.
    /// What has become of the hold of this owner.
    pub(super) fn later(&self, owner: OwnerId) -> Later {
        self.all_later().get(&owner).copied().unwrap_or_default()
    }

    pub(super) fn is_renewed(&self, owner: OwnerId) {
        self.all_later().entry(owner).or_default().is_renewed = true;
    }

    pub(super) fn is_detached(&self, owner: OwnerId) {
        self.all_later().entry(owner).or_default().detached = Some(self.clock.now());
    }

    fn all_later(&self) -> MutexGuard<'_, HashMap<OwnerId, Later>> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn deafen(&self) {
        self.is_deaf.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.is_deaf.load(Ordering::Relaxed)
    }

    /// Remembers when a lease ends that was made, or prolonged, now.
    pub(super) fn ends_after(&self, key: &LockKey, ttl: Duration) {
        let end = self.clock.now() + ttl;
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), end);
    }

    /// Whether the lease that was remembered last has ended.
    pub(super) fn has_ended(&self, key: &LockKey) -> bool {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.get(key).is_some_and(|end| *end <= self.clock.now())
    }

    /// Whether that lease has ended a minute ago.
    pub(super) fn rests(&self, key: &LockKey) -> bool {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.get(key).is_some_and(|end| *end + Duration::from_secs(60) <= self.clock.now())
    }

    pub(super) fn take(&self, key: &LockKey, owner: OwnerId) {
        self.enter(key, owner, false);
    }

    pub(super) fn wait(&self, key: &LockKey, owner: OwnerId) {
        self.enter(key, owner, true);
    }

    fn enter(&self, key: &LockKey, owner: OwnerId, waits: bool) {
        self.leave(key, owner);
        self.contenders().insert(Contender { key: key.clone(), owner: *owner.as_bytes(), waits });
    }

    pub(super) fn leave(&self, key: &LockKey, owner: OwnerId) {
        self.contenders().retain(|other| other.key != *key || other.owner != *owner.as_bytes());
    }

    /// The locks that somebody has taken.
    pub(super) fn taken(&self) -> BTreeSet<LockKey> {
        let contenders = self.contenders();
        contenders.iter().filter(|one| !one.waits).map(|one| one.key.clone()).collect()
    }

    /// How many wait for a lock, dead or alive.
    pub(super) fn waiters(&self, key: &LockKey) -> usize {
        self.contenders().iter().filter(|one| one.waits && one.key == *key).count()
    }

    fn contenders(&self) -> MutexGuard<'_, BTreeSet<Contender>> {
        self.contenders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn another_owner(&self) -> OwnerId {
        OwnerId::generate(&OsRng).unwrap_or(OwnerId::from_bytes([7; 16]))
    }
}

/// A lease that names its lock and its owner.
pub(super) fn written(key: &LockKey, owner: &OwnerId) -> Bytes {
    [owner.as_bytes(), key.encode().as_bytes()].concat().into()
}

/// The inspection of the store below.
pub(super) fn admin_of(store: &dyn LockBackend) -> Result<&dyn LockAdmin> {
    store.admin().ok_or_else(|| Error::unsupported("the store below has no inspection"))
}

/// Who holds the lock now.
pub(super) async fn holder_of(
    store: Arc<dyn LockBackend>,
    key: LockKey,
) -> Result<Option<OwnerId>> {
    let info = admin_of(&*store)?.inspect(&key).await?;
    Ok(info.and_then(|info| info.holder).and_then(|holder| holder.owner))
}

/// Releases in the background, where there is a runtime.
pub(super) fn release_behind(claim: Result<Box<dyn Claim>>) {
    if let (Ok(mut claim), Ok(runtime)) = (claim, tokio::runtime::Handle::try_current()) {
        runtime.spawn(async move { claim.release().await });
    }
}

/// Shows the ttl as what is left of the lease.
pub(super) fn show_the_ttl(holder: &mut HolderInfo) {
    holder.expires_in = holder.expires_in.zip(holder.held_for).map(|(left, age)| left + age);
}
