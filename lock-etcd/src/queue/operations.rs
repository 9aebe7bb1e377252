//! What a claim does to its queue, one operation each: enter, look at the place, confirm the own entry, find it, prove
//! it, leave. And whether a request may still take effect. In which order it asks is in `claim`.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ClaimRequest, ClockInstant, OwnerId};
use lock_kit::neighbours::UNPLACED;

use super::entry::{self, EntryInFront, EntryValue, QueueEntry, QueueKeys, QueuePosition};
use super::fences::Base;
use super::statements::{self, BaseStep, NewEntry};
use crate::error::{EtcdFailure, unexpected};
use crate::rules;
use crate::shared_state::SharedState;
use crate::watch::handover::{FirstProof, Listing};
use crate::watch::task::Footing;
use crate::wire::Era;
use crate::wire::messages::{EtcdReply, Transaction};
use crate::wire::protobuf::KeyValue;

/// The queue of a lock, as one claim uses it.
#[derive(Debug)]
pub(super) struct ClaimQueue {
    store: Arc<SharedState>,
    keys: QueueKeys,
    owner: OwnerId,
    label: String,
    /// The timeout of one call of the claim.
    call_timeout: Duration,
    /// When the present call has to end.
    ends: ClockInstant,
    /// Whether a request that creates or deletes the entry may still take effect, since its reply was
    /// lost. Only the end of the lease settles that.
    pub(super) is_in_doubt: bool,
    /// When the first of them was sent whose outcome is not known: an entry that is found may be
    /// its.
    era: Era,
    /// One of them deletes the entry, so it must not be used.
    is_given_up: bool,
}

/// The outcome of an attempt to create an entry.
#[derive(Debug)]
pub(super) enum EntryOutcome {
    /// The entry exists. `None` if its position is still to be read.
    Entered(QueueEntry, Option<QueuePosition>),
    /// Another client holds the lock, and we did not want to wait.
    Busy,
    /// The same, unless that entry is in the queue of another lock below this one: the entries must
    /// be told apart.
    BusyOrAmongOthers,
    /// The key of our lease belongs to another client: the lease is not ours alone.
    NotOurs,
    /// The base of the fences has changed: nothing was done, and the next attempt uses the new one.
    OtherBase,
    /// The entry exists, and must be given up. The store may have gone back since it was attempted, so its fence may
    /// be below earlier ones, and the next attempt reads the base again. Or a request that deletes it is under way.
    Unusable,
}

impl ClaimQueue {
    pub(super) fn new(store: Arc<SharedState>, request: &ClaimRequest) -> Self {
        Self {
            keys: QueueKeys::new(&store.folder, &request.key),
            owner: request.owner,
            label: request.label.as_deref().unwrap_or_default().to_owned(),
            call_timeout: request.call_timeout,
            ends: store.clock().now(),
            store,
            is_in_doubt: false,
            era: Era::FIRST,
            is_given_up: false,
        }
    }

    /// A call of the claim begins. It ends a little before its time is over, to notice that a member
    /// is silent.
    pub(super) fn begin_call(&mut self) {
        self.ends = self.store.clock().now() + (self.call_timeout - self.call_timeout / 8);
    }

    /// The timeout of the next request of this call.
    pub(super) fn limit(&self) -> Duration {
        self.store.limit.min(self.ends.since(self.store.clock().now()))
    }

    /// Whether many claims of this client wait in the queue.
    pub(super) fn is_long(&self) -> bool {
        self.store.handover.is_long(self.keys.start())
    }

    /// The lease has ended: no request that was sent with it can take effect.
    pub(super) fn is_settled_by_the_lease(&mut self) {
        (self.is_in_doubt, self.is_given_up) = (false, false);
    }

