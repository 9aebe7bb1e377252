//! One contender for a lock in ZooKeeper: in which order it asks.
//!
//! It enters the queue with an entry of its own that lives and dies with its session, and looks at the one in front. If
//! there is none, it has the lock, as soon as the leader has confirmed that look and there is proof that the session
//! lasts long enough (clause C3). If there is one, it waits: it watches that entry, after a while its own, too, and
//! looks again when either has changed, unless a neighbour's release has proven already that it is the first. In a long
//! queue it looks for the one in front only while it waits, together with others. After a lost reply an entry may exist
//! that it does not know: that doubt is settled before anything else. What it asks, and whether that is in doubt, is in
//! [`operations`](super::operations).

use std::sync::Arc;

use lock_core::{
    Attempt, Busy, Bytes, Claim, ClaimRequest, ClockInstant, Error, ErrorKind, Released, Renewal,
    Result, async_trait,
};

use super::entry::{self, QueueEntry, QueuePosition};
use super::operations::ClaimQueue;
use super::watches::{ClaimWatches, WaitingEntry};
use crate::error::{Reply, RequestFailure};
use crate::sessions::{SessionSeat, Sessions, SharedSession};
use crate::wire::{Footing, Timeline};

/// How often an attempt starts over because the node of the lock, or our own, was removed
/// meanwhile.
const ROUNDS: usize = 16;
/// A lock is granted only with at least a quarter of the session timeout left: less may run out
/// before a renewal can prolong it.
const LEAST: u32 = 4;

#[derive(Debug)]
pub(crate) struct ZkClaim {
    sessions: Arc<Sessions>,
    request: ClaimRequest,
    queue: ClaimQueue,
    /// A seat in the session that the fields below belong to.
    seat: Option<SessionSeat>,
    entry: Option<QueueEntry>,
    /// What the proof stands on that the lock is ours, if it is.
    held: Option<Footing>,
    /// Nothing was tried yet. If a claim is released like this, it may be for another one of the same owner,
    /// which was dropped in the middle of a call (clause C12).
    is_new: bool,
    watches: ClaimWatches,
}

#[async_trait]
impl Claim for ZkClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        self.is_new = false;
        let (start, sessions, limit) =
            (self.now(), Arc::clone(&self.sessions), self.request.call_timeout);
        let look = async {
            let answer = self.look(start).await;
            if self.is_cut_short(&answer) { self.look(start).await } else { answer }
        };
        let answer = sessions.bounded(limit, look).await;
        answer.map_err(|error| self.failed_try(error))
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let (start, sessions) = (self.now(), Arc::clone(&self.sessions));
        let ask = async {
            let Some((session, entry)) = self.own_entry() else { return Ok(Renewal::Lost) };
            renewal(&session, start, self.queue.renew(&session, entry).await)
        };
        sessions.bounded(self.request.call_timeout, ask).await
    }

    async fn check(&mut self) -> Result<Renewal> {
        let (start, sessions) = (self.now(), Arc::clone(&self.sessions));
        let limit = self.request.call_timeout;
        let ask = async {
            self.find().await?;
            let Some((session, entry)) = self.own_entry() else { return Ok(Renewal::Lost) };
            renewal(&session, start, self.queue.confirm(&session, entry).await)
        };
        sessions.bounded(limit, ask).await
    }

    async fn release(&mut self) -> Result<Released> {
        let (sessions, limit) = (Arc::clone(&self.sessions), self.request.call_timeout);
        let leave = async {
            let answer = self.leave_all().await;
            if self.is_cut_short(&answer) { self.leave_all().await } else { answer }
        };
        sessions.bounded(limit, leave).await
    }

    async fn changed(&mut self) -> Result<()> {
        let Self { watches, queue, sessions, .. } = self;
        let (Some(seat), Some(entry)) = (&self.seat, &self.entry) else {
            return std::future::pending().await;
        };
        let own = queue.path(&entry.name);
        let changed = async {
            if self.held.is_none() && !watches.has_one_in_front() {
                // In a box of its own, since a holder waits here, too, and lists nothing.
                let place = Box::pin(async {
                    tokio::select! {
                        biased;
                        changed = watches.changed(seat, &own) => changed.map(|()| None),
                        place = queue.place(seat, &sessions.neighbours, &entry.name) => place,
                    }
                });
                // It may be the first already.
                let Some((in_front, footing)) = place.await? else { return Ok(()) };
                watches.is_behind(in_front, WaitingEntry { own: own.clone(), footing });
            }
            watches.changed(seat, &own).await
        };
        match changed.await {
            // That is a change, too.
            Ok(()) | Err(RequestFailure::SessionEnded) => Ok(()),
            Err(failure) => Err(failure.at(&self.sessions.ensemble.endpoint)),
        }
    }

    async fn detach(&mut self) -> Result<Bytes> {
        Err(session_bound())
    }
}

