//! A table of courses, and all courses of three events.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);
const KILL_AFTER: Duration = Duration::from_secs(5);
const START: ClockInstant = ClockInstant::from_nanos(1_000_000_000_000);
const TAKEN: LostReason = LostReason::Taken;
const ENDED: Ended = Ended::Exited(5);

fn policy() -> Policy {
    Policy::new(TTL, KILL_AFTER, Some(START + 20 * SECOND))
}

/// One step: what happened how long after the start, for how long the lease lasted then (`None`: it was
/// lost), and what had to be done.
type Step = (Event, Duration, Option<Duration>, Vec<Action>);

/// Takes the steps, and returns why the command had to stop.
fn course(steps: impl IntoIterator<Item = Step>) -> Option<Why> {
    let (mut course, first) = Course::begin(policy(), TTL, START + TTL, START);
    assert_eq!(first, Order::Lease(policy().deadlines(START + TTL, START)));
    for (event, after, lease, wanted) in steps {
        let actions = course.on(event, lease.map(|until| START + until), START + after);
        assert_eq!(actions, wanted, "{event:?} after {after:?}");
    }
    course.verdict(End::TooLate, LockState::Held).stopped
}

fn lease(until: Duration, now: Duration) -> Action {
    Action::Tell(Order::Lease(policy().deadlines(START + until, START + now)))
}

#[test]
fn every_event_has_its_answer() {
    use {Action as A, Event as E, Report as R};
    let (kept, woken, ms) = (Some(TTL), 2 * TTL, Duration::from_millis);
    let last = START + TTL;
    let last = policy().last_resort(last).since(START);
    let stopping = |why| vec![A::SayStopping(why)];
    let killing = |why| vec![A::SayStopping(why), A::Kill];
    let taken = || vec![A::Tell(Order::Stop), A::SayStopping(Why::Lost(TAKEN))];
    let (ending, end) = (Why::LeaseEnding, || vec![A::End(End::Command(ENDED))]);
    let courses: Vec<(&str, Option<Why>, Vec<Step>)> = vec![
        (
            "nothing happens",
            None,
            vec![
                (E::Report(R::Started(7)), SECOND, kept, vec![A::SayStarted(7)]),
                (E::Signal(15), SECOND, kept, vec![A::Tell(Order::Signal(15))]),
                (E::Time, 2 * SECOND, kept, vec![]),
                (E::Time, 10 * SECOND, Some(40 * SECOND), vec![lease(40 * SECOND, 10 * SECOND)]),
                (E::Report(R::Ended(ENDED)), 31 * SECOND, Some(40 * SECOND), end()),
            ],
        ),
        (
            "the lock is taken: the command has its time",
            Some(Why::Lost(TAKEN)),
            vec![
                (E::Lost(TAKEN), 10 * SECOND, None, taken()),
                (E::Time, 15 * SECOND, None, vec![]),
                (E::Time, 16 * SECOND, None, vec![A::Kill]),
                (E::Time, woken, None, vec![]),
            ],
        ),
        (
            "the lease ends, and the supervisor does nothing",
            Some(ending),
            vec![(E::Time, last - ms(1), kept, vec![]), (E::Time, last, kept, killing(ending))],
        ),
        (
            "the supervisor asks it to stop: that moves no end",
            Some(ending),
            vec![
                (E::Report(R::Stopping), 19 * SECOND, kept, stopping(ending)),
                (E::Time, last, kept, vec![A::Kill]),
            ],
        ),
        (
            "a renewal after the question gives it the time that was named",
            Some(ending),
            vec![
                (E::Report(R::Stopping), 10 * SECOND, kept, stopping(ending)),
                (E::Time, 11 * SECOND, Some(2 * TTL), vec![lease(2 * TTL, 11 * SECOND)]),
                (E::Time, 15 * SECOND, Some(2 * TTL), vec![]),
                (E::Time, 16 * SECOND, Some(2 * TTL), vec![A::Kill]),
            ],
        ),
        (
            "max-hold is named, and the first reason stays",
            Some(Why::MaxHold),
            vec![
                (E::Report(R::Stopping), 20 * SECOND, kept, stopping(Why::MaxHold)),
                (E::Lost(TAKEN), 21 * SECOND, None, vec![]),
                (E::Time, 25 * SECOND, None, vec![]),
                (E::Time, 26 * SECOND, None, vec![A::Kill]),
            ],
        ),
        (
            "after a sleep the reports come first",
            None,
            vec![(E::Time, woken, kept, vec![]), (E::Report(R::Ended(ENDED)), woken, kept, end())],
        ),
        (
            "after a sleep the loss does not come first",
            None,
            vec![
                (E::Lost(LostReason::Expired), woken, None, vec![]),
                (E::Report(R::Ended(ENDED)), woken, None, end()),
            ],
        ),
        (
            "after a sleep without a report it is killed",
            Some(ending),
            vec![
                (E::Lost(LostReason::Expired), woken, None, vec![]),
                (E::Time, woken + CATCH_UP, None, killing(ending)),
            ],
        ),
        (
            "after a sleep a renewal is seen late",
            None,
            vec![
                (E::Time, woken, kept, vec![]),
                (E::Time, woken + CATCH_UP, Some(3 * TTL), vec![lease(3 * TTL, woken + CATCH_UP)]),
            ],
        ),
        (
            "it was too late to start",
            Some(ending),
            vec![(
                E::Report(R::TooLate),
                SECOND,
                kept,
                vec![A::SayStopping(ending), A::End(End::TooLate)],
            )],
        ),
        (
            "a supervisor that vanishes takes the command with it",
            None,
            vec![(E::Silence, SECOND, kept, vec![A::Kill, A::End(End::Unsupervised)])],
        ),
    ];
    for (what, why, steps) in courses {
        println!("{what}");
        assert_eq!(course(steps), why, "{what}");
    }
}