    /// Our key as the store has it; `None` if it belongs to another client.
    fn entry(&self, found: &KeyValue) -> Result<Option<QueueEntry>, EtcdFailure> {
        let value = EntryValue::read(&found.value);
        if !rules::is_ours(value.owner, self.owner) {
            return Ok(None);
        }
        let key = String::from_utf8(found.key.clone())
            .map_err(|_| unexpected("a key that was not asked for"))?;
        let (rev, fence) = (found.create_revision, value.fence(found.create_revision)?);
        Ok(Some(QueueEntry { key, rev, value: found.value.clone(), fence }))
    }

    /// Creates an entry with `lease`, if there is none yet: behind others if `wait`. It is the last one of its queue. If
    /// that is long, its place is not read: it is not the first before long.
    pub(super) async fn enter(
        &mut self,
        lease: i64,
        wait: bool,
    ) -> Result<EntryOutcome, EtcdFailure> {
        let store = Arc::clone(&self.store);
        // To the end: until this entry was answered, the others wait if it is the first.
        let _turn = match &store.base {
            // Not for the whole call: if the first one is not driven, there is time left to go on.
            Some(base) => base.first(|| store.cluster.era(), self.limit() / 4).await,
            None => None,
        };
        let base = match &store.base {
            Some(base) => {
                let step = base.step(&store.cluster, self.limit()).await;
                Some((base, step.map_err(EtcdFailure::without_effect)?))
            }
            None => None,
        };
        let wanted = NewEntry {
            queue: self.keys.start(),
            key: self.keys.entry(lease),
            value: entry::write(&self.owner, base.map(|(_, step)| step.base), &self.label),
            lease,
            base: base.map(|(base, step)| (base.key(), step)),
        };
        let is_long = wait && self.is_long();
        let statement = match wait {
            true if is_long => wanted.enter_unread(),
            true => wanted.enter(),
            false => wanted.enter_if_empty(),
        };
        let NewEntry { key, value, .. } = wanted;
        let was_in_doubt = std::mem::replace(&mut self.is_in_doubt, true);
        if let Some((_, step)) = base
            && !was_in_doubt
        {
            self.era = step.era;
        }
        let reply = store.cluster.ask(self.limit(), statement).await.map_err(|failed| {
            self.is_in_doubt = was_in_doubt || failed.is_unknown();
            if let Some((base, _)) = base { base.denied(failed) } else { failed }
        })?;
        let outcome = if reply.succeeded {
            self.entered(&reply, key, value, is_long)?
        } else {
            self.refused(&reply, wait, base)?
        };
        if let EntryOutcome::Entered(entry, _) = &outcome
            && !self.is_good(entry)
        {
            return Ok(EntryOutcome::Unusable);
        }
        self.is_in_doubt = was_in_doubt;
        Ok(outcome)
    }

    /// Whether this entry, which an attempt has made, stays, and its fence is above all earlier ones.
    fn is_good(&self, entry: &QueueEntry) -> bool {
        if self.is_given_up {
            return false;
        }
        let (Some(base), era) = (&self.store.base, self.store.cluster.era()) else { return true };
        if self.era == era {
            base.took(era, entry);
        }
        self.era == era
    }

    /// The entry was created.
    fn entered(
        &self,
        reply: &EtcdReply,
        key: String,
        value: String,
        is_long: bool,
    ) -> Result<EntryOutcome, EtcdFailure> {
        let rev = reply.revision;
        let fence = EntryValue::read(value.as_bytes()).fence(rev)?;
        let place = if is_long {
            Some(QueuePosition::Deep)
        } else {
            match reply.read(0)?.iter().find(|found| found.key != key.as_bytes()) {
                None => Some(QueuePosition::First),
                Some(in_front) if self.keys.has(&in_front.key) => {
                    Some(QueuePosition::Behind(EntryInFront::found(in_front)))
                }
                Some(_) => None,
            }
        };
        Ok(EntryOutcome::Entered(QueueEntry { key, rev, value: value.into_bytes(), fence }, place))
    }

