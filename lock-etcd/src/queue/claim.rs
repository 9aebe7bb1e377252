//! One contender for a lock in etcd: in which order it asks.
//!
//! It takes a lease, and enters the queue with an entry of its own that is bound to it. The same transaction shows
//! the entry in front. If there is none, it has the lock: all of that was true at one revision (clause C3). If there
//! is one, it waits: it watches that entry and its own, and looks again when either has changed, unless a neighbour's
//! release has shown already that it is the first. In a long queue it looks for the one in front only while it waits,
//! together with others. After a lost reply an entry may exist that it does not know: the next try finds it by its key,
//! and the release settles that doubt by the end of the lease. What it asks, and whether that is in doubt, is in
//! [`operations`](super::operations).

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Busy, Bytes, Claim, ClaimRequest, ClockInstant, Error, ErrorKind, Released, Renewal,
    Result, async_trait,
};

use super::entry::{QueueEntry, QueuePosition};
use super::operations::{ClaimQueue, EntryOutcome};
use super::watches::{ClaimWatches, KnownInFront};
use crate::error::{EtcdFailure, FailureClass};
use crate::leases::EtcdLease;
use crate::rules;
use crate::shared_state::SharedState;
use crate::watch::task::Footing;

/// How often an attempt starts over because its lease or its entry was gone.
const ROUNDS: u32 = 4;

#[derive(Debug)]
pub(crate) struct EtcdClaim {
    store: Arc<SharedState>,
    request: ClaimRequest,
    queue: ClaimQueue,
    /// The lease that a token names. It is neither trusted nor used until the store has confirmed
    /// the whole token.
    claimed: Option<i64>,
    lease: Option<EtcdLease>,
    entry: Option<QueueEntry>,
    /// What the proof stands on that the lock is ours, if it is.
    held: Option<Footing>,
    /// Nothing was tried yet, and there is no token. If a claim is released like this, it may be for
    /// another one of the same owner, which was dropped in the middle of a call (clause C12).
    is_new: bool,
    watches: ClaimWatches,
}

#[async_trait]
impl Claim for EtcdClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        self.is_new = false;
        let start = self.begin_call();
        let answer = self.look(start).await;
        answer.map_err(|failed| self.failed_try(failed.error))
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let start = self.begin_call();
        Ok(self.renew_lease(start).await?)
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.begin_call();
        self.take_over(true).await?;
        if !self.watches.is_own_deleted() && self.confirm().await? {
            return Ok(Renewal::Alive { valid_for: None });
        }
        // Requests still in flight are settled by the release.
        if self.entry.is_some() {
            self.forget();
        }
        Ok(Renewal::Lost)
    }

    async fn release(&mut self) -> Result<Released> {
        self.begin_call();
        self.take_over(false).await?;
        Ok(match self.lease {
            Some(lease) if self.queue.is_in_doubt => self.leave_in_doubt(lease).await?,
            _ if self.is_new => self.leave_all().await?,
            _ => self.leave().await?,
        })
    }

    async fn changed(&mut self) -> Result<()> {
        let is_held = self.held.is_some();
        // In a box of its own, since a holder waits here, too, and lists nothing.
        if !is_held && self.lists() && Box::pin(self.find_place()).await? {
            return Ok(());
        }
        self.watches.changed(self.entry.as_ref(), is_held).await
    }

    async fn detach(&mut self) -> Result<Bytes> {
        match self.lease {
            Some(lease) => Ok(Bytes::copy_from_slice(&lease.id.to_be_bytes())),
            None => Err(Error::new(ErrorKind::Internal, "BUG: a lock without a lease is detached")),
        }
    }
}

