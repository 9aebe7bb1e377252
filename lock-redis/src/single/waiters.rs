//! Wakes waiters: pushes to this client, by the owner that they are for. And who of this client's waiters
//! for a lock tries for all of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lock_core::{Clock, ClockInstant, OwnerId};
use lock_kit::wake::{Slot, Waiter, Waiters};
use parking_lot::Mutex;

use super::renewals::RenewalItem;

/// The first waiters of the first clients check again after this, even if nothing was pushed: a
/// client that uses a plain `SET NX` does not announce its release.
pub(super) const SLOW_POLL: Duration = Duration::from_millis(900);

/// The claims of this client that hear pushes. A lock that was taken over can have the same owner
/// as another claim, and so can an attempt at that which is refused: all of them are told.
pub(super) struct WaiterTable {
    claims: Waiters<OwnerId, PushedWaiter>,
    /// Those that wait for each lock, in their order.
    lines: Mutex<HashMap<String, WaiterLine>>,
    /// How many claims have stood in a line.
    stood: AtomicU64,
    clock: Arc<dyn Clock>,
}

type WaiterLine = BTreeMap<LinePosition, Arc<Slot<PushedWaiter>>>;

/// A claim's place among those of its client: by the ticket of the store, with those that have none at the
/// end, and by when it came.
type LinePosition = (u64, u64);

/// Stands behind every ticket.
const NO_TICKET: u64 = u64::MAX;

/// What a push has come to.
pub(super) enum PushEffect<'a> {
    Done,
    /// The lock was handed to a claim that is not there any more.
    HandedToNobody(OwnerId, &'a str),
}

/// What is known of a claim that hears pushes.
pub(super) struct PushedWaiter {
    /// What asks for its place in the queue.
    pub(super) place: RenewalItem,
    state: Mutex<WaiterState>,
}

#[derive(Default)]
struct WaiterState {
    next: NextTry,
    /// It stands in a line.
    stands: bool,
    /// It has tried, or is to try, as the first in its line.
    is_first: bool,
    /// The lock was handed to it since its last try began.
    handed: bool,
}

/// When the claim is to try again.
#[derive(Clone, Copy, Default)]
enum NextTry {
    #[default]
    WhenWoken,
    At(ClockInstant),
    Now,
}

pub(super) fn try_now(slot: &Arc<Slot<PushedWaiter>>) {
    slot.data().state.lock().next = NextTry::Now;
    slot.wake();
}

fn try_at(slot: &Arc<Slot<PushedWaiter>>, at: ClockInstant) {
    let mut state = slot.data().state.lock();
    if !matches!(state.next, NextTry::Now) {
        state.next = NextTry::At(at);
    }
    drop(state);
    slot.wake();
}

/// Those in a line to which the store has given a place.
fn with_a_place(line: &WaiterLine) -> Vec<Arc<Slot<PushedWaiter>>> {
    line.range(..(NO_TICKET, 0)).map(|(_, slot)| Arc::clone(slot)).collect()
}