    /// Why no entry was created.
    fn refused(
        &self,
        reply: &EtcdReply,
        wait: bool,
        base: Option<(&Base, BaseStep)>,
    ) -> Result<EntryOutcome, EtcdFailure> {
        if let Some(found) = reply.first(0)? {
            // An earlier attempt succeeded, but its reply was lost.
            let entry = self.entry(found)?;
            return Ok(
                entry.map_or(EntryOutcome::NotOurs, |entry| EntryOutcome::Entered(entry, None))
            );
        }
        let mut is_other = false;
        if let Some((base, step)) = base {
            let found = reply.first(2)?;
            is_other = !Base::is_as_in(&step, found);
            if is_other {
                base.shown(self.store.cluster.era(), found, reply.revision)?;
            }
        }
        Ok(match reply.first(1)? {
            // A waiter could have entered behind others.
            _ if wait && is_other => EntryOutcome::OtherBase,
            None => EntryOutcome::OtherBase,
            Some(first) if self.keys.has(&first.key) => EntryOutcome::Busy,
            Some(_) => EntryOutcome::BusyOrAmongOthers,
        })
    }

    /// The rare case: a client that does not escape names uses `name/…` as the name of another
    /// lock. An entry is created, and deleted again if it is not the first. Only the end of the
    /// lease settles the outcome.
    pub(super) async fn enter_among_others(
        &mut self,
        lease: i64,
    ) -> Result<EntryOutcome, EtcdFailure> {
        self.is_in_doubt = true;
        let outcome = self.enter(lease, true).await?;
        let EntryOutcome::Entered(entry, place) = outcome else { return Ok(outcome) };
        let place = match place {
            Some(place) => place,
            None => self.look(&entry).await?.0,
        };
        if matches!(place, QueuePosition::First) {
            return Ok(EntryOutcome::Entered(entry, Some(place)));
        }
        let left = self.store.cluster.ask(self.limit(), statements::release(&entry)).await;
        self.is_given_up = matches!(&left, Err(failed) if failed.is_unknown());
        left.map(|_| EntryOutcome::Busy)
    }

    /// Looks at the place of our entry, which was behind `in_front` when we looked last. If that is still there, it still is
    /// the one in front, since nothing ever comes between the two: the queue is not read.
    pub(super) async fn look_if_not_behind(
        &self,
        entry: &QueueEntry,
        in_front: &EntryInFront,
        footing: Footing,
    ) -> Result<(QueuePosition, i64), EtcdFailure> {
        let look = statements::look_if_not_behind(self.keys.start(), entry, in_front);
        self.look_if_not(entry, look, QueuePosition::Behind(in_front.clone()), footing).await
    }

    /// Looks at the place of our entry, after the one in front of it was deleted at `told`. If ours was written then, the
    /// holder has done both, and it is the first: the queue is not read. See [`handover`](crate::watch::handover).
    pub(super) async fn look_if_not_told(
        &self,
        entry: &QueueEntry,
        told: i64,
        footing: Footing,
    ) -> Result<(QueuePosition, i64), EtcdFailure> {
        let look = statements::look_if_not_told(self.keys.start(), entry, told);
        self.look_if_not(entry, look, QueuePosition::First, footing).await
    }

    /// Makes a `look` which says whether our entry has this place, and else what a look shows.
    async fn look_if_not(
        &self,
        entry: &QueueEntry,
        look: Transaction,
        place: QueuePosition,
        footing: Footing,
    ) -> Result<(QueuePosition, i64), EtcdFailure> {
        let reply = self.store.cluster.ask(self.limit(), look).await?;
        if reply.succeeded && rules::is_one_history(footing, self.store.watches.footing()) {
            return Ok((place, reply.revision));
        }
        if reply.succeeded {
            return self.look(entry).await;
        }
        let is_mine = |own: &KeyValue| own.create_revision == entry.rev && own.value == entry.value;
        if !reply.first(0)?.is_some_and(is_mine) {
            return Ok((QueuePosition::Gone, reply.revision));
        }
        self.place(entry, reply.revision, reply.read(1)?).await
    }

