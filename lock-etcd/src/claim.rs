//! One contender for a lock in etcd.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Busy, Bytes, Claim, ClaimRequest, Error, ErrorKind, Released, Renewal, Result,
    async_trait,
};

use crate::entry::Entry;
use crate::error::{Failed, Why, unexpected};
use crate::leases::Lease;
use crate::queue::{Queue, Standing, Taken};
use crate::store::Store;
use crate::wake::{Look, Wake};

/// A lock held for less than this is not watched: a watch also reports changes from before it was
/// set, so it can begin late.
const UNWATCHED: Duration = Duration::from_millis(20);
/// How often an attempt starts over because its lease or its entry was gone.
const TRIES: u32 = 4;

#[derive(Debug)]
pub(crate) struct EtcdClaim {
    store: Arc<Store>,
    request: ClaimRequest,
    queue: Queue,
    /// The lease that a token names. It is neither trusted nor used until the store has confirmed
    /// the whole token.
    claimed: Option<i64>,
    lease: Option<Lease>,
    entry: Option<Entry>,
    is_held: bool,
    is_released: bool,
    wake: Wake,
}

impl EtcdClaim {
    pub(crate) fn new(store: Arc<Store>, request: ClaimRequest) -> Result<Self> {
        let queue = Queue::new(Arc::clone(&store), &request);
        let claimed = match &request.resume {
            Some(resume) => Some(lease_in(&resume.data)?),
            None => None,
        };
        Ok(Self {
            wake: Wake::new(Arc::clone(&store.watches), Arc::clone(&store.neighbours)),
            store,
            request,
            queue,
            claimed,
            lease: None,
            entry: None,
            is_held: false,
            is_released: false,
        })
    }

    /// Takes over what another process has detached, if the store's own record is what the token
    /// says: this owner's key is the first, bound to this lease, with this fence. Otherwise nothing
    /// is ours, and nothing is touched (clause C14). A lease keeps the ttl with which it was
    /// granted, so with `to_renew` that must match the request.
    async fn prove(&mut self, to_renew: bool) -> Result<(), Failed> {
        let (Some(lease), Some(resume)) = (self.claimed, &self.request.resume) else {
            return Ok(());
        };
        let (rules, leases, limit) = (self.store.rules, &self.store.leases, self.queue.limit());
        let look = self.wake.look();
        let ttl =
            async { if to_renew { leases.ttl_of(lease, limit).await.map(Some) } else { Ok(None) } };
        let ((entry, revision), granted) = tokio::try_join!(self.queue.prove(lease), ttl)?;
        let entry = entry.filter(|entry| (rules.is_told)(resume.fence, entry.fence));
        self.claimed = None;
        let Some(entry) = entry else { return Ok(()) };
        let asked = leases.granted_for(self.request.ttl);
        if let Some(granted) = granted.filter(|granted| !(rules.is_asked)(*granted, asked)) {
            let error = another_ttl(granted, self.request.ttl);
            return Err(Failed { why: Why::Refused, error });
        }
        let now = self.store.clock().now();
        self.lease = Some(Lease::taken_over(lease, self.request.ttl, now));
        (self.entry, self.is_held) = (Some(entry), true);
        self.wake.stands(look, revision);
        Ok(())
    }

