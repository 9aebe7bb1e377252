//! The requests of one contender to its queue, and whether all of them were heard to the end.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, KeyValue, SortOrder, SortTarget, Txn};
use lock_core::{ClaimRequest, FencingToken, OwnerId};

use crate::backend::Shared;
use crate::base::{Base, Step};
use crate::error::{Failed, unexpected};
use crate::keepalive::Kept;
use crate::keys::Queue;
use crate::leases::Lease;
use crate::mutants;
use crate::statements::{self, Shown, Wanted};
use crate::value::{self, Value};

/// One contender, as its queue sees it.
#[derive(Debug)]
pub(crate) struct Contender {
    shared: Arc<Shared>,
    pub(crate) queue: Queue,
    owner: OwnerId,
    label: String,
    /// Whether a place may be taken behind others.
    wait: bool,
    /// The limit of one call of the claim.
    call_timeout: Duration,
    /// A request that takes or gives up the place is under way, or was dropped.
    asking: bool,
    /// Such a request had no answer: it may arrive at any time. Only the end of the lease settles it.
    unsure: bool,
}

/// Our key, as the store has shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    /// The revision at which it was created.
    pub(crate) rev: i64,
    /// Another process may have written it, with a label of its own.
    value: Vec<u8>,
    pub(crate) fence: FencingToken,
}

/// What a look has found of our place.
#[derive(Debug)]
pub(crate) enum Found {
    First,
    Behind(Vec<u8>),
    /// The key is not there, or is not as we have made it.
    Gone,
}

/// What a try to take a place has come to.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It was taken, and is the first of its queue.
    First(Entry),
    /// It was taken, behind this key.
    Behind(Entry, Vec<u8>),
    /// It is there. What stands before it is still to be looked at.
    Somewhere(Entry),
    /// Somebody holds the lock, and we did not want to wait.
    Busy,
    /// The key of our lease is somebody else's: the lease is not ours alone.
    NotOurs,
    /// The base of the fences is another than we knew: nothing was done, and the next try knows it.
    OtherBase,
    /// It was taken with a fence that is not above those before it, since the store has gone back: it is
    /// to be given up, and the next try lifts the base.
    WentBack,
}

impl Contender {
    pub(crate) fn new(shared: Arc<Shared>, request: &ClaimRequest) -> Self {
        Self {
            queue: Queue::new(&shared.folder, &request.key),
            owner: request.owner,
            label: request.label.as_deref().unwrap_or_default().to_owned(),
            wait: request.wait,
            call_timeout: request.call_timeout,
            shared,
            asking: false,
            unsure: false,
        }
    }

    /// A key of ours as the store has it; `None` if it is somebody else's.
    fn entry(&self, found: &KeyValue) -> Result<Option<Entry>, Failed> {
        let value = Value::read(found.value());
        if value.owner != Some(self.owner) && !mutants::on("believes_the_owner") {
            return Ok(None);
        }
        let key = found.key_str().map_err(|_| unexpected("a key that was not asked for"))?;
        let (key, rev, fence) =
            (key.to_owned(), found.create_revision(), value.fence(found.create_revision())?);
        Ok(Some(Entry { key, rev, value: found.value().to_vec(), fence }))
    }

