//! One contender for a lock in etcd.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, Error, ErrorKind, FencingToken, Mode, Released, Renewal,
    Result, async_trait,
};

use crate::backend::Shared;
use crate::contender::{Contender, Entry, Found, Taken};
use crate::error::{Failed, Why, unexpected};
use crate::keepalive::Kept;
use crate::leases::Lease;
use crate::mutants;
use crate::place::{Ahead, Place};
use crate::wake::Waker;

/// A lock that is held for less than this is not watched: the watch misses nothing that has happened
/// before it, so it can begin late.
const UNWATCHED: Duration = Duration::from_millis(20);
/// How often a try begins anew, since its lease or its place had gone.
const TRIES: u32 = 4;
/// Somebody else has it; how long our place lasts is added in the end.
const BUSY: Attempt = Attempt::Busy { valid_for: None, retry_after: None };

#[derive(Debug)]
pub(crate) struct EtcdClaim {
    shared: Arc<Shared>,
    request: ClaimRequest,
    contender: Contender,
    /// The lease that a token names. Nothing is believed of it, and nothing done with it, until the store
    /// has shown all of the token to be so.
    claimed: Option<i64>,
    lease: Option<Lease>,
    place: Option<Place>,
    done: bool,
    waker: Arc<Waker>,
}

impl EtcdClaim {
    pub(crate) fn new(shared: Arc<Shared>, request: ClaimRequest) -> Result<Self> {
        match request.mode {
            Mode::Exclusive => {}
            #[allow(unreachable_patterns, reason = "modes may be added")]
            _ => return Err(Error::unsupported("etcd has exclusive locks only")),
        }
        let contender = Contender::new(Arc::clone(&shared), &request);
        let claimed = match &request.resume {
            Some(resume) => Some(lease_in(&resume.data)?),
            None => None,
        };
        Ok(Self {
            shared,
            contender,
            claimed,
            lease: None,
            place: None,
            done: false,
            waker: Arc::default(),
            request,
        })
    }

    /// Takes over what another process has detached, if the store's own record is what the token says:
    /// this owner's key is the first, bound to this lease, with this fence. Else nothing is ours, and
    /// nothing is touched (clause C14). A lease keeps the ttl with which it was granted, so one that is
    /// `to_renew` must have that of the request.
    async fn prove(&mut self, to_renew: bool) -> Result<(), Failed> {
        let (Some(lease), Some(resume)) = (self.claimed, &self.request.resume) else {
            return Ok(());
        };
        let is_true = |entry: &Entry| entry.fence == resume.fence;
        let (limit, leases) = (self.contender.limit(), &self.shared.leases);
        let ttl =
            async { if to_renew { leases.ttl_of(lease, limit).await.map(Some) } else { Ok(None) } };
        let ((found, seen), granted) = tokio::try_join!(self.contender.find_first(lease), ttl)?;
        let found = found.filter(|entry| is_true(entry) || mutants::on("believes_the_fence"));
        let taken_over = Lease::taken_over(lease, self.request.ttl, self.shared.clock().now());
        self.claimed = None;
        let Some(entry) = found else {
            if mutants::on("revokes_what_it_was_told_of") {
                self.shared.leases.discard(taken_over);
            }
            return Ok(());
        };
        if let Some(granted) = granted
            && granted != self.shared.leases.granted_for(self.request.ttl)
            && !mutants::on("takes_any_ttl")
        {
            return Err(Failed {
                why: Why::Refused,
                error: another_ttl(granted, self.request.ttl),
            });
        }
        self.lease = Some(taken_over);
        self.place = Some(Place { held: true, ..Place::new(entry, seen, None) });
        Ok(())
    }

    /// Looks again at a place that was taken before; `None` if it has gone.
    async fn look_again(&mut self, lease: Lease) -> Result<Option<Attempt>, Failed> {
        let Some(place) = &self.place else { return Ok(None) };
        if place.is_deleted() {
            return Ok(None);
        }
        if mutants::on("no_look_after_waiting")
            && place.ahead.as_ref().is_some_and(Ahead::is_deleted)
        {
            return self.granted(lease).map(Some);
        }
        let (found, seen) = self.contender.look(&place.entry).await?;
        let Some(place) = &mut self.place else { return Ok(None) };
        (place.seen, place.unseen) = (seen, 0);
        match found {
            Found::Gone => Ok(None),
            Found::First => self.granted(lease).map(Some),
            Found::Behind(_) if mutants::on("ignores_the_queue") => self.granted(lease).map(Some),
            Found::Behind(key) => {
                place.is_behind(key);
                Ok(Some(BUSY))
            }
        }
    }