    /// One attempt, from whatever is already known; `None` if it has to start over.
    async fn try_once(&mut self) -> Result<Option<Attempt>, Failed> {
        self.prove(true).await?;
        let lease = match self.lease {
            Some(lease) => lease,
            None => {
                let taken = self.store.leases.take(self.request.ttl, self.queue.limit()).await;
                *self.lease.insert(taken?)
            }
        };
        if self.entry.is_some() {
            return self.look_again(lease).await;
        }
        let look = self.wake.look();
        let mut taken = self.queue.take(lease.id, self.request.wait).await;
        if let Ok(Taken::BusyOrAmongOthers) = taken {
            taken = self.queue.take_among_others(lease.id).await;
        }
        match taken {
            Ok(Taken::Entered(entry, standing)) => {
                let revision = entry.rev;
                self.entry = Some(entry);
                match standing {
                    Some(standing) => self.stands(lease, standing, look, revision),
                    None => self.look_again(lease).await,
                }
            }
            Ok(Taken::Busy | Taken::BusyOrAmongOthers) => Ok(Some(Attempt::Busy(Busy::default()))),
            Ok(Taken::OtherBase) => Ok(None),
            Ok(Taken::NotOurs) => {
                self.lease = None;
                Ok(None)
            }
            Ok(Taken::WentBack) => {
                self.forget();
                Ok(None)
            }
            // No request that was sent with this lease can take effect any more.
            Err(failed) if failed.why == Why::LeaseGone => {
                self.lease = None;
                // After a restore the store knows no lease of the pool.
                self.store.leases.forget_idle();
                self.queue.is_settled_by_the_lease();
                Ok(None)
            }
            Err(failed) => Err(failed),
        }
    }

    /// Reads an existing entry again.
    async fn look_again(&mut self, lease: Lease) -> Result<Option<Attempt>, Failed> {
        let Some(entry) = self.entry.as_ref().filter(|_| !self.wake.is_own_deleted()) else {
            self.forget();
            return Ok(None);
        };
        if let Some(proof) = self.wake.proof(self.store.clock().now(), self.queue.limit()) {
            return self.stands(lease, Standing::First, proof.look, proof.revision);
        }
        let look = self.wake.look();
        let (standing, revision) = self.queue.look(entry).await?;
        self.stands(lease, standing, look, revision)
    }

    /// Notes the position of our entry.
    fn stands(
        &mut self,
        lease: Lease,
        standing: Standing,
        look: Look,
        revision: i64,
    ) -> Result<Option<Attempt>, Failed> {
        match standing {
            Standing::First => {
                self.wake.stands(look, revision);
                self.is_held = true;
                let entry = self.entry.as_ref().ok_or_else(|| unexpected("no entry"))?;
                let token = (self.store.rules.fence)(entry.fence, lease.id);
                Ok(Some(Attempt::Granted { token, valid_for: None }))
            }
            Standing::Behind(key) => {
                let entry = self.entry.as_ref().ok_or_else(|| unexpected("no entry"))?;
                self.wake.is_behind(look, revision, entry, key);
                Ok(Some(Attempt::Busy(Busy::default())))
            }
            Standing::Gone => {
                self.forget();
                Ok(None)
            }
        }
    }

    /// The entry is gone. If only the key was deleted its lease may still be alive; it is not used
    /// again.
    fn forget(&mut self) {
        (self.entry, self.is_held) = (None, false);
        self.wake.clear();
        if let Some(lease) = self.lease.take() {
            self.store.leases.discard(lease);
        }
        self.queue.is_settled_by_the_lease();
    }

    /// Whether our key exists as we created it, possibly by an attempt whose reply was lost.
    async fn is_there(&mut self) -> Result<bool, Failed> {
        let Some(lease) = self.lease else { return Ok(false) };
        let look = self.wake.look();
        let revision = match &self.entry {
            Some(entry) => self.queue.confirm(entry, lease.id).await?,
            None => {
                let (found, revision) = self.queue.find(lease.id).await?;
                if found.is_some() {
                    self.wake.stands(look, revision);
                }
                self.entry = found;
                self.entry.as_ref().map(|_| revision)
            }
        };
        if let Some(revision) = revision {
            self.wake.confirmed(look, revision, self.is_held);
        }
        Ok(revision.is_some())
    }

