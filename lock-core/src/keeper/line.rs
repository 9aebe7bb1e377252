//! The line of the tasks of this process that want one name, and the holds that are passed along it.
//!
//! The first of them goes to the store, the others wait behind it. On a store that does not serve its
//! waiters in order every waiter polls, and a hundred pollers in one process cost a hundred times as
//! much as one, to no benefit. A cohort passes a hold on along the same line, so there it is used on
//! every store.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::mutex::Mutex;
use tokio::sync::Notify;

use super::Keeper;
use super::polling::Poller;
use crate::contract::Fences;
use crate::hold::{LockTerms, lead, rules};
use crate::{Clock, ClockInstant, Error, FencingToken, HolderInfo, LockKey};

/// The lines of one `Locks`, one for each name with waiters or a cohort.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalLines(Arc<Mutex<HashMap<LockKey, KeptLine>>>);

#[derive(Debug)]
struct KeptLine {
    line: Arc<LocalLine>,
    handles: usize,
}

/// The line in front of one name.
#[derive(Debug)]
pub(crate) struct LocalLine {
    /// This process has released a lock with this name: try again at once.
    pub(super) released: Notify,
    /// The first has met an error: those in line check whether it is time to give up.
    pub(super) failed: Notify,
    state: Mutex<LineState>,
}

#[derive(Debug, Default)]
struct LineState {
    members: VecDeque<Arc<LineMember>>,
    /// The cohort that may pass its hold on, and until when.
    open: Option<(u64, ClockInstant)>,
    cohorts: u64,
    /// How often in a row the lock went from one task of this process to the next.
    streak: u32,
    /// The store's last answer to the first in line, for those behind it, and when the store last
    /// answered.
    last: Option<(LastAnswer, ClockInstant)>,
}

/// After this many hand-overs within one process the first in line is not told at once, so other
/// processes, which poll, get their turn.
const LONGEST_STREAK: u32 = 16;

/// How late the first in line may be with what it was to do. After that its runtime is not driven, or its thread
/// computes, and those behind it go on without it.
const LATE: Duration = Duration::from_secs(2);

/// One task in the line.
#[derive(Debug)]
struct LineMember {
    terms: LockTerms,
    /// Knows whether anybody waits for it.
    caller: Arc<Poller>,
    /// By when, as the first in line, it asks the store again, in nanoseconds; zero if it has not said so.
    due: AtomicU64,
    /// Wakes the task when its turn may have come.
    turned: Notify,
    /// Written under the lock of the line.
    state: Mutex<MemberState>,
}

#[derive(Debug)]
enum MemberState {
    Waiting,
    /// It has been told that it is its turn: it asks the store, and no hold is passed to it.
    AtStore,
    /// It has been given a hold, which it has not taken yet.
    Given(Box<Pass>),
    Gone,
}

/// Whether a task may go to the store.
#[derive(Debug)]
pub(super) enum LineTurn {
    Now,
    /// A hold was passed to it.
    Passed(Box<Pass>),
    /// Then it may, if nothing happens before: a cohort may pass its hold on until then, or the first in line
    /// is late.
    At(ClockInstant),
}

/// Keeps a line; it is removed with the last one.
#[derive(Debug)]
pub(super) struct LineHandle {
    lines: LocalLines,
    key: LockKey,
    pub(super) line: Arc<LocalLine>,
}

/// A task's place in the line, which it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct LineSeat {
    handle: LineHandle,
    member: Arc<LineMember>,
}

impl LocalLines {
    /// Whether anybody waits for `key`, or may pass it on.
    pub(super) fn is_contended(&self, key: &LockKey) -> bool {
        self.0.lock().contains_key(key)
    }

    /// Takes the last place in the line for `key`.
    pub(super) fn enter(&self, key: &LockKey, terms: LockTerms, caller: Arc<Poller>) -> LineSeat {
        let handle = self.handle(key);
        let (turned, state) = (Notify::new(), Mutex::new(MemberState::Waiting));
        let member = Arc::new(LineMember { terms, caller, due: AtomicU64::new(0), turned, state });
        handle.line.state.lock().members.push_back(Arc::clone(&member));
        LineSeat { handle, member }
    }

    fn handle(&self, key: &LockKey) -> LineHandle {
        let mut lines = self.0.lock();
        let kept = lines.entry(key.clone()).or_insert_with(|| {
            let (released, failed) = (Notify::new(), Notify::new());
            let line = Arc::new(LocalLine { released, failed, state: Mutex::default() });
            KeptLine { line, handles: 0 }
        });
        kept.handles += 1;
        LineHandle { lines: self.clone(), key: key.clone(), line: Arc::clone(&kept.line) }
    }