    /// Whether something of ours may still reach the store.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsure || self.asking
    }

    /// The lease has ended: nothing that was sent with it is of any effect.
    pub(crate) fn is_settled_by_the_lease(&mut self) {
        (self.unsure, self.asking) = (false, false);
    }

    /// The core drops a call at its limit; ours ends a little earlier, to see that a member is silent.
    pub(crate) fn limit(&self) -> Duration {
        self.shared.limit.min(self.call_timeout - self.call_timeout / 8)
    }

    async fn txn(&self, txn: Txn) -> Result<Shown, Failed> {
        let answer = self
            .shared
            .node
            .call(self.limit(), |mut client| {
                let txn = txn.clone();
                async move { client.txn(txn).await }
            })
            .await?;
        Shown::read(&answer)
    }

    /// What fences count from; `None` if from 0.
    async fn step(&self) -> Result<Option<(&Base, Step)>, Failed> {
        let Some(base) = &self.shared.base else { return Ok(None) };
        let step = base.step(&self.shared.node, self.limit()).await;
        Ok(Some((base, step.map_err(Failed::without_effect)?)))
    }

    /// The place that `lease` keeps.
    fn wanted<'a>(&'a self, lease: Lease, step: Option<(&'a Base, Step)>) -> Wanted<'a> {
        Wanted {
            queue: self.queue.start(),
            key: self.queue.place(lease.id),
            value: value::write(&self.owner, step.map(|(_, step)| step.base), &self.label),
            lease: lease.id,
            base: step.map(|(base, step)| (base.key(), step)),
        }
    }

    /// Takes a place with `lease`, if there is none yet. Whoever is told of a place calls
    /// [`heard`](Self::heard) as soon as it is noted.
    async fn take(&mut self, lease: Lease) -> Result<Taken, Failed> {
        let shared = Arc::clone(&self.shared);
        let step = self.step().await?.map(|(_, step)| step);
        let step = shared.base.as_ref().zip(step);
        let txn = match self.wanted(lease, step) {
            wanted if self.wait || mutants::on("try_leaves_a_place") => wanted.place(),
            wanted => wanted.place_if_empty(),
        };
        self.unsure |= self.asking;
        self.asking = true;
        let answer = self.txn(txn).await;
        let shown = self.settle_failure(answer).map_err(|failed| match &shared.base {
            Some(base) => base.denied(failed),
            None => failed,
        })?;
        let key = self.queue.place(lease.id);
        if shown.succeeded {
            let Some(entry) = self.new_entry(&key, lease, step, shown.revision)? else {
                return Ok(Taken::WentBack);
            };
            let ahead = shown.found(0)?.iter().find(|found| found.key() != key.as_bytes());
            return match ahead {
                None => Ok(Taken::First(entry)),
                Some(ahead) if self.queue.has(ahead.key()) => {
                    Ok(Taken::Behind(entry, ahead.key().to_vec()))
                }
                Some(_) => Ok(Taken::Somewhere(entry)),
            };
        }
        if let Some(found) = shown.found(0)?.first() {
            // A try before this one had an answer that we have not seen.
            if let Some(entry) = self.entry(found)? {
                return Ok(Taken::Somewhere(entry));
            }
            self.asking = false;
            return Ok(Taken::NotOurs);
        }
        self.asking = false;
        let is_other = is_other_base(step, &shown)?;
        match shown.found(1)?.first() {
            // Behind others, too, a place could have been taken.
            _ if self.wait && is_other => Ok(Taken::OtherBase),
            None => Ok(Taken::OtherBase),
            Some(first) if self.queue.has(first.key()) => Ok(Taken::Busy),
            // The queue of another lock lies below this one: the own places have to be told apart.
            Some(_) => self.take_among_others(lease).await,
        }
    }

    /// The place that was just taken; `None` if the store has gone back.
    fn new_entry(
        &self,
        key: &str,
        lease: Lease,
        step: Option<(&Base, Step)>,
        rev: i64,
    ) -> Result<Option<Entry>, Failed> {
        if step.is_some_and(|(base, step)| !base.took(&step, rev)) {
            return Ok(None);
        }
        let value = self.wanted(lease, step).value.into_bytes();
        let fence = Value::read(&value).fence(rev)?;
        Ok(Some(Entry { key: key.to_owned(), rev, value, fence }))
    }

    /// Takes a place, and at the same time renews a lease that was granted a while ago. If its renewal
    /// is slower, the lock begins with what is left of it.
    pub(crate) async fn take_and_freshen(
        &mut self,
        lease: Lease,
    ) -> (Result<Taken, Failed>, Option<Kept>) {
        if !lease.is_aged(self.shared.clock().now()) {
            return (self.take(lease).await, None);
        }
        let (keeps, limit) = (Arc::clone(&self.shared.keeps), self.limit());
        let (heard, kept) = tokio::sync::oneshot::channel();
        let renewal = async move {
            let _ = heard.send(keeps.renew(lease.id, limit).await);
        };
        let take = async {
            let taken = self.take(lease).await;
            let kept = match &taken {
                Ok(Taken::Busy | Taken::NotOurs) | Err(_) => None,
                Ok(_) => tokio::time::timeout(limit / 4, kept).await.ok(),
            };
            (taken, kept.and_then(Result::ok).and_then(Result::ok))
        };
        tokio::pin!(renewal, take);
        tokio::select! {
            () = &mut renewal => take.await,
            outcome = &mut take => outcome,
        }
    }

    /// The rare way: a client that does not escape names uses `name/…` as the name of another lock.
    /// Only the end of the lease settles what is done here.
    async fn take_among_others(&mut self, lease: Lease) -> Result<Taken, Failed> {
        let (places, _) = self.places(None).await?;
        if !places.is_empty() {
            return Ok(Taken::Busy);
        }
        let shared = Arc::clone(&self.shared);
        let step = self.step().await?.map(|(_, step)| step);
        let step = shared.base.as_ref().zip(step);
        self.unsure = true;
        let shown = self.txn(self.wanted(lease, step).place()).await?;
        let (key, rev) = (self.queue.place(lease.id), shown.revision);
        if !shown.succeeded {
            let is_other = is_other_base(step, &shown)?;
            return Ok(if is_other { Taken::OtherBase } else { Taken::Busy });
        }
        let Some(entry) = self.new_entry(&key, lease, step, rev)? else {
            return Ok(Taken::WentBack);
        };
        let (places, _) = self.places(Some(rev)).await?;
        if places.iter().all(|(_, created)| *created >= rev) {
            return Ok(Taken::Somewhere(entry));
        }
        self.txn(statements::release(&key, &entry.value, rev)).await?;
        Ok(Taken::Busy)
    }

    /// The place of the last try is noted: should the claim be given up, the place is too.
    pub(crate) fn heard(&mut self) {
        self.asking = false;
    }

    /// Notes whether a request that takes or gives up the place has failed for good, or may still
    /// arrive.
    fn settle_failure<T>(&mut self, answer: Result<T, Failed>) -> Result<T, Failed> {
        if let Err(failed) = &answer {
            self.asking = false;
            self.unsure |= failed.is_unknown();
        }
        answer
    }

    /// All places of the queue up to `newest`, the oldest first, and the revision of the read.
    async fn places(&self, newest: Option<i64>) -> Result<(Vec<(Vec<u8>, i64)>, i64), Failed> {
        let start = self.queue.start();
        let answer = self
            .shared
            .node
            .call(self.limit(), |mut client| {
                let mut options = GetOptions::new()
                    .with_prefix()
                    .with_keys_only()
                    .with_sort(SortTarget::Create, SortOrder::Ascend);
                if let Some(newest) = newest {
                    options = options.with_max_create_revision(newest);
                }
                async move { client.get(start, Some(options)).await }
            })
            .await?;
        let places = answer.kvs().iter().filter(|found| self.queue.has(found.key()));
        let places = places.map(|found| (found.key().to_vec(), found.create_revision())).collect();
        Ok((places, answer.header().map_or(0, |header| header.revision())))
    }

    /// Looks at the own place and the one before it, at one revision.
    pub(crate) async fn look(&self, entry: &Entry) -> Result<(Found, i64), Failed> {
        let Entry { key, rev, value, .. } = entry;
        let rev = *rev;
        let shown = self.txn(statements::look(self.queue.start(), key, value, rev)).await?;
        if !shown.succeeded {
            return Ok((Found::Gone, shown.revision));
        }
        let found = shown.found(0)?;
        if !found.iter().any(|place| place.key() == key.as_bytes()) {
            return Err(unexpected("a look at a place without that place"));
        }
        let ahead = found.iter().find(|place| place.key() != key.as_bytes());
        match ahead {
            None => Ok((Found::First, shown.revision)),
            Some(ahead) if self.queue.has(ahead.key()) => {
                Ok((Found::Behind(ahead.key().to_vec()), shown.revision))
            }
            Some(_) => {
                let (places, seen) = self.places(Some(rev)).await?;
                if !places.iter().any(|(place, made)| place == key.as_bytes() && *made == rev) {
                    return Ok((Found::Gone, seen));
                }
                let ahead = places.into_iter().rfind(|(_, created)| *created < rev);
                Ok((ahead.map_or(Found::First, |(ahead, _)| Found::Behind(ahead)), seen))
            }
        }
    }

    /// Our key for `lease`, if it is there and bound to it, and the revision of the read.
    pub(crate) async fn find(&self, lease: i64) -> Result<(Option<Entry>, i64), Failed> {
        let key = self.queue.place(lease);
        let key = key.as_str();
        let answer = self
            .shared
            .node
            .call(self.limit(), |mut client| async move { client.get(key, None).await })
            .await?;
        let found = answer.kvs().first().filter(|found| found.lease() == lease);
        let entry = found.map(|found| self.entry(found)).transpose()?.flatten();
        Ok((entry, answer.header().map_or(0, |header| header.revision())))
    }

    /// The same, if nothing stands before it at this revision.
    pub(crate) async fn find_first(&self, lease: i64) -> Result<(Option<Entry>, i64), Failed> {
        let key = self.queue.place(lease);
        let shown = self.txn(statements::show(self.queue.start(), &key)).await?;
        let found = shown.found(0)?.first().filter(|found| found.lease() == lease);
        let Some(entry) = found.map(|found| self.entry(found)).transpose()?.flatten() else {
            return Ok((None, shown.revision));
        };
        let is_first = match shown.found(1)?.first() {
            Some(first) if self.queue.has(first.key()) => first.key() == key.as_bytes(),
            // The queue of another lock lies below this one.
            _ => matches!(self.look(&entry).await?, (Found::First, _)),
        };
        let is_hold = is_first || mutants::on("takes_a_place_for_a_hold");
        Ok((is_hold.then_some(entry), shown.revision))
    }

    /// Gives up the place; false if it was not there.
    pub(crate) async fn delete(&mut self, entry: &Entry) -> Result<bool, Failed> {
        let Entry { key, rev, value, .. } = entry;
        let txn = if mutants::on("release_by_name") {
            statements::release_by_name(key)
        } else if mutants::on("release_keeps_the_key") {
            Txn::new()
        } else {
            statements::release(key, value, *rev)
        };
        self.asking = true;
        let answer = self.txn(txn).await;
        let shown = self.settle_failure(answer)?;
        self.asking = false;
        Ok(shown.succeeded)
    }
}

/// Whether the base is another one than `step` counts on, by what a refused try was shown. It is noted.
fn is_other_base(step: Option<(&Base, Step)>, shown: &Shown) -> Result<bool, Failed> {
    let Some((base, step)) = step else { return Ok(false) };
    let found = shown.found(2)?.first();
    if Base::is_as_in(&step, found) {
        return Ok(false);
    }
    base.shown(found, shown.revision)?;
    Ok(true)
}