    /// Reads our entry and the one in front of it, at one revision, which is also returned.
    pub(super) async fn look(
        &self,
        entry: &QueueEntry,
    ) -> Result<(QueuePosition, i64), EtcdFailure> {
        let look = statements::look(self.keys.start(), entry);
        let reply = self.store.cluster.ask(self.limit(), look).await?;
        if !reply.succeeded {
            return Ok((QueuePosition::Gone, reply.revision));
        }
        self.place(entry, reply.revision, reply.read(0)?).await
    }

    /// The place of our entry, if these were `found`: the last two entries up to ours.
    async fn place(
        &self,
        entry: &QueueEntry,
        revision: i64,
        found: &[KeyValue],
    ) -> Result<(QueuePosition, i64), EtcdFailure> {
        let is_own = |found: &&KeyValue| found.key == entry.key.as_bytes();
        if !found.iter().any(|found| is_own(&found)) {
            return Err(unexpected("a look at an entry without that entry"));
        }
        match found.iter().find(|found| !is_own(found)) {
            None => return Ok((QueuePosition::First, revision)),
            Some(in_front) if self.keys.has(&in_front.key) => {
                return Ok((QueuePosition::Behind(EntryInFront::found(in_front)), revision));
            }
            // The queue of another lock is below this one.
            Some(_) => {}
        }
        let read = statements::read_places(self.keys.start(), entry.rev);
        let reply = self.store.cluster.ask(self.limit(), read).await?;
        let found = reply.read(0)?;
        if !found.iter().any(|found| is_own(&found) && found.create_revision == entry.rev) {
            return Ok((QueuePosition::Gone, reply.revision));
        }
        let in_front = found
            .iter()
            .find(|found| self.keys.has(&found.key) && found.create_revision < entry.rev);
        let place = in_front.map(|in_front| QueuePosition::Behind(EntryInFront::found(in_front)));
        Ok((place.unwrap_or(QueuePosition::First), reply.revision))
    }

    /// The list of a long queue, as of our entry or later: shared with the other claims of this client, since it is
    /// not read at once.
    pub(super) async fn list(&self, entry: &QueueEntry) -> Result<Arc<Listing>, EtcdFailure> {
        tokio::time::sleep(UNPLACED).await;
        let (store, queue) = (&self.store, self.keys.start());
        let footing = || store.watches.footing();
        let read = async {
            let footing = footing();
            let reply = store.cluster.ask(store.limit, statements::list_queue(queue)).await?;
            let found = reply.read(0)?.iter().filter(|found| self.keys.has(&found.key));
            let found = found.map(EntryInFront::found).collect();
            Ok(Listing::new(footing, reply.revision, found))
        };
        // By the watches of now, not of when we began to wait for our turn.
        let is_new = |known: &Listing| known.revision >= entry.rev && known.footing == footing();
        store.handover.list(queue, store.limit, is_new, read).await
    }

    /// The revision at which our entry was as we created it, bound to `lease`; `None` if it is not.
    pub(super) async fn confirm(
        &self,
        entry: &QueueEntry,
        lease: i64,
    ) -> Result<Option<i64>, EtcdFailure> {
        let reply = self.store.cluster.ask(self.limit(), statements::confirm(entry, lease)).await?;
        Ok(reply.succeeded.then_some(reply.revision))
    }

    /// Our entry for `lease` that an attempt without a reply has made, if it exists, is bound to the
    /// lease, and has a fence to be used, and the revision of the read.
    pub(super) async fn find(&self, lease: i64) -> Result<(Option<QueueEntry>, i64), EtcdFailure> {
        let find = statements::find(&self.keys.entry(lease));
        let reply = self.store.cluster.ask(self.limit(), find).await?;
        let found = self.bound(&reply, lease)?.filter(|entry| self.is_good(entry));
        Ok((found, reply.revision))
    }

