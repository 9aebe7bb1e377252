//! The number from which the fences of a cluster count.
//!
//! A fence is base + create revision. The base is a key beside the locks, set by the first client
//! from its clock in µs since 1970: fences are above those of every store used before. Creating an
//! entry compares the base in the same transaction, so no fence counts from a base that is gone.
//! While a cluster keeps its data, fences rise by the revision alone, and the base only ever rises.
//!
//! A client that does not know the base yet, or whose store may have gone back since, reads it. If
//! its fences would lag behind the clock, it raises the base together with its entry: the cluster
//! was restored from a snapshot, or another store was used meanwhile. An entry that was made before
//! the client noticed is given up.
//!
//! Each raise refuses all entries that were sent with the base before it. So one claim of a client
//! asks first, and the others wait for its answer; and who has used a base never raises it, nor one
//! that another client has put above it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{Error, ErrorKind};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Mutex as Turn, MutexGuard as TurnGuard};

use crate::error::{EtcdFailure, FailureClass};
use crate::queue::entry::{self, QueueEntry};
use crate::queue::statements::{self, BaseStep};
use crate::rules;
use crate::wire::Cluster;
use crate::wire::Era;
use crate::wire::protobuf::KeyValue;

/// The base of one folder, as this client knows it.
#[derive(Debug)]
pub(crate) struct Base {
    key: String,
    state: Mutex<BaseState>,
    /// Held by the claim that finds out the base for all of them.
    first: Turn<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BaseState {
    era: Era,
    /// As of that era.
    known: BaseKnowledge,
    /// The highest fence that this client has been given, by whatever store.
    highest: i64,
}

#[derive(Clone, Copy, Debug, Default)]
enum BaseKnowledge {
    #[default]
    Nothing,
    /// The store returned it at this revision; 0 means none.
    Shown { base: i64, revision: i64 },
    /// An entry was created with it, or another client has raised one of ours to it.
    Used(i64),
}

impl Base {
    /// The base of the locks in `folder`. Its key has no slash, so it is in no client's queue.
    pub(crate) fn new(folder: &str) -> Self {
        Self { key: entry::base(folder), state: Mutex::default(), first: Turn::default() }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// What is known in this era.
    fn state(&self, era: Era) -> MutexGuard<'_, BaseState> {
        let mut state = self.state.lock();
        if state.era != era {
            (state.era, state.known) = (era, BaseKnowledge::Nothing);
        }
        state
    }

    /// While the base is not known: the turn of this claim to find it out, by its entry. `None` if
    /// another claim has done so, or takes longer than `limit`: one that is stuck stops nobody.
    pub(crate) async fn first(
        &self,
        era: impl Fn() -> Era,
        limit: Duration,
    ) -> Option<TurnGuard<'_, ()>> {
        if matches!(self.state(era()).known, BaseKnowledge::Used(_)) {
            return None;
        }
        let turn = tokio::time::timeout(limit, self.first.lock()).await.ok()?;
        matches!(self.state(era()).known, BaseKnowledge::Nothing).then_some(turn)
    }

    /// The base for the next entry; read from the store if it is not known.
    pub(crate) async fn step(
        &self,
        cluster: &Cluster,
        limit: Duration,
    ) -> Result<BaseStep, EtcdFailure> {
        if let Some(step) = self.known_step(cluster.era()) {
            return Ok(step);
        }
        let reply = cluster.ask(limit, statements::read(&self.key)).await;
        let reply = reply.map_err(|failed| self.denied(failed))?;
        let era = cluster.era();
        self.shown(era, reply.first(0)?, reply.revision)?;
        self.known_step(era).ok_or_else(|| crate::error::unexpected("no revision"))
    }

    fn known_step(&self, era: Era) -> Option<BaseStep> {
        let BaseState { known, highest, .. } = *self.state(era);
        match known {
            BaseKnowledge::Nothing => None,
            BaseKnowledge::Used(base) => Some(BaseStep { found: base, base, era }),
            BaseKnowledge::Shown { base, revision } => {
                let lifted = rules::base(base, revision, highest, now());
                Some(BaseStep { found: base, base: lifted, era })
            }
        }
    }

    /// The store returned its base at `revision`.
    pub(crate) fn shown(
        &self,
        era: Era,
        found: Option<&KeyValue>,
        revision: i64,
    ) -> Result<(), EtcdFailure> {
        let base = self.number(found)?;
        let mut state = self.state(era);
        state.known = match state.known {
            // Replies overtake each other, so this revision may be older than our last entry's.
            BaseKnowledge::Used(used) if rules::is_in_use(base, used) => BaseKnowledge::Used(base),
            _ => BaseKnowledge::Shown { base, revision },
        };
        Ok(())
    }

    /// The base that the store returned; 0 if there is none.
    pub(crate) fn number(&self, found: Option<&KeyValue>) -> Result<i64, EtcdFailure> {
        let Some(found) = found else { return Ok(0) };
        std::str::from_utf8(&found.value)
            .ok()
            .and_then(|text| text.parse().ok())
            .filter(|base| (1..=i64::MAX / 2).contains(base))
            .ok_or_else(|| self.no_number())
    }

    /// The highest fence that this client has been given.
    pub(crate) fn highest(&self) -> i64 {
        self.state.lock().highest
    }

