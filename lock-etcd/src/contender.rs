//! The requests of one contender to its queue, and whether all of them were heard to the end.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, SortOrder, SortTarget, Txn};
use lock_core::ClaimRequest;

use crate::backend::Shared;
use crate::error::{Failed, unexpected};
use crate::keepalive::Kept;
use crate::keys::Queue;
use crate::leases::Lease;
use crate::mutants;
use crate::statements::{self, Shown};

/// One contender, as its queue sees it.
#[derive(Debug)]
pub(crate) struct Contender {
    shared: Arc<Shared>,
    pub(crate) queue: Queue,
    /// What our key holds: the owner, a space and the label.
    value: String,
    owner: String,
    /// What a key holds that another process has made, with a label of its own; `None` until it has
    /// been looked at.
    found: Option<Vec<u8>>,
    made_here: bool,
    /// Whether a place may be taken behind others.
    wait: bool,
    /// The limit of one call of the claim.
    call_timeout: Duration,
    /// A request that takes or gives up the place is under way, or was dropped.
    asking: bool,
    /// Such a request had no answer: it may arrive at any time. Only the end of the lease settles it.
    unsure: bool,
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
    /// It was taken at this revision, and is the first of its queue.
    First { rev: i64 },
    /// It was taken at this revision, behind this key.
    Behind { rev: i64, ahead: Vec<u8> },
    /// It is there since this revision. What stands before it is still to be looked at.
    Somewhere { rev: i64 },
    /// Somebody holds the lock, and we did not want to wait.
    Busy,
    /// The key of our lease is somebody else's: the lease is not ours alone.
    NotOurs,
}

impl Contender {
    pub(crate) fn new(shared: Arc<Shared>, request: &ClaimRequest) -> Self {
        let owner = request.owner.to_hex();
        let label = request.label.as_deref().unwrap_or_default();
        Self {
            queue: Queue::new(&shared.folder, &request.key),
            value: if label.is_empty() { owner.clone() } else { format!("{owner} {label}") },
            owner,
            found: None,
            made_here: request.resume.is_none(),
            wait: request.wait,
            call_timeout: request.call_timeout,
            shared,
            asking: false,
            unsure: false,
        }
    }

    /// The value of our key, as far as it is known.
    fn value(&self) -> Option<&[u8]> {
        if self.made_here { Some(self.value.as_bytes()) } else { self.found.as_deref() }
    }

    /// Whether `value` is that of a key of ours.
    fn is_ours(&self, value: &[u8]) -> bool {
        value
            .strip_prefix(self.owner.as_bytes())
            .is_some_and(|label| label.first().is_none_or(|separator| *separator == b' '))
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

    /// Takes a place with `lease`, if there is none yet. Whoever is told of a place calls
    /// [`heard`](Self::heard) as soon as it is noted.
    async fn take(&mut self, lease: Lease) -> Result<Taken, Failed> {
        let (start, key) = (self.queue.start().to_owned(), self.queue.place(lease.id));
        let txn = if self.wait || mutants::on("try_leaves_a_place") {
            statements::place(&start, &key, &self.value, lease.id)
        } else {
            statements::place_if_empty(&start, &key, &self.value, lease.id)
        };
        self.unsure |= self.asking;
        self.asking = true;
        let answer = self.txn(txn).await;
        let shown = self.settle_failure(answer)?;
        if shown.succeeded {
            let rev = shown.revision;
            let ahead = shown.found(0)?.iter().find(|found| found.key() != key.as_bytes());
            return match ahead {
                None => Ok(Taken::First { rev }),
                Some(ahead) if self.queue.has(ahead.key()) => {
                    Ok(Taken::Behind { rev, ahead: ahead.key().to_vec() })
                }
                Some(_) => Ok(Taken::Somewhere { rev }),
            };
        }
        if let Some(found) = shown.found(0)?.first() {
            // A try before this one had an answer that we have not seen.
            if self.is_ours(found.value()) {
                return Ok(Taken::Somewhere { rev: found.create_revision() });
            }
            self.asking = false;
            return Ok(Taken::NotOurs);
        }
        self.asking = false;
        match shown.found(1)?.first() {
            Some(first) if self.queue.has(first.key()) => Ok(Taken::Busy),
            // The queue of another lock lies below this one: the own places have to be told apart.
            _ => self.take_among_others(lease, &start, &key).await,
        }
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
    async fn take_among_others(
        &mut self,
        lease: Lease,
        start: &str,
        key: &str,
    ) -> Result<Taken, Failed> {
        let (places, _) = self.places(None).await?;
        if !places.is_empty() {
            return Ok(Taken::Busy);
        }
        self.unsure = true;
        let shown = self.txn(statements::place(start, key, &self.value, lease.id)).await?;
        let rev = shown.revision;
        if !shown.succeeded {
            return Ok(Taken::Busy);
        }
        let (places, _) = self.places(Some(rev)).await?;
        if places.iter().all(|(_, created)| *created >= rev) {
            return Ok(Taken::Somewhere { rev });
        }
        self.txn(statements::release(key, self.value(), rev)).await?;
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
    pub(crate) async fn look(&self, key: &str, rev: i64) -> Result<(Found, i64), Failed> {
        let shown = self.txn(statements::look(self.queue.start(), key, self.value(), rev)).await?;
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

    /// Whether our key is there, as we have made it at `rev`, and the revision of the read.
    pub(crate) async fn is_there(&mut self, key: &str, rev: i64) -> Result<(bool, i64), Failed> {
        let answer = self
            .shared
            .node
            .call(self.limit(), |mut client| async move { client.get(key, None).await })
            .await?;
        let ours = answer.kvs().first().filter(|found| {
            found.create_revision() == rev
                && self.is_ours(found.value())
                && self.value().is_none_or(|value| value == found.value())
        });
        let there = ours.is_some();
        if let Some(found) = ours {
            self.found = Some(found.value().to_vec());
        }
        Ok((there, answer.header().map_or(0, |header| header.revision())))
    }

    /// Gives up the place that was taken at `rev`; false if it was not there.
    pub(crate) async fn delete(&mut self, key: &str, rev: i64) -> Result<bool, Failed> {
        let txn = if mutants::on("release_by_name") {
            statements::release_by_name(key)
        } else if mutants::on("release_keeps_the_key") {
            Txn::new()
        } else {
            statements::release(key, self.value(), rev)
        };
        self.asking = true;
        let answer = self.txn(txn).await;
        let shown = self.settle_failure(answer)?;
        self.asking = false;
        Ok(shown.succeeded)
    }
}
