//! The requests of one claim to its queue, and which of them may still take effect.

use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::in_doubt::{InDoubt, Request};
use lock_core::{ClaimRequest, ClockInstant, OwnerId};

use crate::entry::{self, Entry, Value};
use crate::error::{Failed, unexpected};
use crate::fences::Base;
use crate::names::QueueKeys;
use crate::proto::KeyValue;
use crate::statements::{self, Step, Wanted};
use crate::store::Store;
use crate::wire::Reply;

/// Only the end of the lease settles the outcome of a request without a reply.
const NEVER: ClockInstant = ClockInstant::from_nanos(u64::MAX);

/// The queue of a lock, as one claim uses it.
#[derive(Debug)]
pub(crate) struct Queue {
    store: Arc<Store>,
    keys: QueueKeys,
    owner: OwnerId,
    label: String,
    /// The timeout of one call of the claim.
    call_timeout: Duration,
    /// The requests that create or delete the entry.
    doubt: InDoubt,
}

/// Where an entry stands in its queue.
#[derive(Debug)]
pub(crate) enum Standing {
    First,
    /// Behind this key.
    Behind(Vec<u8>),
    /// The key does not exist, or is not as we created it.
    Gone,
}

/// The outcome of an attempt to create an entry.
#[derive(Debug)]
pub(crate) enum Taken {
    /// The entry exists. `None` if its position is still to be read.
    Entered(Entry, Option<Standing>),
    /// Another client holds the lock, and we did not want to wait.
    Busy,
    /// The same, unless that entry is in the queue of another lock below this one: the entries must
    /// be told apart.
    BusyOrAmongOthers,
    /// The key of our lease belongs to another client: the lease is not ours alone.
    NotOurs,
    /// The base of the fences has changed: nothing was done, and the next attempt uses the new one.
    OtherBase,
    /// The entry has a fence that is not above earlier ones, because the store has gone back: it
    /// must be given up, and the next attempt raises the base.
    WentBack,
}

impl Queue {
    pub(crate) fn new(store: Arc<Store>, request: &ClaimRequest) -> Self {
        Self {
            keys: QueueKeys::new(&store.folder, &request.key),
            owner: request.owner,
            label: request.label.as_deref().unwrap_or_default().to_owned(),
            call_timeout: request.call_timeout,
            store,
            doubt: InDoubt::default(),
        }
    }

    /// The core drops a call at its timeout; ours ends a little earlier, to notice that a member is
    /// silent.
    pub(crate) fn limit(&self) -> Duration {
        self.store.limit.min(self.call_timeout - self.call_timeout / 8)
    }

    /// Whether a request of ours may still reach the store.
    pub(crate) fn is_in_doubt(&self) -> bool {
        !self.doubt.open(self.store.clock().now()).is_clear()
    }

    /// The lease has ended: no request that was sent with it can take effect.
    pub(crate) fn is_settled_by_the_lease(&mut self) {
        self.doubt.settled();
    }

    /// Notes that a request that creates or deletes the entry is being sent. It is in doubt until
    /// it has definitely failed, or its outcome was noted.
    fn sending(&mut self) -> Request {
        self.doubt.sent(self.store.clock().now(), NEVER)
    }

    fn failed(&mut self, request: Request, failed: Failed) -> Failed {
        if !failed.is_unknown() {
            self.noted(request);
        }
        failed
    }

    fn noted(&mut self, request: Request) {
        self.doubt.answered(request, false);
    }

    /// Our key as the store has it; `None` if it belongs to another client.
    fn entry(&self, found: &KeyValue) -> Result<Option<Entry>, Failed> {
        let value = Value::read(&found.value);
        if !(self.store.rules.is_ours)(value.owner, self.owner) {
            return Ok(None);
        }
        let key = String::from_utf8(found.key.clone())
            .map_err(|_| unexpected("a key that was not asked for"))?;
        let (rev, fence) = (found.create_revision, value.fence(found.create_revision)?);
        Ok(Some(Entry { key, rev, value: found.value.clone(), fence }))
    }

