//! One contender for a lock in etcd.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, KeyValue, SortOrder, SortTarget, Txn};
use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, Error, ErrorKind, FencingToken, Mode, Released, Renewal,
    Result, async_trait,
};

use crate::backend::Shared;
use crate::error::{Failed, Why, unexpected};
use crate::keepalive::Kept;
use crate::keys::Queue;
use crate::leases::Lease;
use crate::mutants;
use crate::statements::{self, Shown};
use crate::wake::{Interest, Waker};

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
    queue: Queue,
    value: String,
    lease: Option<Lease>,
    place: Option<Place>,
    /// A request that takes or gives up the place is under way, or was dropped.
    asking: bool,
    /// Such a request had no answer: it may arrive at any time. Only the end of the lease settles it.
    unsure: bool,
    done: bool,
    waker: Arc<Waker>,
}

/// Our key in the queue, as the store has shown it.
#[derive(Debug)]
struct Place {
    key: String,
    /// The revision at which it was created.
    rev: i64,
    /// The revision of the last look.
    seen: i64,
    held: bool,
    own: Option<Interest>,
    ahead: Option<Ahead>,
}

/// The place before ours.
#[derive(Debug)]
struct Ahead {
    key: String,
    interest: Option<Interest>,
}

/// What a look has found of our place.
enum Found {
    First,
    Behind(String),
    /// The key is not there, or is not as we have made it.
    Gone,
}

/// What a try to take a place has come to.
enum Taken {
    /// At this revision, behind this key.
    Place { rev: i64, seen: i64, ahead: Option<String> },
    /// Somebody holds the lock, and we did not want to wait.
    Busy,
    /// The key of our lease is somebody else's: the lease is not ours alone.
    NotOurs,
}

impl EtcdClaim {
    pub(crate) fn new(shared: Arc<Shared>, request: ClaimRequest) -> Result<Self> {
        match request.mode {
            Mode::Exclusive => {}
            #[allow(unreachable_patterns, reason = "modes may be added")]
            _ => return Err(Error::unsupported("etcd has exclusive locks only")),
        }
        let queue = Queue::new(&shared.folder, &request.key);
        let label = request.label.as_deref().unwrap_or_default();
        let mut value = request.owner.to_hex();
        if !label.is_empty() {
            value.push(' ');
            value.push_str(label);
        }
        let mut claim = Self {
            shared,
            queue,
            value,
            lease: None,
            place: None,
            asking: false,
            unsure: false,
            done: false,
            waker: Arc::default(),
            request,
        };
        claim.resume()?;
        Ok(claim)
    }

    /// Takes over what another process has detached.
    fn resume(&mut self) -> Result<()> {
        let Some(resume) = &self.request.resume else { return Ok(()) };
        let id = <[u8; 8]>::try_from(resume.data.as_ref()).map(i64::from_be_bytes).unwrap_or(0);
        let rev = i64::try_from(resume.fence.get()).unwrap_or(0);
        if id <= 0 || rev <= 0 {
            return Err(Error::invalid(
                "the lease token is none of etcd's: it has no lease; use what `detach` returned",
            ));
        }
        self.lease = Some(Lease::taken_over(id, self.request.ttl, self.shared.clock().now()));
        self.place = Some(self.place_at(id, rev, rev, None, true));
        Ok(())
    }

    fn place_at(
        &self,
        lease: i64,
        rev: i64,
        seen: i64,
        ahead: Option<String>,
        held: bool,
    ) -> Place {
        let ahead = ahead.map(|key| Ahead { key, interest: None });
        Place { key: self.queue.place(lease), rev, seen, held, own: None, ahead }
    }

