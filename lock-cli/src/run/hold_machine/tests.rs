//! Single courses, and all courses of three events.

use super::{HoldAction as A, HoldEvent as E, *};
use SupervisorReport as R;

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);
const KILL_AFTER: Duration = Duration::from_secs(5);
const START: ClockInstant = ClockInstant::from_nanos(1_000_000_000_000);
const TAKEN: LostReason = LostReason::Taken;
const ENDED: CommandExit = CommandExit::Exited(5);
const END: A = A::End(HoldEnd::Command(ENDED));
const ENDING: StopReason = StopReason::LeaseEnding;
/// The lease has not been renewed yet.
const KEPT: Option<Duration> = Some(TTL);

fn policy() -> Policy {
    Policy::new(TTL, KILL_AFTER, Some(START + 20 * SECOND), OnLost::Term)
}

fn last_resort() -> Duration {
    policy().last_resort(START + TTL).since(START)
}

/// A course described step by step.
struct Told(HoldMachine);

impl Told {
    fn begin() -> Self {
        let (course, first) = HoldMachine::begin(policy(), TTL, START + TTL, START);
        assert_eq!(first, SupervisorOrder::Lease(policy().deadlines(START + TTL, START)));
        Self(course)
    }

    /// What happened and how long after the start, how long the lease still lasted (`None`: it was
    /// lost), and the expected actions.
    #[track_caller]
    fn on(mut self, event: E, after: Duration, lease: Option<Duration>, wanted: &[A]) -> Self {
        let actions = self.0.on(event, lease.map(|until| START + until), START + after);
        assert_eq!(actions, wanted);
        self
    }

    /// Why the command had to stop.
    #[track_caller]
    fn stopped(self, why: Option<StopReason>) {
        assert_eq!(self.0.stopped(None), why);
    }
}

fn lease(until: Duration, now: Duration) -> A {
    A::Tell(SupervisorOrder::Lease(policy().deadlines(START + until, START + now)))
}

fn told_by(on_lost: OnLost) -> (Policy, Told) {
    let policy = Policy::new(TTL, KILL_AFTER, None, on_lost);
    let (course, first) = HoldMachine::begin(policy, TTL, START + TTL, START);
    assert_eq!(first, SupervisorOrder::Lease(policy.deadlines(START + TTL, START)));
    (policy, Told(course))
}

/// Whatever becomes of the lock, the command goes on; and a loss is told once.
#[test]
fn a_loss_can_be_ignored() {
    let (policy, told) = told_by(OnLost::Ignore);
    let never = ClockInstant::FAR_FUTURE;
    let deadlines = policy.deadlines(START + TTL, START);
    assert_eq!((deadlines.ask_at, deadlines.kill_at), (never, never));
    let lost = StopReason::Lost(LostReason::Expired);
    let told = told.on(E::Lost(LostReason::Expired), TTL, None, &[A::SayLost(lost)]);
    assert!(!told.0.awaits_loss());
    told.on(E::Time, 100 * TTL, None, &[])
        .on(E::Report(R::Ended(ENDED)), 200 * TTL, None, &[END])
        .stopped(Some(lost));
}

/// Without a signal before.
#[test]
fn a_lock_that_was_taken_away_can_kill_at_once() {
    let (policy, told) = told_by(OnLost::Kill);
    let deadlines = policy.deadlines(START + TTL, START);
    assert_eq!(deadlines.ask_at, deadlines.kill_at);
    assert!(deadlines.kill_at < START + TTL);
    let why = StopReason::Lost(TAKEN);
    told.on(E::Lost(TAKEN), SECOND, None, &[A::Tell(SupervisorOrder::Kill), A::SayStopping(why)])
        .on(E::Report(R::Ended(ENDED)), 2 * SECOND, None, &[END])
        .stopped(Some(why));
}

