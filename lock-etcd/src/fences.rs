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
//!
//! Each raise refuses all entries that were sent with the base before it. So one claim of a client
//! asks first, and the others wait for its answer; and who has used a base never raises it, nor one
//! that another client has put above it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{Error, ErrorKind};
use tokio::sync::{Mutex as Turn, MutexGuard as TurnGuard};

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
    /// Held by the claim that finds out the base for all of them.
    first: Turn<()>,
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
    /// An entry was created with it, or another client has raised one of ours to it.
    Used(i64),
}

impl Base {
    /// The base of the locks in `folder`. Its key has no slash, so it is in no client's queue.
    pub(crate) fn new(folder: &str, rules: Rules) -> Self {
        Self { key: names::base(folder), rules, state: Mutex::default(), first: Turn::default() }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While the base is not known: the turn of this claim to find it out, by its entry. `None` if
    /// another claim has done so, or takes longer than `limit`: one that is stuck stops nobody.
    pub(crate) async fn first(&self, limit: Duration) -> Option<TurnGuard<'_, ()>> {
        if matches!(self.state().known, Known::Used(_)) {
            return None;
        }
        let turn = tokio::time::timeout(limit, self.first.lock()).await.ok()?;
        matches!(self.state().known, Known::Nothing).then_some(turn)
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
        let mut state = self.state();
        state.known = match state.known {
            // Replies overtake each other, so this revision may be older than our last entry's. Of
            // a store that has gone back our next entry tells.
            Known::Used(used) if (self.rules.is_in_use)(base, used) => Known::Used(base),
            _ => Known::Shown { base, revision },
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::RULES;

    /// Every base is behind the clock.
    fn base() -> Base {
        Base::new("", Rules { base: |base, _, _, _| base + 100, ..RULES })
    }

    fn found(base: i64) -> KeyValue {
        KeyValue { value: base.to_string().into(), ..KeyValue::default() }
    }

    /// What the next entry expects, and what it leaves behind.
    fn next(base: &Base) -> (i64, i64) {
        let step = base.known_step().unwrap();
        (step.found, step.base)
    }

    #[test]
    fn a_base_in_use_is_not_raised_again() {
        let base = base();
        base.shown(Some(&found(1000)), 5).unwrap();
        assert_eq!(next(&base), (1000, 1100), "a new client raises it");
        assert!(base.took(&base.known_step().unwrap(), 6));
        assert_eq!(next(&base), (1100, 1100));
        // Another claim's entry was refused, by now or earlier.
        for revision in [7, 6, 5] {
            base.shown(Some(&found(1100)), revision).unwrap();
            assert_eq!(next(&base), (1100, 1100), "seen again at {revision}");
        }
        base.shown(Some(&found(1500)), 8).unwrap();
        assert_eq!(next(&base), (1500, 1500), "another client has raised it");
        assert!(base.took(&base.known_step().unwrap(), 9));
    }

    #[test]
    fn a_base_that_was_lowered_is_raised() {
        let base = base();
        base.shown(Some(&found(1000)), 5).unwrap();
        assert!(base.took(&base.known_step().unwrap(), 6));
        base.shown(Some(&found(1099)), 7).unwrap();
        assert_eq!(next(&base), (1099, 1199));
        base.shown(None, 8).unwrap();
        assert_eq!(next(&base), (0, 100));
    }

    #[test]
    fn an_entry_tells_that_the_store_has_gone_back() {
        let base = base();
        base.shown(Some(&found(1000)), 500).unwrap();
        assert!(base.took(&base.known_step().unwrap(), 501));
        base.shown(Some(&found(1100)), 20).unwrap();
        assert!(!base.took(&base.known_step().unwrap(), 21), "below 1100 + 501");
        assert!(base.known_step().is_none(), "so the base is read again");
    }

    #[tokio::test]
    async fn one_claim_asks_first() {
        let base = base();
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(1));
        let turn = base.first(long).await;
        assert!(turn.is_some());
        base.shown(Some(&found(1000)), 5).unwrap();
        assert!(base.first(short).await.is_none(), "one that is stuck stops nobody");
        {
            let mut second = std::pin::pin!(base.first(long));
            let waits = tokio::time::timeout(short, &mut second).await.is_err();
            assert!(waits, "a claim went on before the first one was answered");
            drop(turn);
            assert!(second.await.is_none(), "a second claim asks what is known");
        }
        assert!(base.took(&base.known_step().unwrap(), 6));
        assert!(base.first(long).await.is_none());
    }

    #[tokio::test]
    async fn a_claim_that_gives_up_leaves_its_turn_to_the_next() {
        let base = base();
        drop(base.first(Duration::from_secs(60)).await);
        assert!(base.first(Duration::from_secs(60)).await.is_some());
    }
}