/// The order of the steps.
impl ZkClaim {
    async fn look(&mut self, start: ClockInstant) -> Reply<Attempt> {
        let session = self.session().await?;
        for _ in 0..ROUNDS {
            if self.queue.is_in_doubt {
                self.settle(&session).await?;
            }
            let footing = session.footing();
            let proven = self.watches.is_proven(footing, self.now(), self.request.call_timeout);
            // The leader is asked if no entry seems to be in front of ours, unless a neighbour has done so.
            let fresh = proven || !self.watches.has_one_in_front();
            let position = match &self.entry {
                Some(_) if proven => QueuePosition::First,
                Some(entry) => self.queue.look(&session, entry, fresh).await?,
                None if !self.request.wait && self.queue.is_taken(&session).await? => {
                    return Ok(Attempt::Busy(Busy::default()));
                }
                None => {
                    let is_long =
                        self.request.wait && self.sessions.neighbours.is_long(&self.queue.path(""));
                    let entered = self.queue.enter(&session, is_long).await?;
                    let Some((entry, position)) = entered else { continue };
                    self.take(&session, entry).await?;
                    position?
                }
            };
            match position {
                QueuePosition::First => {
                    // The next round asks the leader.
                    self.watches.stands();
                    if let Some(granted) = self.prove(&session, fresh, start).await? {
                        self.held = Some(footing);
                        return Ok(granted);
                    }
                }
                QueuePosition::Behind(_) if !self.request.wait => {
                    self.leave(&session).await?;
                    return Ok(Attempt::Busy(Busy::default()));
                }
                QueuePosition::Behind(in_front) => {
                    if let Some(entry) = &self.entry {
                        let waiter = WaitingEntry { own: self.queue.path(&entry.name), footing };
                        self.watches.is_behind(self.queue.path(&in_front), waiter);
                    }
                    let busy = Busy::default().with_place(session.valid_for(start));
                    return Ok(Attempt::Busy(busy));
                }
                QueuePosition::Deep => {
                    let busy = Busy::default().with_place(session.valid_for(start));
                    return Ok(Attempt::Busy(busy));
                }
                // An operator removed our entry: take a new place.
                QueuePosition::Gone => self.forget(),
            }
        }
        let why = format!("the node {} is repeatedly removed while in use", self.queue.parent);
        Err(Error::new(ErrorKind::Unavailable, why).into())
    }

    /// This entry is ours. Curator and kazoo order the numbers as text, so a queue must not come near their end.
    /// Its node is removed when the queue is empty, and the numbers start over.
    async fn take(&mut self, session: &SharedSession, entry: QueueEntry) -> Reply<()> {
        let number = entry::sequence(&entry.name).unwrap_or(i64::MAX);
        if number < self.sessions.ensemble.config.sequence_limit {
            self.entry = Some(entry);
            return Ok(());
        }
        // Never a place of ours: if its removal is cut off, the next try finds it again, and refuses it again.
        self.queue.is_in_doubt = true;
        self.queue.leave(session, &entry.name).await?;
        self.queue.is_in_doubt = false;
        let parent = &self.queue.parent;
        // Fails while there are others.
        if matches!(self.queue.remove(session).await, Ok(Released::Freed)) {
            tracing::info!(target: "distlock", node = %parent, "the sequence numbers of a lock start over");
        }
        Err(Error::new(
            ErrorKind::Store,
            format!(
                "the queue at {parent} has used up its sequence numbers (this one is {number}): no client may enter until those in the queue have left and the node is removed"
            ),
        )
        .with_retryable(true)
        .into())
    }
}

/// The proof that a lock which is ours stays so for a while.
impl ZkClaim {
    /// The grant of a lock that is ours by a `fresh` look, if its session lasts long enough. For an idle session
    /// that is not known, since only a write proves it. After the servers were silent a write does not prove it either,
    /// until they have answered for a while: see [`Timeline`]. Then this waits a little. `None`: look again.
    async fn prove(
        &mut self,
        session: &SharedSession,
        fresh: bool,
        start: ClockInstant,
    ) -> Reply<Option<Attempt>> {
        let Some(entry) = self.entry.clone().filter(|_| fresh) else { return Ok(None) };
        let granted = || {
            let valid_for = Some(session.valid_for(start));
            Ok(Some(Attempt::Granted { token: entry.fence, valid_for }))
        };
        let is_long = || session.valid_for(session.now()) >= session.timeout / LEAST;
        if is_long() {
            return granted();
        }
        if !self.queue.confirm(session, &entry).await? {
            self.forget();
            return Ok(None);
        }
        if is_long() {
            return granted();
        }
        let beat = Timeline::beat(session.timeout);
        let spent = (self.now() + beat).since(start);
        if spent > self.request.call_timeout * 3 / 4 {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the ZooKeeper ensemble at {} was silent for a while: how long it keeps our session of {:?} is uncertain until it has answered again for two fifths of that time",
                    self.sessions.ensemble.endpoint,
                    session.timeout
                ),
            )
            .into());
        }
        tokio::time::sleep(beat).await;
        Ok(None)
    }

    /// Our entry, and its session if that has not ended.
    fn own_entry(&self) -> Option<(Arc<SharedSession>, &QueueEntry)> {
        let seat = self.seat.as_ref().filter(|seat| !seat.has_ended())?;
        Some((Arc::clone(seat), self.entry.as_ref()?))
    }

    fn now(&self) -> ClockInstant {
        self.sessions.ensemble.clock.now()
    }
}