/// The order of the steps.
impl EtcdClaim {
    async fn look(&mut self, start: ClockInstant) -> Result<Attempt, EtcdFailure> {
        for _ in 0..ROUNDS {
            self.take_over(true).await?;
            let (position, footing, revision) = match &self.entry {
                Some(entry) => self.look_again(entry).await?,
                None => {
                    let lease = self.lease().await?;
                    let footing = self.watches.footing();
                    let mut outcome = self.queue.enter(lease.id, self.request.wait).await;
                    if let Ok(EntryOutcome::BusyOrAmongOthers) = outcome {
                        outcome = self.queue.enter_among_others(lease.id).await;
                    }
                    match outcome {
                        Ok(EntryOutcome::Entered(entry, position)) => {
                            let entry = self.entry.insert(entry).clone();
                            match position {
                                Some(position) => (position, footing, entry.rev),
                                None => self.look_again(&entry).await?,
                            }
                        }
                        Ok(EntryOutcome::Busy | EntryOutcome::BusyOrAmongOthers) => {
                            return Ok(Attempt::Busy(Busy::default()));
                        }
                        not_entered => {
                            self.start_over(lease, not_entered).await?;
                            continue;
                        }
                    }
                }
            };
            let left = self.lease.map(|lease| lease.left(start));
            match (position, &self.entry) {
                (QueuePosition::First, Some(entry)) => {
                    self.watches.stands(footing, revision);
                    self.held = Some(footing);
                    self.store.leases.refill(self.request.ttl);
                    return Ok(Attempt::Granted { token: rules::token(entry), valid_for: left });
                }
                (QueuePosition::Behind(in_front), Some(entry)) => {
                    self.watches.is_behind(footing, revision, entry, in_front);
                    return Ok(Attempt::Busy(Busy::default().with_place(left)));
                }
                (QueuePosition::Deep, Some(_)) => {
                    self.watches.stands(footing, revision);
                    return Ok(Attempt::Busy(Busy::default().with_place(left)));
                }
                (QueuePosition::Gone, _) | (_, None) => self.forget(),
            }
        }
        let why = format!(
            "{ROUNDS} attempts in a row to enter the queue in etcd failed: their leases ended, or the base of the fences was raised"
        );
        Err(EtcdFailure {
            why: FailureClass::Refused,
            error: Error::new(ErrorKind::Unavailable, why),
        })
    }

    /// Whether the entry in front of ours is not known; or a neighbour's release of it could prove nothing, since the look
    /// that has shown it is from before the watches of now. In a long queue one list for all is less than a look for each.
    fn lists(&self) -> bool {
        self.watches.is_unplaced() || (!self.watches.can_be_told() && self.queue.is_long())
    }

    /// Finds the entry in front of ours in a list; true if something has changed before, or nothing is in front.
    async fn find_place(&mut self) -> Result<bool> {
        let Some(entry) = &self.entry else { return Ok(false) };
        let list = tokio::select! {
            biased;
            changed = self.watches.changed(Some(entry), false) => return changed.map(|()| true),
            list = self.queue.list(entry) => list,
        };
        let list = match list {
            Ok(list) => list,
            // A look will do when its turn comes.
            Err(_) if !self.watches.is_unplaced() => return Ok(false),
            Err(failed) => return Err(failed.into()),
        };
        let Some(in_front) = list.before(entry.rev) else { return Ok(true) };
        self.watches.is_behind(list.footing, list.revision, entry, in_front.clone());
        Ok(false)
    }

    /// Reads the place of our entry, unless its watch or a neighbour has shown it.
    async fn look_again(
        &self,
        entry: &QueueEntry,
    ) -> Result<(QueuePosition, Footing, i64), EtcdFailure> {
        let footing = self.watches.footing();
        if self.watches.is_own_deleted() {
            return Ok((QueuePosition::Gone, footing, 0));
        }
        if let Some(proof) = self.watches.proof(self.store.clock().now(), self.queue.limit()) {
            return Ok((QueuePosition::First, proof.footing, proof.revision));
        }
        let (position, revision) = match self.watches.known(footing) {
            Some(KnownInFront::Deleted(told)) => {
                self.queue.look_if_not_told(entry, told, footing).await?
            }
            Some(KnownInFront::Entry(in_front)) => {
                self.queue.look_if_not_behind(entry, in_front, footing).await?
            }
            None => self.queue.look(entry).await?,
        };
        Ok((position, footing, revision))
    }

    /// No entry was made, or none that may be used: gives up what the next round must do without.
    async fn start_over(
        &mut self,
        lease: EtcdLease,
        not_entered: Result<EntryOutcome, EtcdFailure>,
    ) -> Result<(), EtcdFailure> {
        match not_entered {
            Ok(EntryOutcome::NotOurs) => self.lease = None,
            Ok(EntryOutcome::Unusable) => {
                self.settle(lease).await?;
            }
            Ok(_) => {}
            // No request that was sent with this lease can take effect any more.
            Err(failed) if failed.why == FailureClass::LeaseGone => {
                self.lease = None;
                // After a restore the store knows no lease of the pool.
                self.store.leases.forget_idle();
                self.queue.is_settled_by_the_lease();
            }
            Err(failed) => return Err(failed),
        }
        Ok(())
    }
}