    /// Whether `found` is the base that `step` expects.
    pub(crate) fn is_as_in(step: &BaseStep, found: Option<&KeyValue>) -> bool {
        let text = found.map_or(&b""[..], |found| &*found.value);
        if step.found == 0 { found.is_none() } else { text == step.found.to_string().as_bytes() }
    }

    /// The store has this entry of ours, and goes on from what was known when it was made: so its
    /// fence is above all earlier ones.
    pub(crate) fn took(&self, era: Era, entry: &QueueEntry) {
        let fence = i64::try_from(entry.fence.get()).unwrap_or(i64::MAX);
        let mut state = self.state(era);
        state.highest = state.highest.max(fence);
        state.known = BaseKnowledge::Used(fence - entry.rev);
    }

    /// Says what to do if the user has no rights to the base.
    pub(crate) fn denied(&self, failed: EtcdFailure) -> EtcdFailure {
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
        EtcdFailure { why: failed.why, error: error.with_source(failed.error) }
    }

    fn no_number(&self) -> EtcdFailure {
        let error = Error::new(
            ErrorKind::Store,
            format!(
                "the etcd key {:?}, the base of the fences, does not hold a number: delete it, and the next client recreates it",
                self.key
            ),
        );
        EtcdFailure { why: FailureClass::Refused, error }
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
    use crate::wire::History;
    use crate::wire::messages::EtcdReply;
    use lock_core::FencingToken;

    const ERA: Era = Era::FIRST;

    fn later() -> Era {
        let history = History::default();
        for revision in [5, 4] {
            history.note(history.seen(), &EtcdReply { revision, ..EtcdReply::default() });
        }
        history.era()
    }

    fn found(base: i64) -> KeyValue {
        KeyValue { value: base.to_string().into(), ..KeyValue::default() }
    }

    /// What the next entry expects, and what it leaves behind.
    fn next(base: &Base) -> (i64, i64) {
        let step = base.known_step(ERA).unwrap();
        (step.found, step.base)
    }

    /// The next entry is made, at this revision. Returns its base.
    fn take(base: &Base, rev: i64) -> i64 {
        let step = base.known_step(ERA).unwrap();
        let fence = FencingToken::answered(step.base + rev).unwrap();
        base.took(ERA, &QueueEntry { key: String::new(), rev, value: Vec::new(), fence });
        step.base
    }

    #[test]
    fn a_base_in_use_is_not_raised_again() {
        let base = Base::new("");
        base.shown(ERA, Some(&found(1000)), 5).unwrap();
        assert!(matches!(next(&base), (1000, 1001..)), "a new client raises it");
        let raised = take(&base, 6);
        assert_eq!(next(&base), (raised, raised));
        // Another claim's entry was refused, by now or earlier.
        for revision in [7, 6, 5] {
            base.shown(ERA, Some(&found(raised)), revision).unwrap();
            assert_eq!(next(&base), (raised, raised), "seen again at {revision}");
        }
        let other = raised + 500;
        base.shown(ERA, Some(&found(other)), 8).unwrap();
        assert_eq!(next(&base), (other, other), "another client has raised it");
    }

    #[test]
    fn a_base_that_was_lowered_is_raised() {
        let base = Base::new("");
        base.shown(ERA, Some(&found(1000)), 5).unwrap();
        let raised = take(&base, 6);
        let lower = raised - 1_000_000;
        base.shown(ERA, Some(&found(lower)), 7).unwrap();
        assert!(matches!(next(&base), (found, above) if found == lower && above + 7 >= raised + 6));
        base.shown(ERA, None, 8).unwrap();
        assert!(matches!(next(&base), (0, above) if above + 8 >= raised + 6));
    }

    #[test]
    fn in_another_era_the_base_is_read_again_and_raised() {
        let base = Base::new("");
        base.shown(ERA, None, 5).unwrap();
        take(&base, 6);
        let (_, used) = next(&base);
        let later = later();
        assert!(base.known_step(later).is_none(), "it is read again");
        base.shown(later, Some(&found(used - 1_000_000)), 3).unwrap();
        let step = base.known_step(later).unwrap();
        assert!(step.era == later && step.base + 3 >= used + 6, "above what was given");
    }

    #[tokio::test]
    async fn one_claim_asks_first() {
        let base = Base::new("");
        let first = |limit| base.first(|| ERA, limit);
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(1));
        let turn = first(long).await;
        assert!(turn.is_some());
        base.shown(ERA, Some(&found(1000)), 5).unwrap();
        assert!(first(short).await.is_none(), "one that is stuck stops nobody");
        {
            let mut second = std::pin::pin!(first(long));
            let waits = tokio::time::timeout(short, &mut second).await.is_err();
            assert!(waits, "a claim went on before the first one was answered");
            drop(turn);
            assert!(second.await.is_none(), "a second claim asks what is known");
        }
        take(&base, 6);
        assert!(first(long).await.is_none());
    }

    #[tokio::test]
    async fn a_claim_that_gives_up_leaves_its_turn_to_the_next() {
        let base = Base::new("");
        drop(base.first(|| ERA, Duration::from_secs(60)).await);
        assert!(base.first(|| ERA, Duration::from_secs(60)).await.is_some());
    }
}
