//! What the mistakes need besides the correct store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lock_core::{Bytes, Clock, FencingToken, HolderInfo, LockKey, OsRng, OwnerId, Result};

/// What the mistakes need to remember, for all clients of one store.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) clock: Arc<dyn Clock>,
    counters: Mutex<HashMap<LockKey, u64>>,
    client_counters: Mutex<HashMap<u64, u64>>,
    clients: AtomicU64,
    first_holder: Mutex<Option<Box<HolderInfo>>>,
}

impl Side {
    pub(super) fn new(clock: impl Clock) -> Self {
        Self {
            clock: Arc::new(clock),
            counters: Mutex::default(),
            client_counters: Mutex::default(),
            clients: AtomicU64::new(0),
            first_holder: Mutex::default(),
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

    pub(super) fn another_owner(&self) -> OwnerId {
        OwnerId::generate(&OsRng).unwrap_or(OwnerId::from_bytes([7; 16]))
    }
}

/// A lease that names its lock and its owner.
pub(super) fn written(key: &LockKey, owner: &OwnerId) -> Bytes {
    [owner.as_bytes(), key.encode().as_bytes()].concat().into()
}