    /// The leases of all entries of this owner.
    pub(super) async fn own_leases(&self) -> Result<Vec<i64>, EtcdFailure> {
        let read = statements::read_queue(self.keys.start());
        let reply = self.store.cluster.ask(self.limit(), read).await?;
        let is_own = |found: &&KeyValue| {
            // A lease is ours only if it is the one in the key.
            found.key == self.keys.entry(found.lease).as_bytes()
                && rules::is_ours(EntryValue::read(&found.value).owner, self.owner)
        };
        Ok(reply.read(0)?.iter().filter(is_own).map(|found| found.lease).collect())
    }

    /// Our entry for `lease`, if no other one is before it at this revision.
    pub(super) async fn prove(&self, lease: i64) -> Result<(Option<QueueEntry>, i64), EtcdFailure> {
        let key = self.keys.entry(lease);
        let prove = statements::prove(self.keys.start(), &key);
        let reply = self.store.cluster.ask(self.limit(), prove).await?;
        let Some(entry) = self.bound(&reply, lease)? else { return Ok((None, reply.revision)) };
        let is_first = match reply.first(1)? {
            Some(first) if self.keys.has(&first.key) => first.key == key.as_bytes(),
            // The queue of another lock lies below this one.
            _ => matches!(self.look(&entry).await?, (QueuePosition::First, _)),
        };
        Ok((is_first.then_some(entry), reply.revision))
    }

    /// The result of the first read, if it is ours and bound to `lease`.
    fn bound(&self, reply: &EtcdReply, lease: i64) -> Result<Option<QueueEntry>, EtcdFailure> {
        let found = reply.first(0)?.filter(|found| found.lease == lease);
        Ok(found.map(|found| self.entry(found)).transpose()?.flatten())
    }

    /// Deletes the entry; false if it did not exist. If it has been the first since it saw that on `held`, the one
    /// behind it is told that it is the first now.
    pub(super) async fn leave(
        &mut self,
        entry: &QueueEntry,
        held: Option<Footing>,
    ) -> Result<bool, EtcdFailure> {
        let store = Arc::clone(&self.store);
        let (footing, sent) = (store.watches.footing(), store.clock().now());
        if !rules::is_first(held, footing) {
            return Ok(self.delete(statements::release(entry)).await?.succeeded);
        }
        if let Some(leaving) = store.handover.begin_release(entry, footing) {
            let next = &leaving.next().entry;
            let reply = self.delete(statements::release_and_show(entry, &next.key)).await?;
            if let Ok(Some(found)) = reply.first(0)
                && reply.succeeded
                && rules::is_waiting(next, found)
                && rules::is_one_history(footing, store.watches.footing())
            {
                leaving.hand_on(FirstProof { footing, revision: reply.revision, sent });
            }
            return Ok(reply.succeeded);
        }
        if let Some(next) = store.handover.follower(self.keys.start(), entry.rev) {
            match self.delete(statements::release_and_tell(entry, &next)).await {
                Ok(reply) if reply.succeeded => return Ok(true),
                Err(failed) if failed.is_unknown() => return Err(failed),
                // That one has gone, or may not be written, as when the cluster has no space left.
                _ => {}
            }
        }
        Ok(self.delete(statements::release(entry)).await?.succeeded)
    }

    /// Makes a request that deletes the entry.
    async fn delete(&mut self, statement: Transaction) -> Result<EtcdReply, EtcdFailure> {
        let was_in_doubt = std::mem::replace(&mut self.is_in_doubt, true);
        let reply = self.store.cluster.ask(self.limit(), statement).await;
        let is_unknown = matches!(&reply, Err(failed) if failed.is_unknown());
        self.is_in_doubt = was_in_doubt || is_unknown;
        reply
    }
}
