//! Who has a lock at this moment (clause C18).
//!
//! The first entry of a queue has the lock. All queues and the base of the fences are read by one transaction, so the
//! floor of a free lock, base + revision, is what the fence of an entry would be that is made at this revision: no
//! entry from before it has a greater one, and every later one has, since the base only ever rises.
//!
//! A store that went back may have a base below fences that it has lost, until the next entry raises it. So a floor is
//! also at least the highest fence that this client was given before it asked, which the next entry counts from, too.

use lock_core::{FencingToken, LockKey, Seen};

use super::entry::{EntryValue, QueueKeys};
use super::fences::Base;
use super::statements;
use crate::error::{EtcdFailure, FailureClass};
use crate::rules;
use crate::shared_state::SharedState;
use crate::wire::messages::EtcdReply;
use crate::wire::protobuf::KeyValue;

impl SharedState {
    pub(crate) async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>, EtcdFailure> {
        let queues: Vec<_> = keys.iter().map(|key| QueueKeys::new(&self.folder, key)).collect();
        let queues: Vec<_> = queues.iter().collect();
        let mut seen = Vec::with_capacity(queues.len());
        for queues in queues.chunks(statements::MOST_READS) {
            seen.extend(self.look_at(queues).await?);
        }
        Ok(seen)
    }

    async fn look_at(&self, queues: &[&QueueKeys]) -> Result<Vec<Seen>, EtcdFailure> {
        let (mut seen, mut mixed) = (Vec::with_capacity(queues.len()), Vec::new());
        let (reply, floor) = self.read_entries(queues, 1).await?;
        for (at, queue) in queues.iter().enumerate() {
            let found = reply.read(at)?;
            if found.iter().any(|first| !queue.has(&first.key)) {
                mixed.push(at);
            }
            seen.push(shown(queue, found, floor));
        }
        // The rare case: the queue of another lock lies below this one. Its entries must be told apart.
        if !mixed.is_empty() {
            let queues: Vec<_> = mixed.iter().map(|at| queues[*at]).collect();
            let (reply, floor) = self.read_entries(&queues, 0).await?;
            for (read, (at, queue)) in mixed.into_iter().zip(queues).enumerate() {
                seen[at] = shown(queue, reply.read(read)?, floor);
            }
        }
        Ok(seen)
    }

    /// Reads up to `limit` entries of each of these queues, all of them if that is 0. Returns the floor of those that are
    /// free, too.
    async fn read_entries(
        &self,
        queues: &[&QueueKeys],
        limit: i64,
    ) -> Result<(EtcdReply, FencingToken), EtcdFailure> {
        let base = self.base.as_ref();
        // A fence that is given from now on may be a later one.
        let highest = base.map_or(0, Base::highest);
        let read = statements::read_entries(queues, limit, base.map(Base::key));
        let reply = self.cluster.ask(self.limit, read).await.map_err(|failed| match base {
            Some(base) => base.denied(failed),
            None => failed,
        })?;
        let base = match base {
            Some(base) => base.number(reply.first(queues.len())?)?,
            None => 0,
        };
        let floor = FencingToken::answered(rules::floor(base, reply.revision, highest))
            .map_err(|error| EtcdFailure { why: FailureClass::Refused, error })?;
        Ok((reply, floor))
    }
}

/// What was seen of a lock whose queue has these entries first, and this floor if it is free.
fn shown(queue: &QueueKeys, found: &[KeyValue], floor: FencingToken) -> Seen {
    let Some(first) = found.iter().find(|found| queue.has(&found.key)) else {
        return Seen::Free { floor: Some(floor) };
    };
    let value = EntryValue::read(&first.value);
    let fence = value.fence(first.create_revision).ok();
    // What others have written is no label, and may be a secret.
    let label = value.owner.and(Some(value.label)).filter(|label| !label.is_empty());
    Seen::Held { fence, label: label.map(str::to_owned) }
}