    fn granted(&mut self, lease: Lease) -> Result<Attempt, Failed> {
        let Some(place) = &mut self.place else { return Err(unexpected("no place")) };
        place.held = true;
        place.ahead = None;
        let token = if mutants::on("fence_is_the_lease") {
            FencingToken::try_from(lease.id).unwrap_or(place.entry.fence)
        } else {
            place.entry.fence
        };
        Ok(Attempt::Granted { token, valid_for: None })
    }

    /// One try, from whatever was known before.
    async fn try_once(&mut self) -> Result<Option<Attempt>, Failed> {
        self.prove(true).await?;
        let lease = match self.lease {
            Some(lease) => lease,
            None => {
                let lease =
                    self.shared.leases.take(self.request.ttl, self.contender.limit()).await?;
                *self.lease.insert(lease)
            }
        };
        if self.place.is_some() {
            let attempt = self.look_again(lease).await?;
            if attempt.is_none() {
                self.forget();
            }
            return Ok(attempt);
        }
        let (taken, kept) = self.contender.take_and_freshen(lease).await;
        if let (Some(lease), Some(Kept { sent, ttl: Some(ttl) })) = (&mut self.lease, kept) {
            lease.kept(sent, ttl);
        }
        let taken = match taken {
            // Nothing that was sent with this lease can arrive any more.
            Err(failed) if failed.why == Why::LeaseGone => {
                self.lease = None;
                // After a restore no lease of the pool is known any more.
                self.shared.leases.forget_idle();
                self.contender.is_settled_by_the_lease();
                return Ok(None);
            }
            taken => taken?,
        };
        let (entry, ahead, look) = match taken {
            Taken::First(entry) => (entry, None, false),
            Taken::Behind(entry, ahead) => (entry, Some(ahead), false),
            Taken::Somewhere(entry) => (entry, None, true),
            Taken::Busy => return Ok(Some(BUSY)),
            Taken::OtherBase => return Ok(None),
            Taken::NotOurs => {
                self.lease = None;
                return Ok(None);
            }
            Taken::WentBack => {
                self.forget();
                return Ok(None);
            }
        };
        let behind = ahead.is_some() && !mutants::on("ignores_the_queue");
        let rev = entry.rev;
        self.place = Some(Place::new(entry, rev, ahead));
        self.contender.heard();
        if look {
            let attempt = self.look_again(lease).await?;
            if attempt.is_none() {
                self.forget();
            }
            return Ok(attempt);
        }
        if behind { Ok(Some(BUSY)) } else { self.granted(lease).map(Some) }
    }

    /// The place has gone. Its lease may live, if the key alone was deleted: it is not used again.
    fn forget(&mut self) {
        self.place = None;
        if let Some(lease) = self.lease.take() {
            self.shared.leases.discard(lease);
        }
        self.contender.is_settled_by_the_lease();
    }

    async fn keep_alive(&self, lease: Lease) -> Result<Kept, Failed> {
        self.shared.keeps.renew(lease.id, self.contender.limit()).await
    }

    /// Whether our key is there, as we have made it, and the revision of the look. A try whose answer was
    /// not heard may have made it.
    async fn is_there(&mut self) -> Result<(bool, i64), Failed> {
        let Some(lease) = self.lease else { return Ok((false, 0)) };
        if self.place.is_none() && mutants::on("checks_what_it_has_heard_of") {
            return Ok((false, 0));
        }
        let (found, seen) = self.contender.find(lease.id).await?;
        let there = match (&self.place, found) {
            (Some(place), Some(found)) => found == place.entry,
            (None, Some(found)) => {
                self.place = Some(Place::new(found, seen, None));
                true
            }
            (_, None) => false,
        };
        Ok((there, seen))
    }

    /// Gives up the place by its key, where nothing is unsettled.
    async fn delete(&mut self) -> Result<Released, Failed> {
        let Some(place) = self.place.as_mut() else { return Ok(Released::AlreadyGone) };
        place.listen_no_more();
        let entry = place.entry.clone();
        let freed = self.contender.delete(&entry).await?;
        if !freed {
            self.forget();
            return Ok(Released::AlreadyGone);
        }
        self.place = None;
        match self.lease.take() {
            // How long a lease from elsewhere was meant to last is not known.
            Some(lease) if self.request.resume.is_some() => self.shared.leases.discard(lease),
            Some(lease) => self.shared.leases.give_back(lease),
            None => {}
        }
        Ok(Released::Freed)
    }

    /// Gives up whatever this claim may have left, now or later, by the end of its lease.
    async fn revoke(&mut self, lease: Lease) -> Result<Released, Failed> {
        let known = self.shared.leases.revoke(lease.id, self.contender.limit()).await?;
        (self.lease, self.place) = (None, None);
        self.contender.is_settled_by_the_lease();
        Ok(if known { Released::Freed } else { Released::AlreadyGone })
    }
}