    /// Creates an entry with `lease`, if there is none yet: behind others if `wait`.
    pub(crate) async fn take(&mut self, lease: i64, wait: bool) -> Result<Taken, Failed> {
        let store = Arc::clone(&self.store);
        // To the end: until this entry was answered, the others wait if it is the first.
        let _turn = match &store.base {
            Some(base) => base.first(self.limit()).await,
            None => None,
        };
        let base = match &store.base {
            Some(base) => {
                let step = base.step(&store.cluster, self.limit()).await;
                Some((base, step.map_err(Failed::without_effect)?))
            }
            None => None,
        };
        let wanted = Wanted {
            queue: self.keys.start(),
            key: self.keys.entry(lease),
            value: entry::write(&self.owner, base.map(|(_, step)| step.base), &self.label),
            lease,
            base: base.map(|(base, step)| (base.key(), step)),
        };
        let statement = if wait { wanted.enter() } else { wanted.enter_if_empty() };
        let Wanted { key, value, .. } = wanted;
        let request = self.sending();
        let reply = store.cluster.ask(self.limit(), statement).await.map_err(|failed| {
            let failed = self.failed(request, failed);
            if let Some((base, _)) = base { base.denied(failed) } else { failed }
        })?;
        let taken = if reply.succeeded {
            self.entered(&reply, key, value, base)?
        } else {
            self.refused(&reply, wait, base)?
        };
        self.noted(request);
        Ok(taken)
    }

    /// The entry was created.
    fn entered(
        &self,
        reply: &Reply,
        key: String,
        value: String,
        base: Option<(&Base, Step)>,
    ) -> Result<Taken, Failed> {
        let rev = reply.revision;
        if base.is_some_and(|(base, step)| !base.took(&step, rev)) {
            return Ok(Taken::WentBack);
        }
        let fence = Value::read(value.as_bytes()).fence(rev)?;
        let standing = match reply.read(0)?.iter().find(|found| found.key != key.as_bytes()) {
            None => Some(Standing::First),
            Some(ahead) if self.keys.has(&ahead.key) => Some(Standing::Behind(ahead.key.clone())),
            Some(_) => None,
        };
        Ok(Taken::Entered(Entry { key, rev, value: value.into_bytes(), fence }, standing))
    }

    /// Why no entry was created.
    fn refused(
        &self,
        reply: &Reply,
        wait: bool,
        base: Option<(&Base, Step)>,
    ) -> Result<Taken, Failed> {
        if let Some(found) = reply.first(0)? {
            // An earlier attempt succeeded, but its reply was lost.
            let entry = self.entry(found)?;
            return Ok(entry.map_or(Taken::NotOurs, |entry| Taken::Entered(entry, None)));
        }
        let mut is_other = false;
        if let Some((base, step)) = base {
            let found = reply.first(2)?;
            is_other = !Base::is_as_in(&step, found);
            if is_other {
                base.shown(found, reply.revision)?;
            }
        }
        Ok(match reply.first(1)? {
            // A waiter could have entered behind others.
            _ if wait && is_other => Taken::OtherBase,
            None => Taken::OtherBase,
            Some(first) if self.keys.has(&first.key) => Taken::Busy,
            Some(_) => Taken::BusyOrAmongOthers,
        })
    }

    /// The rare case: a client that does not escape names uses `name/…` as the name of another
    /// lock. An entry is created, and deleted again if it is not the first. Only the end of the
    /// lease settles the outcome.
    pub(crate) async fn take_among_others(&mut self, lease: i64) -> Result<Taken, Failed> {
        self.sending();
        let taken = self.take(lease, true).await?;
        let Taken::Entered(entry, standing) = taken else { return Ok(taken) };
        let standing = match standing {
            Some(standing) => standing,
            None => self.look(&entry).await?.0,
        };
        if matches!(standing, Standing::First) {
            return Ok(Taken::Entered(entry, Some(standing)));
        }
        self.store.cluster.ask(self.limit(), statements::release(&entry)).await?;
        Ok(Taken::Busy)
    }