    /// The core drops a call at its limit; ours ends a little earlier, to see that a member is silent.
    fn limit(&self) -> Duration {
        self.shared.limit.min(self.request.call_timeout - self.request.call_timeout / 8)
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

    /// Takes a place with `lease`, if there is none yet.
    async fn take(&mut self, lease: Lease) -> Result<Taken, Failed> {
        let (start, key) = (self.queue.start().to_owned(), self.queue.place(lease.id));
        let wait = self.request.wait || mutants::on("try_leaves_a_place");
        let txn = if wait {
            statements::place(&start, &key, &self.value, lease.id)
        } else {
            statements::place_if_empty(&start, &key, &self.value, lease.id)
        };
        self.unsure |= self.asking;
        self.asking = true;
        let answer = self.txn(txn).await;
        let shown = self.settle(answer)?;
        if shown.succeeded {
            let ahead = shown.found(0)?.iter().find(|found| found.key() != key.as_bytes());
            let ahead = ahead.map(text_of).transpose()?;
            return Ok(Taken::Place { rev: shown.revision, seen: shown.revision, ahead });
        }
        if let Some(found) = shown.found(0)?.first() {
            // A try before this one had an answer that we have not seen.
            return Ok(if found.value() == self.value.as_bytes() {
                Taken::Place { rev: found.create_revision(), seen: shown.revision, ahead: None }
            } else {
                Taken::NotOurs
            });
        }
        match shown.found(1)?.first() {
            Some(first) if self.queue.has(first.key()) => Ok(Taken::Busy),
            // The queue of another lock lies below this one: the own places have to be told apart.
            _ => self.take_among_others(lease, &start, &key).await,
        }
    }

    /// Takes a place, and at the same time renews a lease that was granted a while ago. If its renewal
    /// is slower, the lock begins with what is left of it.
    async fn take_and_freshen(&mut self, lease: Lease) -> (Result<Taken, Failed>, Option<Kept>) {
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
                Ok(Taken::Place { .. }) => tokio::time::timeout(limit / 4, kept).await.ok(),
                _ => None,
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
        self.asking = true;
        let answer = self.txn(statements::place(start, key, &self.value, lease.id)).await;
        let shown = self.settle(answer)?;
        let rev = shown.revision;
        if !shown.succeeded {
            return Ok(Taken::Busy);
        }
        let (places, seen) = self.places(Some(rev)).await?;
        let ahead = places.into_iter().rfind(|(_, created)| *created < rev);
        if ahead.is_none() {
            return Ok(Taken::Place { rev, seen, ahead: None });
        }
        self.asking = true;
        let answer = self.txn(statements::release(key, &self.value, rev)).await;
        self.settle(answer)?;
        Ok(Taken::Busy)
    }

    /// Notes whether a request that takes or gives up the place was heard to the end.
    fn settle<T>(&mut self, answer: Result<T, Failed>) -> Result<T, Failed> {
        self.asking = false;
        if let Err(failed) = &answer {
            self.unsure |= failed.is_unknown();
        }
        answer
    }

    /// All places of the queue up to `newest`, the oldest first, and the revision of the read.
    async fn places(&self, newest: Option<i64>) -> Result<(Vec<(String, i64)>, i64), Failed> {
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
        let places: Result<Vec<_>, _> =
            places.map(|found| Ok((text_of(found)?, found.create_revision()))).collect();
        Ok((places?, answer.header().map_or(0, |header| header.revision())))
    }

    /// Looks at the own place and the one before it, at one revision.
    async fn look(&self, key: &str, rev: i64) -> Result<(Found, i64), Failed> {
        let shown = self.txn(statements::look(self.queue.start(), key, &self.value, rev)).await?;
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
                Ok((Found::Behind(text_of(ahead)?), shown.revision))
            }
            Some(_) => {
                let (places, seen) = self.places(Some(rev)).await?;
                if !places.iter().any(|(place, created)| place == key && *created == rev) {
                    return Ok((Found::Gone, seen));
                }
                let ahead = places.into_iter().rfind(|(_, created)| *created < rev);
                Ok((ahead.map_or(Found::First, |(ahead, _)| Found::Behind(ahead)), seen))
            }
        }
    }

    /// Looks again at a place that was taken before; `None` if it has gone.
    async fn look_again(&mut self, lease: Lease) -> Result<Option<Attempt>, Failed> {
        let Some(place) = &self.place else { return Ok(None) };
        if place.own.as_ref().is_some_and(Interest::is_deleted) {
            return Ok(None);
        }
        if mutants::on("no_look_after_waiting")
            && place
                .ahead
                .as_ref()
                .and_then(|ahead| ahead.interest.as_ref())
                .is_some_and(Interest::is_deleted)
        {
            return self.granted(lease).map(Some);
        }
        let (found, seen) = self.look(&place.key, place.rev).await?;
        let Some(place) = &mut self.place else { return Ok(None) };
        place.seen = seen;
        match found {
            Found::Gone => Ok(None),
            Found::First => self.granted(lease).map(Some),
            Found::Behind(_) if mutants::on("ignores_the_queue") => self.granted(lease).map(Some),
            Found::Behind(key) => {
                if place.ahead.as_ref().is_none_or(|ahead| ahead.key != key || ahead.is_over()) {
                    place.ahead = Some(Ahead { key, interest: None });
                }
                Ok(Some(BUSY))
            }
        }
    }

    fn granted(&mut self, lease: Lease) -> Result<Attempt, Failed> {
        let Some(place) = &mut self.place else { return Err(unexpected("no place")) };
        place.held = true;
        place.ahead = None;
        let fence = if mutants::on("fence_is_the_lease") { lease.id } else { place.rev };
        let token = u64::try_from(fence).map_err(|_| unexpected("a negative revision"))?;
        let token =
            FencingToken::new(token).map_err(|error| Failed { why: Why::Refused, error })?;
        Ok(Attempt::Granted { token, valid_for: None })
    }

    /// One try, from whatever was known before.
    async fn try_once(&mut self) -> Result<Option<Attempt>, Failed> {
        let lease = match self.lease {
            Some(lease) => lease,
            None => {
                let lease = self.shared.leases.take(self.request.ttl, self.limit()).await?;
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
        let (taken, kept) = self.take_and_freshen(lease).await;
        if let (Some(lease), Some(Kept { sent, ttl: Some(ttl) })) = (&mut self.lease, kept) {
            lease.kept(sent, ttl);
        }
        let taken = match taken {
            // Nothing that was sent with this lease can arrive any more.
            Err(failed) if failed.why == Why::LeaseGone => {
                (self.lease, self.unsure) = (None, false);
                return Ok(None);
            }
            taken => taken?,
        };
        match taken {
            Taken::Busy => Ok(Some(BUSY)),
            Taken::NotOurs => {
                self.lease = None;
                Ok(None)
            }
            Taken::Place { rev, seen, ahead } => {
                let found_again = seen != rev;
                let nested = ahead.as_ref().is_some_and(|ahead| !self.queue.has(ahead.as_bytes()));
                self.place = Some(self.place_at(lease.id, rev, seen, ahead, false));
                if found_again || nested {
                    return self.look_again(lease).await;
                }
                let behind = self.place.as_ref().is_some_and(|place| place.ahead.is_some());
                if behind && !mutants::on("ignores_the_queue") {
                    return Ok(Some(BUSY));
                }
                self.granted(lease).map(Some)
            }
        }
    }

    /// The place has gone. Its lease may live, if the key alone was deleted: it is not used again.
    fn forget(&mut self) {
        self.place = None;
        if let Some(lease) = self.lease.take() {
            self.shared.leases.discard(lease);
        }
        self.unsure = false;
    }

    async fn keep_alive(&self, lease: Lease) -> Result<Kept, Failed> {
        self.shared.keeps.renew(lease.id, self.limit()).await
    }

    /// Whether our key is there, as we have made it.
    async fn is_there(&self) -> Result<bool, Failed> {
        let Some(place) = &self.place else { return Ok(false) };
        let key = place.key.as_str();
        let answer = self
            .shared
            .node
            .call(self.limit(), |mut client| async move { client.get(key, None).await })
            .await?;
        Ok(answer.kvs().first().is_some_and(|found| {
            found.create_revision() == place.rev && found.value() == self.value.as_bytes()
        }))
    }

    /// Begins the watches of this claim that are missing.
    fn listen(&mut self) {
        let Some(place) = &mut self.place else { return };
        let from = place.seen + 1;
        let watches = &self.shared.watches;
        if place.own.as_ref().is_none_or(Interest::has_ended) && !blind() {
            place.own = Some(watches.watch(place.key.clone(), from, &self.waker));
        }
        if let Some(ahead) = &mut place.ahead
            && ahead.interest.is_none()
        {
            ahead.interest = Some(watches.watch(ahead.key.clone(), from, &self.waker));
        }
    }

    /// Gives up the place by its key, where nothing is unsettled.
    async fn delete(&mut self) -> Result<Released, Failed> {
        let Some(place) = self.place.as_mut() else { return Ok(Released::AlreadyGone) };
        // Our own deletion is no news.
        (place.own, place.ahead) = (None, None);
        let (key, rev) = (place.key.clone(), place.rev);
        let txn = if mutants::on("release_by_name") {
            statements::release_by_name(self.queue.start())
        } else if mutants::on("release_keeps_the_key") {
            Txn::new()
        } else {
            statements::release(&key, &self.value, rev)
        };
        self.asking = true;
        let answer = self.txn(txn).await;
        let shown = self.settle(answer)?;
        self.place = None;
        if shown.succeeded {
            if let Some(lease) = self.lease.take() {
                if self.request.resume.is_some() {
                    self.shared.leases.discard(lease);
                } else {
                    self.shared.leases.give_back(lease);
                }
            }
            return Ok(Released::Freed);
        }
        self.forget();
        Ok(Released::AlreadyGone)
    }

    /// Gives up whatever this claim may have left, now or later, by the end of its lease.
    async fn revoke(&mut self, lease: Lease) -> Result<Released, Failed> {
        let known = self.shared.leases.revoke(lease.id, self.limit()).await?;
        (self.lease, self.place, self.unsure, self.asking) = (None, None, false, false);
        Ok(if known { Released::Freed } else { Released::AlreadyGone })
    }
}

impl Ahead {
    /// Its watch has told what it can tell.
    fn is_over(&self) -> bool {
        self.interest.as_ref().is_some_and(|interest| interest.is_deleted() || interest.has_ended())
    }
}

/// Whether the own place is deliberately not looked at.
fn blind() -> bool {
    mutants::on("own_place_unwatched") || mutants::on("swallows_ttl_0")
}

fn text_of(found: &KeyValue) -> Result<String, Failed> {
    // A foreign client may use other bytes, which a watch could not name as text.
    found.key_str().map(str::to_owned).map_err(|_| unexpected("a place whose key is not UTF-8"))
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
            format!("{TRIES} leases of etcd in a row were gone before a place was taken with them"),
        ))
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let start = self.shared.clock().now();
        let (Some(lease), Some(place)) = (self.lease, &self.place) else {
            return Ok(Renewal::Lost);
        };
        if place.own.as_ref().is_some_and(Interest::is_deleted) {
            self.forget();
            return Ok(Renewal::Lost);
        }
        // The watch tells when the key goes. Where it does not stand, the key is looked at.
        let watched = place.own.as_ref().is_some_and(Interest::is_live) || blind();
        let there = async { if watched { Ok(true) } else { self.is_there().await } };
        let (kept, there) = tokio::join!(self.keep_alive(lease), there);
        // That it has gone is certain, whatever became of the other answer.
        let there = match (&kept, there) {
            (_, Ok(there)) => there,
            (Ok(Kept { ttl: None, .. }), Err(_)) => false,
            (_, Err(failed)) => return Err(failed.error),
        };
        if !there {
            self.forget();
            return Ok(Renewal::Lost);
        }
        let kept = kept.map_err(|failed| failed.error)?;
        let Some(ttl) = kept.ttl else {
            self.forget();
            return Ok(Renewal::Lost);
        };
        if let Some(lease) = &mut self.lease {
            lease.kept(kept.sent, ttl);
        }
        let left = self.lease.map_or(Duration::ZERO, |lease| lease.left(start));
        // A request that was sent after this call began promises the rest as well.
        Ok(Renewal::Alive { valid_for: Some(left.min(ttl)) })
    }

    async fn check(&mut self) -> Result<Renewal> {
        let lost = self
            .place
            .as_ref()
            .is_none_or(|place| place.own.as_ref().is_some_and(Interest::is_deleted));
        if lost || !self.is_there().await.map_err(|failed| failed.error)? {
            self.forget();
            return Ok(Renewal::Lost);
        }
        Ok(Renewal::Alive { valid_for: None })
    }

    async fn release(&mut self) -> Result<Released> {
        if self.done {
            return Ok(Released::AlreadyGone);
        }
        let unsettled = (self.unsure || self.asking) && !mutants::on("keeps_unknown_leases");
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
        self.listen();
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
        let unused = self.place.is_none() && !self.unsure && !self.asking;
        if let Some(lease) = self.lease.filter(|_| unused) {
            self.shared.leases.put_back(lease);
        }
    }
}
