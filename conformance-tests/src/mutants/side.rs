//! What the mistakes need besides the correct store.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lock_core::{
    Bytes, ClaimRequest, Clock, FencingToken, HolderInfo, LockKey, OsRng, OwnerId, Result,
};

/// What the mistakes need to remember, for all clients of one store.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) clock: Arc<dyn Clock>,
    counters: Mutex<HashMap<LockKey, u64>>,
    client_counters: Mutex<HashMap<u64, u64>>,
    clients: AtomicU64,
    first_holder: Mutex<Option<Box<HolderInfo>>>,
    waiting: Mutex<Vec<ClaimRequest>>,
    forced: Mutex<HashMap<LockKey, Option<FencingToken>>>,
    silent: Mutex<HashSet<LockKey>>,
}

impl Side {
    pub(super) fn new(clock: impl Clock) -> Self {
        Self {
            clock: Arc::new(clock),
            counters: Mutex::default(),
            client_counters: Mutex::default(),
            clients: AtomicU64::new(0),
            first_holder: Mutex::default(),
            waiting: Mutex::default(),
            forced: Mutex::default(),
            silent: Mutex::default(),
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

    pub(super) fn another_owner(&self) -> OwnerId {
        OwnerId::generate(&OsRng).unwrap_or(OwnerId::from_bytes([7; 16]))
    }
}

/// A lease that names its lock and its owner.
pub(super) fn written(key: &LockKey, owner: &OwnerId) -> Bytes {
    [owner.as_bytes(), key.encode().as_bytes()].concat().into()
}