/// The lease that the bytes of a token name.
fn lease_in(data: &Bytes) -> Result<i64> {
    let id = <[u8; 8]>::try_from(data.as_ref()).map(i64::from_be_bytes);
    id.ok().filter(|id| *id > 0).ok_or_else(|| {
        Error::invalid(
            "the lease token is none of etcd's: it has no lease; use what `detach` returned",
        )
    })
}

fn another_ttl(granted: Duration, asked: Duration) -> Error {
    Error::unsupported(format!(
        "this lock has a lease of {granted:?}, and etcd cannot change it to {asked:?}: attach with the ttl with which it was acquired"
    ))
}

#[async_trait]
impl Claim for EtcdClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let start = self.shared.clock().now();
        for _ in 0..TRIES {
            let Some(attempt) = self.try_once().await.map_err(|failed| failed.error)? else {
                continue;
            };
            let mut left = self.lease.map(|lease| lease.left(start));
            if mutants::on("valid_from_the_reply") {
                left = Some(self.request.ttl);
            }
            return Ok(match attempt {
                Attempt::Granted { token, .. } => {
                    self.shared.leases.refill(self.request.ttl);
                    Attempt::Granted { token, valid_for: left }
                }
                _ => {
                    let valid_for = left.filter(|_| self.place.is_some());
                    Attempt::Busy { valid_for, retry_after: None }
                }
            });
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "{TRIES} tries in a row to take a place in etcd were overtaken: their leases went, or the base of the fences was lifted"
            ),
        ))
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let start = self.shared.clock().now();
        self.prove(true).await.map_err(|failed| failed.error)?;
        let (Some(lease), Some(place)) = (self.lease, &self.place) else {
            return Ok(Renewal::Lost);
        };
        if place.is_deleted() {
            self.forget();
            return Ok(Renewal::Lost);
        }
        let kept = self.keep_alive(lease).await.map_err(|failed| failed.error)?;
        let Some(ttl) = kept.ttl else {
            self.forget();
            return Ok(Renewal::Lost);
        };
        if let Some(lease) = &mut self.lease {
            lease.kept(kept.sent, ttl);
        }
        // The lease may live without the key: if it was deleted by hand, or if an old snapshot was
        // restored. A look that fails leaves that open, so the renewal fails.
        if self.place.as_mut().is_some_and(Place::is_to_be_looked_at) {
            let (there, seen) = match self.is_there().await {
                Err(_) if mutants::on("believes_in_the_lease") => (true, 0),
                looked => looked.map_err(|failed| failed.error)?,
            };
            if !there {
                self.forget();
                return Ok(Renewal::Lost);
            }
            self.place.as_mut().into_iter().for_each(|place| place.looked(seen));
        }
        let left = self.lease.map_or(Duration::ZERO, |lease| lease.left(start));
        Ok(Renewal::Alive { valid_for: Some(left) })
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.prove(true).await.map_err(|failed| failed.error)?;
        let (there, seen) = match &self.place {
            Some(place) if place.is_deleted() => (false, 0),
            _ => self.is_there().await.map_err(|failed| failed.error)?,
        };
        if !there {
            // What is still on its way is settled by the release.
            if self.place.is_some() {
                self.forget();
            }
            return Ok(Renewal::Lost);
        }
        self.place.as_mut().into_iter().for_each(|place| place.looked(seen));
        Ok(Renewal::Alive { valid_for: None })
    }

    async fn release(&mut self) -> Result<Released> {
        if self.done {
            return Ok(Released::AlreadyGone);
        }
        self.prove(false).await.map_err(|failed| failed.error)?;
        let unsettled = self.contender.is_unsettled() && !mutants::on("keeps_unknown_leases");
        let released = match self.lease {
            Some(lease) if unsettled => self.revoke(lease).await,
            _ => self.delete().await,
        };
        let released = released.map_err(|failed| failed.error)?;
        self.done = true;
        Ok(released)
    }

    async fn changed(&mut self) -> Result<()> {
        if self.place.as_ref().is_some_and(|place| place.held && place.own.is_none()) {
            tokio::time::sleep(UNWATCHED).await;
        }
        if let Some(place) = &mut self.place {
            place.listen(&self.shared.watches, &self.waker);
        }
        self.shared.watches.woken(&self.waker).await
    }

    async fn detach(&mut self) -> Result<Bytes> {
        match self.lease {
            Some(lease) => Ok(Bytes::copy_from_slice(&lease.id.to_be_bytes())),
            None => Err(Error::new(ErrorKind::Internal, "BUG: a lock without a lease is detached")),
        }
    }
}

impl Drop for EtcdClaim {
    /// Writes nothing to the store. A lease to which nothing is bound serves another claim.
    fn drop(&mut self) {
        let unused = self.place.is_none() && !self.contender.is_unsettled();
        if let Some(lease) = self.lease.filter(|_| unused) {
            self.shared.leases.put_back(lease);
        }
    }
}