    /// Tells the first in line, if there is one, that `key` was just released here.
    pub(crate) fn released(&self, key: &LockKey) {
        let lines = self.0.lock();
        if let Some(KeptLine { line, .. }) = lines.get(key) {
            let mut local = line.state.lock();
            local.streak += 1;
            if local.streak > LONGEST_STREAK {
                local.streak = 0;
            } else {
                // Keeps the permit if the first is asking the store right now: no release is
                // missed.
                line.released.notify_one();
            }
        }
    }
}

impl LocalLine {
    /// Records what the store said to the first in line.
    pub(super) fn note(&self, last: LastAnswer, answered_at: ClockInstant) {
        let failed = matches!(last, LastAnswer::Failure(_));
        {
            let mut local = self.state.lock();
            let before = local.last.take().map_or(answered_at, |(_, before)| before);
            local.last = Some((last, answered_at.max(before)));
        }
        if failed {
            self.failed.notify_waiters();
        }
    }

    /// What is known here of the lock, and since when: the store's last answer, or that a task of
    /// this process has it.
    pub(super) fn last(&self, now: ClockInstant) -> Option<(LastAnswer, ClockInstant)> {
        let local = self.state.lock();
        match local.open {
            Some(_) => Some((LastAnswer::Answer(None), now)),
            None => local.last.clone(),
        }
    }
}

impl LineState {
    /// Lets those go on alone who are first in line without need or work. When the one that is first then is
    /// late.
    fn first_is_late_at(&mut self, now: ClockInstant) -> Option<ClockInstant> {
        while let Some(first) = self.members.front() {
            let due = first.due_from(now);
            if !first.is_done() && !first.caller.has_left() && now < due {
                return Some(due);
            }
            first.goes_alone();
            self.members.pop_front();
        }
        None
    }

    fn wake_first(&self) {
        if let Some(first) = self.members.front() {
            first.turned.notify_one();
        }
    }
}

impl LineMember {
    fn is_done(&self) -> bool {
        matches!(*self.state.lock(), MemberState::Gone)
    }

    /// By when it has to do something. If it has not said so, it has just become the first.
    fn due_from(&self, now: ClockInstant) -> ClockInstant {
        let first = (now + LATE + self.terms.call_timeout).as_nanos();
        match self.due.compare_exchange(0, first, Relaxed, Relaxed) {
            Ok(_) => ClockInstant::from_nanos(first),
            Err(due) => ClockInstant::from_nanos(due),
        }
    }

    /// It goes to the store when it is driven again.
    fn goes_alone(&self) {
        let mut state = self.state.lock();
        if let MemberState::Waiting = *state {
            *state = MemberState::AtStore;
        }
        drop(state);
        self.turned.notify_one();
    }
}

impl LineSeat {
    pub(super) fn line(&self) -> &LocalLine {
        &self.handle.line
    }

    /// Ready when [`turn`](Self::turn) may have changed; nothing is missed in between.
    pub(super) async fn turned(&self) {
        self.member.turned.notified().await;
    }

    /// Whether it is this task's turn. Once it is, no hold is passed to it any more.
    pub(super) fn turn(&self, clock: &dyn Clock) -> LineTurn {
        let mut local = self.handle.line.state.lock();
        // Read while the line is locked, as in `pass`: it goes to the store before or after the
        // moment until which holds are passed on.
        let now = clock.now();
        // What has been decided already.
        {
            let mut state = self.member.state.lock();
            match std::mem::replace(&mut *state, MemberState::Gone) {
                MemberState::Given(pass) => return LineTurn::Passed(pass),
                MemberState::AtStore => {
                    *state = MemberState::AtStore;
                    return LineTurn::Now;
                }
                undecided => *state = undecided,
            }
        }
        let is_first = |local: &LineState| {
            local.members.front().is_some_and(|it| Arc::ptr_eq(it, &self.member))
        };
        if !is_first(&local)
            && let Some(late_at) = local.first_is_late_at(now)
            && !is_first(&local)
        {
            return LineTurn::At(late_at);
        }
        match local.open {
            Some((_, until)) if now < until => LineTurn::At(until),
            _ => {
                *self.member.state.lock() = MemberState::AtStore;
                LineTurn::Now
            }
        }
    }