    /// Reads our entry and the one before it, at one revision, which is also returned.
    pub(crate) async fn look(&self, entry: &Entry) -> Result<(Standing, i64), Failed> {
        let (cluster, queue, limit) = (&self.store.cluster, self.keys.start(), self.limit());
        let reply = cluster.ask(limit, statements::look(queue, entry)).await?;
        if !reply.succeeded {
            return Ok((Standing::Gone, reply.revision));
        }
        let is_own = |found: &&KeyValue| found.key == entry.key.as_bytes();
        let found = reply.read(0)?;
        if !found.iter().any(|found| is_own(&found)) {
            return Err(unexpected("a look at an entry without that entry"));
        }
        match found.iter().find(|found| !is_own(found)) {
            None => return Ok((Standing::First, reply.revision)),
            Some(ahead) if self.keys.has(&ahead.key) => {
                return Ok((Standing::Behind(ahead.key.clone()), reply.revision));
            }
            // The queue of another lock is below this one.
            Some(_) => {}
        }
        let reply = cluster.ask(limit, statements::read_places(queue, entry.rev)).await?;
        let found = reply.read(0)?;
        if !found.iter().any(|found| is_own(&found) && found.create_revision == entry.rev) {
            return Ok((Standing::Gone, reply.revision));
        }
        let ahead = found
            .iter()
            .find(|found| self.keys.has(&found.key) && found.create_revision < entry.rev);
        let standing = ahead.map(|ahead| Standing::Behind(ahead.key.clone()));
        Ok((standing.unwrap_or(Standing::First), reply.revision))
    }

    /// The revision at which our entry was as we created it, bound to `lease`; `None` if it is not.
    pub(crate) async fn confirm(&self, entry: &Entry, lease: i64) -> Result<Option<i64>, Failed> {
        let reply = self.store.cluster.ask(self.limit(), statements::confirm(entry, lease)).await?;
        Ok(reply.succeeded.then_some(reply.revision))
    }

    /// Our entry for `lease`, if it exists and is bound to it, and the revision of the read.
    pub(crate) async fn find(&self, lease: i64) -> Result<(Option<Entry>, i64), Failed> {
        let find = statements::find(&self.keys.entry(lease));
        let reply = self.store.cluster.ask(self.limit(), find).await?;
        Ok((self.bound(&reply, lease)?, reply.revision))
    }

    /// The same, if no entry is before it at this revision.
    pub(crate) async fn prove(&self, lease: i64) -> Result<(Option<Entry>, i64), Failed> {
        let key = self.keys.entry(lease);
        let prove = statements::prove(self.keys.start(), &key);
        let reply = self.store.cluster.ask(self.limit(), prove).await?;
        let Some(entry) = self.bound(&reply, lease)? else { return Ok((None, reply.revision)) };
        let is_first = match reply.first(1)? {
            Some(first) if self.keys.has(&first.key) => first.key == key.as_bytes(),
            // The queue of another lock lies below this one.
            _ => matches!(self.look(&entry).await?, (Standing::First, _)),
        };
        Ok((is_first.then_some(entry), reply.revision))
    }

    /// The result of the first read, if it is ours and bound to `lease`.
    fn bound(&self, reply: &Reply, lease: i64) -> Result<Option<Entry>, Failed> {
        let found = reply.first(0)?.filter(|found| found.lease == lease);
        Ok(found.map(|found| self.entry(found)).transpose()?.flatten())
    }

    /// Deletes the entry; false if it did not exist. If the lock was `held`, the answer may prove
    /// that the next holder is another claim of this client.
    pub(crate) async fn release(&mut self, entry: &Entry, held: bool) -> Result<bool, Failed> {
        let store = Arc::clone(&self.store);
        let (queue, now) = (self.keys.start(), store.clock().now());
        let look = store.watches.look();
        let leaving = held.then(|| store.neighbours.leave(queue, &entry.key, look, now)).flatten();
        let statement = match leaving {
            Some(_) => statements::release_and_show(queue, entry),
            None => statements::release(entry),
        };
        let request = self.sending();
        let reply = store.cluster.ask(self.limit(), statement).await;
        let reply = reply.map_err(|failed| self.failed(request, failed))?;
        self.noted(request);
        if let Some(leaving) = leaving.filter(|_| reply.succeeded)
            && let Ok(Some(first)) = reply.first(0)
            // If the queue of another lock is below this one, the next one looks for itself.
            && self.keys.has(&first.key)
        {
            leaving.hand_on(first, reply.revision);
        }
        Ok(reply.succeeded)
    }
}