/// The proof that a lock which is ours stays so for a while.
impl EtcdClaim {
    /// Takes over what another process has detached, if the store's own record is what the token
    /// says: this owner's key is the first, bound to this lease, with this fence. Otherwise nothing
    /// is ours, and nothing is touched (clause C14). A lease keeps the ttl with which it was
    /// granted, so with `to_renew` that must match the request.
    async fn take_over(&mut self, to_renew: bool) -> Result<(), EtcdFailure> {
        let (Some(lease), Some(resume)) = (self.claimed, &self.request.resume) else {
            return Ok(());
        };
        let (leases, limit) = (&self.store.leases, self.queue.limit());
        let footing = self.watches.footing();
        let asked = leases.granted_for(self.request.ttl);
        let ttl =
            async { if to_renew { leases.ttl_of(lease, limit).await } else { Ok(Some(asked)) } };
        let ((entry, revision), granted) = tokio::try_join!(self.queue.prove(lease), ttl)?;
        let entry = entry.filter(|entry| rules::is_told(resume.fence, entry.fence));
        self.claimed = None;
        // The lease may have ended since the entry was seen.
        let (Some(entry), Some(granted)) = (entry, granted) else { return Ok(()) };
        if !rules::is_asked(granted, asked) {
            let error = another_ttl(granted, self.request.ttl);
            return Err(EtcdFailure { why: FailureClass::Refused, error });
        }
        let now = self.store.clock().now();
        self.lease = Some(EtcdLease::taken_over(lease, self.request.ttl, now));
        (self.entry, self.held) = (Some(entry), Some(footing));
        self.watches.stands(footing, revision);
        Ok(())
    }

    /// Renews the lease, and reads the key where no watch stands for it.
    async fn renew_lease(&mut self, start: ClockInstant) -> Result<Renewal, EtcdFailure> {
        self.take_over(true).await?;
        let (Some(mut lease), Some(_)) = (self.lease, &self.entry) else {
            return Ok(Renewal::Lost);
        };
        if self.watches.is_own_deleted() {
            self.forget();
            return Ok(Renewal::Lost);
        }
        let renewed = self.store.renewals.renew(lease.id, self.queue.limit()).await?;
        if !lease.renewed(renewed) {
            self.queue.is_settled_by_the_lease();
            self.forget();
            return Ok(Renewal::Lost);
        }
        self.lease = Some(lease);
        // The lease may be alive without the key, if the key was deleted by hand or an old snapshot
        // was restored. A failed read leaves that open, so the renewal fails.
        if !self.watches.is_sure() && !self.confirm().await? {
            self.forget();
            return Ok(Renewal::Lost);
        }
        Ok(Renewal::Alive { valid_for: Some(lease.left(start)) })
    }
}

/// What is known of our entry, and what is in doubt.
impl EtcdClaim {
    pub(crate) fn new(store: Arc<SharedState>, request: ClaimRequest) -> Result<Self> {
        let queue = ClaimQueue::new(Arc::clone(&store), &request);
        let claimed = match &request.resume {
            Some(resume) => Some(lease_in(&resume.data)?),
            None => None,
        };
        Ok(Self {
            is_new: claimed.is_none(),
            watches: ClaimWatches::new(Arc::clone(&store.watches), Arc::clone(&store.handover)),
            store,
            request,
            queue,
            claimed,
            lease: None,
            entry: None,
            held: None,
        })
    }

    /// A call begins now.
    fn begin_call(&mut self) -> ClockInstant {
        self.queue.begin_call();
        self.store.clock().now()
    }

    /// The lease of this claim, or a new one.
    async fn lease(&mut self) -> Result<EtcdLease, EtcdFailure> {
        if let Some(lease) = self.lease {
            return Ok(lease);
        }
        let taken = self.store.leases.take(self.request.ttl, self.queue.limit()).await?;
        Ok(*self.lease.insert(taken))
    }

    fn may_have_an_entry(&self) -> bool {
        self.entry.is_some() || self.queue.is_in_doubt
    }

    /// The last request may have failed without an effect, and an earlier one have made an entry.
    fn failed_try(&self, error: Error) -> Error {
        if self.may_have_an_entry() { error.with_unknown_effect() } else { error }
    }