impl WaiterTable {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let claims = Waiters::new(|_, slots: &[Arc<Slot<_>>]| slots.iter().for_each(try_now));
        Self { claims, lines: Mutex::default(), stood: AtomicU64::new(0), clock }
    }

    /// A push that comes before the claim waits is kept.
    pub(super) fn subscribe(
        self: &Arc<Self>,
        owner: OwnerId,
        place: RenewalItem,
    ) -> PushSubscription {
        let waiter = self.claims.register(owner, PushedWaiter { place, state: Mutex::default() });
        PushSubscription { table: Arc::clone(self), waiter, position: None }
    }

    /// Messages were lost: whoever tries for others does so, and so does each holder. Returns those whose
    /// places are to be asked for.
    pub(super) fn missed_messages(&self) -> Vec<Arc<Slot<PushedWaiter>>> {
        self.claims.all(|_, slot| {
            let stands = slot.data().state.lock().stands;
            if !stands {
                try_now(slot);
            }
        });
        let lines = self.lines.lock();
        lines.values().filter_map(|line| line.values().next()).for_each(try_now);
        lines.values().flat_map(with_a_place).collect()
    }

    /// Those of this client that have a place in the queue of this lock.
    pub(super) fn waiting_for(&self, lock: &str) -> Vec<Arc<Slot<PushedWaiter>>> {
        self.lines.lock().get(lock).into_iter().flat_map(with_a_place).collect()
    }

    /// `g`, the owner, a colon and the lock: it was handed to it. `l` and the owner: it was taken away. `w`,
    /// the owner, a colon and milliseconds: try again then. Returns what a push that can be read is to have
    /// done about it.
    pub(super) fn on_message<'a>(&self, payload: &'a [u8]) -> Option<PushEffect<'a>> {
        let text = std::str::from_utf8(payload).ok()?;
        if text.is_empty() {
            return Some(PushEffect::Done);
        }
        let (kind, rest) = text.split_at_checked(1)?;
        let (owner, more) = rest.split_once(':').map_or((rest, None), |(o, m)| (o, Some(m)));
        let owner: OwnerId = owner.parse().ok()?;
        match (kind, more) {
            ("g", Some(lock)) => {
                let mut is_there = false;
                self.claims.each(&owner, |slot| {
                    is_there = true;
                    slot.data().state.lock().handed = true;
                    try_now(slot);
                });
                if !is_there {
                    return Some(PushEffect::HandedToNobody(owner, lock));
                }
            }
            ("l", None) => self.claims.each(&owner, try_now),
            ("w", Some(pause)) => {
                let at = self.clock.now() + Duration::from_millis(pause.parse().ok()?);
                self.claims.each(&owner, |slot| try_at(slot, at));
            }
            _ => return None,
        }
        Some(PushEffect::Done)
    }

    /// The first in line is to try for all of them: soon, if it was not the first when it tried last.
    fn appoint(&self, line: &WaiterLine) {
        if let Some(first) = line.values().next() {
            let was_first = std::mem::replace(&mut first.data().state.lock().is_first, true);
            if !was_first {
                try_at(first, self.clock.now() + SLOW_POLL);
            }
        }
    }
}

/// One claim, which hears pushes until this is dropped.
pub(super) struct PushSubscription {
    table: Arc<WaiterTable>,
    waiter: Waiter<OwnerId, PushedWaiter>,
    position: Option<LinePosition>,
}

impl PushSubscription {
    /// Stands in the line for its lock, by the ticket that the store has given, or 0. The first in line is
    /// told if it does not know that it is.
    pub(super) fn stand(&mut self, ticket: u64) {
        let number = match self.position {
            Some((_, number)) => number,
            None => self.table.stood.fetch_add(1, Relaxed),
        };
        let position = (if ticket == 0 { NO_TICKET } else { ticket }, number);
        let (slot, mut lines) = (self.waiter.slot(), self.table.lines.lock());
        let line = lines.entry(slot.data().place.lock.clone()).or_default();
        if let Some(before) = self.position.replace(position) {
            line.remove(&before);
        }
        line.insert(position, Arc::clone(slot));
        slot.data().state.lock().stands = true;
        self.table.appoint(line);
    }

    /// Leaves the line. The next one tries for those that stay.
    pub(super) fn leave(&mut self) {
        let Some(position) = self.position.take() else { return };
        let (waiter, mut lines) = (self.waiter.data(), self.table.lines.lock());
        waiter.state.lock().stands = false;
        if let Some(line) = lines.get_mut(&waiter.place.lock) {
            line.remove(&position);
            self.table.appoint(line);
            if line.is_empty() {
                lines.remove(&waiter.place.lock);
            }
        }
    }

    /// A try is about to be made, which takes the place of an appointment. Returns whether it is made for
    /// all that stand in this line, and whether the lock was handed over since the last one.
    pub(super) fn begin_try(&self) -> (bool, bool) {
        let waiter = self.waiter.data();
        let lines = self.table.lines.lock();
        let first = lines.get(&waiter.place.lock).and_then(|line| line.keys().next());
        let mut state = waiter.state.lock();
        state.is_first = self.position.is_some() && self.position.as_ref() == first;
        if let NextTry::At(_) = state.next {
            state.next = NextTry::WhenWoken;
        }
        (state.is_first, std::mem::take(&mut state.handed))
    }

    /// The claim tries again when it waits next.
    pub(super) fn wake(&self) {
        try_now(self.waiter.slot());
    }

