//! The number from which the fences of a cluster count.
//!
//! A fence is base + create revision. The base is a key beside the locks, set by the first client
//! from its clock in µs since 1970: fences are above those of every store used before. Creating an
//! entry compares the base in the same transaction, so no fence counts from a base that is gone.
//! While a cluster keeps its data, fences rise by the revision alone, and the base only ever rises.
//!
//! A client that does not know the base yet reads it. If its fences would lag behind the clock, it
//! raises the base together with its entry: the cluster was restored from a snapshot, or another
//! store was used meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{Error, ErrorKind};

use crate::cluster::Cluster;
use crate::error::{Failed, Why};
use crate::names;
use crate::proto::KeyValue;
use crate::rules::Rules;
use crate::statements::{self, Step};

/// The base of one folder, as this client knows it.
#[derive(Debug)]
pub(crate) struct Base {
    key: String,
    rules: Rules,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    known: Known,
    /// The highest fence that this client has been given. A store that issues none above it was
    /// restored.
    highest: i64,
}

#[derive(Clone, Copy, Debug, Default)]
enum Known {
    #[default]
    Nothing,
    /// The store returned it at this revision; 0 means none.
    Shown { base: i64, revision: i64 },
    /// An entry was created with it.
    Used(i64),
}

impl Base {
    /// The base of the locks in `folder`. Its key has no slash, so it is in no client's queue.
    pub(crate) fn new(folder: &str, rules: Rules) -> Self {
        Self { key: names::base(folder), rules, state: Mutex::default() }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The base for the next entry; read from the store if it is not known.
    pub(crate) async fn step(&self, cluster: &Cluster, limit: Duration) -> Result<Step, Failed> {
        if let Some(step) = self.known_step() {
            return Ok(step);
        }
        let reply = cluster.ask(limit, statements::read(&self.key)).await;
        let reply = reply.map_err(|failed| self.denied(failed))?;
        self.shown(reply.first(0)?, reply.revision)?;
        self.known_step().ok_or_else(|| crate::error::unexpected("no revision"))
    }

    fn known_step(&self) -> Option<Step> {
        let State { known, highest } = *self.state();
        match known {
            Known::Nothing => None,
            Known::Used(base) => Some(Step { found: base, base, highest }),
            Known::Shown { base, revision } => {
                let lifted = (self.rules.base)(base, revision, highest, now());
                Some(Step { found: base, base: lifted, highest })
            }
        }
    }

    /// The store returned its base at `revision`.
    pub(crate) fn shown(&self, found: Option<&KeyValue>, revision: i64) -> Result<(), Failed> {
        let base = match found {
            None => 0,
            Some(found) => std::str::from_utf8(&found.value)
                .ok()
                .and_then(|text| text.parse().ok())
                .filter(|base| (1..=i64::MAX / 2).contains(base))
                .ok_or_else(|| self.no_number())?,
        };
        self.state().known = Known::Shown { base, revision };
        Ok(())
    }

    /// Whether `found` is the base that `step` expects.
    pub(crate) fn is_as_in(step: &Step, found: Option<&KeyValue>) -> bool {
        let text = found.map_or(&b""[..], |found| &*found.value);
        if step.found == 0 { found.is_none() } else { text == step.found.to_string().as_bytes() }
    }

    /// An entry was created at `revision` by `step`; false if its fence is not above all earlier
    /// ones: the store has gone back, and the base must be raised.
    pub(crate) fn took(&self, step: &Step, revision: i64) -> bool {
        let fence = step.base.saturating_add(revision);
        let mut state = self.state();
        if !(self.rules.rises)(fence, step.highest) {
            state.known = Known::Nothing;
            return false;
        }
        state.highest = state.highest.max(fence);
        state.known = Known::Used(step.base);
        true
    }

    /// Says what to do if the user has no rights to the base.
    pub(crate) fn denied(&self, failed: Failed) -> Failed {
        if !failed.is_about_a_right() {
            return failed;
        }
        let error = Error::new(
            ErrorKind::Denied,
            format!(
                "the etcd user needs readwrite permission on its locks and on the key {:?}, the base of the fences: grant it, or set lock_fence=revision for fences that count from 0",
                self.key
            ),
        );
        Failed { why: failed.why, error: error.with_source(failed.error) }
    }

    fn no_number(&self) -> Failed {
        let error = Error::new(
            ErrorKind::Store,
            format!(
                "the etcd key {:?}, the base of the fences, does not hold a number: delete it, and the next client recreates it",
                self.key
            ),
        );
        Failed { why: Why::Refused, error }
    }
}

/// µs since 1970, by the clock of this machine.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX / 2)
}