    /// It is first in line, and will have asked the store soon after `at`.
    pub(super) fn asks_at(&self, at: ClockInstant) {
        // A renewal of its place, and the question.
        let due = at + self.member.terms.call_timeout * 2 + LATE;
        self.member.due.store(due.as_nanos(), Relaxed);
    }

    /// Leaves the line, for a task that no longer waits: the hold that was passed to it meanwhile,
    /// if any.
    pub(super) fn leave(self) -> Option<Box<Pass>> {
        let left = {
            // As all who write the state: between the look and the gift of `pass` nobody leaves, or the hold
            // would be given to nobody.
            let _line = self.handle.line.state.lock();
            std::mem::replace(&mut *self.member.state.lock(), MemberState::Gone)
        };
        match left {
            MemberState::Given(pass) => Some(pass),
            MemberState::Waiting | MemberState::AtStore | MemberState::Gone => None,
        }
    }
}

impl Drop for LineSeat {
    fn drop(&mut self) {
        let mut local = self.handle.line.state.lock();
        local.members.retain(|member| !Arc::ptr_eq(member, &self.member));
        local.wake_first();
    }
}

impl Drop for LineHandle {
    fn drop(&mut self) {
        let mut lines = self.lines.0.lock();
        if let Some(kept) = lines.get_mut(&self.key) {
            kept.handles -= 1;
            if kept.handles == 0 {
                lines.remove(&self.key);
            }
        }
    }
}

/// The right to pass one hold on. While there is one, no task of this process asks the store; when it is
/// dropped, the first in line does.
#[derive(Debug)]
pub(super) struct Cohort {
    handle: LineHandle,
    id: u64,
    pub(super) fences: Fences,
    /// How many tasks have had the hold.
    holders: u32,
    pub(super) until: ClockInstant,
}

/// A hold on its way to the next task.
pub(crate) struct Pass {
    pub(super) keeper: Box<Keeper>,
    pub(super) cohort: Cohort,
    pub(super) token: FencingToken,
    /// The end of its validity, but for the next holder's `max_hold`.
    pub(super) until: ClockInstant,
}

impl Cohort {
    /// Of a hold that was granted `now` with these fences.
    pub(super) fn open(
        lines: &LocalLines,
        key: &LockKey,
        fences: Fences,
        now: ClockInstant,
    ) -> Self {
        let (handle, until) = (lines.handle(key), now + rules::longest());
        let id = {
            let mut local = handle.line.state.lock();
            local.cohorts += 1;
            local.open = Some((local.cohorts, until));
            local.cohorts
        };
        Self { handle, id, fences, holders: 1, until }
    }

    /// Gives the hold of `keeper`, which is valid until then, to the first in line, if that waits for one on the
    /// same terms. Otherwise the cohort ends, and the keeper is returned.
    pub(super) fn pass(mut self, keeper: Box<Keeper>, until: ClockInstant) -> Option<Box<Keeper>> {
        let clock = Arc::clone(&keeper.client.clock);
        let line = Arc::clone(&self.handle.line);
        let mut local = line.state.lock();
        let now = clock.now();
        local.first_is_late_at(now);
        let is_open = local.open.is_some_and(|(open, until)| open == self.id && now < until)
            && rules::is_valid(until.minus(lead(keeper.terms.ttl)), now)
            && rules::has_room(self.holders, self.fences.count);
        let token = FencingToken::new(rules::next_fence(self.fences.first.get(), self.holders));
        let next = local.members.front().filter(|first| {
            let waits = matches!(*first.state.lock(), MemberState::Waiting);
            waits && rules::joins(&keeper.terms, &first.terms)
        });
        let (Some(next), Ok(token), true) = (next, token, is_open) else {
            // Its end takes this lock.
            drop(local);
            return Some(keeper);
        };
        self.holders += 1;
        *next.state.lock() =
            MemberState::Given(Box::new(Pass { keeper, cohort: self, token, until }));
        next.turned.notify_one();
        local.members.pop_front();
        None
    }
}

impl Drop for Cohort {
    fn drop(&mut self) {
        let mut local = self.handle.line.state.lock();
        local.open = local.open.filter(|(open, _)| *open != self.id);
        local.wake_first();
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("token", &self.token).finish_non_exhaustive()
    }
}

/// What the store said last.
#[derive(Clone, Debug)]
pub(super) enum LastAnswer {
    /// The lock, or that another client has it, and who, if the store said so.
    Answer(Option<Arc<SeenHolder>>),
    /// An error, or no answer.
    Failure(Error),
}