#[test]
fn a_lock_that_was_taken_unseen_counts_at_the_end() {
    let (course, _) = Course::begin(policy(), TTL, START + TTL, START);
    let end = End::Command(ENDED);
    assert_eq!(course.verdict(end, LockState::Lost(TAKEN)).stopped, Some(Why::Lost(TAKEN)));
    assert_eq!(course.verdict(end, LockState::Lost(LostReason::Expired)).stopped, None);
}

/// Where one of all courses stands.
#[derive(Clone)]
struct Walk {
    course: Course,
    now: ClockInstant,
    lease: Option<ClockInstant>,
    /// When and why the command had to stop.
    asked: Option<(Why, ClockInstant)>,
    killed: bool,
}

impl Walk {
    /// One more event, `after` the last; `false` at the end.
    fn step(&mut self, event: Event, after: Duration, renewed: bool) -> bool {
        self.now = self.now + after;
        self.lease = match event {
            Event::Lost(_) => None,
            _ if renewed => self.lease.map(|_| self.now + TTL),
            _ => self.lease,
        };
        let mut over = false;
        for action in self.course.on(event, self.lease, self.now) {
            match action {
                Action::SayStopping(why) => {
                    assert_eq!(self.asked, None, "one reason is given, once");
                    self.asked = Some((why, self.now));
                }
                Action::Tell(Order::Lease(_)) => assert!(self.lease.is_some(), "it is lost"),
                Action::Kill => self.check_kill(event),
                Action::End(_) => over = true,
                Action::Tell(_) | Action::SayStarted(_) => {}
            }
        }
        !over
    }

    fn check_kill(&mut self, event: Event) {
        if matches!(event, Event::Silence) {
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

    /// From here on nothing comes but the time, always at once: the command is killed when it must be.
    fn is_killed_in_time(mut self) {
        let limit = match self.asked {
            Some((why, asked)) if is_lost(why) => asked + KILL_AFTER + SECOND,
            Some((_, asked)) => self.last_resort().min(asked + KILL_AFTER + SECOND),
            None => self.last_resort(),
        };
        let limit = limit.max(self.now) + CATCH_UP;
        while !self.killed {
            let pause = self.course.wake_at().since(self.now);
            self.step(Event::Time, pause, false);
            assert!(self.now <= limit, "it runs on without its lock");
        }
    }
}

fn is_lost(why: Why) -> bool {
    matches!(why, Why::Lost(_))
}

#[test]
fn no_course_lets_a_command_run_on_or_kills_it_too_early() {
    let events = [
        Event::Report(Report::Stopping),
        Event::Report(Report::Ended(ENDED)),
        Event::Lost(TAKEN),
        Event::Lost(LostReason::Expired),
        Event::Signal(15),
        Event::Silence,
        Event::Time,
    ];
    let (course, _) = Course::begin(policy(), TTL, START + TTL, START);
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
                        next.clone().is_killed_in_time();
                        further.push(next);
                    }
                }
            }
        }
        walks = further;
    }
    assert!(walks.len() > 50_000, "{}", walks.len());
}