/// What is known of our entries, and what is in doubt.
impl ZkClaim {
    pub(crate) fn new(sessions: Arc<Sessions>, request: ClaimRequest) -> Result<Self> {
        if request.resume.is_some() {
            return Err(session_bound());
        }
        Ok(Self {
            queue: ClaimQueue::new(&sessions.ensemble.config, &request),
            seat: None,
            entry: None,
            held: None,
            is_new: true,
            watches: ClaimWatches::new(Arc::clone(&sessions.neighbours)),
            sessions,
            request,
        })
    }

    /// The session of this claim, or a new one if that has ended: then the state of the old one is
    /// forgotten, except that it may have left an entry behind.
    async fn session(&mut self) -> Reply<Arc<SharedSession>> {
        if self.seat.take_if(|seat| seat.has_ended()).is_some() {
            // Also if no new one can be opened now: the end is no longer news, see `changed`.
            self.queue.is_in_doubt = true;
            self.forget();
        }
        if let Some(seat) = &self.seat {
            return Ok(Arc::clone(seat));
        }
        let (ttl, limit) = (self.request.ttl, self.request.call_timeout);
        let seat = self.sessions.seat(ttl, self.queue.path_bytes(), limit).await?;
        Ok(Arc::clone(self.seat.insert(seat)))
    }

    /// Whether the session of this claim ended during a call that failed: then the call is worth
    /// one retry, in a new session.
    fn is_cut_short<T>(&self, answer: &Reply<T>) -> bool {
        answer.is_err() && self.seat.as_ref().is_some_and(|seat| seat.has_ended())
    }

    fn may_have_an_entry(&self) -> bool {
        self.entry.is_some() || self.queue.is_in_doubt
    }

    /// The last request may have failed without an effect, and an earlier one have made an entry.
    fn failed_try(&self, error: Error) -> Error {
        if self.may_have_an_entry() { error.with_unknown_effect() } else { error }
    }

    /// Our entry is gone.
    fn forget(&mut self) {
        (self.entry, self.held) = (None, None);
        self.watches.clear();
    }

    /// Ends the doubt: an entry of this session is ours, and all others are removed.
    async fn settle(&mut self, session: &SharedSession) -> Reply<()> {
        match self.queue.settle(session).await? {
            Some(entry) => self.take(session, entry).await,
            None => Ok(()),
        }
    }

    /// Ends the doubt as far as possible without writing: other entries are left to the release.
    async fn find(&mut self) -> Reply<()> {
        let seat = self.seat.as_ref().filter(|seat| !seat.has_ended());
        if let Some(session) = seat.filter(|_| self.queue.is_in_doubt) {
            self.entry = self.queue.find(session).await?.0.or(self.entry.take());
        }
        Ok(())
    }

    /// Removes our entry of this session. If the lock was ours, the answer may prove that the one behind it is the first.
    async fn leave(&mut self, session: &SharedSession) -> Reply<Released> {
        let Some(entry) = &self.entry else { return Ok(Released::AlreadyGone) };
        let (path, footing) = (self.queue.path(&entry.name), session.footing());
        let is_next =
            |next: &WaitingEntry| session.makes_first(self.held) && next.footing == footing;
        let released = match self.sessions.neighbours.begin_release(&path, is_next) {
            Some(leaving) => self.queue.leave_before(session, &path, footing, leaving).await?,
            None => self.queue.leave(session, &entry.name).await?,
        };
        self.forget();
        Ok(released)
    }

    /// Removes all our entries.
    async fn leave_all(&mut self) -> Reply<Released> {
        self.queue.is_in_doubt |= std::mem::take(&mut self.is_new);
        if self.seat.is_none() && !self.queue.is_in_doubt {
            return Ok(Released::AlreadyGone);
        }
        let session = self.session().await?;
        if !self.queue.is_in_doubt {
            return self.leave(&session).await;
        }
        let released = self.queue.leave_all(&session).await?;
        self.forget();
        Ok(released)
    }
}

impl Drop for ZkClaim {
    /// Sends nothing. An entry that stays behind is removed later by the task that keeps the session alive.
    fn drop(&mut self) {
        if let Some(seat) = self.seat.as_ref().filter(|_| self.may_have_an_entry()) {
            seat.leave_behind(self.queue.left(self.now()));
        }
    }
}

/// What the leader's answer about an entry means for its claim, for a request that began at `start`.
fn renewal(session: &SharedSession, start: ClockInstant, exists: Reply<bool>) -> Reply<Renewal> {
    match exists {
        Ok(true) => Ok(Renewal::Alive { valid_for: Some(session.valid_for(start)) }),
        Ok(false) | Err(RequestFailure::SessionEnded) => Ok(Renewal::Lost),
        Err(failure) => Err(failure),
    }
}

fn session_bound() -> Error {
    Error::unsupported(
        "a lock in ZooKeeper lives and dies with the session of its process: it cannot be handed to another process",
    )
}