    /// The entry is gone. If only the key was deleted its lease may still be alive; it is not used
    /// again, except by a request that may still arrive: then it is kept for the release to revoke.
    fn forget(&mut self) {
        (self.entry, self.held) = (None, None);
        self.watches.clear();
        if let Some(lease) = self.lease.take_if(|_| !self.queue.is_in_doubt) {
            self.store.leases.discard(lease);
        }
    }

    /// Ends the doubt: revokes the lease, and with it everything this claim may have left behind, now or later.
    async fn settle(&mut self, lease: EtcdLease) -> Result<Released, EtcdFailure> {
        let known = self.store.leases.revoke(lease.id, self.queue.limit()).await?;
        (self.lease, self.entry) = (None, None);
        self.watches.clear();
        self.queue.is_settled_by_the_lease();
        Ok(if known { Released::Freed } else { Released::AlreadyGone })
    }

    /// Whether our key exists as we created it, possibly by an attempt whose reply was lost.
    async fn confirm(&mut self) -> Result<bool, EtcdFailure> {
        let Some(lease) = self.lease else { return Ok(false) };
        let footing = self.watches.footing();
        let revision = match &self.entry {
            Some(entry) => self.queue.confirm(entry, lease.id).await?,
            None => {
                let (found, revision) = self.queue.find(lease.id).await?;
                if found.is_some() {
                    self.watches.stands(footing, revision);
                }
                self.entry = found;
                self.entry.as_ref().map(|_| revision)
            }
        };
        if let Some(revision) = revision {
            self.watches.confirmed(footing, revision, self.held.is_some());
        }
        Ok(revision.is_some())
    }

    /// Deletes the entry by its key, if nothing is in doubt.
    async fn leave(&mut self) -> Result<Released, EtcdFailure> {
        let Some(entry) = &self.entry else { return Ok(Released::AlreadyGone) };
        self.watches.clear();
        if !self.queue.leave(entry, self.held).await? {
            self.forget();
            return Ok(Released::AlreadyGone);
        }
        self.entry = None;
        match self.lease.take() {
            // The ttl that a lease from another process was granted with is not known.
            Some(lease) if self.request.resume.is_some() => self.store.leases.discard(lease),
            Some(lease) => self.store.leases.give_back(lease),
            None => {}
        }
        Ok(Released::Freed)
    }

    /// Deletes the entry if that is known, and ends the doubt. The end of the lease does not tell whether the lock was
    /// ours until now: who takes it away may delete the key alone.
    async fn leave_in_doubt(&mut self, lease: EtcdLease) -> Result<Released, EtcdFailure> {
        let left = match &self.entry {
            Some(entry) => Some(self.queue.leave(entry, self.held).await?),
            None => None,
        };
        let settled = self.settle(lease).await?;
        Ok(match left {
            Some(true) => Released::Freed,
            Some(false) => Released::AlreadyGone,
            None => settled,
        })
    }

    /// Ends the leases of all entries of this owner, which another claim has made.
    async fn leave_all(&mut self) -> Result<Released, EtcdFailure> {
        let mut released = Released::AlreadyGone;
        for lease in self.queue.own_leases().await? {
            if self.store.leases.revoke(lease, self.queue.limit()).await? {
                released = Released::Freed;
            }
        }
        self.is_new = false;
        Ok(released)
    }
}

impl Drop for EtcdClaim {
    /// Writes nothing to the store. A lease with no key bound to it is reused by another claim.
    fn drop(&mut self) {
        if let Some(lease) = self.lease.filter(|_| !self.may_have_an_entry()) {
            self.store.leases.give_back(lease);
        }
    }
}

/// The lease named in the bytes of a token.
fn lease_in(data: &Bytes) -> Result<i64> {
    let id = <[u8; 8]>::try_from(data.as_ref()).map(i64::from_be_bytes);
    id.ok().filter(|id| *id > 0).ok_or_else(|| {
        Error::invalid(
            "this is not a lease token of etcd: it names no lease; use the one that `detach` returned",
        )
    })
}

fn another_ttl(granted: Duration, asked: Duration) -> Error {
    Error::unsupported(format!(
        "this lock has a lease of {granted:?}, and etcd cannot change it to {asked:?}: attach with the TTL that it was acquired with"
    ))
}