#[test]
fn a_hold_in_which_nothing_happens() {
    let until = Some(40 * SECOND);
    Told::begin()
        .on(E::Report(R::Started(7)), SECOND, KEPT, &[A::SayStarted(7)])
        .on(E::Signal(15), SECOND, KEPT, &[A::Tell(SupervisorOrder::Signal(15))])
        .on(E::Time, 2 * SECOND, KEPT, &[])
        .on(E::Time, 10 * SECOND, until, &[lease(40 * SECOND, 10 * SECOND)])
        .on(E::Report(R::Ended(ENDED)), 31 * SECOND, until, &[END])
        .stopped(None);
}

#[test]
fn a_lock_that_was_taken_gives_the_command_its_time() {
    let why = StopReason::Lost(TAKEN);
    Told::begin()
        .on(
            E::Lost(TAKEN),
            10 * SECOND,
            None,
            &[A::Tell(SupervisorOrder::Stop), A::SayStopping(why)],
        )
        .on(E::Time, 15 * SECOND, None, &[])
        .on(E::Time, 16 * SECOND, None, &[A::Kill])
        .on(E::Time, 2 * TTL, None, &[])
        .stopped(Some(why));
}

#[test]
fn a_lease_that_ends_is_the_limit_whatever_the_supervisor_does() {
    Told::begin()
        .on(E::Time, last_resort() - Duration::from_millis(1), KEPT, &[])
        .on(E::Time, last_resort(), KEPT, &[A::SayStopping(ENDING), A::Kill])
        .stopped(Some(ENDING));
    Told::begin()
        .on(E::Report(R::Stopping), 10 * SECOND, KEPT, &[A::SayStopping(ENDING)])
        .on(E::Time, 15 * SECOND, KEPT, &[])
        .on(E::Time, last_resort(), KEPT, &[A::Kill])
        .stopped(Some(ENDING));
}

#[test]
fn a_renewal_after_the_question_leaves_the_time_that_was_named() {
    let until = Some(2 * TTL);
    Told::begin()
        .on(E::Report(R::Stopping), 10 * SECOND, KEPT, &[A::SayStopping(ENDING)])
        .on(E::Time, 11 * SECOND, until, &[lease(2 * TTL, 11 * SECOND)])
        .on(E::Time, 15 * SECOND, until, &[])
        .on(E::Time, 16 * SECOND, until, &[A::Kill])
        .stopped(Some(ENDING));
}

#[test]
fn max_hold_is_named_and_the_first_reason_stays() {
    Told::begin()
        .on(E::Report(R::Stopping), 20 * SECOND, KEPT, &[A::SayStopping(StopReason::MaxHold)])
        .on(E::Lost(TAKEN), 21 * SECOND, None, &[])
        .on(E::Time, 25 * SECOND, None, &[])
        .on(E::Time, 26 * SECOND, None, &[A::Kill])
        .stopped(Some(StopReason::MaxHold));
}

#[test]
fn after_a_sleep_the_reports_come_first() {
    for (event, lease) in [(E::Time, KEPT), (E::Lost(LostReason::Expired), None)] {
        Told::begin()
            .on(event, 2 * TTL, lease, &[])
            .on(E::Report(R::Ended(ENDED)), 2 * TTL, lease, &[END])
            .stopped(None);
    }
}

#[test]
fn after_a_sleep_without_a_report_it_is_killed_unless_it_was_renewed() {
    let woken = 2 * TTL + CATCH_UP;
    Told::begin()
        .on(E::Lost(LostReason::Expired), 2 * TTL, None, &[])
        .on(E::Time, woken, None, &[A::SayStopping(ENDING), A::Kill])
        .stopped(Some(ENDING));
    Told::begin()
        .on(E::Time, 2 * TTL, KEPT, &[])
        .on(E::Time, woken, Some(3 * TTL), &[lease(3 * TTL, woken)])
        .stopped(None);
}

#[test]
fn a_supervisor_that_starts_nothing_or_vanishes_is_the_end() {
    Told::begin()
        .on(
            E::Report(R::TooLate),
            SECOND,
            KEPT,
            &[A::SayStopping(ENDING), A::End(HoldEnd::TooLate)],
        )
        .stopped(Some(ENDING));
    Told::begin()
        .on(E::Silence, SECOND, KEPT, &[A::Kill, A::End(HoldEnd::Unsupervised)])
        .stopped(None);
}