impl LastAnswer {
    /// Whether the lock has gone from one holder to the next since then.
    pub(super) fn is_before(&self, holder: Option<&HolderInfo>) -> bool {
        match (self, holder) {
            (Self::Answer(Some(seen)), Some(holder)) => {
                seen.holder.fence.is_some() && seen.holder.fence != holder.fence
            }
            _ => false,
        }
    }
}

/// A holder, and when the store showed it.
#[derive(Debug)]
pub(super) struct SeenHolder {
    pub(super) holder: HolderInfo,
    pub(super) at: ClockInstant,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::HolderMark;
    use crate::testing::ManualClock;

    fn lines() -> (LocalLines, LockKey, LockTerms) {
        (LocalLines::default(), LockKey::new("", "a").unwrap(), LockTerms::for_a_test())
    }

    #[test]
    fn a_line_lives_as_long_as_its_members() {
        let (lines, key, terms) = lines();
        let (first, second) = (
            lines.enter(&key, terms.clone(), Arc::default()),
            lines.enter(&key, terms, Arc::default()),
        );
        assert!(Arc::ptr_eq(&first.handle.line, &second.handle.line));
        drop(first);
        assert!(lines.is_contended(&key));
        drop(second);
        assert!(!lines.is_contended(&key));
    }

    #[test]
    fn a_cohort_keeps_the_first_in_line_waiting_until_its_time_is_over() {
        let (lines, key, terms) = lines();
        let clock = ManualClock::default();
        let until = clock.now() + Duration::from_millis(50);
        let open = || {
            let fences = Fences::of_one(FencingToken::new(1).unwrap());
            Cohort::open(&lines, &key, fences, clock.now())
        };
        let (before, open) = (open(), open());
        // That one belongs to a hold which has been lost meanwhile.
        drop(before);
        let seat = lines.enter(&key, terms, Arc::default());
        assert!(matches!(seat.turn(&clock), LineTurn::At(at) if at == until));
        clock.advance(Duration::from_millis(50));
        assert!(matches!(seat.turn(&clock), LineTurn::Now));
        drop(open);
        assert!(matches!(seat.turn(&clock), LineTurn::Now));
    }

    #[test]
    fn nobody_leaves_while_a_hold_is_passed_on() {
        let (lines, key, terms) = lines();
        let seat = lines.enter(&key, terms, Arc::default());
        let (line, member) = (Arc::clone(&seat.handle.line), Arc::clone(&seat.member));
        let (left, has_left) = std::sync::mpsc::channel();
        // As `pass` does, which finds it waiting, and then gives it the hold.
        let local = line.state.lock();
        let leaves = std::thread::spawn(move || left.send(seat.leave().is_none()));
        has_left.recv_timeout(Duration::from_millis(50)).unwrap_err();
        assert!(
            matches!(*member.state.lock(), MemberState::Waiting),
            "it left without the line's lock"
        );
        drop(local);
        leaves.join().unwrap().unwrap();
        assert!(has_left.recv().unwrap() && member.is_done());
    }

    #[tokio::test]
    async fn a_streak_of_local_hand_overs_ends() {
        let (lines, key, terms) = lines();
        let seat = lines.enter(&key, terms, Arc::default());
        let mut told = Vec::new();
        for _ in 0..LONGEST_STREAK + 2 {
            lines.released(&key);
            let notified = seat.line().released.notified();
            told.push(tokio::time::timeout(Duration::ZERO, notified).await.is_ok());
        }
        let mut expected = [true; LONGEST_STREAK as usize + 2];
        expected[LONGEST_STREAK as usize] = false;
        assert_eq!(told, expected);
    }

    #[test]
    fn a_lock_has_moved_if_its_fence_is_another_one() {
        let held = |fence| {
            let mut holder = HolderInfo::new(HolderMark::new("somebody"));
            holder.fence = FencingToken::new(fence).ok();
            holder
        };
        let seen = |holder| {
            let at = ClockInstant::from_nanos(0);
            LastAnswer::Answer(Some(Arc::new(SeenHolder { holder, at })))
        };
        assert!(seen(held(1)).is_before(Some(&held(2))));
        assert!(!seen(held(1)).is_before(Some(&held(1))));
        assert!(!seen(held(0)).is_before(Some(&held(2))), "it was not shown");
        assert!(!seen(held(1)).is_before(None));
        assert!(!LastAnswer::Answer(None).is_before(Some(&held(1))));
    }
}