    /// Ready when there was a push since it was last ready, or when it is time to try.
    pub(super) async fn woken(&self) {
        let clock = &*self.table.clock;
        loop {
            let at = {
                let mut state = self.waiter.data().state.lock();
                match state.next {
                    NextTry::At(at) if at > clock.now() => at,
                    NextTry::WhenWoken => ClockInstant::FAR_FUTURE,
                    NextTry::Now | NextTry::At(_) => {
                        state.next = NextTry::WhenWoken;
                        return;
                    }
                }
            };
            // The permit is kept, so nothing is missed between the check and the wait.
            tokio::select! {
                () = self.waiter.woken() => {}
                () = clock.sleep_until(at) => {}
            }
        }
    }
}

impl Drop for PushSubscription {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::single::renewals::RenewalKind;
    use lock_core::SystemClock;

    fn waiters() -> Arc<WaiterTable> {
        Arc::new(WaiterTable::new(Arc::new(SystemClock::default())))
    }

    fn owner(n: u8) -> OwnerId {
        OwnerId::from_bytes([n; 16])
    }

    fn listen(waiters: &Arc<WaiterTable>, n: u8, lock: &str) -> PushSubscription {
        let second = Duration::from_secs(1);
        let (lock, who) = (lock.to_owned(), owner(n).to_hex());
        let kind = RenewalKind::CheckPlace;
        let others = Vec::new();
        let place = RenewalItem { kind, lock, others, who, ttl: second, limit: second };
        waiters.subscribe(owner(n), place)
    }

    async fn is_woken(claim: &PushSubscription, limit: Duration) -> bool {
        tokio::time::timeout(limit, claim.woken()).await.is_ok()
    }

    #[tokio::test]
    async fn the_one_that_has_waited_longest_looks_for_all() {
        let waiters = waiters();
        let [mut late, mut other, mut early, mut new] =
            [(1, "a"), (2, "b"), (3, "a"), (4, "a")].map(|(n, lock)| listen(&waiters, n, lock));
        // Those without a ticket stand in the order in which they came.
        for (claim, looks) in [(&mut late, true), (&mut other, true), (&mut early, false)] {
            claim.stand(0);
            assert_eq!(claim.begin_try(), (looks, false));
        }
        new.stand(0);
        for (claim, ticket) in [(&mut late, 30), (&mut other, 10), (&mut early, 20)] {
            claim.stand(ticket);
        }
        assert_eq!(waiters.waiting_for("a").len(), 2, "one has no place yet");
        let limit = SLOW_POLL + Duration::from_secs(4);
        assert!(is_woken(&early, limit).await, "it has never looked as the first");
        assert_eq!(early.begin_try(), (true, false));
        assert_eq!(late.begin_try(), (false, false));
        early.leave();
        assert!(is_woken(&late, limit).await, "it is the first now");
        for claim in [&other, &early, &new] {
            assert!(!is_woken(claim, Duration::from_millis(20)).await);
        }
        drop((late, new));
        assert!(waiters.lines.lock().keys().eq(["b"]), "nobody waits for the other one");
    }

    #[tokio::test]
    async fn a_lock_that_was_handed_over_is_known_to_the_next_look() {
        let waiters = waiters();
        let mut claim = listen(&waiters, 1, "a");
        claim.stand(0);
        waiters.on_message(format!("g{}:a", owner(1).to_hex()).as_bytes()).unwrap();
        assert!(is_woken(&claim, Duration::from_secs(5)).await);
        assert_eq!((claim.begin_try(), claim.begin_try()), ((true, true), (true, false)));
    }

    #[tokio::test]
    async fn an_appointment_wakes_in_time_and_not_before() {
        let waiters = waiters();
        let waiter = listen(&waiters, 1, "a");
        let message = format!("w{}:60", owner(1).to_hex());
        waiters.on_message(message.as_bytes()).unwrap();
        let start = waiters.clock.now();
        assert!(is_woken(&waiter, Duration::from_secs(5)).await);
        assert!(waiters.clock.now().since(start) >= Duration::from_millis(55));
    }

    #[test]
    fn strange_messages_are_ignored() {
        let waiters = waiters();
        let [early, nothing] = ["w{}:x", "g{}"].map(|form| form.replace("{}", &owner(1).to_hex()));
        for payload in ["x", "g", "gzz", "w:1", "g\u{e9}", &early, &nothing] {
            assert!(waiters.on_message(payload.as_bytes()).is_none(), "{payload}");
        }
        assert!(waiters.on_message(&[0xff, 0xfe]).is_none());
    }
}