#[test]
fn a_lock_that_was_taken_unseen_counts_at_the_end() {
    let (course, _) = HoldMachine::begin(policy(), TTL, START + TTL, START);
    assert_eq!(course.stopped(Some(TAKEN)), Some(StopReason::Lost(TAKEN)));
    assert_eq!(course.stopped(Some(LostReason::Expired)), None);
}

/// The state of one of all courses.
#[derive(Clone)]
struct Walk {
    course: HoldMachine,
    now: ClockInstant,
    lease: Option<ClockInstant>,
    /// When and why the command had to stop.
    asked: Option<(StopReason, ClockInstant)>,
    killed: bool,
}

impl Walk {
    /// One more event, `after` the last; `false` at the end.
    fn step(&mut self, event: E, after: Duration, renewed: bool) -> bool {
        self.now = self.now + after;
        self.lease = match event {
            E::Lost(_) => None,
            _ if renewed => self.lease.map(|_| self.now + TTL),
            _ => self.lease,
        };
        let mut over = false;
        for action in self.course.on(event, self.lease, self.now) {
            match action {
                A::SayStopping(why) => {
                    assert_eq!(self.asked, None, "one reason is given, once");
                    self.asked = Some((why, self.now));
                }
                A::Tell(SupervisorOrder::Lease(_)) => assert!(self.lease.is_some(), "it is lost"),
                A::Kill => self.check_kill(event),
                A::End(_) => over = true,
                A::SayLost(_) => panic!("a loss is not to be ignored"),
                A::Tell(_) | A::SayStarted(_) => {}
            }
        }
        !over
    }

    fn check_kill(&mut self, event: E) {
        if matches!(event, E::Silence) {
            return;
        }
        assert!(!std::mem::replace(&mut self.killed, true), "once is enough");
        let (why, asked) = self.asked.expect("a reason was given");
        let limit = asked + KILL_AFTER;
        let limit = if is_lost(why) { limit } else { limit.min(self.last_resort()) };
        assert!(self.now >= limit, "killed too early");
    }

    fn last_resort(&self) -> ClockInstant {
        self.course.policy.last_resort(self.course.valid_until)
    }

    /// From here on only time events come, always at once: the command is killed when it must be.
    fn must_be_killed_in_time(mut self) {
        let limit = match self.asked {
            Some((why, asked)) if is_lost(why) => asked + KILL_AFTER + SECOND,
            Some((_, asked)) => self.last_resort().min(asked + KILL_AFTER + SECOND),
            None => self.last_resort(),
        };
        let limit = limit.max(self.now) + CATCH_UP;
        while !self.killed {
            let pause = self.course.wake_at().since(self.now);
            self.step(E::Time, pause, false);
            assert!(self.now <= limit, "it keeps running without its lock");
        }
    }
}

fn is_lost(why: StopReason) -> bool {
    matches!(why, StopReason::Lost(_))
}

#[test]
fn no_course_lets_a_command_run_on_or_kills_it_too_early() {
    let events = [
        E::Report(R::Stopping),
        E::Report(R::Ended(ENDED)),
        E::Lost(TAKEN),
        E::Lost(LostReason::Expired),
        E::Signal(15),
        E::Silence,
        E::Time,
    ];
    let (course, _) = HoldMachine::begin(policy(), TTL, START + TTL, START);
    let begin = Walk { course, now: START, lease: Some(START + TTL), asked: None, killed: false };
    let mut walks = vec![begin];
    for _ in 0..3 {
        let mut further = Vec::new();
        for walk in &walks {
            let asleep = walk.course.deadline().since(walk.now).min(TTL);
            for after in [Duration::ZERO, SECOND, asleep, asleep + 2 * CATCH_UP, asleep + TTL] {
                for (event, renewed) in events.iter().flat_map(|e| [(*e, false), (*e, true)]) {
                    let mut next = walk.clone();
                    if next.step(event, after, renewed) {
                        next.clone().must_be_killed_in_time();
                        further.push(next);
                    }
                }
            }
        }
        walks = further;
    }
    assert!(walks.len() > 50_000, "{}", walks.len());
}