    /// Deletes the entry by its key, if nothing is in doubt.
    async fn release_entry(&mut self) -> Result<Released, Failed> {
        let Some(entry) = &self.entry else { return Ok(Released::AlreadyGone) };
        self.wake.clear();
        if !self.queue.release(entry, self.is_held).await? {
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

    /// Revokes the lease, and with it everything this claim may have left behind, now or later.
    async fn revoke(&mut self, lease: Lease) -> Result<Released, Failed> {
        let known = self.store.leases.revoke(lease.id, self.queue.limit()).await?;
        (self.lease, self.entry) = (None, None);
        self.wake.clear();
        self.queue.is_settled_by_the_lease();
        Ok(if known { Released::Freed } else { Released::AlreadyGone })
    }

    async fn renew_lease(&mut self) -> Result<Renewal, Failed> {
        let start = self.store.clock().now();
        self.prove(true).await?;
        let (Some(mut lease), Some(_)) = (self.lease, &self.entry) else {
            return Ok(Renewal::Lost);
        };
        if self.wake.is_own_deleted() {
            self.forget();
            return Ok(Renewal::Lost);
        }
        let renewed = self.store.renewals.renew(lease.id, self.queue.limit()).await?;
        if !lease.renewed(renewed) {
            self.forget();
            return Ok(Renewal::Lost);
        }
        self.lease = Some(lease);
        // The lease may be alive without the key, if the key was deleted by hand or an old snapshot
        // was restored. A failed read leaves that open, so the renewal fails.
        if !self.wake.is_sure() && !self.is_there().await? {
            self.forget();
            return Ok(Renewal::Lost);
        }
        Ok(Renewal::Alive { valid_for: Some(lease.left(start)) })
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
        "this lock has a lease of {granted:?}, and etcd cannot change it to {asked:?}: attach with the ttl that it was acquired with"
    ))
}

#[async_trait]
impl Claim for EtcdClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let start = self.store.clock().now();
        for _ in 0..TRIES {
            let attempt = self.try_once().await.map_err(|failed| failed.error)?;
            let left = self.lease.map(|lease| lease.left(start));
            match attempt {
                None => {}
                Some(Attempt::Granted { token, .. }) => {
                    self.store.leases.refill(self.request.ttl);
                    return Ok(Attempt::Granted { token, valid_for: left });
                }
                // The lifetime of our entry is added here.
                Some(Attempt::Busy(busy)) => {
                    let place = left.filter(|_| self.entry.is_some());
                    return Ok(Attempt::Busy(busy.with_place(place)));
                }
                Some(other) => return Ok(other),
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "{TRIES} attempts in a row to enter the queue in etcd failed: their leases ended, or the base of the fences was raised"
            ),
        ))
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.renew_lease().await.map_err(|failed| failed.error)
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.prove(true).await.map_err(|failed| failed.error)?;
        let is_deleted = self.entry.is_some() && self.wake.is_own_deleted();
        if !is_deleted && self.is_there().await.map_err(|failed| failed.error)? {
            return Ok(Renewal::Alive { valid_for: None });
        }
        // Requests still in flight are settled by the release.
        if self.entry.is_some() {
            self.forget();
        }
        Ok(Renewal::Lost)
    }

    async fn release(&mut self) -> Result<Released> {
        if self.is_released {
            return Ok(Released::AlreadyGone);
        }
        self.prove(false).await.map_err(|failed| failed.error)?;
        let released = match self.lease {
            Some(lease) if self.queue.is_in_doubt() => self.revoke(lease).await,
            _ => self.release_entry().await,
        };
        let released = released.map_err(|failed| failed.error)?;
        self.is_released = true;
        Ok(released)
    }

    async fn changed(&mut self) -> Result<()> {
        if self.is_held && !self.wake.is_own_watched() {
            tokio::time::sleep(UNWATCHED).await;
        }
        let own = self.entry.as_ref().map(|entry| entry.key.as_str());
        self.wake.woken(own).await
    }

    async fn detach(&mut self) -> Result<Bytes> {
        match self.lease {
            Some(lease) => Ok(Bytes::copy_from_slice(&lease.id.to_be_bytes())),
            None => Err(Error::new(ErrorKind::Internal, "BUG: a lock without a lease is detached")),
        }
    }
}

impl Drop for EtcdClaim {
    /// Writes nothing to the store. A lease with no key bound to it is reused by another claim.
    fn drop(&mut self) {
        let is_unused = self.entry.is_none() && !self.queue.is_in_doubt();
        if let Some(lease) = self.lease.filter(|_| is_unused) {
            self.store.leases.give_back(lease);
        }
    }
}
